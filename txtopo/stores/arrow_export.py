"""Makes a ``pyarrow.Table`` from a store's columns.

Needs pyarrow, which is loaded only for Arrow tables. A column holds the store's values unchanged,
or the table is refused (see ``exact_columns``).
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
    """The columns as a table. ``schema`` gives types, or Arrow finds them: dicts become structs,
    lists lists.

    :raises errors.UsageError: a column would change a stored value, or ``schema`` does not fit the
        columns.
    """
    _check(schema, columns, address)
    declared = {} if schema is None else {field.name: field for field in schema}
    fields, arrays = [], []
    for name, values in columns.items():
        wanted = declared[name].type if name in declared else None
        try:
            array = exact_columns.array(values, wanted, is_declared=True)
        except exact_columns.ChangedValueError as error:
            raise _refusal(name, wanted, error, keys_of_rows, address) from None
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
        f"  The store's columns are {', '.join(map(repr, columns))}. Name each at most once: schema=pa.schema([('value', pa.float64())])."
    )


def _refusal(
    column: str,
    wanted: pyarrow.DataType | None,
    error: exact_columns.ChangedValueError,
    keys_of_rows: Sequence[keys.Key],
    address: str,
) -> errors.UsageError:
    key = keys_of_rows[error.row]
    refused = (
        f"the value of key {key!r}, {error.shown}" if column == "value" else f"the key {key!r}"
    )
    type_named = "" if wanted is None else f", as {wanted}"
    return errors.UsageError(
        f"column {column!r} of the store {address} cannot hold {refused}{type_named}: {error.why}\n"
        f"  Give a type that holds all values, for example to_arrow(schema=pa.schema([({column!r}, pa.float64())])). "
        "Or use to_pandas(), whose columns hold any value."
    )
