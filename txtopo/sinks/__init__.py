"""Parts that all sinks share, your own sinks too."""

from __future__ import annotations

from txtopo.sinks.sink import Sink
from txtopo.sinks.task_ledger import Record, SimpleLedger

ERROR_PAGE = "sinks.html"

__all__ = ["Record", "SimpleLedger", "Sink"]
