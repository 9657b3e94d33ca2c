"""Parquet files of keys and numbers: one file per size, linked as often as a batch wants it, so
that a large batch costs little disk."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import rows

ROWS_PER_GROUP = 1 << 20


def write(directory: Path, count: int, links: int) -> list[str]:
    """``count`` rows in a file that has ``links`` names; the names. ``key`` is a word, ``a``
    counts, ``b`` is seven times the row's number."""
    directory.mkdir(parents=True, exist_ok=True)
    first = directory / "original.parquet"
    # Drawing a million words is enough; more rows begin again.
    words = rows.words(min(count, 1 << 20))
    keys = pa.array((words * (count // len(words) + 1))[:count])
    numbers = pa.array(range(count), pa.int64())
    table = pa.table({"key": keys, "a": numbers, "b": pc.multiply(numbers, 7)})
    pq.write_table(
        table, first, row_group_size=ROWS_PER_GROUP, use_dictionary=["key"], compression="none"
    )
    paths = [str(directory / f"rows-{link:06}.parquet") for link in range(links)]
    for path in paths:
        os.link(first, path)
    return paths


def truth(path: str, work: str) -> Counter[str]:
    """The rows of one file, written by the shortest code there is."""
    if work == "sums":
        table: Any = pq.read_table(path, columns=["a", "b"])
        return Counter({name: pc.sum(table.column(name)).as_py() for name in ("a", "b")})
    return Counter(pq.read_table(path, columns=["key"]).column("key").to_pylist())
