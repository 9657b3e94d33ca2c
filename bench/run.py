"""Runs lines one after the other, each on a stage of its own. A line that fails is reported as
failed; the others still run."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import report
from bench.line import Line, Stage
from bench.results import LineResult


def run(
    lines: Sequence[Line], is_quick: bool, say: Callable[[str], None]
) -> tuple[LineResult, ...]:
    """What came of each of ``lines``; every result is said as soon as it is there."""
    results = []
    for line in lines:
        result = run_one(line, is_quick)
        say(report.told(result, with_figures=not is_quick))
        results.append(result)
    return tuple(results)


def run_one(line: Line, is_quick: bool) -> LineResult:
    """What came of ``line``. An interruption is passed on, after everything the line has started is
    ended."""
    directory = Path(tempfile.mkdtemp(prefix="txtopo-bench-"))
    began = time.perf_counter()
    try:
        with Stage(directory, is_quick) as stage:
            measured = line.measure(stage)
        return LineResult(
            line.id, line.asks, time.perf_counter() - began, measured, is_quick=is_quick
        )
    except Exception:
        return LineResult(
            line.id,
            line.asks,
            time.perf_counter() - began,
            error=traceback.format_exc(),
            is_quick=is_quick,
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
