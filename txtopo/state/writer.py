"""Writes exactly once, although an answer may be lost.

Every multi also replaces the znode ``current``, on the condition that ``current`` is unchanged, and
leaves the holder's id and its count of writes there. After a lost answer, reading ``current`` tells
three cases apart:

- The write was applied.
- There was no write since, so ours was not applied.
- Another coordinator wrote, so the topology is lost.

The writer does not look at a write's content. It only reaches the fault points *inside* the write.

Invariants:
- ``_version`` and ``written`` are those that this writer last left or found in the znode
  ``current``.
- One multi at a time (the caller's lock).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from txtopo import errors, faults
from txtopo.state import base, layout, lease, records, retry

Inside = tuple[faults.FaultPoint, int]
"""A fault point between the applied write and its known answer, and the write's txid."""


@dataclass(slots=True)
class _Write:
    """One multi under way. ``is_doubtful``: a try may have been applied."""

    current: int
    set_current: base.Set
    operations: Sequence[base.Operation]
    inside: Sequence[Inside]
    is_doubtful: bool = False


class Writer:
    """Performs multis under ``lease``, waiting for ZooKeeper as ``waits`` allows."""

    def __init__(
        self, store: base.StateStore, paths: layout.Layout, held: lease.Lease, waits: retry.Retry
    ) -> None:
        """Read ``current``.

        :raises UnreadableStateError: ``current`` is missing or cannot be understood.
        """
        self._store, self._paths, self._lease, self._waits = store, paths, held, waits
        node = store.get(paths.current)
        if node is None:
            raise errors.UnreadableStateError(
                paths.current, "it is missing, although the topology has a generation"
            )
        self._version = node.version
        self.written = 0
        """How many writes have been applied."""
        self.current = records.CurrentRecord.decode(paths.current, node.data).current
        """The next txid to commit."""

    @staticmethod
    def first_node(paths: layout.Layout, epoch: records.EpochRecord, current: int) -> base.Create:
        """A new topology's znode ``current``."""
        return base.Create(
            paths.current,
            _encoded(current, epoch.epoch, epoch.holder_id, 0),
        )

    def fixed_operations(self, current: int) -> list[base.Operation]:
        """The first operations in every :meth:`write`."""
        data = _encoded(current, self._lease.epoch, self._lease.holder_id, self.written + 1)
        return [
            *self._lease.checks(),
            base.Set(self._paths.current, data, version=self._version),
        ]

    def write(
        self, current: int, operations: Sequence[base.Operation], inside: Sequence[Inside] = ()
    ) -> None:
        """Set ``current`` and perform ``operations``, atomically and exactly once. ``inside``: the
        commit steps in this write.

        :raises FencedError: another coordinator has the topology. Nothing was written.
        :raises ZooKeeperUnavailableError: no answer for as long as we wait. The outcome is unknown.
        :raises UnreadableStateError: a znode was changed or removed by hand. Nothing was written.
        """
        set_current = self.fixed_operations(current)[-1]
        assert isinstance(set_current, base.Set)
        write = _Write(current, set_current, operations, inside)
        self._waits.call(lambda: self._try(write))
        self._version += 1
        self.written += 1
        self.current = current

    def _try(self, write: _Write) -> None:
        """Try once, beginning with a look at the last try's effect."""
        if write.is_doubtful and self._is_applied(write):
            return
        for _ in range(lease.TRIES_MAX):
            write.is_doubtful = True
            checks = self._lease.checks()
            try:
                self._store.multi([*checks, write.set_current, *write.operations])
                self._reach(write.inside)
                return
            except base.StateConflictError as conflict:
                # A refusal may also mean that an earlier try was applied after all, and so cannot
                # be applied again.
                if self._is_applied(write):
                    return
                if conflict.operation not in checks:
                    raise errors.UnreadableStateError(
                        conflict.operation.path,
                        f"it was changed or removed by hand ({conflict.reason})",
                    ) from conflict
                self._lease.reclaim()
        raise self._lease.lost()

    def _reach(self, inside: Sequence[Inside]) -> None:
        for point, txid in inside:
            try:
                faults.reach(point, txid, self._paths.topology_id)
            except faults.AnswerLostError as lost:
                raise base.StateUnavailableError(
                    f"ZooKeeper at {self._store.address} did not answer: {lost}"
                ) from lost

    def _is_applied(self, write: _Write) -> bool:
        node = self._store.get(self._paths.current)
        if node is None:
            raise self._lease.lost()
        if node.version == self._version:
            return False
        if node.data == write.set_current.data:
            return True
        raise self._lease.lost()


@functools.lru_cache(64)
def _encoded(current: int, epoch: int, holder_id: str, write: int) -> bytes:
    # Cached, because the size of each write is estimated several times before the write.
    return records.CurrentRecord(
        current=current, epoch=epoch, holder_id=holder_id, write=write
    ).encode()
