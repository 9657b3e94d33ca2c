"""All lines, in the order of the report."""

from __future__ import annotations

from bench.line import Line
from bench.lines import floor, transactions, tuples

LINES: tuple[Line, ...] = (*floor.LINES, *transactions.LINES, *tuples.LINES)
