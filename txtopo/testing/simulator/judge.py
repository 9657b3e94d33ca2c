"""Judges schedules: each must have the same effects as a run without failures that has the same
batches.

If the spout makes the same batches in every run, one run without failures serves for all schedules.
A live source cuts its batches differently each time. Then only results from *equal* metadata are
compared, the reference run has the schedule's batches, and the source must still give all its
tuples.

Invariants: a difference is reported only between results from equal input.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from txtopo.testing.simulator import blame, reference
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.outcome import Difference, Outcome, differences, short, shown
from txtopo.testing.simulator.schedule import Schedule
from txtopo.testing.simulator.subject import Subject

RUNS_TO_BE_SURE = 24
"""So many further runs without failures must give the same tuples, before a loss is the spout's
fault."""

FEW_RUNS, LONG_S = 3, 5.0
"""Only ``FEW_RUNS`` further runs are made where they take longer than ``LONG_S``."""

REFERENCES_KEPT = 64


class Judge:
    """Judges schedules of ``subject``. ``expected`` is a schedule without failures."""

    def __init__(self, subject: Subject, expected: Schedule, compares_outputs: bool) -> None:
        self._subject, self._compares_outputs = subject, compares_outputs
        self._spout = subject.graph.spout.id
        self.expected = expected.outcome
        self.is_live = False
        """The source gives other tuples, as a whole, from run to run. Whether all tuples arrive is
        then unknown."""
        self.source_pauses = expected.world.source_paused
        """Some run without failures saw the source not ready, and ready a moment later."""
        self._equal_runs = 0
        """So many runs without failures gave the same tuples as the first run."""
        self._tuples_of_batch: dict[str, list[str]] = {}
        """The spout's tuples by txid and metadata."""
        self._references: dict[str, Outcome] = {}
        if not subject.is_opaque:
            for txid in self.expected.emitted:
                self._tuples_of_batch[self._batch(self.expected, txid)] = self.expected.emitted[
                    txid
                ][self._spout]

    def reference_of(self, schedule: Schedule) -> Outcome:
        """Return the outcome without failures over the batches of ``schedule``."""
        if self._has_the_batches(schedule.outcome):
            return self.expected
        key = json.dumps(
            [sorted(schedule.outcome.batches.items()), sorted(schedule.outcome.emitted.items())],
            default=str,
        )
        if key not in self._references:
            while len(self._references) >= REFERENCES_KEPT:
                self._references.pop(next(iter(self._references)))
            self._references[key] = self.reference(schedule).outcome
        return self._references[key]

    def reference(self, schedule: Schedule, **watched: Any) -> Schedule:
        """Play a run without failures that has the batches of ``schedule``."""
        if self._has_the_batches(schedule.outcome) or self._begins_with_the_batches(
            schedule.outcome
        ):
            return _play(self._subject, **watched)
        graph = reference.repeating(self._subject.graph, schedule.emitted, schedule.outcome.batches)
        with self._subject.of(graph) as subject:
            return _play(subject, **watched)

    def differences(self, schedule: Schedule) -> list[Difference]:
        """Find how the played ``schedule`` differs from the expected outcome."""
        outcome = schedule.outcome
        if outcome.error is not None:
            return differences(outcome, self.expected, self._compares_outputs)
        of_the_source = [*self._changed_batches(outcome), *self._input_differences(schedule)]
        if self._subject.is_opaque and not differences(
            outcome, self.expected, self._compares_outputs
        ):
            return of_the_source
        reference = self.reference_of(schedule)
        return [*of_the_source, *differences(outcome, reference, self._compares_outputs)]

    # -- the spout --------------------------------------------------------------------------------

    def _has_the_batches(self, outcome: Outcome) -> bool:
        if self._subject.is_opaque:
            return {txid: rows[self._spout] for txid, rows in outcome.emitted.items()} == {
                txid: rows[self._spout] for txid, rows in self.expected.emitted.items()
            }
        return outcome.batches == self.expected.batches

    def _begins_with_the_batches(self, outcome: Outcome) -> bool:
        """Whether a run that ended with an error had the same batches as a run without failures up
        to the error."""
        return (
            outcome.error is not None
            and not self._subject.is_opaque
            and outcome.batches.items() <= self.expected.batches.items()
        )

    def _batch(self, outcome: Outcome, txid: int) -> str:
        return f"{txid} {json.dumps(outcome.batches.get(txid), sort_keys=True)}"

    def _changed_batches(self, outcome: Outcome) -> list[Difference]:
        """Find the batches that differ from earlier batches with the same metadata (R18)."""
        if self._subject.is_opaque:
            return []
        changed = []
        for txid, rows in outcome.emitted.items():
            known = self._tuples_of_batch.setdefault(self._batch(outcome, txid), rows[self._spout])
            if known != rows[self._spout]:
                place = f"what {self._spout!r} emitted in transaction {txid}, of metadata {short(shown(outcome.batches.get(txid)))},"
                lacks = not Counter(rows[self._spout]) - Counter(known)
                changed.append(
                    Difference(
                        place,
                        blame.listed(rows[self._spout]),
                        blame.listed(known),
                        self._spout,
                        is_lack=lacks,
                    )
                )
        return changed

    def _input_differences(self, schedule: Schedule) -> list[Difference]:
        """Find differences in the spout's tuples as a whole. There are none if runs without
        failures differ in the same way."""
        outcome = schedule.outcome
        if (
            self.is_live
            or self._has_the_batches(outcome)
            or not (self._is_exhausted(outcome) and self._is_exhausted(self.expected))
        ):
            return []
        whole, expected = self._whole(outcome), self._whole(self.expected)
        if whole == expected:
            return []
        if not self.is_steady():
            self.is_live = True
            return []
        if self._only_ended_early(schedule):
            return []
        place = f"all that {self._spout!r} emitted"
        lost, doubled = sorted((expected - whole).elements()), sorted((whole - expected).elements())
        faults = [f"without {blame.listed(lost)}"] * bool(lost) + [
            f"with {blame.listed(doubled)} too often"
        ] * bool(doubled)
        return [
            Difference(
                place,
                " and ".join(faults),
                f"{expected.total():,} tuples, each once",
                self._spout,
                is_lack=not doubled,
            )
        ]

    def _only_ended_early(self, schedule: Schedule) -> bool:
        """Whether the source gives all its tuples when a patient schedule plays the same decisions:
        it asks more than once before the source counts as exhausted."""
        patient = Schedule(
            self._subject,
            Decisions(schedule.world.decisions.written_down()),
            clock_s=schedule.began_s,
            is_patient=True,
        )
        return self._whole(patient.play()) == self._whole(self.expected)

    def is_steady(self) -> bool:
        """Whether the source gives the same tuples, as a whole, in every run without failures."""
        began, expected = time.monotonic(), self._whole(self.expected)
        while self._equal_runs < (
            RUNS_TO_BE_SURE if time.monotonic() - began < LONG_S else FEW_RUNS
        ):
            played = _play(self._subject)
            self.source_pauses = self.source_pauses or played.world.source_paused
            if self._whole(played.outcome) != expected:
                return False
            self._equal_runs += 1
        return True

    def gives_the_same_batches(self) -> bool:
        """Whether one more run without failures has the same batches as the first."""
        played = _play(self._subject).outcome
        same = all(
            played.emitted[txid][self._spout] == rows[self._spout]
            for txid, rows in self.expected.emitted.items()
            if txid in played.emitted
        )
        return played.batches == self.expected.batches and same

    def _is_exhausted(self, outcome: Outcome) -> bool:
        return outcome.committed < self._subject.transactions_max

    def _whole(self, outcome: Outcome) -> Counter[str]:
        return Counter(row for rows in outcome.emitted.values() for row in rows[self._spout])


def _play(subject: Subject, **watched: Any) -> Schedule:
    schedule = Schedule(subject, Decisions(), is_patient=True, **watched)
    schedule.play()
    return schedule
