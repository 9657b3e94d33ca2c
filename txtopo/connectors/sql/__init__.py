"""Tables of SQL databases: a sink.

A database's driver is imported when it is first needed: a topology is built where it is missing.
"""

from __future__ import annotations

from txtopo.connectors.sql.sink import SqlSink

__all__ = ["SqlSink"]
