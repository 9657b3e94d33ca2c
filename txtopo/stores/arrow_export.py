"""Columns as a ``pyarrow.Table``.

Apart from ``export`` because it needs pyarrow, which is loaded only where a table of Arrow is asked
for. A column holds the values of the store unchanged, or there is no column: see ``exact_columns``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow

from txtopo import errors
from txtopo.stores import keys
from txtopo.topology import exact_columns


def table(
    columns: Mapping[str, list[Any]],
    keys_of_rows: Sequence[keys.Key],
    address: str,
    schema: pyarrow.Schema | None,
) -> pyarrow.Table:
    """The columns, of the types that ``schema`` gives or that Arrow finds: dicts become structs,
    lists lists.

    :raises errors.UsageError: a column would hold another value than the store; ``schema`` names
        other columns.
    """
    _check(schema, columns, address)
    declared = {} if schema is None else {field.name: field for field in schema}
    fields, arrays = [], []
    for name, values in columns.items():
        wanted = declared[name].type if name in declared else None
        try:
            array = exact_columns.array(values, wanted, is_declared=True)
        except exact_columns.ChangedValueError as error:
            raise _refused(name, wanted, error, keys_of_rows, address) from None
        arrays.append(array)
        fields.append(declared.get(name, pyarrow.field(name, array.type)))
    return pyarrow.Table.from_arrays(
        arrays, schema=pyarrow.schema(fields, None if schema is None else schema.metadata)
    )


def _check(schema: Any, columns: Mapping[str, list[Any]], address: str) -> None:
    if schema is None or (
        isinstance(schema, pyarrow.Schema)
        and set(schema.names) <= set(columns)
        and len(set(schema.names)) == len(schema)
    ):
        return
    is_schema = isinstance(schema, pyarrow.Schema)
    problem = (
        f"names {', '.join(map(repr, schema.names))}"
        if is_schema
        else f"is a {type(schema).__name__}, no pyarrow.Schema"
    )
    raise errors.UsageError(
        f"to_arrow(schema=...) of the store {address}: the schema {problem}\n"
        f"  Its columns are {', '.join(map(repr, columns))}; name each at most once: schema=pa.schema([('value', pa.float64())])."
    )


def _refused(
    column: str,
    wanted: pyarrow.DataType | None,
    error: exact_columns.ChangedValueError,
    keys_of_rows: Sequence[keys.Key],
    address: str,
) -> errors.UsageError:
    refused = "its values"
    if error.row is not None:
        key = keys_of_rows[error.row]
        refused = (
            f"the value of key {key!r}, {error.shown}" if column == "value" else f"the key {key!r}"
        )
    type_named = "" if wanted is None else f", as {wanted}"
    return errors.UsageError(
        f"column {column!r} of the store {address} cannot hold {refused}{type_named}: {error.why}\n"
        f"  Say a type that holds them all, for example to_arrow(schema=pa.schema([({column!r}, pa.float64())])); or use to_pandas(), whose columns"
        " hold anything."
    )
