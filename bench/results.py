"""The results of a run, as JSON that is kept: ``bench/results/latest.json`` is what the
documentation shows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.line import Figure, Measured
from bench.race import Ratio

DIRECTORY = Path(__file__).resolve().parent / "results"
LATEST = DIRECTORY / "latest.json"
_DIGITS = 4


@dataclass(frozen=True)
class LineResult:
    """What came of one line. ``error`` is ``None`` if it was measured, and every result was right."""

    id: str
    asks: str
    seconds: float
    measured: Measured = field(default_factory=Measured)
    error: str | None = None
    is_quick: bool = False
    """Measured in the reduced form: good for a look, not for a claim."""


@dataclass(frozen=True)
class Results:
    """A run. ``machine`` is what :func:`bench.machine.described` says."""

    machine: Mapping[str, Any]
    lines: tuple[LineResult, ...]

    def line(self, id: str) -> LineResult | None:
        """The line ``id``, if the run had it."""
        return next((line for line in self.lines if line.id == id), None)

    def with_lines(self, fresh: tuple[LineResult, ...]) -> Results:
        """The results with ``fresh`` lines in the place of lines with equal ids; new lines come
        last.
        """
        by_id = {line.id: line for line in self.lines} | {line.id: line for line in fresh}
        return Results(self.machine, tuple(by_id.values()))


def dumps(results: Results) -> str:
    """As text. Numbers have four digits: further digits are noise."""
    return json.dumps(_rounded(dataclasses.asdict(results)), indent=1, ensure_ascii=False) + "\n"


def loads(text: str) -> Results:
    """What :func:`dumps` has written."""
    said = json.loads(text)
    return Results(
        said["machine"],
        tuple(
            LineResult(**{**line, "measured": _measured(line["measured"])})
            for line in said["lines"]
        ),
    )


def _measured(said: dict[str, Any]) -> Measured:
    ratios = tuple(Ratio(**ratio) for ratio in said["ratios"])
    return Measured(
        ratios,
        tuple(Figure(**figure) for figure in said["figures"]),
        said["settings"],
        said["series"],
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
