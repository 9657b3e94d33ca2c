"""Kafka: transactional spouts that read topics as tuples or columns, and a sink.

``confluent_kafka`` is imported on first use: a topology is also built where the library is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txtopo.connectors.kafka.sink import KafkaSink
from txtopo.connectors.kafka.spouts import KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout
from txtopo.topology import arrow

if TYPE_CHECKING:
    from txtopo.connectors.kafka.columns import KafkaColumnSpout, OpaqueKafkaColumnSpout

_OF_COLUMNS = ("KafkaColumnSpout", "OpaqueKafkaColumnSpout")


def __getattr__(name: str) -> Any:
    # Only spouts that emit columns need pyarrow.
    if name in _OF_COLUMNS:
        arrow.require_pyarrow(name)
        return getattr(importlib.import_module("txtopo.connectors.kafka.columns"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


ERROR_PAGE = "kafka.html"

__all__ = [
    "KafkaColumnSpout",
    "KafkaSink",
    "KafkaTransactionalSpout",
    "OpaqueKafkaColumnSpout",
    "OpaqueKafkaTransactionalSpout",
]
