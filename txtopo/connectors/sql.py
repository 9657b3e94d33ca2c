"""The sink for tables of a SQL database, under its public name."""

from __future__ import annotations

from txtopo.connectors.sinks.sql.sink import SqlSink

__all__ = ["SqlSink"]
