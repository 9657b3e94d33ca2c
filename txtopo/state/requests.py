"""Keeps requests to a topology's run from other processes, and the names of runs that wait.

Requests are in one znode, which outlives runs: a topology that was paused stays paused, whichever
run has it, until it is resumed. A request to drain is for one epoch. The run that has the topology
reads the znode once a second, and does what it says. No lease is needed to ask, but
ZooKeeper's right to write below the topology.

Invariants:
- Each change compares the znode's version, so of two people's requests none is lost.
- Nothing here checks or changes the fence: a request that comes late asks a run that has ended, and
  changes nothing.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable

from txtopo import errors
from txtopo.state import base, layout, lease, records

TRIES_MAX = 20
"""How often a change begins again because another client has changed the znode."""


def read(store: base.StateStore, paths: layout.Layout) -> records.RequestRecord:
    """What is asked of the topology.

    :raises UnreadableStateError: the record cannot be understood.
    """
    return _read(store, paths)[0]


def change(
    store: base.StateStore,
    paths: layout.Layout,
    changed: Callable[[records.RequestRecord], records.RequestRecord],
) -> records.RequestRecord:
    """Put ``changed`` of the present record in its place. Returns the record that was there.

    :raises FencedError: others change the record all the time, or the state was reset.
    """
    for _ in range(TRIES_MAX):
        record, version = _read(store, paths)
        new = changed(record)
        if new == record:
            return record
        data = new.encode()
        try:
            if version is None:
                store.multi([base.Create(paths.request, data)])
            else:
                store.multi([base.Set(paths.request, data, version)])
        except base.StateConflictError:
            continue
        return record
    raise errors.FencedError(
        f"the requests to topology {paths.topology_id!r} change all the time, or its state was reset\n"
        "  Look with `txtopo status`, and type the command again."
    )


def _read(store: base.StateStore, paths: layout.Layout) -> tuple[records.RequestRecord, int | None]:
    node = store.get(paths.request)
    if node is None:
        return records.RequestRecord(), None
    return records.RequestRecord.decode(paths.request, node.data), node.version


# -- standbys ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Standby:
    """Names a run that waits for its topology, as long as its session lives."""

    store: base.StateStore
    paths: layout.Layout
    id: str
    record: records.StandbyRecord

    @classmethod
    def of(cls, store: base.StateStore, paths: layout.Layout, run: lease.Holder) -> Standby:
        record = records.StandbyRecord(**dataclasses.asdict(run))
        return cls(store, paths, uuid.uuid4().hex, record)

    def keep(self) -> None:
        """Make the name, unless it is there. A topology without state has no waiting runs."""
        path = f"{self.paths.standbys}/{self.id}"
        if self.store.get(path) is not None:
            return
        for operation in (
            base.Create(self.paths.standbys),
            base.Create(path, self.record.encode(), ephemeral=True),
        ):
            try:
                self.store.multi([operation])
            except base.StateConflictError as conflict:
                if conflict.reason == "missing":
                    return
                if conflict.reason != "exists":
                    raise

    def end(self) -> None:
        try:
            self.store.multi([base.Delete(f"{self.paths.standbys}/{self.id}")])
        except base.StateConflictError as conflict:
            if conflict.reason != "missing":
                raise
