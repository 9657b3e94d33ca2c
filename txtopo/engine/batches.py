"""Content of each transaction: the spout's coordinator, its metadata, and the start of the next
batch.

Runs on: driver. The only module that calls the user's spout coordinator. Metadata is kept in
``state.txids`` only; the state decides when the metadata becomes durable.

Invariants: metadata of a txid is made once, from that of the txid before; an opaque spout's is made
for every attempt, from the metadata that the preceding txid uses now (R4). The record of a
partitioned batch names the partitions that moved; the position of a partition comes from the newest
txid in which the partition moved (R21). A txid is opened once: the clock is read at the opening,
and as soon as a record of the txid is stored, the stored time counts (R36).
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from txtopo import errors, plain_json
from txtopo.dataplane import out_of_resources, outcome
from txtopo.dataplane.job import Batch
from txtopo.state.records import TxidRecord
from txtopo.state.topology import TopologyState
from txtopo.topology import metadata as metadata_of
from txtopo.topology import pickling, spout
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import TransactionAttempt


class Batches:
    """Tells, in one run, the next batch, the metadata of the batch and the moved partitions."""

    def __init__(
        self, graph: TopologyGraph, conf: Mapping[str, Any], state: TopologyState, time_of_opening: Callable[[int], datetime.datetime]
    ) -> None:
        """``time_of_opening(txid)`` is the clock (see ``surroundings``)."""
        self._id, self._state, self._time_of_opening = graph.spout.id, state, time_of_opening
        self._opened_at: dict[int, datetime.datetime] = {}
        instance = pickling.loads(graph.spout.template)
        self._metadata_type = instance.metadata_type
        self._is_partitioned = graph.spout.spout_kind != "transactional"
        self._is_opaque = graph.spout.spout_kind == "opaque"
        self._in_use: dict[int, tuple[TransactionAttempt, Any]] = {}
        context = CoordinatorContext(graph.id, state.generation, graph.spout.id, self._last_metadata)
        self._coordinator = self._call(
            state.current, "get_coordinator", instance.get_coordinator, TopologyConf(conf).overlaid(graph.spout.config), context
        )
        self._plans = self._is_partitioned and spout.plans(self._coordinator)
        self.fraction_done: float | None = None
        """How much of the source was committed when a transaction was last opened, from 0 to 1;
        ``None`` where the spout does not say."""
        self.lag: dict[str, int] = {}
        """By partition of the source, how much was not committed yet; empty where the spout does
        not say."""
        self.lost: dict[str, int | None] = {}
        """By partition of the source, how much was lost before it was read; ``None``: an unknown
        part. Empty where the spout does not say."""

    @property
    def is_opaque(self) -> bool:
        """Whether every attempt has metadata of its own."""
        return self._is_opaque

    @property
    def emits_metadata(self) -> bool:
        """Whether metadata is learnt by emitting, so that an attempt needs an emission job first.
        """
        return self._is_partitioned and not self._plans

    def known_txids(self) -> list[int]:
        """Txids from ``current`` on whose metadata or seal survived the last run."""
        return [txid for txid in self._state.txids.txids() if txid >= self._state.current]

    def open(self, txid: int) -> bool:
        """Whether the new ``txid`` may begin; the metadata is made, unless the emission makes
        metadata. ``FailedException`` passes through."""
        self.fraction_done = self._fraction_done(txid)
        is_ready = self._call(txid, "is_ready", self._coordinator.is_ready)
        self.lag, self.lost = self._by_partition(txid, "lag"), self._by_partition(txid, "lost")
        if not is_ready:
            return False
        self.opened_at(txid)
        if not self.emits_metadata and not self._is_opaque:
            self._state.txids.get_state(txid, self._make)
        return True

    def opened_at(self, txid: int) -> datetime.datetime:
        """When ``txid`` was opened: in this run, as was noted when that happened; else as its
        record says, which an earlier run has left."""
        noted = self._opened_at.get(txid)
        if noted is not None:
            return noted
        record = self._state.txids.find(txid)
        stored = None if record is None else record.opened
        return self._opened_at.setdefault(txid, stored or self._time_of_opening(txid))

    def batch(self, txid: int, own: Any = None) -> Batch:
        """The emission of ``txid``, whose metadata is known; ``own`` is the attempt's metadata,
        where every attempt has its own."""
        stored = self._stored(txid) if own is None else own
        if not self._is_partitioned:
            return Batch("whole", stored)
        return Batch("planned" if self._plans else "known", partitions=_by_number(stored["partitions"]), num_partitions=stored["num_partitions"])

    def new_batch(self, txid: int) -> Batch:
        """The start of an emission job, for a ``txid`` whose metadata comes from emitting."""
        last = self._positions_before(txid)
        if self._is_opaque:
            return Batch("opaque", partitions=last)
        n = self._num_partitions(txid)
        return Batch("new", partitions={p: last[p] for p in range(n) if p in last}, num_partitions=n)

    def plan(self, txid: int) -> dict[str, Any]:
        """A plan for one attempt of an opaque batch; :meth:`learnt` puts it to use."""
        return self._plan(txid)

    def learnt(self, attempt: TransactionAttempt, metadata: Any) -> None:
        """The live ``attempt`` consists of ``metadata``; for a txid with metadata made once, the
        first answer is kept."""
        if self._is_opaque:
            self._in_use[attempt.txid] = (attempt, metadata)
        else:
            self._state.txids.get_state(attempt.txid, lambda txid, last: self._record(txid, metadata))

    def discard(self, attempt: TransactionAttempt) -> None:
        """``attempt`` is over: discarded, or recorded."""
        if attempt.txid in self._in_use and self._in_use[attempt.txid][0] == attempt:
            del self._in_use[attempt.txid]
        # A list first: another thread opens transactions meanwhile.
        current = self._state.current
        for txid in [txid for txid in list(self._opened_at) if txid < current]:
            del self._opened_at[txid]

    def metadata(self, txid: int) -> Any:
        """The content of the seal of ``txid``: everything that a replay needs. An opaque txid is
        replayed from the positions before it."""
        return None if self._is_opaque else self._stored(txid)

    def moved(self, txid: int) -> dict[int, Any]:
        """The partitions ``txid`` moves, with their new positions."""
        return _by_number(self._stored(txid)["partitions"]) if self._is_partitioned else {}

    def close(self) -> None:
        """Close the user's coordinator."""
        self._call(self._state.current, "close", self._coordinator.close)

    # -- making metadata --------------------------------------------------------------------------

    def _make(self, txid: int, last: TxidRecord | None) -> TxidRecord:
        if self._is_partitioned:
            return self._record(txid, self._plan(txid))
        previous = metadata_of.from_json(None if last is None else last.metadata, self._metadata_type)
        metadata = self._call(txid, "initialize_transaction", self._coordinator.initialize_transaction, txid, previous)
        return self._record(txid, self._to_json(txid, "initialize_transaction", metadata))

    def _record(self, txid: int, metadata: Any) -> TxidRecord:
        return TxidRecord(txid=txid, metadata=metadata, opened_at=self.opened_at(txid).isoformat())

    def _plan(self, txid: int) -> dict[str, Any]:
        n = self._num_partitions(txid)
        last = {p: metadata_of.from_json(m, self._metadata_type) for p, m in self._positions_before(txid).items() if p < n}
        if hasattr(self._coordinator, "plan_batch"):
            planned = self._call(txid, "plan_batch", self._coordinator.plan_batch, txid, last)
            if not isinstance(planned, Mapping) or any(not isinstance(p, int) or not 0 <= p < n for p in planned):
                self._refuse(txid, "plan_batch", f"it returned {planned!r}; it returns a dict from partition, 0 … {n - 1}, to metadata or None")
        else:
            plan = self._coordinator.plan_partition_batch
            planned = {p: self._call(txid, "plan_partition_batch", plan, txid, p, last.get(p)) for p in range(n)}
        return moved(n, {p: self._to_json(txid, f"planning partition {p}", m) for p, m in sorted(planned.items())})

    def _num_partitions(self, txid: int) -> int:
        n = self._call(txid, "num_partitions", self._coordinator.num_partitions)
        if not isinstance(n, int) or n < 0:
            self._refuse(txid, "num_partitions", f"it returned {n!r}; it returns a number of partitions")
        return int(n)

    def _to_json(self, txid: int, hook: str, metadata: Any) -> Any:
        try:
            return metadata_of.to_json(metadata, self._metadata_type)
        except plain_json.NotJsonError as error:
            self._refuse(txid, hook, f"its metadata would not come back as it was: {error}")

    def _fraction_done(self, txid: int) -> float | None:
        if not hasattr(self._coordinator, "fraction_done"):
            return None
        fraction = self._call(txid, "fraction_done", self._coordinator.fraction_done, self._committed())
        try:
            number = math.nan if fraction is None else float(fraction)
        except (TypeError, ValueError):
            self._refuse(txid, "fraction_done", f"it returned {fraction!r}; it returns a number from 0 to 1, or None")
        return None if math.isnan(number) else min(max(number, 0.0), 1.0)

    def _by_partition(self, txid: int, hook: str) -> dict[str, Any]:
        """The answer of the optional ``lag`` or ``lost``."""
        if not callable(getattr(self._coordinator, hook, None)):
            return {}
        counts = self._call(txid, hook, getattr(self._coordinator, hook), self._committed())
        if not isinstance(counts, Mapping) or not all(isinstance(count, int | None) for count in counts.values()):
            self._refuse(txid, hook, f"it returned {counts!r}; it returns a dict from the name of a partition to a number")
        return {str(name): count for name, count in counts.items()}

    def _committed(self) -> Any:
        """The metadata of the newest committed transaction; of a partitioned spout, by
        partition."""
        if self._is_partitioned:
            positions = self._state.committed_positions()[1]
            return {p: metadata_of.from_json(m, self._metadata_type) for p, m in positions.items()}
        record = self._state.txids.find(self._state.current - 1)
        return metadata_of.from_json(None if record is None else record.metadata, self._metadata_type)

    # -- positions --------------------------------------------------------------------------------

    def _stored(self, txid: int) -> Any:
        if self._is_opaque:
            return self._in_use[txid][1]
        record = self._state.txids.find(txid)
        if record is None:
            raise KeyError(f"no metadata of txid {txid}")
        return record.metadata

    def _positions_before(self, txid: int) -> dict[int, Any]:
        """Metadata by partition when ``txid`` begins: committed positions, overlaid by the moves of
        earlier open transactions."""
        # The order matters: a transaction that other threads record and forget meanwhile is missing
        # among the open ones, and is then in the positions.
        open_txids = list(self._in_use) if self._is_opaque else self._state.txids.txids()
        in_use = {earlier: self._metadata_in_use(earlier) for earlier in sorted(open_txids) if earlier < txid}
        committed, positions = self._state.committed_positions()
        for earlier, metadata in in_use.items():
            if earlier > committed and metadata is not None:
                positions.update(_by_number(metadata["partitions"]))
        return positions

    def _metadata_in_use(self, txid: int) -> Any:
        if self._is_opaque:
            used = self._in_use.get(txid)
            return None if used is None else used[1]
        record = self._state.txids.find(txid)
        return None if record is None else record.metadata

    def _last_metadata(self) -> Any:
        newest = max([*self._state.txids.txids(), *list(self._in_use)], default=0)
        if self._is_partitioned:
            positions = self._positions_before(newest + 1)
            return {p: metadata_of.from_json(m, self._metadata_type) for p, m in positions.items()}
        record = self._state.txids.find(newest)
        return metadata_of.from_json(None if record is None else record.metadata, self._metadata_type)

    # -- user code on the driver ------------------------------------------------------------------

    def _call(self, txid: int, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except (errors.FailedException, errors.TxtopoError):
            raise
        except BaseException as error:
            described, trace = out_of_resources.of(error) or outcome.describe(error), outcome.user_traceback(error)
            raise errors.UserCodeError(self._id, -1, str(txid), "opening", hook, described, trace) from None

    def _refuse(self, txid: int, hook: str, why: str) -> NoReturn:
        raise errors.MetadataError(self._id, -1, str(txid), "opening", hook, f"spout {self._id!r}, {hook}: {why}", "")


def moved(num_partitions: int, metadata: Mapping[int, Any]) -> dict[str, Any]:
    """A partitioned batch's metadata, as it is stored: only the partitions that moved (R21)."""
    return {"num_partitions": num_partitions, "partitions": {str(p): m for p, m in sorted(metadata.items()) if m is not None}}


def _by_number(partitions: Mapping[str, Any]) -> dict[int, Any]:
    return {int(p): m for p, m in partitions.items()}
