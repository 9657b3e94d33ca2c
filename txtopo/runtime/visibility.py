"""The transactions of a topology that are committed as a whole, for readers of its stores: asked
once, awaited, or asked again until a reading fits.

Apart from ``command.show_state``, which shows all state to a person: programs read the visible txid
again and again. Apart from ``stores.visible``, which chooses the version of each row, and knows no
ZooKeeper.

Runs on: the machine of the reader. Neither Spark nor the topology is needed, only the ZooKeeper of
the topology, or its data directory on this machine.

Invariants: an answer was the state of one moment, and is never taken back: a later answer is not a
smaller txid, unless the state of the topology was reset.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from txtopo import config, errors
from txtopo.state import base, credentials, directory, layout, opening, recorded, records
from txtopo.stores import visible

T = TypeVar("T")

POLL_S = 0.02
"""Pause between two looks while a transaction is waited for."""

READ_TRIES_MAX = 100
"""How often a state that changes while it is read is read anew, before an error is raised."""


class Visibility:
    """The committed transactions of the topology ``topology_id``. A context manager, which keeps a
    connection.

    :param zookeeper: ``host:port[/chroot]`` of the ensemble that the topology's runs were given.
    :param data_dir: the data directory of the runs, if they were given no ensemble; while no run
        has the directory, the files of its ZooKeeper are read.
    :param conf: the settings ``zookeeper``, ``data_dir``, ``zookeeper_root`` and credentials, where
        no argument says otherwise; by default the settings of a run that is started here.
    """

    def __init__(
        self,
        topology_id: str,
        *,
        zookeeper: str | None = None,
        data_dir: str | Path | None = None,
        conf: config.Config | Mapping[str, Any] | None = None,
    ) -> None:
        if zookeeper is not None and data_dir is not None:
            raise errors.UsageError(
                "the state is either in a data_dir or in a zookeeper\n  Give one of them."
            )
        self._conf = config.resolve(conf).config
        self._paths = layout.Layout(topology_id)
        self._data_dir = Path(data_dir or self._conf.data_dir or directory.DEFAULT)
        self._zookeeper = (
            zookeeper if zookeeper is not None or data_dir is not None else self._conf.zookeeper
        )
        self._files = recorded.files_of(self._data_dir)
        self._live = contextlib.ExitStack()
        self._store: base.StateStore | None = None

    def txid(self) -> visible.VisibleTxid:
        """The last transaction whose commit is recorded; 0 if there is none yet.

        :raises errors.UsageError: there is no such topology.
        :raises errors.ZooKeeperUnavailableError: its ZooKeeper does not answer.
        """
        return opening.asked_again(self._look, self._zookeeper)

    def wait(self, txid: int, timeout_s: float = 60.0) -> visible.VisibleTxid:
        """Wait until transaction ``txid`` is visible: every effect is in its store, and will never
        be replayed. Returns the visible txid.

        The topology need not have begun. A ZooKeeper that goes away meanwhile is waited for, too.

        :raises TimeoutError: it is not visible after ``timeout_s`` seconds; says how far the
            topology has come.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                latest = self.txid()
                if latest >= txid:
                    return latest
                came = f"transaction {int(latest)} is"
            except (errors.UsageError, errors.ZooKeeperUnavailableError) as error:
                came = str(error).partition("\n")[0]
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"transaction {txid} of topology {self._paths.topology_id!r} is not visible after {timeout_s:g} s: {came}"
                )
            time.sleep(POLL_S)

    def read(self, reading: Callable[[visible.VisibleTxid], T], timeout_s: float = 60.0) -> T:
        """``reading(visible)`` for the txid that is visible now; called again for a newer txid,
        while a store has gone on too far.

        ``reading`` should open every ``items`` and ``scan`` before the first is read to its end:
        the call fixes the version of the rows, however long the reading takes.

        :raises errors.OutrunError: the stores were too fast for ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return reading(self.txid())
            except errors.OutrunError:
                if time.monotonic() >= deadline:
                    raise

    def close(self) -> None:
        """End the connection; the next question opens it again."""
        self._store = None
        self._live.close()

    def __enter__(self) -> Visibility:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _look(self) -> visible.VisibleTxid:
        try:
            with self._opened() as store:
                if store is None:
                    raise errors.UsageError(opening.nothing_stored(self._data_dir))
                return self._read(store)
        except errors.ZooKeeperUnavailableError:
            # The next question opens another connection: this connection may have ended for good.
            self.close()
            raise

    @contextlib.contextmanager
    def _opened(self) -> Any:
        """The state; a connection to a server is kept."""
        if self._store is not None:
            yield self._store
            return
        with contextlib.ExitStack() as connections:
            where = opening.opened(
                self._data_dir,
                self._zookeeper,
                self._conf.zookeeper_root,
                credentials.of(self._conf),
                self._files,
            )
            opened = connections.enter_context(where)
            if opened is not None and not isinstance(opened.store, recorded.RecordedStateStore):
                self._store = opened.store
                self._live.push(connections.pop_all())
            yield None if opened is None else opened.store

    def _read(self, store: base.StateStore) -> visible.VisibleTxid:
        """The content of ``current``, which every write changes: if two readings of ``current`` are
        equal, no state has changed between them."""
        paths = self._paths
        for _ in range(READ_TRIES_MAX):
            before = _record(store, paths.current, records.CurrentRecord)
            if before is None:
                raise errors.UsageError(
                    f"there is no state of a topology {paths.topology_id!r} in {store.address}\n  Look with `txtopo status`."
                )
            generation = _record(store, paths.generation, records.GenerationRecord)
            stores = _record(store, paths.stores, records.StoresRecord)
            if _record(store, paths.current, records.CurrentRecord) == before:
                if generation is None or stores is None:
                    missing = paths.generation if generation is None else paths.stores
                    raise errors.UnreadableStateError(
                        missing, "it is missing, although the topology has a current txid"
                    )
                return visible.VisibleTxid(
                    before.current - 1, paths.topology_id, generation.generation, stores.attempts
                )
        raise errors.ZooKeeperUnavailableError(
            f"the state of topology {paths.topology_id!r} changed {READ_TRIES_MAX} times while it was read\n  Try again."
        )


R = TypeVar("R", bound=records.Record)


def _record(store: base.StateStore, path: str, kind: type[R]) -> R | None:
    node = store.get(path)
    return None if node is None else kind.decode(path, node.data)


def visible_txid(
    topology_id: str,
    *,
    zookeeper: str | None = None,
    data_dir: str | Path | None = None,
    conf: config.Config | Mapping[str, Any] | None = None,
) -> visible.VisibleTxid:
    """The last transaction of a topology that is committed as a whole, 0 if there is none: an
    ``int``, which stores take as ``as_of=``.

    Each call opens a connection. A program that asks again and again uses :class:`Visibility`, with
    the same arguments.
    """
    with Visibility(topology_id, zookeeper=zookeeper, data_dir=data_dir, conf=conf) as visibility:
        return visibility.txid()


def wait_until_visible(
    topology_id: str,
    txid: int,
    timeout_s: float = 60.0,
    *,
    zookeeper: str | None = None,
    data_dir: str | Path | None = None,
    conf: config.Config | Mapping[str, Any] | None = None,
) -> visible.VisibleTxid:
    """Wait until transaction ``txid`` of a topology is committed as a whole; what is visible then.
    See :meth:`Visibility.wait`."""
    with Visibility(topology_id, zookeeper=zookeeper, data_dir=data_dir, conf=conf) as visibility:
        return visibility.wait(txid, timeout_s)
