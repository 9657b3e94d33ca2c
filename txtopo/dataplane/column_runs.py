"""Column runs: tells RecordBatches from rows on their way, and loads the modules that need Arrow.

RecordBatches travel as rows do: they wait in the same lanes, in the same runs, in the order of
emits (R17). Before a run is executed or travels, its rows and its RecordBatches become separate
runs. A column run has a name that no user's stream can have. Its items are RecordBatches or, when
they travel, Arrow IPC streams. Every worker imports this module. Only workers that meet columns
import :mod:`txtopo.dataplane.columns`, and with it pyarrow.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from txtopo.dataplane.row_encoding import Runs
from txtopo.topology import arrow

_MARK = "\0"
_PREFIX = "\0columns "


class ColumnMistakeError(Exception):
    """Rows cannot become columns, or columns rows. Becomes :class:`txtopo.errors.EmitError`, with
    component and task."""


def is_run(name: str) -> bool:
    """Whether ``name`` names a column run."""
    return name[0] == _MARK


def stream_of(name: str) -> str:
    """The stream whose column run has this name."""
    return name[len(_PREFIX) :]


@functools.cache
def _module(module: str) -> Any:
    arrow.require_pyarrow("a topology with columns")
    return importlib.import_module(f"txtopo.dataplane.columns.{module}")


def is_arrow(value: Any) -> bool:
    """Whether ``value`` is an Arrow object with columns. Pickling a slice as it is would also
    pickle the memory that the slice was cut from."""
    pyarrow: Any = sys.modules.get("pyarrow")
    return pyarrow is not None and isinstance(
        value, (pyarrow.RecordBatch, pyarrow.Table, pyarrow.Array, pyarrow.ChunkedArray)
    )


def load_batches() -> Any:
    """:mod:`txtopo.dataplane.columns.batches`, and with it pyarrow."""
    return _module("batches")


def load_ports() -> Any:
    """:mod:`txtopo.dataplane.columns.ports`, and with it pyarrow."""
    return _module("ports")


def told_apart(runs: Runs) -> Runs:
    """Split ``runs``, in which rows and RecordBatches are mixed, into row runs and column runs."""
    return [
        (stream if are_rows else _PREFIX + stream, list(items))
        for stream, mixed in runs
        for are_rows, items in itertools.groupby(mixed, key=lambda item: type(item) is tuple)
    ]


def packed(runs: Runs, bound: int | None = None) -> Runs:
    """Split mixed ``runs``, and turn RecordBatches into Arrow IPC streams. Each stream has at most
    ``bound`` bytes, unless a single row has more."""
    return [
        (name, load_batches().dumped(items, bound) if is_run(name) else items)
        for name, items in told_apart(runs)
    ]


def in_rows(
    runs: Iterable[tuple[str, Iterable[Any]]], attempt: Any
) -> list[tuple[str, Iterable[Any]]]:
    """Turn column runs into rows, each with ``attempt`` as its first value. Row runs stay."""
    return [
        (
            stream_of(name),
            [row for batch in unpacked(items) for row in load_batches().rows(batch, attempt)],
        )
        if is_run(name)
        else (name, items)
        for name, items in runs
    ]


def unpacked(items: Iterable[Any]) -> Iterator[Any]:
    """The RecordBatches in a column run."""
    for item in items:
        if isinstance(item, bytes):
            yield from load_batches().loaded(item)
        else:
            yield item
