"""Columns whose values are directory names, as Hive and Spark write them:
``dt=2026-01-01/part-0.parquet``.

Emitters import this module, so it needs the standard library only, until there is such a column.
"""

from __future__ import annotations

import importlib
import os
import urllib.parse
from collections.abc import Collection, Mapping
from typing import Any

from txtopo import errors
from txtopo.connectors.files import remote

_NULL = "__HIVE_DEFAULT_PARTITION__"


def texts_in(path: str, columns: Collection[str], above: str = "") -> dict[str, str | None]:
    """Find values for ``columns`` in the directory names in ``path``. ``above`` and the directories
    that it is in do not count."""
    directory = os.path.dirname(remote.without_settings(path))
    own = directory[len(os.path.commonpath([above, directory])) :] if above else directory
    pairs = (part.split("=", 1) for part in own.split(os.sep) if "=" in part)
    texts = {
        urllib.parse.unquote(name): None if value == _NULL else urllib.parse.unquote(value)
        for name, value in pairs
    }
    return {name: text for name, text in texts.items() if name in columns}


def left_to_file(schema: Any, path: str, texts: Mapping[str, str | None]) -> Any:
    """Take the columns that directories name out of an Arrow ``schema``: the file at ``path`` must
    have the rest."""
    left = [field for field in schema if field.name not in texts]
    if not left:
        raise errors.InputError(
            f"{path}: its directories name every column, {', '.join(texts)}\n  Take a column from the file, too."
        )
    return importlib.import_module("pyarrow").schema(left)


def completed(batch: Any, schema: Any, path: str, texts: Mapping[str, str | None]) -> Any:
    """Complete the RecordBatch ``batch`` of the file at ``path``, in the order of ``schema``.
    ``texts`` has values for columns that the file lacks, and for nulls in columns that it has."""
    if not texts:
        return batch
    arrow, columns = importlib.import_module("pyarrow"), []
    for field in schema:
        column = batch.column(field.name) if field.name in batch.schema.names else None
        if field.name in texts and (column is None or column.null_count):
            try:
                values = arrow.repeat(
                    arrow.scalar(texts[field.name], arrow.string()), batch.num_rows
                ).cast(field.type)
            except arrow.ArrowException:
                why = f"a directory says {field.name}={texts[field.name]}, which is no {field.type}"
                raise errors.InputError(
                    f"{path}: {why}\n  Mend the directory's name, or the schema."
                ) from None
            column = (
                values
                if column is None
                else importlib.import_module("pyarrow.compute").coalesce(column, values)
            )
        columns.append(column)
    return arrow.RecordBatch.from_arrays(columns, schema=schema)
