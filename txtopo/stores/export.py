"""The values of a store, in columns: a ``pandas.DataFrame`` or a ``pyarrow.Table``.

Apart from ``base``, whose methods lead here, and from ``arrow_export``, which knows pyarrow:
neither is needed where stores are written. Keys that are tuples of one length become columns
``key_0``, ``key_1``, …; any others are one column ``key``. Imports the standard library only, until
pandas or Arrow is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from txtopo import errors
from txtopo.stores import keys

Pairs = Iterable[tuple[keys.Key, Any]]


def columns(pairs: Pairs) -> dict[str, list[Any]]:
    """Keys and values by column, rows in the order of ``pairs``."""
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
    """The pairs as a ``pandas.DataFrame``, each value as it is stored: a column of which pandas
    would change a value holds the objects themselves."""
    pandas = _imported("pandas", "pandas", address)
    return pandas.DataFrame(
        {name: _series(pandas, values) for name, values in columns(pairs).items()}
    )


_KEPT: list[set[type]] = [{bool}, {int}, {float}, {str}]
_WITH_NONE: list[set[type]] = [{float, type(None)}, {str, type(None)}]


def _series(pandas: Any, values: list[Any]) -> Any:
    """``values`` as a column, of the type that pandas finds if they are the same there. ``None``
    among numbers or text is NaN: pandas' own null."""
    types = set(map(type, values))
    if types in _KEPT or (types in _WITH_NONE and all(value == value for value in values)):
        try:
            return pandas.Series(values)
        except UnicodeError:
            pass
    return pandas.Series(values, dtype=object)


def arrow_table(pairs: Pairs, address: str, schema: Any) -> Any:
    """The pairs as a ``pyarrow.Table``, each value as it is stored, in columns of the types that
    ``schema`` gives, or that Arrow finds.

    :raises errors.UsageError: a column would hold another value; the error names its key.
    """
    rows = list(pairs)
    return _imported("txtopo.stores.arrow_export", "arrow", address).table(
        columns(rows), [key for key, _ in rows], address, schema
    )


def _imported(module: str, extra: str, address: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = "pyarrow" if extra == "arrow" else extra
        fact = f"to show the store {address} as a table {library} is needed, which cannot be imported: {error}"
        raise errors.SetupError(f"{fact}\n  Type: pip install 'txtopo[{extra}]'") from error
