"""Replays the processing phase for a few batches, each in several attempts: in one process, and in
a fresh process on a single slot.

In replays no step fails and no effect is committed. ``parts`` knows the contracts.

Invariants: stores do not change, so that reading a store in the processing phase makes no
difference. A transaction's attempts have the same metadata, unless the spout is opaque.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txtopo.plan import compiler
from txtopo.state import memory
from txtopo.testing.contracts import equality, local_run, processes
from txtopo.testing.emissions import Emission, in_rows
from txtopo.testing.simulator import blame, current
from txtopo.testing.simulator.blame import Blame, Recording
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.hooks import SimulatedSlot
from txtopo.testing.simulator.subject import Subject
from txtopo.testing.simulator.world import Watch, World
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import TransactionAttempt

TRANSACTIONS = 3
"""The attempts are compared in so many transactions."""

SAME_PROCESS = "in the same process"
FRESH_PROCESS = "in a fresh process with a single slot"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A transaction's attempt, with the tuples that its tasks took and emitted. ``where`` tells the
    attempt's process, compared with the first attempt's."""

    attempt: TransactionAttempt
    where: str
    recording: Recording
    emissions: list[Emission]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A component with other results from the same tuples in attempt ``second`` than in attempt
    ``first``."""

    blame: Blame
    first: Replayed
    second: Replayed


def first_disagreement(
    subject: Subject, conf: Mapping[str, Any], begin_process: Callable[[], None], watch: Watch
) -> Disagreement | None:
    """Find the first bolt or grouping whose results change between a batch's attempts, if the
    committers' tuples change too.

    ``begin_process`` replaces the active process by a fresh process.
    """
    for first, *others in _replays(subject, conf, begin_process, watch):
        for second in others:
            blamed = blame.first_to_differ(subject.graph, second.recording, first.recording)
            if blamed is not None and _counts(subject.graph, blamed, first, second):
                return Disagreement(blamed, first, second)
    return None


def _counts(graph: TopologyGraph, blamed: Blame, first: Replayed, second: Replayed) -> bool:
    """Whether a bolt or grouping is to blame, the values differ and not only their texts, and the
    difference reaches a component that finishes in the commit phase, if there is one."""
    if blamed.fault == "output" and (
        blamed.component == graph.spout.id or not _is_other(blamed.component, first, second)
    ):
        return False
    committing = compiler.held_components(graph) - {graph.spout.id}
    if not committing or blamed.component in committing:
        return True
    return any(
        sorted(first.recording.taken.get(place, ()))
        != sorted(second.recording.taken.get(place, ()))
        for place in first.recording.taken.keys() | second.recording.taken.keys()
        if place[1] in committing
    )


def _is_other(component: str, first: Replayed, second: Replayed) -> bool:
    """Whether the emissions of ``component`` differ in value, and not only as text."""
    ours, theirs = (
        [row for row in in_rows(each.emissions) if row[0] == component] for each in (second, first)
    )
    return equality.multiset_difference(ours, theirs) is not None


def _replays(
    subject: Subject, conf: Mapping[str, Any], begin_process: Callable[[], None], watch: Watch
) -> Iterator[list[Replayed]]:
    """Yield each transaction's attempts in turn. A process has earlier batches behind it, except
    for each transaction's last attempt."""
    server = memory.MemoryServer()
    begin_process()
    for _ in range(TRANSACTIONS):
        with contextlib.closing(_Run(subject, server, conf, watch, local_run.CORES)) as run:
            if not run.batches.open(run.state.current):
                return  # the source has no more batches
            replays = [run.replay(SAME_PROCESS), run.replay(SAME_PROCESS)]
            run.seal(run.work)
        begin_process()
        with contextlib.closing(_Run(subject, server, conf, watch, 1)) as run:
            yield [*replays, run.replay(FRESH_PROCESS)]
            run.seal(run.work)
            run.record(run.work)


class _Run(local_run.LocalRun):
    """A contract checker's run that records tasks as a schedule does. Close it."""

    def __init__(
        self,
        subject: Subject,
        server: memory.MemoryServer,
        conf: Mapping[str, Any],
        watch: Watch,
        cores: int,
    ) -> None:
        self._subject, self._watch = subject, watch
        self._slots: list[SimulatedSlot] = []
        make = functools.partial(processes.LocalProcess, slot_run=self._slot)
        super().__init__(subject.graph, server, lambda run: [make(run)], conf, cores=cores)

    def _slot(self, *arguments: Any) -> SimulatedSlot:
        self._slots.append(SimulatedSlot(*arguments))
        return self._slots[-1]

    def replay(self, where: str) -> Replayed:
        """Process the opened transaction in a new attempt, ``work``."""
        self._slots.clear()
        txid = self.state.current
        with current.running(
            World(
                Decisions(),
                self._subject.processes,
                self._subject.clocks,
                self._subject.stores,
                watch=self._watch,
            )
        ):
            self.work = self.process(self.next_attempt(txid), self.processes[0])
        executed = [row for slot in self._slots for row in slot.executed]
        emitted = [emission for slot in self._slots for emission in slot.emitted]
        return Replayed(
            self.work.attempt,
            where,
            blame.recording({txid: executed}, {txid: emitted}, {}),
            emitted,
        )
