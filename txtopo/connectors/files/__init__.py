"""Spouts that read files, and a sink that writes files. Lines and JSON objects become tuples or
columns, CSV and Parquet become columns."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txtopo.connectors.files.committed import read_committed
from txtopo.connectors.files.committed_spout import CommittedFilesSpout
from txtopo.connectors.files.lines import FileTransactionalSpout
from txtopo.connectors.files.sink import FileSink
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
    # Spouts that emit columns need pyarrow, and the spout that emits tuples does not.
    if name in _OF_COLUMNS:
        arrow.require_pyarrow(name)
        return getattr(importlib.import_module(_OF_COLUMNS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


ERROR_PAGE = "files.html"

__all__ = [
    "CommittedFilesSpout",
    "CsvTransactionalSpout",
    "FileSink",
    "FileTransactionalSpout",
    "JsonLinesTransactionalSpout",
    "LinesTransactionalSpout",
    "ParquetTransactionalSpout",
    "read_committed",
]
