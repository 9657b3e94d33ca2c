"""All lines, in the order of the report."""

from __future__ import annotations

from bench.line import Line
from bench.lines import (
    columns,
    engine,
    exports,
    files,
    floor,
    journal,
    kafka,
    memory,
    start,
    stores,
    transactions,
    tuples,
)

LINES: tuple[Line, ...] = (
    *floor.LINES,
    *start.LINES,
    *transactions.LINES,
    *tuples.LINES,
    *engine.LINES,
    *journal.LINES,
    *memory.LINES,
    *columns.LINES,
    *stores.LINES,
    *files.LINES,
    *exports.LINES,
    *kafka.LINES,
)
