"""The simulator: a topology, thousands of schedules, and whether any of them gives other results than a run without failures.

What runs is the user's own code, and ours: the same plan, coordinator, engine, batches, data plane, state and stores as in Spark. Simulated are
time, threads, the network, processes and the luck of all of them. ``schedule`` tells what can happen.

Invariants: a seed and the code together determine a schedule.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txtopo import config, errors
from txtopo.testing.simulator import mistakes
from txtopo.testing.simulator import shrink as shrinking
from txtopo.testing.simulator.decisions import Chance, Decisions, Script
from txtopo.testing.simulator.diagnosis import Diagnosis, Probe, diagnose
from txtopo.testing.simulator.outcome import Difference, Outcome, differences
from txtopo.testing.simulator.schedule import Schedule
from txtopo.testing.simulator.subject import TRANSACTIONS, Subject
from txtopo.testing.simulator.violation import Violation
from txtopo.topology.graph import TopologyGraph


@dataclass(slots=True)
class SimulationReport:
    """What a simulation came to."""

    topology: str
    schedules: int = 0
    """How many were played."""
    transactions: int = 0
    """How many each of them commits."""
    faults: Counter[str] = field(default_factory=Counter)
    """How many struck, by kind."""
    violation: Violation | None = None
    """The first that was found; nothing is played after it."""
    elapsed_s: float = 0.0

    @property
    def schedules_per_minute(self) -> float:
        """How fast it went."""
        return 60 * self.schedules / max(self.elapsed_s, 1e-9)

    def __str__(self) -> str:
        ended = "no violation" if self.violation is None else f"a violation\n\n{self.violation}"
        return (
            f"{self.topology}: {self.schedules:,} schedules of {self.transactions} transactions in {self.elapsed_s:.1f} s"
            f" ({self.schedules_per_minute:,.0f} a minute), {self.faults.total():,} faults, {ended}"
        )


class Simulation:
    """Simulates ``topology`` under ``conf``; to be closed, or used in a ``with`` block.

    ``transactions`` bounds a schedule whose source does not end before. ``effects()`` returns all the effects of the topology that are not in
    stores of txtopo, as JSON-able data, by preference a dict; ``reset()`` removes them. ``vary_parallelism`` lets drivers start with other
    task counts too; then only stores and effects are compared, because what a task emits may rightly depend on how many there are.

    :raises errors.UsageError: without any failure the topology ends with an error, or its source gives no batch.
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
        self._subject = Subject(topology, conf, transactions=transactions, effects=effects, reset=reset, vary_parallelism=vary_parallelism)
        self._compares_outputs = not self._subject.is_opaque and not vary_parallelism
        try:
            decisions = Decisions()
            self.expected = Schedule(self._subject, decisions).play()
            """What a run without failures comes to."""
            self._opportunities = decisions.opportunities
            self._require_comparable()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything."""
        self._subject.close()

    def _require_comparable(self) -> None:
        id = self.topology.id
        if self.expected.error is not None:
            raise errors.UsageError(f"topology {id!r} ends with an error without any failure: {self.expected.error}\n  Mend that first.")
        if not self.expected.committed:
            raise errors.UsageError(f"topology {id!r} commits no transaction: its source is not ready\n  Give it input for a test.")
        if self._subject.is_opaque and self.expected.committed >= self._subject.transactions:
            raise errors.UsageError(
                f"topology {id!r} has an opaque spout with more than {self._subject.transactions} transactions of input\n"
                "  Batches of an opaque spout may differ, so only all of them together can be compared: give less input, or allow more transactions."
            )

    # -- schedules -----------------------------------------------------------------------------------------------------------

    def run(self, seeds: int, first_seed: int = 0) -> SimulationReport:
        """Play the schedules of seeds ``first_seed``, ``first_seed + 1`` …, ``seeds`` of them, up to the first violation."""
        report = SimulationReport(self.topology.id, transactions=self.expected.committed)
        began = time.perf_counter()
        report.violation = self._without_failures()
        for seed in range(first_seed, first_seed + seeds):
            if report.violation is not None:
                break
            decisions = self._decisions_of(seed)
            found = self._differences(Schedule(self._subject, decisions).play())
            report.schedules += 1
            report.faults.update(fault.kind for fault in decisions.struck)
            if found:
                report.violation = self._violation(seed, decisions.written_down(), found)
        report.elapsed_s = time.perf_counter() - began
        return report

    def outcome_of(self, seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
        """What the schedule of ``seed`` comes to; ``trace`` is told what happens, line by line."""
        return Schedule(self._subject, self._decisions_of(seed), trace).play()

    def replay(self, script: Script, trace: Callable[[str], None] | None = None) -> list[Difference]:
        """How the schedule of ``script`` differs from a run without failures."""
        return self._differences(Schedule(self._subject, Decisions(script), trace).play())

    def _decisions_of(self, seed: int) -> Decisions:
        return Decisions(chance=Chance.of(seed, self._opportunities))

    def _differences(self, outcome: Outcome) -> list[Difference]:
        return differences(outcome, self.expected, self._compares_outputs)

    def _without_failures(self) -> Violation | None:
        """The violation that two runs without failures differ."""
        found = self.replay(Script())
        if not found:
            return None
        component = next((difference.component for difference in found if difference.component is not None), None)
        return Violation(self.topology.id, None, tuple(found), Diagnosis(component, (mistakes.CHANGES_BY_ITSELF,)))

    def _violation(self, seed: int, script: Script, found: list[Difference]) -> Violation:
        is_error = found[0].place == "the run ended with an error"

        def shows_it(smaller: Script) -> bool:
            different = self.replay(smaller)
            return bool(different) and (different[0].place == "the run ended with an error") == is_error

        shortest = shrinking.shrink(script, shows_it)
        trace: list[str] = []
        found = self.replay(shortest, trace.append) or found
        probe = Probe(self._subject.effects)
        Schedule(self._subject, Decisions(shortest), watch=probe).play()
        decided = len(script.faults) + len(script.picks)
        return Violation(self.topology.id, seed, tuple(found), diagnose(found, probe.touches), shortest, tuple(trace), decided)


def simulate(
    topology: TopologyGraph, conf: config.Config | Mapping[str, Any] | None = None, *, seeds: int = 100, first_seed: int = 0, **more: Any
) -> SimulationReport:
    """Play ``seeds`` schedules of ``topology``; ``more`` as for :class:`Simulation`."""
    with Simulation(topology, conf, **more) as simulation:
        return simulation.run(seeds, first_seed)

