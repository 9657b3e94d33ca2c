"""Columns as a ``pyarrow.Table``.

Apart from ``export`` because it needs pyarrow, which is loaded when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow

from txtopo import errors


def table(columns: Mapping[str, list[Any]], address: str) -> pyarrow.Table:
    """The columns with the types that Arrow infers: dicts become structs, lists lists.

    :raises errors.UsageError: a column is not of one type that Arrow has.
    """
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pyarrow.array(values)
        except (pyarrow.ArrowException, OverflowError) as error:
            raise errors.UsageError(
                f"column {name!r} of the store {address} is not of one type that Arrow has: {error}\n"
                "  Use to_pandas(), whose columns hold anything; or items(), and make columns of what you want of it."
            ) from error
    return pyarrow.table(arrays)
