"""A sink that writes rows to SQL databases.

A database's driver is imported when first needed: a topology can be built where the driver is
missing.
"""

from __future__ import annotations

from txtopo.connectors.sql.sink import SqlSink

ERROR_PAGE = "sinks.html"

__all__ = ["SqlSink"]
