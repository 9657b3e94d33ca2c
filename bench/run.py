"""Runs lines one after the other, each on a stage of its own. A line that fails is reported as failed; the others still run."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench.line import Line, Measured, Stage


def run(lines: Sequence[Line], is_quick: bool) -> int:
    """0 if every line was measured."""
    status = 0
    for line in lines:
        directory = Path(tempfile.mkdtemp(prefix="txtopo-bench-"))
        began = time.perf_counter()
        try:
            with Stage(directory, is_quick) as stage:
                measured = line.measure(stage)
            _show(line, measured, time.perf_counter() - began)
        except Exception:
            status = 1
            print(f"{line.id}: FAILED\n{traceback.format_exc()}", flush=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return status


def _show(line: Line, measured: Measured, seconds: float) -> None:
    print(f"{line.id} ({seconds:.0f} s)")
    for figure in measured.figures:
        print(f"    {figure.what:60} {figure.value:12,.1f} {figure.unit}")
    for ratio in measured.ratios:
        print(f"    {ratio.what:70} {ratio.value:7.2f} ({ratio.low:.2f} to {ratio.high:.2f}) target {ratio.target}")
    print(flush=True)
