"""Kafka: transactional spouts over topics, and a sink.

``confluent_kafka`` is imported when it is first needed: a topology is built where it is missing.
"""

from __future__ import annotations

from txtopo.connectors.kafka.sink import KafkaSink
from txtopo.connectors.kafka.spouts import KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout

__all__ = ["KafkaSink", "KafkaTransactionalSpout", "OpaqueKafkaTransactionalSpout"]
