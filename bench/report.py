"""Results as text: the output of a run, and the measured parts of ``docs/benchmarks.md``.

The page is written by hand; between two comments, ``<!-- measured NAME -->`` and
``<!-- end measured -->``, stand the measured parts: a table of all ratios, the machine, or one line
with its figures. This module writes only these parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bench import plots
from bench.race import Ratio
from bench.results import LineResult, Results

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
IMAGES = PAGE.parent / "images"
_REGION = re.compile(r"<!-- measured ([\w.-]+) -->\n.*?<!-- end measured -->", flags=re.DOTALL)


def told(result: LineResult, with_figures: bool = True) -> str:
    """A line as plain text."""
    texts = [f"{result.id} ({result.seconds:.0f} s)"]
    if result.error is not None:
        return "\n".join(
            [f"{texts[0]}: FAILED", *(f"    {line}" for line in result.error.splitlines())]
        )
    if with_figures:
        texts += [
            f"    {figure.what:68} {_number(figure.value):>10} {figure.unit}".rstrip()
            for figure in result.measured.figures
        ]
    texts += [
        f"    {ratio.what:68} {ratio.value:10.2f} {_target(ratio)}".rstrip()
        for ratio in result.measured.ratios
    ]
    return "\n".join(texts)


def write(results: Results) -> None:
    """The page and its plots."""
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    plots.write(results, IMAGES)


def refreshed(page: str, results: Results) -> str:
    """``page`` with every measured part as ``results`` have it. A line they do not have is said to
    be missing."""

    def anew(match: re.Match[str]) -> str:
        return f"<!-- measured {match[1]} -->\n{_part(match[1], results)}\n<!-- end measured -->"

    return _REGION.sub(anew, page)


def shown_in(page: str) -> list[str]:
    """The names of the measured parts of ``page``."""
    return [match[1] for match in _REGION.finditer(page)]


def _part(name: str, results: Results) -> str:
    if name == "overview":
        return overview(results)
    if name == "machine":
        return _machine(results.machine)
    line = results.line(name)
    return "Not measured yet." if line is None else one(line)


def overview(results: Results) -> str:
    """A table of the ratios that have a target."""
    rows = ["| line | ratio | measured | target | |", "|---|---|---|---|---|"]
    for line in results.lines:
        if line.error is not None:
            rows.append(f"| `{line.id}` | | failed | | |")
        rows += [
            f"| `{line.id}` | {ratio.what} | {ratio.value:.2f} | {_bound(ratio)} | {_verdict(ratio)} |"
            for ratio in _with_target(line)
        ]
    return "\n".join(rows)


def one(line: LineResult) -> str:
    """The tables of one line: its ratios, its figures, and how the contenders were run."""
    if line.error is not None:
        return f"This line failed:\n\n```text\n{line.error.strip().splitlines()[-1]}\n```"
    parts = []
    if line.measured.ratios:
        parts.append(["| ratio | measured | single rounds | target | |", "|---|---|---|---|---|"])
        parts[-1] += [
            f"| {r.what} | **{r.value:.2f}** | {r.low:.2f} to {r.high:.2f} | {_bound(r)} | {_verdict(r)} |"
            for r in line.measured.ratios
        ]
    if line.measured.figures:
        parts.append(["| on this machine | |", "|---|---|"])
        parts[-1] += [
            f"| {figure.what} | {_number(figure.value)} {figure.unit}".rstrip() + " |"
            for figure in line.measured.figures
        ]
    if line.measured.settings:
        parts.append([f"- {who}: {how}" for who, how in line.measured.settings.items()])
    if line.is_quick:
        parts.append(["Measured in the reduced form: smaller batches, fewer rounds."])
    return "\n\n".join("\n".join(part) for part in parts)


def _machine(machine: Mapping[str, object]) -> str:
    versions = machine["versions"]
    assert isinstance(versions, Mapping)
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {machine['date']}: {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB of memory, "
        f"{machine['system']}; load before the run {machine['load_before']}. {named}."
    )


def _with_target(line: LineResult) -> list[Ratio]:
    return [ratio for ratio in line.measured.ratios if ratio.target is not None]


def _bound(ratio: Ratio) -> str:
    return (
        ""
        if ratio.target is None
        else f"{'≥' if ratio.better == 'higher' else '≤'} {ratio.target:g}"
    )


def _target(ratio: Ratio) -> str:
    return f"(target {_bound(ratio)})" if ratio.target is not None else ""


def _verdict(ratio: Ratio) -> str:
    return {True: "reached", False: "missed", None: ""}[ratio.is_met]


def _number(value: float) -> str:
    """Three digits or so, with commas."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
