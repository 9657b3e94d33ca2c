"""Export queues: what changed in a store is told to another system, in order, once it is certain."""

from __future__ import annotations

from txtopo.exports.entries import Exporter, SequencedExport
from txtopo.exports.queue import ExportQueue

__all__ = ["ExportQueue", "Exporter", "SequencedExport"]
