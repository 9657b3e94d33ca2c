"""Opens stored state from another process, for readers and for commands that change the state,
whether a run owns the state or not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from txtopo import errors
from txtopo.state import (
    administration,
    base,
    credentials,
    directory,
    layout,
    liveness,
    recorded,
    znode_files,
)
from txtopo.state.embedded import EmbeddedZooKeeper
from txtopo.state.zookeeper import ZooKeeperStateStore

T = TypeVar("T")

CONNECT_S = 2.0
"""How long a reader tries to reach a data directory's server before it reads the files: a server
that has just ended never answers."""

LOOKS_MAX = 10
"""How often a reader looks again when the server ends meanwhile. Each time another run would have
to begin and end."""

STARTING_WAIT_S = 30.0
"""How long a command that changes the state waits for a server that its owner is just starting."""

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """Where the state is: in ``zookeeper`` as ``login``, or else in ``data_dir``, under ``root``."""

    data_dir: Path
    zookeeper: str | None = None
    root: str = "/txtopo"
    login: credentials.Credentials | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """Stored state, open. ``where`` names the place. ``is_live`` is False when no run owns its
    ZooKeeper: then a lease there belongs to a dead coordinator."""

    store: base.StateStore
    where: str
    is_live: bool


def look(reading: Callable[[Opened | None], T], place: Place) -> T:
    """Return ``reading`` of the state, as :func:`opened` opens it. Call ``reading`` again if the
    run whose ZooKeeper was asked ends meanwhile."""

    def ask() -> T:
        with opened(place) as state:
            return reading(state)

    return asked_again(ask, place.zookeeper)


def asked_again(ask: Callable[[], T], zookeeper: str | None) -> T:
    """Return ``ask()``. If the state is in a data directory, and the asked ZooKeeper ended with its
    run, call ``ask()`` again: that run's records are in the files.

    :raises errors.ZooKeeperUnavailableError: an ensemble does not answer, or each time another run
        has begun and ended.
    """
    for looks in range(1, LOOKS_MAX + 1):
        try:
            return ask()
        except base.StateUnavailableError as error:
            if zookeeper is not None or looks == LOOKS_MAX:
                raise errors.ZooKeeperUnavailableError(
                    f"ZooKeeper does not answer: {error}\n  Try again when ZooKeeper answers."
                ) from error
    raise AssertionError("unreachable")


@contextlib.contextmanager
def opened(place: Place, files: znode_files.ZnodeFiles | None = None) -> Iterator[Opened | None]:
    """The state at ``place``, for a reader. ``None`` if nothing was ever stored there.

    Asks a server that runs in the data directory. Without a server, reads the directory's ``files``
    as they are. A reader starts no server and holds no lock, so it keeps no run from starting
    (R37).
    """
    if place.zookeeper is not None:
        with contextlib.closing(
            ZooKeeperStateStore(place.zookeeper, place.root, login=place.login)
        ) as store:
            yield Opened(store, store.address, is_live=True)
        return
    data_dir = place.data_dir
    is_owned = directory.is_owned(data_dir)
    live = _running_store(place)
    if live is not None:
        with contextlib.closing(live):
            yield Opened(live, str(data_dir), is_live=True)
        return
    still = recorded.RecordedStateStore(data_dir, place.root, files or recorded.files_of(data_dir))
    yield None if still.is_empty else Opened(still, str(data_dir), is_live=is_owned)


def _running_store(place: Place) -> ZooKeeperStateStore | None:
    running = directory.running(place.data_dir)
    if running is None:
        return None
    owner = _owner(place.data_dir)
    try:
        return ZooKeeperStateStore(
            running.hosts, place.root, CONNECT_S, login=place.login, owner=owner
        )
    except errors.ZooKeeperAccessError:
        raise
    except errors.ZooKeeperUnavailableError:
        # Its run has just ended, or is reviving the server. All answers are in the files.
        return None


@contextlib.contextmanager
def owned(place: Place) -> Iterator[Opened | None]:
    """The state at ``place``, for a command that changes the state. ``None`` if nothing was ever
    stored there.

    Uses a server that runs in the data directory, or starts one until the context ends.

    :raises errors.ZooKeeperUnavailableError: ZooKeeper does not answer, and the state may or may
        not have been changed.
    """
    try:
        with _owned(place) as state:
            yield state
    except base.StateUnavailableError as error:
        raise errors.ZooKeeperUnavailableError(
            f"ZooKeeper does not answer: {error}\n"
            "  The state was changed as a whole, or not at all. When ZooKeeper answers, look with `txtopo status`, and type the command again."
        ) from error


@contextlib.contextmanager
def _owned(place: Place) -> Iterator[Opened | None]:
    if place.zookeeper is not None:
        with opened(place) as state:
            yield state
        return
    data_dir = place.data_dir
    endpoint, embedded = _server(data_dir)
    if endpoint is None:
        yield None
        return
    try:
        with contextlib.closing(
            ZooKeeperStateStore(endpoint, place.root, login=place.login, owner=_owner(data_dir))
        ) as store:
            yield Opened(store, str(data_dir), is_live=embedded is None)
    finally:
        if embedded is not None:
            embedded.stop()


def _owner(data_dir: Path) -> credentials.Credentials | None:
    try:
        return credentials.owner_of_directory(data_dir)
    except OSError as error:
        raise directory.unusable(data_dir, error) from error


def _server(data_dir: Path) -> tuple[str | None, EmbeddedZooKeeper | None]:
    """Address of the server in ``data_dir``, and the server if this call started it. Both None
    without stored state."""
    deadline = time.monotonic() + STARTING_WAIT_S
    while True:
        running = directory.running(data_dir)
        if running is not None:
            return running.hosts, None
        if not (data_dir / "zookeeper" / "version-2").is_dir():
            return None, None
        try:
            embedded = EmbeddedZooKeeper(data_dir).start()
        except errors.FencedError:
            # Owned, but not serving yet, or not any more.
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return embedded.hosts, embedded


def nothing_stored(data_dir: Path) -> str:
    """The message where there is no state."""
    return (
        f"nothing is stored in {data_dir}: no topology has run with this data directory\n"
        "  Name another directory with `--data-dir DIR`, or an ensemble with `--zookeeper HOST:PORT`."
    )


def require(state: Opened | None, data_dir: Path) -> Opened:
    """Return ``state``, or raise UsageError if nothing is stored."""
    if state is None:
        raise errors.UsageError(nothing_stored(data_dir))
    return state


def holder(state: Opened, topology_id: str) -> dict[str, Any] | None:
    """The coordinator that runs the topology now, as its lease says. ``None`` without a lease."""
    node = state.store.get(layout.Layout(topology_id).lease) if state.is_live else None
    return None if node is None else living(administration.show(state.store, topology_id)["lease"])


def living(lease: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return ``lease``, unless its holder has certainly died and ZooKeeper has not noticed yet."""
    return (
        None
        if lease is not None and liveness.has_certainly_died(lease.get("process", ""))
        else lease
    )
