"""A line of the report: its name, its question, and the function that measures the answer on a
stage.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.process import BLOCK_S_MAX, ContenderProcess
from bench.race import Ratio


class WrongResultError(Exception):
    """A contender counted wrong: its time means nothing."""


def check(actual: Any, expected: Any) -> None:
    """Refuse a wrong result."""
    if actual != expected:
        raise WrongResultError(f"counted {str(actual)[:200]}; the truth is {str(expected)[:200]}")


@dataclass(frozen=True)
class Figure:
    """An absolute figure: background, for this machine only."""

    what: str
    value: float
    unit: str


@dataclass(frozen=True)
class Measured:
    """What a line found. ``settings`` say how each contender was run; ``series`` are for a plot:
    name → [[x, y], …]."""

    ratios: tuple[Ratio, ...] = ()
    figures: tuple[Figure, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    series: Mapping[str, list[list[float]]] = field(default_factory=dict)


class Stage:
    """Where a line runs: a directory, the contenders it has started, and whether it must be quick.
    A context manager."""

    def __init__(self, directory: Path, is_quick: bool) -> None:
        self.directory, self.is_quick = directory, is_quick
        self._started: list[ContenderProcess] = []

    def start(
        self,
        contender: str,
        block_s_max: float = BLOCK_S_MAX,
        python: str = sys.executable,
        **settings: Any,
    ) -> ContenderProcess:
        """A contender (``module:Class`` below ``bench.contenders``) in a process of its own, with a
        directory of its own. ``python`` runs it."""
        directory = self.directory / f"contender-{len(self._started)}"
        process = ContenderProcess(
            f"bench.contenders.{contender}", settings, directory, block_s_max, python
        )
        self._started.append(process)
        return process

    def pick(self, full: int, quick: int) -> int:
        """``full``, or ``quick`` where it must be quick."""
        return quick if self.is_quick else full

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as closing:
            for process in self._started:
                closing.callback(process.close)
        self._started.clear()


@dataclass(frozen=True)
class Line:
    """``asks`` is the question it answers. ``in_quick``: whether the quick run has it."""

    id: str
    asks: str
    measure: Callable[[Stage], Measured]
    in_quick: bool = True
