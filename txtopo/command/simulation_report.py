"""Output of ``txtopo test``: progress, warnings, and the verdict as a JSON document."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from txtopo.plan import guarantees
from txtopo.runtime.progress import TerminalLine
from txtopo.testing.simulator import parts
from txtopo.testing.simulator.simulation import SimulationReport
from txtopo.testing.simulator.trial import TrialProgress
from txtopo.topology.graph import TopologyGraph

FIRST_S, EVERY_S = 1.5, 10.0
"""Seconds before a log's first line, and between two lines."""

REWRITE_S = 0.2
"""Seconds after which a terminal's line is rewritten."""

STOPPED = 130
"""The exit code after Ctrl-C or SIGTERM."""


@contextlib.contextmanager
def shown(progress: TrialProgress, stream: TextIO | None = None) -> Iterator[None]:
    """A context that shows ``progress`` on standard error: one line that is rewritten on a
    terminal, else lines now and then."""
    over = threading.Event()
    arguments = (progress, TerminalLine(stream or sys.stderr), over)
    thread = threading.Thread(target=_show, args=arguments, name="txtopo-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(progress: TrialProgress, line: TerminalLine, over: threading.Event) -> None:
    wait_s = REWRITE_S if line.rewrites else FIRST_S
    with contextlib.suppress(OSError, ValueError):  # A terminal that has gone ends the showing.
        while not over.wait(wait_s):
            line.rewrite(f"txtopo test: {progress}")
            wait_s = REWRITE_S if line.rewrites else EVERY_S
        line.clear()


def warning(topology: TopologyGraph) -> str | None:
    """The warning about a topology that reaches outside of the simulation."""
    outside = [
        id
        for id, component in topology.components.items()
        if guarantees.writes_elsewhere(component)
    ]
    if not outside:
        return None
    named = ", ".join(map(repr, outside))
    return (
        f"warning: {named} commit{'s' * (len(outside) == 1)} to a system that is no txtopo store or sink, and that is called for real:\n"
        "  mail is sent, requests are made, messages are acknowledged, thousands of times. Stop now if this must not happen.\n"
        "  Give the component a stand-in for tests, and define effects() and reset() beside the topology."
    )


def again(report: SimulationReport, typed: str) -> str | None:
    """The command line that shows a violation again."""
    if report.violation is None or report.violation.seed is None:
        return None
    return f"txtopo test {typed} --seed {report.violation.seed} --seeds 1"


def exit_code(report: SimulationReport, was_interrupted: bool) -> int:
    """130 after a signal without a violation, else the report's exit code."""
    return (
        STOPPED
        if was_interrupted and report.is_partial and report.violation is None
        else report.exit_code
    )


def document(
    report: SimulationReport, code: int, first_seed: int, command: str | None
) -> dict[str, Any]:
    """The report as plain data: the document of ``--json``."""
    verdict = {0: "no violation", 1: "violation", 7: "could not look", STOPPED: "stopped"}[code]
    return {
        "topology": report.topology,
        "verdict": verdict,
        "exit_code": code,
        "is_partial": report.is_partial,
        "schedules": report.schedules,
        "first_seed": first_seed,
        "transactions": report.transactions,
        "faults": dict(sorted(report.faults.items())),
        "elapsed_s": round(report.elapsed_s, 3),
        "compared": dataclasses.asdict(report.compared),
        "could_not_look": [
            {"component": unseen.component, "what": unseen.fact, "cure": unseen.cure}
            for unseen in report.unseen
        ],
        "violation": _violation(report, command),
    }


def _violation(report: SimulationReport, command: str | None) -> dict[str, Any] | None:
    violation = report.violation
    if violation is None:
        return None
    broken = violation.broken
    return {
        "component": violation.component,
        "mistakes": [dataclasses.asdict(mistake) for mistake in violation.diagnosis.mistakes],
        "details": list(violation.diagnosis.details),
        "contract": None
        if broken is None
        else {
            "contract": broken.contract,
            "rule": broken.rule,
            "hook": parts.hook_of(broken),
            "what": broken.what,
            "cure": broken.cure,
        },
        "differences": [
            {
                "place": difference.place,
                "found": difference.found,
                "expected": difference.expected,
                "component": difference.component,
            }
            for difference in violation.differences
        ],
        "seed": violation.seed,
        "faults": [str(fault) for fault in violation.script.faults],
        "again": command,
    }
