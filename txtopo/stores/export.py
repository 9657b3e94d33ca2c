"""What a store holds, in columns: a ``pandas.DataFrame`` or a ``pyarrow.Table``.

Apart from ``base``, whose methods lead here, and from ``arrow_export``, which knows pyarrow: neither is needed where stores are written. Keys that
are tuples of one length become columns ``key_0``, ``key_1``, …; any others are one column ``key``. Standard library only, but for what is asked for.
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
    return {**{f"key_{place}": [key[place] for key in key_column] for place in range(length)}, "value": values}


def pandas_frame(pairs: Pairs, address: str) -> Any:
    """The pairs as a ``pandas.DataFrame``; columns of no type that pandas has hold the objects themselves."""
    return _imported("pandas", "pandas", address).DataFrame(columns(pairs))


def arrow_table(pairs: Pairs, address: str) -> Any:
    """The pairs as a ``pyarrow.Table``.

    :raises errors.UsageError: the keys, or the values, are not of one type that Arrow has.
    """
    return _imported("txtopo.stores.arrow_export", "arrow", address).table(columns(pairs), address)


def _imported(module: str, extra: str, address: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = "pyarrow" if extra == "arrow" else extra
        what = f"to show the store {address} as a table {library} is needed, which cannot be imported: {error}"
        raise errors.SetupError(f"{what}\n  Type: pip install 'txtopo[{extra}]'") from error
