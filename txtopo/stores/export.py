"""A store's values in columns: a ``pandas.DataFrame`` or a ``pyarrow.Table``.

If all keys are tuples with the same length, they become columns ``key_0``, ``key_1``, …. Otherwise
a single column ``key`` holds the keys. pandas and Arrow are imported only when a table is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from txtopo import errors
from txtopo.stores import keys

Pairs = Iterable[tuple[keys.Key, Any]]


def columns(pairs: Pairs) -> dict[str, list[Any]]:
    """Keys and values by column. The rows keep the order of ``pairs``."""
    key_column: list[Any] = []
    values: list[Any] = []
    for key, value in pairs:
        key_column.append(key)
        values.append(value)
    lengths = {len(key) if isinstance(key, tuple) else 0 for key in key_column}
    length = lengths.pop() if len(lengths) == 1 else 0
    if not length:
        return {"key": key_column, "value": values}
    return {
        **{f"key_{place}": [key[place] for key in key_column] for place in range(length)},
        "value": values,
    }


def pandas_frame(pairs: Pairs, address: str) -> Any:
    """The pairs as a ``pandas.DataFrame``, each value as stored. If pandas would change a value in
    a column, the column holds the objects themselves."""
    pandas = _load("pandas", "pandas", address)
    return pandas.DataFrame(
        {name: _series(pandas, values) for name, values in columns(pairs).items()}
    )


_KEPT: list[set[type]] = [{bool}, {int}, {float}, {str}]
_WITH_NONE: list[set[type]] = [{float, type(None)}, {str, type(None)}]


def _series(pandas: Any, values: list[Any]) -> Any:
    """``values`` as a column, with the type that pandas finds if pandas keeps the values. ``None``
    among numbers or text is NaN, pandas' own null."""
    types = set(map(type, values))
    if types in _KEPT or (types in _WITH_NONE and all(value == value for value in values)):
        try:
            return pandas.Series(values)
        except UnicodeError:
            pass
    return pandas.Series(values, dtype=object)


def arrow_table(pairs: Pairs, address: str, schema: Any) -> Any:
    """The pairs as a ``pyarrow.Table``, each value as stored. ``schema`` gives the columns' types,
    or Arrow finds them.

    :raises errors.UsageError: a column would hold a different value. The error names the key.
    """
    rows = list(pairs)
    return _load("txtopo.stores.arrow_export", "arrow", address).table(
        columns(rows), [key for key, _ in rows], address, schema
    )


def _load(module: str, extra: str, address: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = "pyarrow" if extra == "arrow" else extra
        fact = f"to show the store {address} as a table {library} is needed, which cannot be imported: {error}"
        raise errors.SetupError(f"{fact}\n  Type: pip install 'txtopo[{extra}]'") from error
