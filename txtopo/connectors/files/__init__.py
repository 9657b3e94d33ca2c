"""Transactional spouts over files: lines and JSON objects as tuples; lines, CSV, JSON lines and
Parquet as columns."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txtopo.connectors.files.lines import FileTransactionalSpout
from txtopo.topology import arrow

if TYPE_CHECKING:
    from txtopo.connectors.files.columns import CsvTransactionalSpout, JsonLinesTransactionalSpout
    from txtopo.connectors.files.lines import LinesTransactionalSpout
    from txtopo.connectors.files.parquet import ParquetTransactionalSpout

_OF_COLUMNS = {
    "CsvTransactionalSpout": "txtopo.connectors.files.columns",
    "JsonLinesTransactionalSpout": "txtopo.connectors.files.columns",
    "LinesTransactionalSpout": "txtopo.connectors.files.lines",
    "ParquetTransactionalSpout": "txtopo.connectors.files.parquet",
}


def __getattr__(name: str) -> Any:
    # Spouts of columns need pyarrow, and the spout of lines does not.
    if name in _OF_COLUMNS:
        arrow.require_pyarrow(name)
        return getattr(importlib.import_module(_OF_COLUMNS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CsvTransactionalSpout",
    "FileTransactionalSpout",
    "JsonLinesTransactionalSpout",
    "LinesTransactionalSpout",
    "ParquetTransactionalSpout",
]
