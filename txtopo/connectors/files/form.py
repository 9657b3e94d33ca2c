"""Keeps how the rows in a directory look: format, columns and types from the first rows.

Later rows must fit, so that readers can read all files as one table.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from txtopo import errors

HOME = "_txtopo"
"""The folder for all that is not rows. Spark, Hive and pyarrow pass over its name."""
_PATH = f"{HOME}/form.json"

Begin = Callable[[Any, Sequence[str]], None]


class Form:
    """The form of the rows, as kept in ``storage``. Asks the storage once.

    :param begin: called with the rows' schema and ``partition_by`` before the form is kept.
    """

    def __init__(self, storage: Any, begin: Begin | None = None) -> None:
        self._storage, self._begin = storage, begin
        self._kept: dict[str, Any] = {}
        self._schema: Any = None

    def kept(self) -> dict[str, Any]:
        """The form that is kept. Empty if there are no rows yet."""
        if not self._kept:
            self._kept = json.loads(self._storage.read(_PATH) or b"{}")
        return self._kept

    def schema(self) -> Any:
        """The Arrow schema that is kept. ``None`` if there is none."""
        data = self.kept().get("schema")
        if data is None:
            return None
        arrow = importlib.import_module("pyarrow")
        return arrow.ipc.read_schema(arrow.py_buffer(base64.b64decode(data)))

    def check(
        self, format: str, columns: Sequence[str], partition_by: Sequence[str], schema: Any = None
    ) -> None:
        """Check that rows with these columns fit, or keep their form if they are the first.

        :param schema: the columns' Arrow types, for Parquet.
        :raises errors.SetupError: they do not fit.
        """
        own = {"format": format, "columns": list(columns), "partition_by": list(partition_by)}
        if not self.kept():
            if schema is not None:
                own["schema"] = base64.b64encode(schema.serialize()).decode()
            if self._begin is not None:
                self._begin(schema, partition_by)
            self._storage.put(_PATH, json.dumps(own).encode())
        kept = self.kept()
        for name, value in own.items():
            if name != "schema" and kept.get(name) != value:
                raise errors.SetupError(
                    f"the files in {self._storage.root} have {name}={kept.get(name)!r}, and the rows now {value!r}\n"
                    "  Nothing was written. Give the sink what the files have, another directory, or clear the sink with \n"
                    "  `txtopo store clear ROOT NAME --topology ID`."
                )

    def fitted(self, batch: Any, partition_by: Sequence[str], declared: Any) -> Any:
        """``batch`` with the types of the files.

        :param declared: the schema that the user gave, or ``None``.
        :raises errors.SetupError: a column cannot be kept in its type.
        """
        arrow = importlib.import_module("pyarrow")
        if self._schema is None:
            schema = batch.schema if declared is None else declared
            if not self.kept():
                self._check_types(arrow, schema)
            self.check("parquet", schema.names, partition_by, schema)
            self._schema = self.schema()
            if declared is not None and not declared.equals(self._schema):
                raise errors.SetupError(
                    f"the files in {self._storage.root} have other types than schema=\n"
                    "  Nothing was written. Leave schema out, or give another directory."
                )
        if batch.schema.equals(self._schema):
            return batch
        self.check("parquet", batch.schema.names, partition_by)
        columns = []
        for field, column in zip(self._schema, batch.columns, strict=True):
            if column.type != field.type and not _is_exact(arrow.types, column.type, field.type):
                raise self._misfit(field, column.type)
            try:
                columns.append(column.cast(field.type))
            except arrow.ArrowException:
                raise self._misfit(field, column.type) from None
        return arrow.RecordBatch.from_arrays(columns, schema=self._schema)

    def _check_types(self, arrow: Any, schema: Any) -> None:
        """Check that Parquet has a type for each column of the first rows."""
        empty = [field.name for field in schema if arrow.types.is_null(field.type)]
        if empty:
            raise errors.SetupError(
                f"the first rows for {self._storage.root} have no value in {', '.join(empty)}, so the column has no type\n"
                "  Give the sink schema=pyarrow.schema([…])."
            )
        parquet = importlib.import_module("pyarrow.parquet")
        try:
            parquet.ParquetWriter(arrow.BufferOutputStream(), schema).close()
        except arrow.ArrowNotImplementedError as error:
            raise errors.SetupError(
                f"Parquet has no type for the first rows for {self._storage.root}: {error}\n"
                "  Nothing was written. Convert the column in a bolt, or give the sink schema=pyarrow.schema([…])."
            ) from error

    def _misfit(self, field: Any, type: Any) -> errors.SetupError:
        return errors.SetupError(
            f"the column {field.name!r} in {self._storage.root} is {field.type}, and the rows now have {type}\n"
            "  Nothing of the transaction was written. Convert the column in a bolt, or give another directory."
        )


def _is_exact(types: Any, now: Any, wanted: Any) -> bool:
    """Whether a safe cast keeps every value, or refuses."""
    is_number = types.is_integer(wanted) or types.is_floating(wanted)
    return bool(types.is_null(now) or (types.is_integer(now) and is_number))
