"""Writes a violation as text: the differences, the component at fault with its mistake, and the
shortest schedule that shows them."""

from __future__ import annotations

from dataclasses import dataclass, field

from txtopo.testing.contracts.violation import ContractError
from txtopo.testing.simulator.decisions import Script
from txtopo.testing.simulator.diagnosis import Diagnosis
from txtopo.testing.simulator.outcome import Difference

TRACE_SHOWN_MAX = 40
DIFFERENCES_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Violation:
    """A schedule whose results differ from a run without failures. ``seed`` is None if no schedule
    was needed to see the violation."""

    topology: str
    seed: int | None
    differences: tuple[Difference, ...]
    diagnosis: Diagnosis
    script: Script = field(default_factory=Script)
    """The shortest script that the search found."""
    trace: tuple[str, ...] = ()
    """The events in the shortest schedule."""
    decided: int = 0
    """How many decisions the schedule for ``seed`` has."""
    broken: ContractError | None = None
    """The contract that a part of the topology breaks, if a checker has found it."""

    @property
    def component(self) -> str | None:
        """The component at fault, if known."""
        return self.diagnosis.component

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The mistakes that explain the violation, by name."""
        return tuple(mistake.name for mistake in self.diagnosis.mistakes)

    def text(self, whole_trace: bool = False) -> str:
        """Write the report."""
        culprit = (
            f"component {self.component!r}"
            if self.component is not None
            else f"topology {self.topology!r}"
        )
        headline = (
            f": {self.mistakes[0]}"
            if self.mistakes
            else " does not give the same results under failures"
        )
        lines = [f"VIOLATION by {culprit}{headline}"]
        if self.broken is not None:
            # If a schedule has shown the violation, the mistake's own cure is printed.
            shown = (
                str(self.broken).removesuffix(f"\n  {self.broken.cure}")
                if self.differences and self.mistakes
                else str(self.broken)
            )
            lines += [f"  {line}" for line in shown.splitlines()]
        for difference in self.differences[:DIFFERENCES_SHOWN_MAX]:
            lines.append(f"  {difference}")
        if len(self.differences) > DIFFERENCES_SHOWN_MAX:
            lines.append(
                f"  … and {len(self.differences) - DIFFERENCES_SHOWN_MAX} more differences"
            )
        for mistake in self.diagnosis.mistakes:
            lines += ["", f"{mistake.name}: {mistake.why}", f"  {mistake.cure}"]
        lines += [f"  {detail}" for detail in self.diagnosis.details]
        if self.seed is not None:
            lines += ["", *self._schedule(whole_trace)]
        return "\n".join(lines)

    def _schedule(self, whole_trace: bool) -> list[str]:
        faults = [f"  {number}. {fault}" for number, fault in enumerate(self.script.faults, 1)]
        extra = []
        if self.script.picks:
            extra.append(
                f"  and in {len(self.script.picks)} places another order than the first in line"
            )
        if self.script.shuffle_seed is not None:
            extra.append("  and slots and chunks in another order")
        if not faults and not extra:
            extra.append("  nothing at all")
        shown = (
            self.trace
            if whole_trace or len(self.trace) <= TRACE_SHOWN_MAX
            else self.trace[-TRACE_SHOWN_MAX:]
        )
        left_out = len(self.trace) - len(shown)
        return [
            f"seed {self.seed}: of its {self.decided} decisions these suffice",
            *faults,
            *extra,
            "",
            "what happens",
            *([f"  … {left_out} lines; -v shows them"] if left_out else []),
            *(f"  {line}" for line in shown),
        ]

    def __str__(self) -> str:
        return self.text()
