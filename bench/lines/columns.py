"""Whole columns instead of tuples: against our own path by tuple, and against pyarrow by hand."""

from __future__ import annotations

import statistics
from functools import partial

from bench import column_rows
from bench.line import Figure, Line, Measured, Stage
from bench.process import ContenderProcess
from bench.race import interleaved, ratio, values

BY_HAND_S = 2.0
"""The run by hand lasts at least so long."""
_LINKS_MAX = 1024
_BREAK_EVEN_ROWS = (100, 1_000, 10_000, 100_000, 1_000_000)


def _against_tuples_and_hand(
    stage: Stage, work: str, of_tuples: float, of_hand: float | None
) -> Measured:
    """By column, by tuple, and by hand. By tuple, a batch is smaller, or its run would take
    minutes; rows per second are compared."""
    count, rounds = stage.pick(1 << 21, 1 << 19), stage.pick(3, 1)
    paths = column_rows.write(stage.directory / "rows", count, _LINKS_MAX)
    hand, ours = stage.start("columns:ByHand"), stage.start("columns:Columns")
    files, seconds = (2, 0.0) if stage.is_quick else _enough(hand, paths, count, work)
    block = partial(ours.block, work=work, rows_per_file=count)
    blocks = {
        "txtopo, columns": partial(
            block, paths=paths[: 2 * files], files_per_batch=files, by="columns"
        ),
        "pyarrow by hand": partial(
            hand.block,
            paths=paths[: 2 * files],
            files_per_batch=files,
            rows_per_file=count,
            work=_by_hand(work),
        ),
        "txtopo, tuples": partial(block, paths=paths[:4], files_per_batch=2, by="tuples"),
    }
    by_way = interleaved(blocks, rounds)
    rates = {name: values(samples, "rows_per_second") for name, samples in by_way.items()}
    return Measured(
        (
            ratio(
                "rows/s, columns : tuples",
                rates["txtopo, columns"],
                rates["txtopo, tuples"],
                "higher",
                of_tuples,
            ),
            ratio(
                "rows/s, columns : pyarrow by hand in 2 processes",
                rates["txtopo, columns"],
                rates["pyarrow by hand"],
                "higher",
                of_hand,
            ),
        ),
        tuple(Figure(name, statistics.median(rate), "rows/s") for name, rate in rates.items()),
        {
            "batch": f"{files * count:,} rows in {files} Parquet files ({seconds:.1f} s by hand); by tuple, {2 * count:,} rows"
        },
    )


def _by_hand(work: str) -> str:
    """By hand nothing is grouped: the counts are added up."""
    return "key-count" if work == "keys-grouped" else work


def _enough(hand: ContenderProcess, paths: list[str], count: int, work: str) -> tuple[int, float]:
    """How many files make a batch that takes ``BY_HAND_S`` by hand, and how long it took."""
    files = 2
    while True:
        seconds = hand.block(
            paths=paths[:files], files_per_batch=files, rows_per_file=count, work=_by_hand(work)
        )["seconds"]
        if seconds >= BY_HAND_S or 8 * files > _LINKS_MAX:
            return files, float(seconds)
        files *= 2


def _key_count(stage: Stage) -> Measured:
    return _against_tuples_and_hand(stage, "key-count", 5.0, 0.7)


def _keys_grouped(stage: Stage) -> Measured:
    return _against_tuples_and_hand(stage, "keys-grouped", 5.0, None)


def _sums(stage: Stage) -> Measured:
    return _against_tuples_and_hand(stage, "sums", 10.0, 0.7)


def _break_even(stage: Stage) -> Measured:
    """The smallest batch that is faster by column, key count, one slot, one transaction at a time."""
    ours = stage.start("columns:Columns")
    sizes = _BREAK_EVEN_ROWS[:4] if stage.is_quick else _BREAK_EVEN_ROWS
    rates: dict[str, list[list[float]]] = {"columns": [], "tuples": []}
    for size in sizes:
        links = max(5, min(25, 2_000_000 // size))
        paths = column_rows.write(stage.directory / f"rows-{size}", size, links)
        block = partial(
            ours.block,
            paths=paths,
            rows_per_file=size,
            files_per_batch=1,
            work="key-count",
            parallelism=1,
            pending=1,
        )
        by_way = interleaved(
            {by: partial(block, by=by) for by in rates}, stage.pick(3, 1), stage.pick(1, 0)
        )
        for by, samples in by_way.items():
            rates[by].append([float(size), statistics.median(values(samples, "rows_per_second"))])
    figures = [
        Figure(f"{by}, {size:,.0f} rows per batch", rate, "rows/s")
        for by, points in rates.items()
        for size, rate in points
    ]
    smallest = break_even(rates["columns"], rates["tuples"])
    if smallest is not None:
        figures.insert(
            0,
            Figure(
                "break-even: by column it is faster, or as fast, from so many rows per batch on",
                smallest,
                "rows",
            ),
        )
    return Measured(
        (),
        tuple(figures),
        {"txtopo": "key count over Parquet, parallelism 1, max_spout_pending 1"},
        rates,
    )


def break_even(columns: list[list[float]], tuples: list[list[float]]) -> float | None:
    """The smallest size measured from which on columns are never slower; ``None`` if even the
    largest is."""
    even: float | None = None
    for (size, by_column), (_, by_tuple) in sorted(zip(columns, tuples, strict=True), reverse=True):
        if by_column < by_tuple:
            break
        even = size
    return even


LINES = (
    Line("columns.key-count", "How much faster are keys counted by column?", _key_count),
    Line(
        "columns.keys-grouped",
        "The same where every key crosses a fields grouping?",
        _keys_grouped,
        in_quick=False,
    ),
    Line("columns.sums", "How much faster are numbers added up by column?", _sums, in_quick=False),
    Line(
        "columns.break-even",
        "From which batch size on are columns worth it?",
        _break_even,
        in_quick=False,
    ),
)
