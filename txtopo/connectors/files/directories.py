"""Columns whose values are in the names of directories, as Hive and Spark write them:
``dt=2026-01-01/part-0.parquet``. Emitters import this module: standard library only, until there is
a column.
"""

from __future__ import annotations

import importlib
import os
import re
import urllib.parse
from collections.abc import Collection, Mapping
from typing import Any

from txtopo import errors

_NULL = "__HIVE_DEFAULT_PARTITION__"
_FIXED, _ESCAPED = re.compile(r"(?:\[[*?[]\]|[^*?[])*"), re.compile(r"\[([*?[])\]")


def texts_in(path: str) -> dict[str, str | None]:
    """The values in the directories of ``path``, by name."""
    pairs = (part.split("=", 1) for part in os.path.dirname(path).split(os.sep) if "=" in part)
    return {urllib.parse.unquote(name): None if value == _NULL else urllib.parse.unquote(value) for name, value in pairs}


def names_in(paths: Collection[str], patterns: Collection[str]) -> frozenset[str]:
    """The names in directories of all ``paths``, as far as ``patterns`` leave the directories open:
    what a pattern spells out is a choice, and no column."""
    fixed = [_ESCAPED.sub(r"\1", _FIXED.match(pattern)[0]) for pattern in patterns]  # type: ignore[index]
    bases = sorted((os.path.dirname(text) for text in fixed), key=len)
    directories = {os.path.dirname(path) for path in paths}
    open_parts = (f"{directory[max((len(base) for base in bases if directory.startswith(base)), default=0) :]}/" for directory in directories)
    names = [texts_in(part).keys() for part in open_parts]
    return frozenset(names[0]).intersection(*names) if names else frozenset()


def left_to_file(schema: Any, path: str, texts: Mapping[str, str | None]) -> Any:
    """The part of an Arrow ``schema`` that the file at ``path`` has to have."""
    left = [field for field in schema if field.name not in texts]
    if not left:
        raise errors.InputError(f"{path}: its directories name every column, {', '.join(texts)}\n  Take a column of the file, too.")
    return importlib.import_module("pyarrow").schema(left)


def completed(batch: Any, schema: Any, path: str, texts: Mapping[str, str | None]) -> Any:
    """The RecordBatch ``batch`` of the file at ``path`` with the columns of ``texts``, in the order
    of ``schema``."""
    if not texts:
        return batch
    arrow, columns = importlib.import_module("pyarrow"), []
    for field in schema:
        if field.name not in texts:
            columns.append(batch.column(field.name))
            continue
        try:
            columns.append(arrow.repeat(arrow.scalar(texts[field.name], arrow.string()), batch.num_rows).cast(field.type))
        except arrow.ArrowException:
            why = f"a directory says {field.name}={texts[field.name]}, which is no {field.type}"
            raise errors.InputError(f"{path}: {why}\n  Mend the name of the directory, or the schema.") from None
    return arrow.RecordBatch.from_arrays(columns, schema=schema)


__all__ = ["completed", "left_to_file", "names_in", "texts_in"]
