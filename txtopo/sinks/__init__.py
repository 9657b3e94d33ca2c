"""The parts that all sinks share, whichever system they write to; also for sinks of users."""

from __future__ import annotations

from txtopo.sinks.sink import Sink
from txtopo.sinks.task_ledger import Record, SimpleLedger

__all__ = ["Record", "SimpleLedger", "Sink"]
