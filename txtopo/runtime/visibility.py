"""Visible transactions, which a topology has committed as a whole, for readers of its stores: asked
for once, awaited, or asked for again until a reading fits.

Programs ask here again and again, while ``command.show_state`` shows all state to a person.
``stores.visible`` chooses the version of each row, and knows no ZooKeeper.

Runs on: the reader's machine. Needs neither Spark nor the topology, only the topology's ZooKeeper,
or its data directory on this machine.

Invariants: an answer was the state at one moment, and is never taken back. A later answer is not a
smaller txid, unless the topology's state was reset.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from txtopo import config, errors
from txtopo.state import base, credentials, directory, layout, opening, recorded, records
from txtopo.stores import visible

T = TypeVar("T")

POLL_S = 0.02
"""Pause between two looks while a transaction is waited for."""

READ_TRIES_MAX = 100
"""How often to read a state that changes meanwhile, before an error is raised."""


class Visibility:
    """The committed transactions of the topology ``topology_id``. A context manager, which keeps a
    connection.

    :param zookeeper: ``host:port[/chroot]`` of the ensemble that the topology's runs were given.
    :param data_dir: the data directory of the runs, if they were given no ensemble. While no run
        has the directory, the files of its ZooKeeper are read.
    :param conf: the settings ``zookeeper``, ``data_dir``, ``zookeeper_root`` and credentials, where
        no argument says otherwise. By default the settings of a run that is started here.
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
        self._pid = os.getpid()

    def txid(self) -> visible.VisibleTxid:
        """The last transaction whose commit is recorded, or 0 if there is none yet.

        :raises errors.UsageError: there is no such topology.
        :raises errors.ZooKeeperUnavailableError: its ZooKeeper does not answer.
        """
        return opening.asked_again(self._look, self._zookeeper)

    def wait(self, txid: int, timeout_s: float = 60.0) -> visible.VisibleTxid:
        """Wait until transaction ``txid`` is visible: every effect is in its store, and will never
        be replayed. Returns the visible txid.

        The topology need not have begun. A ZooKeeper that goes away meanwhile is waited for, too.

        :raises TimeoutError: the transaction is not visible after ``timeout_s`` seconds. Says how
            far the topology has come.
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
        """``reading(visible)`` for the txid that is visible now. Called again for a newer txid,
        while a store has gone on too far.

        ``reading`` should open every ``items`` and ``scan`` before it reads the first to the end:
        opening fixes the version of the rows, however long the reading takes.

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
        """End the connection. The next question opens it again."""
        self._store = None
        self._live.close()

    def __enter__(self) -> Visibility:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _look(self) -> visible.VisibleTxid:
        try:
            with self._state() as store:
                if store is None:
                    raise errors.UsageError(opening.nothing_stored(self._data_dir))
                return self._read(store)
        except errors.ZooKeeperUnavailableError:
            # The next question opens another connection: this connection may have ended for good.
            self.close()
            raise

    @contextlib.contextmanager
    def _state(self) -> Any:
        """The state. A connection to a server is kept."""
        if self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
        if self._store is not None:
            yield self._store
            return
        with contextlib.ExitStack() as connections:
            place = opening.Place(
                self._data_dir,
                self._zookeeper,
                self._conf.zookeeper_root,
                credentials.of(self._conf),
            )
            opened = connections.enter_context(opening.opened(place, self._files))
            if opened is not None and not isinstance(opened.store, recorded.RecordedStateStore):
                self._store = opened.store
                self._live.push(connections.pop_all())
            yield None if opened is None else opened.store

    def _read(self, store: base.StateStore) -> visible.VisibleTxid:
        """Read the visible txid. Every write changes ``current``: if two readings of ``current``
        are equal, no state has changed between them."""
        paths = self._paths
        places = [paths.current, paths.generation, paths.stores, paths.current]
        for _ in range(READ_TRIES_MAX):
            first, second, third, last = store.get_many(places)
            before = records.CurrentRecord.of_node(paths.current, first)
            if before is None:
                raise errors.UsageError(
                    f"there is no state of a topology {paths.topology_id!r} in {store.address}\n  Look with `txtopo status`."
                )
            generation = records.GenerationRecord.of_node(paths.generation, second)
            stores = records.StoresRecord.of_node(paths.stores, third)
            if records.CurrentRecord.of_node(paths.current, last) == before:
                if generation is None or stores is None:
                    missing = paths.generation if generation is None else paths.stores
                    raise errors.UnreadableStateError(
                        missing, "it is missing, although the topology has a current txid"
                    )
                return visible.VisibleTxid(
                    before.current - 1,
                    paths.topology_id,
                    generation.generation,
                    stores.attempts,
                    generation.restored,
                )
        raise errors.ZooKeeperUnavailableError(
            f"the state of topology {paths.topology_id!r} changed {READ_TRIES_MAX} times while it was read\n  Try again."
        )


def visible_txid(
    topology_id: str,
    *,
    zookeeper: str | None = None,
    data_dir: str | Path | None = None,
    conf: config.Config | Mapping[str, Any] | None = None,
) -> visible.VisibleTxid:
    """The last transaction that a topology has committed as a whole, or 0: an ``int``, which stores
    take as ``as_of=``.

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
    """Wait until a topology has committed transaction ``txid`` as a whole, and return the visible
    txid. See :meth:`Visibility.wait`."""
    with Visibility(topology_id, zookeeper=zookeeper, data_dir=data_dir, conf=conf) as visibility:
        return visibility.wait(txid, timeout_s)
