"""The plots of the page, drawn by matplotlib as SVG. matplotlib is imported only here, and only
when something is drawn.

They have no background of their own, and colours of middle brightness, so that they can be read on
a light page and on a dark one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.race import Ratio
from bench.results import LineResult, Results

INK = "#7a8290"
OURS = "#3f8fd0"
THEIRS = "#d08a3f"
GOOD = "#3fa06b"
BAD = "#d0604f"
_WIDTH_INCHES = 8.0

Drawing = Callable[..., None]
"""Draws ``line`` on the axes it is given."""


def write(results: Results, directory: Path) -> list[Path]:
    """Draw what ``results`` have into ``directory``; returns the files."""
    import matplotlib as mpl

    mpl.use("svg")
    settings = {
        "svg.hashsalt": "txtopo",
        "svg.fonttype": "none",
        "font.size": 10,
        "font.family": "sans-serif",
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": INK,
        "ytick.color": INK,
        "text.color": INK,
        "legend.frameon": False,
    }
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(settings):
        written.append(_overview(results, directory))
        for id, (draw, height) in LINES.items():
            line = results.line(id)
            # The page shows every plot: a plot that says "nothing" is better than a broken link.
            if line is None or line.error is not None:
                drawing = partial(_nothing, why="not measured yet" if line is None else "failed")
            else:
                drawing = partial(draw, line=line)
            written.append(_drawn(drawing, height, directory / f"bench-{id.replace('.', '-')}.svg"))
    return written


def _nothing(axes: Any, why: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, why, ha="center", va="center")


def _drawn(draw: Callable[[Any], None], height: float, path: Path) -> Path:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(_WIDTH_INCHES, height), layout="constrained")
    draw(axes)
    # Without a date, the same results make the same file.
    figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _overview(results: Results, directory: Path) -> Path:
    """Every ratio that has a target, in units of its target: beyond the line is reached."""
    targets = [
        (line.id, ratio) for line in results.lines for ratio in line.measured.ratios if ratio.target
    ]

    def draw(axes: Any) -> None:
        scores = [_score(ratio) for _, ratio in targets]
        axes.barh(
            range(len(targets)),
            scores,
            color=[GOOD if ratio.is_met else BAD for _, ratio in targets],
            height=0.7,
        )
        axes.set_yticks(
            range(len(targets)), [f"{id}: {ratio.what}" for id, ratio in targets], fontsize=7
        )
        axes.invert_yaxis()
        axes.axvline(1.0, color=INK, linewidth=1)
        axes.set_xlim(0, 3)
        axes.set_xlabel("measured, in units of the target (more is better; cut off at 3)")

    return _drawn(draw, 1.2 + 0.26 * len(targets), directory / "bench-overview.svg")


def _score(ratio: Ratio) -> float:
    assert ratio.target is not None
    return min(
        3.0,
        ratio.value / ratio.target
        if ratio.better == "higher"
        else ratio.target / max(ratio.value, 1e-9),
    )


def _bars(axes: Any, line: LineResult) -> None:
    """The absolute figures that share the unit of the first."""
    figures = [
        figure for figure in line.measured.figures if figure.unit == line.measured.figures[0].unit
    ]
    colours = [OURS if _is_ours(figure.what) else THEIRS for figure in figures]
    axes.barh(range(len(figures)), [figure.value for figure in figures], color=colours, height=0.7)
    axes.set_yticks(range(len(figures)), [figure.what for figure in figures])
    axes.invert_yaxis()
    axes.set_xlabel(figures[0].unit)


def _is_ours(name: str) -> bool:
    return name.startswith(("txtopo", "open", "elapsed", "max_spout_pending"))


def _lines(axes: Any, line: LineResult) -> None:
    """The series of a line that has a logarithmic axis of sizes."""
    for (name, points), colour in zip(
        line.measured.series.items(), (OURS, THEIRS, GOOD, BAD), strict=False
    ):
        axes.plot(
            [x for x, _ in points], [y for _, y in points], marker="o", color=colour, label=name
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows per batch")
    axes.set_ylabel("rows per second")
    axes.legend()


def _progress(axes: Any, line: LineResult) -> None:
    """How long every hundred transactions took."""
    for points in line.measured.series.values():
        steps = [
            (after[0], (after[1] - before[1]) * 10)
            for before, after in itertools.pairwise(points)
            if after[1] > before[1]
        ]
        axes.plot([x for x, _ in steps], [y for _, y in steps], color=OURS)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("txid")
    axes.set_ylabel("ms per transaction")


LINES: dict[str, tuple[Drawing, float]] = {
    "txn.rate": (_bars, 2.6),
    "txn.rate-files": (_bars, 2.6),
    "txn.latency": (_bars, 2.2),
    "txn.latency-shuffle": (_bars, 2.2),
    "tuples.none": (_bars, 1.8),
    "tuples.shuffle": (_bars, 1.8),
    "tuples.words": (_bars, 2.4),
    "columns.key-count": (_bars, 1.8),
    "columns.sums": (_bars, 1.8),
    "columns.break-even": (_lines, 3.2),
    "growth": (_progress, 2.4),
}
"""Which lines are drawn, how, and how high, in inches."""
