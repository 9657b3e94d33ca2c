"""Decides each batch's metadata, and where the next batch starts.

The answers come from the user's spout coordinator through ``spout_hooks``. Metadata is kept in
``state.txids`` only. The state decides when the metadata becomes durable.

Runs on: driver.

Invariants: a txid's metadata is made once, from the preceding txid's metadata. With an opaque
spout, metadata is made for every attempt, from the metadata that the preceding txid uses now (R4).
A partitioned batch's record names the partitions that moved. A partition's position comes from the
newest txid in which the partition moved (R21). A txid is opened once, and the clock is read then.
As soon as a record is stored, its time counts (R36).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from txtopo.dataplane.job import Batch
from txtopo.engine.spout_hooks import SourceProgress, SpoutHooks
from txtopo.state.records import TxidRecord
from txtopo.state.topology import TopologyState
from txtopo.topology.context import CoordinatorContext
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import TransactionAttempt


class Batches:
    """Knows, in one run, each batch's metadata and moved partitions."""

    def __init__(
        self,
        graph: TopologyGraph,
        conf: Mapping[str, Any],
        state: TopologyState,
        time_of_opening: Callable[[int], datetime.datetime],
    ) -> None:
        """``time_of_opening(txid)`` is the clock (see ``surroundings``)."""
        self._state, self._time_of_opening = state, time_of_opening
        self._opened_at: dict[int, datetime.datetime] = {}
        self._is_partitioned = graph.spout_traits.is_partitioned
        self.is_opaque = graph.spout_traits.is_opaque
        """Whether every attempt has its own metadata."""
        self._in_use: dict[int, tuple[TransactionAttempt, Any]] = {}
        context = CoordinatorContext(
            graph.id, state.generation, graph.spout.id, self._last_metadata
        )
        self._hooks = SpoutHooks(graph)
        self._hooks.begin(conf, context, state.current)
        self.progress = SourceProgress()
        """The spout's answers when a transaction was last opened."""

    @property
    def emits_metadata(self) -> bool:
        """Whether metadata is learnt by emitting, so that an attempt needs an emission job first."""
        return self._is_partitioned and not self._hooks.plans

    def known_txids(self) -> list[int]:
        """Txids from ``current`` on, if their metadata or seal survived the last run."""
        return [txid for txid in self._state.txids.txids() if txid >= self._state.current]

    def open(self, txid: int) -> bool:
        """Open ``txid`` if the spout is ready, and return whether it is. Makes the metadata if it
        is made once, and without an emission job. ``FailedException`` passes through."""
        hooks, committed = self._hooks, self._committed
        fraction_done = hooks.fraction_done(txid, committed)
        is_ready = hooks.is_ready(txid)
        lag = hooks.counts(txid, "lag", committed)
        lost = hooks.counts(txid, "lost", committed)
        self.progress = SourceProgress(fraction_done, lag, lost)
        if not is_ready:
            return False
        self.opened_at(txid)
        if not self.emits_metadata and not self.is_opaque:
            self._state.txids.get_state(txid, self._make)
        return True

    def opened_at(self, txid: int) -> datetime.datetime:
        """When ``txid`` was opened: the time that this run has noted, otherwise the time in an
        earlier run's record."""
        noted = self._opened_at.get(txid)
        if noted is not None:
            return noted
        record = self._state.txids.find(txid)
        stored = None if record is None else record.opened
        return self._opened_at.setdefault(txid, stored or self._time_of_opening(txid))

    def batch(self, txid: int, own: Any = None) -> Batch:
        """The batch for ``txid``, whose metadata is known. ``own`` is the attempt's metadata, if
        every attempt has its own."""
        stored = self._stored_record(txid) if own is None else own
        if not self._is_partitioned:
            return Batch("whole", stored)
        partitions = _by_number(stored["partitions"])
        return Batch(
            "planned" if self._hooks.plans else "known",
            partitions=partitions,
            num_partitions=stored["num_partitions"],
        )

    def new_batch(self, txid: int) -> Batch:
        """Where an emission job starts, for a ``txid`` whose metadata comes from emitting."""
        last = self._positions_before(txid)
        if self.is_opaque:
            return Batch("opaque", partitions=last)
        n = self._hooks.num_partitions(txid)
        return Batch(
            "new", partitions={p: last[p] for p in range(n) if p in last}, num_partitions=n
        )

    def plan(self, txid: int) -> dict[str, Any]:
        """Plan an opaque batch for one attempt. :meth:`learnt` puts the plan to use."""
        return partitioned_metadata(*self._hooks.plan(txid, lambda: self._positions_before(txid)))

    def learnt(self, attempt: TransactionAttempt, metadata: Any) -> None:
        """Note the live attempt's ``metadata``. If a txid's metadata is made once, the first answer
        is kept."""
        if self.is_opaque:
            self._in_use[attempt.txid] = (attempt, metadata)
        else:
            self._state.txids.get_state(
                attempt.txid, lambda txid, last: self._record(txid, metadata)
            )

    def discard(self, attempt: TransactionAttempt) -> None:
        """Forget ``attempt``, which was discarded or recorded."""
        if attempt.txid in self._in_use and self._in_use[attempt.txid][0] == attempt:
            del self._in_use[attempt.txid]
        # Copy the keys first: another thread opens transactions meanwhile.
        current = self._state.current
        for txid in [txid for txid in list(self._opened_at) if txid < current]:
            del self._opened_at[txid]

    def metadata(self, txid: int) -> Any:
        """The metadata for ``txid``'s seal, which a replay needs. None for an opaque spout, which
        replays from the positions before ``txid``."""
        return None if self.is_opaque else self._stored_record(txid)

    def moves(self, txid: int) -> dict[int, Any]:
        """The partitions that ``txid`` moves, with their new positions."""
        return _by_number(self._stored_record(txid)["partitions"]) if self._is_partitioned else {}

    def close(self) -> None:
        """Tell the user's coordinator the last positions, and close it."""
        try:
            self._hooks.counts(self._state.current, "lag", self._committed)
        finally:
            self._hooks.close(self._state.current)

    # -- making metadata --------------------------------------------------------------------------

    def _make(self, txid: int, last: TxidRecord | None) -> TxidRecord:
        if self._is_partitioned:
            return self._record(txid, self.plan(txid))
        return self._record(
            txid, self._hooks.initialize(txid, None if last is None else last.metadata)
        )

    def _record(self, txid: int, metadata: Any) -> TxidRecord:
        return TxidRecord(txid=txid, metadata=metadata, opened_at=self.opened_at(txid).isoformat())

    def _committed(self) -> Any:
        """The newest committed transaction's metadata. By partition, if the spout is
        partitioned."""
        if self._is_partitioned:
            return self._hooks.by_partition(self._state.committed_positions()[1])
        return self._hooks.of_user(self._metadata_in_use(self._state.current - 1))

    # -- positions --------------------------------------------------------------------------------

    def _stored_record(self, txid: int) -> Any:
        if self.is_opaque:
            return self._in_use[txid][1]
        record = self._state.txids.find(txid)
        if record is None:
            raise KeyError(f"no metadata of txid {txid}")
        return record.metadata

    def _positions_before(self, txid: int) -> dict[int, Any]:
        """Metadata by partition when ``txid`` begins: committed positions, then the moves by
        earlier open transactions."""
        # Order matters: if other threads record and forget a transaction meanwhile, it is missing
        # from the open transactions, but is in the positions.
        open_txids = list(self._in_use) if self.is_opaque else self._state.txids.txids()
        in_use = {
            earlier: self._metadata_in_use(earlier)
            for earlier in sorted(open_txids)
            if earlier < txid
        }
        committed, positions = self._state.committed_positions()
        for earlier, metadata in in_use.items():
            if earlier > committed and metadata is not None:
                positions.update(_by_number(metadata["partitions"]))
        return positions

    def _metadata_in_use(self, txid: int) -> Any:
        if self.is_opaque:
            used = self._in_use.get(txid)
            return None if used is None else used[1]
        record = self._state.txids.find(txid)
        return None if record is None else record.metadata

    def _last_metadata(self) -> Any:
        newest = max([*self._state.txids.txids(), *list(self._in_use)], default=0)
        if self._is_partitioned:
            return self._hooks.by_partition(self._positions_before(newest + 1))
        return self._hooks.of_user(self._metadata_in_use(newest))


def partitioned_metadata(num_partitions: int, metadata: Mapping[int, Any]) -> dict[str, Any]:
    """A partitioned batch's metadata, as stored: only the partitions that moved (R21)."""
    return {
        "num_partitions": num_partitions,
        "partitions": {str(p): m for p, m in sorted(metadata.items()) if m is not None},
    }


def _by_number(partitions: Mapping[str, Any]) -> dict[int, Any]:
    return {int(p): m for p, m in partitions.items()}
