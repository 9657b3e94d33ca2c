"""Looking at what topologies have stored, from another process: while they run, and when nothing does.

Apart from ``state.administration`` (what there is) because this is how to get there, and how it looks to a person.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from txtopo import errors
from txtopo.state import acceptance, administration, base, credentials, directory, layout, liveness, recorded, znode_files
from txtopo.state.embedded import EmbeddedZooKeeper
from txtopo.state.zookeeper import ZooKeeperStateStore

T = TypeVar("T")

CONNECT_S = 2.0
"""How long a reader tries to reach the server of a data directory before it reads the files: a server that has just ended never answers."""

LOOKS_MAX = 10
"""How often a reader looks anew whose server ended meanwhile; each time another run would have to begin and end."""

STARTING_WAIT_S = 15.0
"""How long a command that changes something waits for the server of a directory whose owner is just starting it."""

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Opened:
    """Stored state, open. ``where`` names it; ``is_live`` is False when no run owns its ZooKeeper, so that a lease that is found is a dead one's."""

    store: base.StateStore
    where: str
    is_live: bool


def look(
    reading: Callable[[Opened | None], T],
    data_dir: Path,
    zookeeper: str | None = None,
    root: str = "/txtopo",
    who: credentials.Credentials | None = None,
) -> T:
    """``reading`` of the state, as :func:`opened` opens it; called again if a run ends meanwhile whose ZooKeeper was asked."""

    def ask() -> T:
        with opened(data_dir, zookeeper, root, who) as found:
            return reading(found)

    return asked_again(ask, zookeeper)


def asked_again(ask: Callable[[], T], zookeeper: str | None) -> T:
    """``ask()``; where the state is in a data directory, again if the run has ended whose ZooKeeper was asked: what that recorded is in the files.

    :raises errors.ZooKeeperUnavailableError: an ensemble does not answer; or each time another run has begun and ended.
    """
    for looks in range(1, LOOKS_MAX + 1):
        try:
            return ask()
        except base.StateUnavailableError as error:
            if zookeeper is not None or looks == LOOKS_MAX:
                raise errors.ZooKeeperUnavailableError(f"ZooKeeper does not answer: {error}\n  Try again when it does.") from error
    raise AssertionError("unreachable")


@contextlib.contextmanager
def opened(
    data_dir: Path,
    zookeeper: str | None = None,
    root: str = "/txtopo",
    who: credentials.Credentials | None = None,
    files: znode_files.ZnodeFiles | None = None,
) -> Iterator[Opened | None]:
    """The state in ``zookeeper``, or else in ``data_dir``, for a reader; ``None`` if nothing was ever stored there.

    A server that runs in ``data_dir`` is asked. Otherwise ``files``, those of ``data_dir``, are read as they are: a reader starts nothing and holds
    nothing, so that it keeps no run from starting (R37).
    """
    if zookeeper is not None:
        with contextlib.closing(ZooKeeperStateStore(zookeeper, root, who=who)) as store:
            yield Opened(store, store.address, is_live=True)
        return
    is_owned = directory.is_owned(data_dir)
    live = _running_store(data_dir, root, who)
    if live is not None:
        with contextlib.closing(live):
            yield Opened(live, str(data_dir), is_live=True)
        return
    still = recorded.RecordedStateStore(data_dir, root, files or recorded.files_of(data_dir))
    yield None if still.is_empty else Opened(still, str(data_dir), is_live=is_owned)


def _running_store(data_dir: Path, root: str, who: credentials.Credentials | None) -> ZooKeeperStateStore | None:
    running = directory.running(data_dir)
    if running is None:
        return None
    try:
        return ZooKeeperStateStore(running.hosts, root, CONNECT_S, who=who, owner=_owner(data_dir))
    except errors.ZooKeeperAccessError:
        raise
    except errors.ZooKeeperUnavailableError:
        # Its run has just ended, or revives it. What it has answered is in the files.
        return None


@contextlib.contextmanager
def owned(
    data_dir: Path, zookeeper: str | None = None, root: str = "/txtopo", who: credentials.Credentials | None = None
) -> Iterator[Opened | None]:
    """The state in ``zookeeper``, or else in ``data_dir``, for a command that changes it; ``None`` if nothing was ever stored there.

    A server that runs in ``data_dir`` is used, otherwise one is started for as long as this lasts.

    :raises errors.ZooKeeperUnavailableError: it does not answer, so that nothing tells whether the state was changed.
    """
    try:
        with _owned(data_dir, zookeeper, root, who) as found:
            yield found
    except base.StateUnavailableError as error:
        raise errors.ZooKeeperUnavailableError(
            f"ZooKeeper does not answer: {error}\n"
            "  The state was changed as a whole, or not at all. When ZooKeeper answers, look with `txtopo status`, and type the command again."
        ) from error


@contextlib.contextmanager
def _owned(data_dir: Path, zookeeper: str | None, root: str, who: credentials.Credentials | None) -> Iterator[Opened | None]:
    if zookeeper is not None:
        with opened(data_dir, zookeeper, root, who) as found:
            yield found
        return
    endpoint, embedded = _server(data_dir)
    if endpoint is None:
        yield None
        return
    try:
        with contextlib.closing(ZooKeeperStateStore(endpoint, root, who=who, owner=_owner(data_dir))) as store:
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
    """Where the server of ``data_dir`` listens, and the server if it was started here."""
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
    """What to say where there is no state."""
    return (
        f"nothing is stored in {data_dir}: no topology has run with this data directory\n"
        "  Another one is named with `--data-dir DIR`, an ensemble with `--zookeeper HOST:PORT`."
    )


def require(found: Opened | None, data_dir: Path) -> Opened:
    """``found``, which must be there."""
    if found is None:
        raise errors.UsageError(nothing_stored(data_dir))
    return found


def status_of(found: Opened, topology_id: str) -> dict[str, Any]:
    """How a topology stands, as JSON-able values.

    Keys: ``topology_id``, ``running``, ``current`` (the next txid to commit), ``committed`` (the last committed one, 0 if none), ``generation``,
    ``epoch``, ``lease`` (who runs it, or None), ``transactions`` (those that are not committed, by txid: status and sealing attempt). What cannot
    be understood is shown as ``administration.show`` shows it.
    """
    shown = administration.show(found.store, topology_id)
    current, lease = shown["current"], _living(shown["lease"]) if found.is_live else None
    known = isinstance(current, int)
    open_records = {txid: record for txid, record in shown["records"].items() if not (known and txid.isdecimal() and int(txid) < current)}
    return {
        "topology_id": topology_id,
        "running": lease is not None,
        "current": current,
        "committed": current - 1 if known else current,
        "generation": shown["generation"],
        "epoch": shown["epoch"],
        "lease": lease,
        "transactions": {txid: _brief(record) for txid, record in open_records.items()},
    }


def _brief(record: dict[str, Any]) -> dict[str, Any]:
    return record if "unreadable" in record else {"status": record["status"], "attempt_id": record["attempt_id"]}


def holder(found: Opened, topology_id: str) -> dict[str, Any] | None:
    """Who runs the topology now, as its lease says; ``None`` if nobody does."""
    node = found.store.get(layout.Layout(topology_id).lease) if found.is_live else None
    return None if node is None else _living(administration.show(found.store, topology_id)["lease"])


def _living(lease: dict[str, Any] | None) -> dict[str, Any] | None:
    """``lease``, unless who left it has certainly died: then it is only ZooKeeper that has not noticed yet."""
    return None if lease is not None and liveness.has_certainly_died(lease.get("process", "")) else lease


# -- as text -----------------------------------------------------------------------------------------------------------------


def status_text(status: dict[str, Any]) -> str:
    """One topology, in a few lines."""
    current = status["current"]
    lines = [
        f"topology {status['topology_id']}",
        f"  committed     {plain(status['committed']) if status['committed'] != 0 else 'nothing yet'}",
        f"  next txid     {plain(current)}",
        f"  coordinator   {holder_text(status['lease'])}",
        f"  generation    {plain(status['generation'])}, epoch {plain(status['epoch'])}",
    ]
    if status["transactions"]:
        lines.append(f"  open          {', '.join(f'{txid} {_open_text(record)}' for txid, record in status['transactions'].items())}")
    return "\n".join(lines)


def holder_text(lease: dict[str, Any] | None) -> str:
    """Who runs a topology."""
    if lease is None:
        return "not running"
    if "unreadable" in lease:
        return plain(lease)
    return f"pid {lease['pid']} on {lease['host']} since {lease['started']}, run {lease['name']!r}"


def _open_text(record: dict[str, Any]) -> str:
    if "unreadable" in record:
        return plain(record)
    return f"sealed (by attempt {record['attempt_id']})" if record["status"] == "sealed" else "open"


def plain(value: Any) -> str:
    """``value`` as text, also one that could not be understood."""
    return f"unreadable: {value['unreadable']}" if isinstance(value, dict) and "unreadable" in value else str(value)


def state_text(shown: dict[str, Any], is_live: bool) -> str:
    """Everything that is stored of one topology; ``shown`` comes from ``administration.show``."""
    lines = [
        f"topology {shown['topology_id']}",
        f"  generation    {plain(shown['generation'])}",
        f"  epoch         {plain(shown['epoch'])}",
        f"  current       {plain(shown['current'])}",
        f"  lease         {holder_text(shown['lease'] if is_live else None)}",
        f"  stores        {_stores_text(shown)}",
        *_made_of_lines(shown["components"]),
        "  transactions" + ("" if shown["records"] else "  none"),
    ]
    lines.extend(f"    {txid:<10} {_record_text(record)}" for txid, record in shown["records"].items())
    lines.append("  positions of the source, by partition" + ("" if shown["positions"] else "  none"))
    lines.extend(f"    {partition:<10} {plain(position)}" for partition, position in shown["positions"].items())
    return "\n".join(lines)


def _made_of_lines(made_of: dict[str, Any] | None) -> list[str]:
    if made_of is None:
        return []
    return [f"  components    {plain(made_of)}"] if "unreadable" in made_of else [f"  {line}" for line in acceptance.shown(made_of)]


def _record_text(record: dict[str, Any]) -> str:
    if "unreadable" in record:
        return plain(record)
    opened = f", opened {record['opened_at']}" if record["opened_at"] is not None else ""
    return f"{record['status']:<6} attempt {record['attempt_id']}, tasks {record['tasks']}, metadata {record['metadata']}{opened}"


def _stores_text(shown: dict[str, Any]) -> str:
    """The stores, each with the last recorded attempt that opened it, and how many store transactions that made (R34)."""
    if not isinstance(shown["stores"], list):
        return plain(shown["stores"])
    each = (f"{name} (at {shown['recorded'][name]}, {_count_text(shown['counts'][name])})" for name in shown["stores"])
    return ", ".join(each) or "none"


def _count_text(count: int | None) -> str:
    return "not counted" if count is None else f"{count} store transaction{'' if count == 1 else 's'}"


__all__ = [
    "Opened",
    "holder",
    "holder_text",
    "look",
    "nothing_stored",
    "opened",
    "owned",
    "plain",
    "require",
    "state_text",
    "status_of",
    "status_text",
]
