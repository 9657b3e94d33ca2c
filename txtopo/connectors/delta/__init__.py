"""A sink that appends to a Delta table."""

from __future__ import annotations

from txtopo.connectors.delta.sink import DeltaSink

ERROR_PAGE = "delta.html"

__all__ = ["DeltaSink"]
