"""Export queues: changes in a store are told to another system, in order, when they are recorded."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txtopo.exports.entries import EntryRefusedError, Exporter, SequencedExport
from txtopo.exports.queue import ExportQueue

if TYPE_CHECKING:
    from txtopo.exports.http import HttpExporter
    from txtopo.exports.kafka import KafkaExporter
    from txtopo.exports.postgres import PostgresExporter
    from txtopo.exports.redis import RedisExporter

_LAZY = {
    "HttpExporter": "txtopo.exports.http",
    "KafkaExporter": "txtopo.exports.kafka",
    "PostgresExporter": "txtopo.exports.postgres",
    "RedisExporter": "txtopo.exports.redis",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'txtopo.exports' has no attribute {name!r}")


ERROR_PAGE = "export-queues.html"

__all__ = [
    "EntryRefusedError",
    "ExportQueue",
    "Exporter",
    "HttpExporter",
    "KafkaExporter",
    "PostgresExporter",
    "RedisExporter",
    "SequencedExport",
]
