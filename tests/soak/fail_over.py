"""A fail-over to lagging copies: the stores of every workload are lost, and the replica's content
takes their place.

A server has a real replica (see ``replication``), which is promoted when the primary is killed.
SQLite has copies. Both are stopped at a moment that the nemesis chooses: best in the middle of a
commit, when they have a part of the attempt that is recorded a moment later.

The run must go on right, or be refused with exit code 6. A refusal is right if the replica lacks a
store transaction that was recorded. Then the store as it was when it was lost is put back, which is
the newest copy there can be, and the run must go on.

Apart from ``nemeses`` because a refusal comes when a driver says so, and not when the nemesis acts.

Invariants:
    - No driver lives, and no process of one, while a store is taken away or put back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from tests.servers.owned import Server
from tests.servers.replication import Replicated
from tests.soak import replicas
from tests.soak.workloads import WORKLOADS
from tests.soak.world import World
from txtopo.state import administration
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.stores import SqliteStore, Store

RECORD_WITHIN_S = 10.0
"""An attempt that is being written is recorded within this time, or has failed."""

At = tuple[int, int, int]
"""Where a component stands in a store: txid, attempt, store transactions of that attempt."""

Lacking = Literal["nothing", "a part of an attempt", "attempts"]
"""The part that a store lacks of the transactions recorded in ZooKeeper."""


class FailOver:
    """The stores of a trial, and copies of them."""

    def __init__(
        self, world: World, note: Callable[[str], None], servers: Replicated | None = None
    ) -> None:
        self._world, self._note, self._servers = world, note, servers
        self._stores: dict[str, dict[str, Store]] = {
            name: WORKLOADS[name].stores(world) for name in world.workloads
        }
        self._port = 0 if servers is None else servers.primary.port
        self._copies: dict[str, list[replicas.PutBack]] = {}
        """By workload: a function that puts the copies in the place of its stores. Servers have
        none.
        """
        self._whole: dict[str, list[replicas.PutBack]] = {}
        """By workload that goes on over a replica: a function that puts its stores back as they
        were at the loss."""
        self._began_at: dict[str, int] = {}
        self._number = 0
        self._has_replica = True
        self.refusals = 0

    @property
    def workloads(self) -> tuple[str, ...]:
        """Whose stores they are."""
        return self._world.workloads

    def prepare(self) -> None:
        """Have a replica; the one before may have been promoted."""
        if self._servers is not None and not self._has_replica:
            self._servers.renew()
        self._has_replica = True

    def stop(self, first: str = "") -> None:
        """Have the replica keep its present content, of the workload ``first`` before others."""
        if self._servers is not None:
            self._servers.stop_replica()
        else:
            self._copies = self._copied(first)

    def go_on(self) -> None:
        """Have the replica catch up."""
        if self._servers is not None:
            self._servers.go_on()

    def stop_in_a_part(self, workloads: Sequence[str], within_s: float) -> bool:
        """Stop the replica while it has a part of an attempt at one of ``workloads``, and return
        when that attempt is recorded, and no later one. False if that did not happen: the replica
        goes on."""
        recorded = {workload: self._recorded(workload) for workload in workloads}
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            for workload in workloads:
                for name, store in self._stores[workload].items():
                    for component, at in _standing(store, workload):
                        whole = recorded[workload].get((component, name))
                        if (
                            whole is not None
                            and _is_part(at, whole)
                            and self._has_stopped(workload, name, component, whole)
                        ):
                            return True
        return False

    def _has_stopped(self, workload: str, name: str, component: str, whole: At) -> bool:
        """Stop the replica; whether it has a part of an attempt, and that is recorded now."""
        self.stop(workload)
        held = dict(_standing(self._replica_of(workload, name), workload)).get(component)
        if (
            held is not None
            and _is_part(held, whole)
            and self._is_recorded(workload, (component, name), held)
        ):
            return True
        self._note(
            f"{workload}: at {held} the replica could not be stopped in a part of {component!r}"
        )
        self.go_on()
        return False

    def _is_recorded(self, workload: str, name: tuple[str, str], held: At) -> bool:
        """Whether the attempt that ``held`` is a part of has been recorded, and no later one."""
        until = time.monotonic() + RECORD_WITHIN_S
        while time.monotonic() < until:
            at = self._recorded(workload)[name]
            if at[:2] >= held[:2]:
                return at[:2] == held[:2] and at > held
        return False

    def lose(self, current: Callable[[str], int]) -> None:
        """Put the stopped copies in the place of the stores; ``current`` is the next txid of a
        workload."""
        if self._servers is not None:
            self._whole = self._fail_over(self._servers)
        else:
            copies, self._whole = self._copies, self._copied()
            for put_back in (put_back for put_backs in copies.values() for put_back in put_backs):
                put_back()
        self._began_at = {workload: current(workload) for workload in self._stores}

    def _fail_over(self, servers: Replicated) -> dict[str, list[replicas.PutBack]]:
        """Promote the replica; the old primary's content, by workload."""
        old = servers.fail_over()
        self._has_replica = False
        old.start()
        try:
            return {
                workload: [
                    replicas.copy_of(self._in(old, workload, name), Path(), store)
                    for name, store in stores.items()
                ]
                for workload, stores in self._stores.items()
            }
        finally:
            old.stop()

    def _in(self, server: Server, workload: str, name: str) -> Store:
        """The store of the same name in ``server``."""
        world = dataclasses.replace(
            self._world, store=self._world.store.replace(f":{self._port}/", f":{server.port}/")
        )
        store: Store = WORKLOADS[workload].stores(world)[name]
        return store

    def _copied(self, first: str = "") -> dict[str, list[replicas.PutBack]]:
        """Copies of all stores as they are now, by workload."""
        self._number += 1
        self._directory.mkdir()
        return {
            workload: [
                replicas.copy_of(store, self._directory / f"{workload}-{name}.db")
                for name, store in self._stores[workload].items()
            ]
            for workload in sorted(self._stores, key=lambda workload: workload != first)
        }

    @property
    def _directory(self) -> Path:
        """Of the newest copies."""
        return Path(self._world.directory) / f"replica-{self._number}"

    def _replica_of(self, workload: str, name: str) -> Store:
        """The store as the replica has it."""
        if self._servers is not None:
            return self._in(self._servers.replica, workload, name)
        return SqliteStore(
            self._directory / f"{workload}-{name}.db", self._stores[workload][name].name
        )

    def is_settled(self, current: Callable[[str], int]) -> bool:
        """Whether every workload has gone on: over its replica, or over stores that were put
        back.
        """
        return all(current(workload) > before + 1 for workload, before in self._began_at.items())

    def end(self) -> None:
        """From now on no refusal is right."""
        self._whole, self._began_at = {}, {}

    def refused(self, said: str) -> str | None:
        """Put back the stores of the workload that refused a driver; the violation in this, if any."""
        for workload, put_backs in list(self._whole.items()):
            for store in self._stores[workload].values():
                if f"store {store.address} " in said:
                    if self.lacking(workload) == "nothing":
                        return f"{workload}: refused, although its replica lacks nothing that was recorded: {said}"
                    del self._whole[workload]
                    for put_back in put_backs:
                        put_back()
                    self.refusals += 1
                    self._note(f"{workload}: refused, its stores are put back")
                    return None
        return f"refused over stores that nothing was done to: {said}"

    def lacking(self, workload: str) -> Lacking:
        """The part that the workload's stores lack of the recorded transactions: by fences and
        counts, as the state has them."""
        is_part = False
        for (component, name), whole in self._recorded(workload).items():
            at = dict(_standing(self._stores[workload][name], workload)).get(component, (0, 0, 0))
            if at[:2] < whole[:2]:
                return "attempts"
            is_part = is_part or at < whole
        return "a part of an attempt" if is_part else "nothing"

    def _recorded(self, workload: str) -> dict[tuple[str, str], At]:
        """Transactions recorded in ZooKeeper, by component and store."""
        assert self._world.zookeeper is not None
        with contextlib.closing(
            ZooKeeperStateStore(self._world.zookeeper, "/txtopo", session_timeout_s=10.0)
        ) as state:
            shown = administration.show(state, _topology(workload))
        names = {store.name: name for name, store in self._stores[workload].items()}
        recorded: dict[tuple[str, str], At] = {}
        for known, at in shown["recorded"].items():
            component, _, store = known.rpartition("/")
            txid, attempt = map(int, at.split(":"))
            recorded[component, names[store]] = (txid, attempt, shown["counts"][known])
        return recorded


def _standing(store: Store, workload: str) -> Iterator[tuple[str, At]]:
    """Where each component of the workload stands in ``store``."""
    for fence in store.fences():
        if fence.topology_id == _topology(workload):
            yield fence.component, (fence.txid, fence.attempt, fence.count or 0)


def _is_part(at: At, whole: At) -> bool:
    """Whether an attempt has begun to be written and is not done: each attempt of a workload is of
    as many store transactions as any other."""
    return at[:2] > whole[:2] and 0 < at[2] < whole[2]


def _topology(workload: str) -> str:
    return f"soak-{workload}"
