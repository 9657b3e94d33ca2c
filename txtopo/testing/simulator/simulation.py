"""Simulates a topology in thousands of schedules, and finds those with other results than a run
without failures.

The code is the user's own, and txtopo's: the same plan, coordinator, engine, batches, data plane,
state and stores as in Spark. Time, threads, the network, processes and their luck are simulated.
``schedule`` describes the possible steps.

Invariants: a seed and the code together determine a schedule.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txtopo import config, errors
from txtopo.plan import compiler
from txtopo.testing.simulator import clocks, compared, parts, recomputation
from txtopo.testing.simulator import shrink as shrinking
from txtopo.testing.simulator.blame import first_to_differ
from txtopo.testing.simulator.compared import Compared, Unseen
from txtopo.testing.simulator.decisions import Chance, Decisions, Script
from txtopo.testing.simulator.diagnosis import Case, Diagnosis, Probe, diagnose
from txtopo.testing.simulator.judge import Judge
from txtopo.testing.simulator.outcome import Difference
from txtopo.testing.simulator.schedule import Schedule, StoppedError
from txtopo.testing.simulator.subject import TRANSACTIONS, Subject
from txtopo.testing.simulator.violation import Violation
from txtopo.topology.graph import TopologyGraph

COULD_NOT_LOOK = 7
"""The exit code without a violation, if the simulator could not see all effects."""


SEEDS_TO_SHOW = 200
"""After a checker has found a broken contract, so many schedules are searched for one that shows
it."""

PLAYS_TO_BE_SURE = 4
"""So many plays at the same time must be equal, before the clock is blamed. Chance with two equal
outcomes does this once in 64 times."""


@dataclass(slots=True)
class SimulationReport:
    """A simulation's results."""

    topology: str
    schedules: int = 0
    """How many schedules were played."""
    transactions: int = 0
    """How many transactions each schedule commits."""
    faults: Counter[str] = field(default_factory=Counter)
    """How many faults struck, by kind."""
    violation: Violation | None = None
    """The first violation. No schedule is played after it."""
    elapsed_s: float = 0.0
    compared: Compared = field(default_factory=Compared)
    """The effects that decided the verdict."""
    unseen: tuple[Unseen, ...] = ()
    """The effects that the simulator could not see. They are not part of the verdict."""
    is_partial: bool = False
    """Whether the simulation was stopped before all schedules were played."""

    @property
    def exit_code(self) -> int:
        """The exit code for ``txtopo test``: 1 for a violation, 7 without a violation if some
        effects could not be seen, else 0."""
        return (
            errors.TxtopoError.exit_code
            if self.violation is not None
            else COULD_NOT_LOOK
            if self.unseen
            else 0
        )

    @property
    def schedules_per_minute(self) -> float:
        """How many schedules were played in a minute."""
        return 60 * self.schedules / max(self.elapsed_s, 1e-9)

    def __str__(self) -> str:
        compared = "".join(f"\n  compared: {line}" for line in self.compared.lines())
        unseen = "".join(f"\n{unseen}" for unseen in self.unseen)
        ended = f"{'stopped, ' if self.is_partial else ''}no violation{' in the compared effects' if unseen else ''}{compared}{unseen}"
        if self.violation is not None:
            ended = f"a violation\n\n{self.violation}"
        transactions = f"{self.transactions} transaction{'s'[: self.transactions != 1]}"
        return (
            f"{self.topology}: {self.schedules:,} schedules of {transactions} in {self.elapsed_s:.1f} s"
            f" ({self.schedules_per_minute:,.0f} a minute), {self.faults.total():,} faults, {ended}"
        )


class Simulation:
    """Simulates ``topology`` under ``conf``. Close the simulation, or use it in a ``with`` block.

    ``transactions`` bounds a schedule whose source does not end before. ``effects()`` returns all
    effects outside txtopo's stores, as JSON-able data, by preference a dict. ``reset()`` removes
    these effects. ``vary_parallelism`` lets drivers start with other task counts, too. Then only
    stores and effects are compared, because a task's tuples may rightly depend on the task count.

    :raises errors.UsageError: without any failure the topology ends with an error, or its source
        gives no batch.
    """

    def __init__(
        self,
        topology: TopologyGraph,
        conf: config.Config | Mapping[str, Any] | None = None,
        *,
        transactions: int = TRANSACTIONS,
        effects: Callable[[], Any] | None = None,
        reset: Callable[[], None] | None = None,
        vary_parallelism: bool = False,
    ) -> None:
        self.topology = topology
        self.subject = Subject(
            topology,
            conf,
            transactions=transactions,
            effects=effects,
            reset=reset,
            vary_parallelism=vary_parallelism,
        )
        self._varies_parallelism = vary_parallelism
        self._compares_outputs = not self.subject.is_opaque and not vary_parallelism
        try:
            decisions = Decisions()
            schedule = Schedule(self.subject, decisions, is_patient=True)
            self.expected = schedule.play()
            """The outcome without failures."""
            self._opportunities = decisions.opportunities
            self._require_comparable()
            self.compared = Compared.of(self.expected, effects is not None, self._compares_outputs)
            """The effects that decide the verdict."""
            self.unseen = compared.unseen(
                self.subject.graph, self.subject.uncompared, self.compared
            ) + tuple(
                Unseen(None, what=f"the exporter of export queue {queue.id!r} is not played")
                for queue in parts.queues_of(self.subject)
                if effects is None
            )
            """The effects that judge no schedule."""
            self._judge = Judge(self.subject, schedule, self._compares_outputs)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all resources."""
        self.subject.close()

    def _require_comparable(self) -> None:
        id = self.topology.id
        if self.expected.error is not None:
            raise errors.UsageError(
                f"topology {id!r} ends with an error without any failure: {self.expected.error}\n  Correct the topology first."
            )
        if not self.expected.committed:
            raise errors.UsageError(
                f"topology {id!r} commits no transaction: its source is not ready\n  Give it input for a test."
            )
        if self.subject.is_opaque and self.expected.committed >= self.subject.transactions:
            raise errors.UsageError(
                f"topology {id!r} has an opaque spout with more than {self.subject.transactions} transactions of input\n"
                "  An opaque spout's batches may differ, so only all batches together can be compared. Give less input, or allow more transactions."
            )

    # -- parts ------------------------------------------------------------------------------------

    def check_parts(self) -> Violation | None:
        """Run the contract checkers: on the spout, on the processing phase, then on the commit
        phase, with a schedule as proof."""
        violation = parts.check_spout(
            self.subject, self._judge, self._varies_parallelism
        ) or parts.check_processing(self.subject)
        if violation is not None:
            return violation
        violation = parts.check_bolts(self.subject, self._judge)
        if violation is None:
            play = Schedule(self.subject, Decisions(), is_patient=True).play
            return parts.check_exporters(self.subject, play)
        shown = self.run(SEEDS_TO_SHOW).violation
        if shown is None:
            return violation
        # The checker names the commit that goes wrong, but the reason may be upstream.
        broken = violation.broken
        is_named = broken is not None and repr(shown.component) in broken.what
        return dataclasses.replace(shown, broken=broken) if is_named else shown

    # -- schedules --------------------------------------------------------------------------------

    def run(
        self, seeds: int, first_seed: int = 0, report: SimulationReport | None = None
    ) -> SimulationReport:
        """Play ``seeds`` schedules, the first with seed ``first_seed``, up to the first violation.

        Results go into ``report`` as soon as a schedule has been played.
        """
        report = report or self.report()
        began = time.perf_counter()
        try:
            report.violation = self._without_failures()
            for seed in range(first_seed, first_seed + seeds):
                if report.violation is not None:
                    break
                decisions = self._decisions_of(seed)
                differing = self._play_and_count(decisions, report)
                if differing:
                    report.violation = self._violation(seed, decisions.written_down(), differing)
        except StoppedError:
            report.is_partial = True
        report.elapsed_s = time.perf_counter() - began
        return report

    def shows_a_violation(self, seed: int, report: SimulationReport) -> bool:
        """Whether the schedule for ``seed`` shows a violation. The schedule is counted in
        ``report``."""
        return bool(self._play_and_count(self._decisions_of(seed), report))

    def _play_and_count(self, decisions: Decisions, report: SimulationReport) -> list[Difference]:
        differing = self._play(decisions)
        report.schedules += 1
        report.faults.update(fault.kind for fault in decisions.struck)
        return differing

    def report(self, violation: Violation | None = None) -> SimulationReport:
        """Make the report before any schedule is played."""
        expected = self.expected
        return SimulationReport(
            self.topology.id,
            0,
            expected.committed,
            violation=violation,
            compared=self.compared,
            unseen=self.unseen,
        )

    def recompute(self) -> Violation | None:
        """Compare processes with different ``PYTHONHASHSEED``: different results from the topology
        are a violation."""
        return recomputation.check_recomputation(self.subject)

    def replay(
        self, script: Script, trace: Callable[[str], None] | None = None
    ) -> list[Difference]:
        """Play ``script``, and find how the schedule differs from a run without failures."""
        return self._play(Decisions(script), trace)

    def _decisions_of(self, seed: int) -> Decisions:
        return Decisions(chance=Chance.of(seed, self._opportunities))

    def _play(
        self, decisions: Decisions, trace: Callable[[str], None] | None = None, clock_s: float = 0.0
    ) -> list[Difference]:
        """Play a schedule, ``clock_s`` later, and return its differences from the expected outcome."""
        schedule = Schedule(self.subject, decisions, trace, clock_s=clock_s)
        schedule.play()
        return self._judge.differences(schedule)

    def _without_failures(self) -> Violation | None:
        """Compare two runs without failures, the second at another time of the day and year: a
        difference is a violation."""
        differing = self._play(Decisions(), clock_s=clocks.ANOTHER_TIME_S)
        if not differing:
            return None
        # Explain the violation, even if the time is over.
        self.subject.goes_on = lambda: True
        diagnosis = self._diagnosis(
            differing,
            Script(),
            by_itself=True,
            is_the_clock=self._is_the_clock(),
            clock_s=clocks.ANOTHER_TIME_S,
        )
        return Violation(self.topology.id, None, tuple(differing), diagnosis)

    def _is_the_clock(self) -> bool:
        """Whether only the time tells two plays apart. The very first play does not count: a minute
        may have passed since, and a library may have kept a value."""
        for _ in range(2):  # If a minute passes in the first round, none passes in the second.
            now, moved = (
                [self._play(Decisions(), clock_s=clock_s) for _ in range(PLAYS_TO_BE_SURE)]
                for clock_s in (0.0, clocks.ANOTHER_TIME_S)
            )
            if now == [now[0]] * len(now) and moved == [moved[0]] * len(moved):
                return now[0] != moved[0]
        return False

    def _violation(self, seed: int, script: Script, differing: list[Difference]) -> Violation:
        # Explain the violation, even if the time is over.
        self.subject.goes_on = lambda: True
        is_error = differing[0].place == "the run ended with an error"

        def shows_it(smaller: Script) -> bool:
            different = self.replay(smaller)
            return (
                bool(different)
                and (different[0].place == "the run ended with an error") == is_error
            )

        shortest = shrinking.shrink(script, shows_it)
        trace: list[str] = []
        differing = self.replay(shortest, trace.append) or differing
        decided = len(script.faults) + len(script.picks)
        is_the_clock = any(fault.kind == "clock" for fault in shortest.faults)
        diagnosis = self._diagnosis(
            differing, shortest, by_itself=not shortest.faults, is_the_clock=is_the_clock
        )
        return Violation(
            self.topology.id, seed, tuple(differing), diagnosis, shortest, tuple(trace), decided
        )

    def _diagnosis(
        self,
        differing: Sequence[Difference],
        script: Script,
        by_itself: bool,
        is_the_clock: bool,
        clock_s: float = 0.0,
    ) -> Diagnosis:
        """Play ``script`` once more and watch every hook. Compare it with a run without failures,
        which is watched as well."""
        probe = Probe(self.subject.effects)
        schedule = Schedule(self.subject, Decisions(script), watch=probe.around, clock_s=clock_s)
        schedule.play()
        beside = self._judge.reference(schedule, watch=Probe(None).around)
        graph = self.subject.graph
        blame = first_to_differ(graph, schedule.recording(), beside.recording())
        held = frozenset(compiler.held_components(graph))
        case = Case(
            tuple(graph.components),
            held,
            self.subject.is_opaque,
            by_itself,
            is_the_clock,
            self.subject.clues_of,
        )
        return diagnose(differing, probe.touches, blame, case)


def simulate(
    topology: TopologyGraph,
    conf: config.Config | Mapping[str, Any] | None = None,
    *,
    seeds: int = 100,
    first_seed: int = 0,
    other_processes: bool = True,
    **more: Any,
) -> SimulationReport:
    """Play ``seeds`` schedules of ``topology``. ``more`` is as for :class:`Simulation`.

    Before, the topology runs in two processes with different ``PYTHONHASHSEED``, which takes a
    second or two. Pass ``other_processes=False`` to skip this.
    """
    with Simulation(topology, conf, **more) as simulation:
        violation = simulation.recompute() if other_processes else None
        return (
            simulation.run(seeds, first_seed) if violation is None else simulation.report(violation)
        )
