"""Notes how long each attempt has which status, and describes attempts that have ended.

Runs on: driver, the engine's loop. Without observers a run has no timelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txtopo.engine.attempts import Attempt
from txtopo.engine.batches import partitioned_metadata
from txtopo.engine.counter_names import CounterNames
from txtopo.engine.observer import EndedAttempt
from txtopo.topology.transaction import TransactionAttempt

Active = Sequence[tuple[int, int, str]]
"""(txid, attempt id, status) for every transaction in flight, ascending."""


class Timelines:
    """The statuses of live attempts, with the times at which they began, in seconds."""

    def __init__(self) -> None:
        self._begins: dict[tuple[int, int], dict[str, float]] = {}
        self._counter_names = CounterNames()

    def note(self, active: Active, now_s: float) -> None:
        """Note new statuses, and forget attempts that are not ``active`` any more."""
        for txid, attempt_id, status in active:
            begins = self._begins.get((txid, attempt_id))
            if begins is None:
                self._begins[txid, attempt_id] = {status: now_s}
            elif status not in begins:
                begins[status] = now_s
        if len(self._begins) > len(active):
            live = {(txid, attempt_id) for txid, attempt_id, _ in active}
            self._begins = {key: self._begins[key] for key in self._begins if key in live}

    def so_far(self, now_s: float) -> list[tuple[int, int, dict[str, float]]]:
        """(txid, attempt id, seconds by status until now) for every live attempt, ascending."""
        return [
            (*key, {status: round(length_s, 3) for status, length_s in _lengths(begins, now_s)})
            for key, begins in sorted(self._begins.items())
        ]

    def ended(
        self,
        work: Attempt,
        now_s: float,
        failing: TransactionAttempt | None = None,
        *,
        is_committed: bool = False,
        is_replayed: bool = False,
    ) -> EndedAttempt:
        """Describe ``work``, whose attempt has just ended. ``failing`` is the attempt whose failure
        ended this attempt, perhaps itself."""
        attempt, failure = work.attempt, work.failure
        begins = self._begins.get((attempt.txid, attempt.attempt_id), {})
        is_behind = failing is not None and failing != attempt and failure is None
        return EndedAttempt(
            attempt,
            "committed"
            if is_committed
            else failure.kind
            if failure is not None
            else "behind"
            if is_behind
            else "failed"
            if failing is not None
            else "abandoned",
            failure=failure,
            because_of=failing if is_behind else None,
            is_replayed=is_replayed,
            tuples=work.tuples,
            latency_s=now_s - work.opened_at,
            opened_at=work.batch_opened_at,
            steps=_lengths(begins, now_s),
            tasks=work.task_counts,
            # Copies: a job of a discarded attempt may still end, and count.
            executed=dict(work.counts.executed),
            emitted=dict(work.counts.emitted),
            widest=dict(work.counts.widest),
            busy_s=dict(work.busy_s),
            work_s=dict(work.counts.work_s),
            stores=dict(work.stores),
            counters=self._counter_names.bounded(work.counts.counters) if is_committed else {},
            metadata=_metadata_of(work),
        )


def _lengths(begins: dict[str, float], now_s: float) -> tuple[tuple[str, float], ...]:
    """How long each status lasted, the last one until ``now_s``."""
    ends = [*[*begins.values()][1:], now_s]
    return tuple(
        (status, end - begin) for (status, begin), end in zip(begins.items(), ends, strict=False)
    )


def _metadata_of(work: Attempt) -> Any:
    """The metadata with which the batch can be made again, None if no job had it. Not read from the
    state: the simulator counts such reads."""
    batch = work.batch
    if work.metadata is not None or batch is None:
        return work.metadata
    if batch.mode == "whole":
        return batch.metadata
    return partitioned_metadata(batch.num_partitions, batch.partitions)
