"""Records into a topic of Kafka, batch by batch, in one process without Spark: by a sink, as its
task writes them, and by hand with a producer of confluent-kafka, in transactions or without.

By hand there is no note about a written batch: a second run writes the batch twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka

from bench import topics
from bench.contenders import bare_loop
from bench.line import check
from bench.process import Sample
from txtopo import Fields, TopologyConf, TransactionAttempt, Tuple
from txtopo.connectors.kafka import KafkaSink
from txtopo.dataplane import worker
from txtopo.topology.stream import TupleSource

TOPIC = "sold"


class Writes:
    """All ways, into one topic with one partition."""

    def __init__(self, directory: str, servers: str) -> None:
        self._servers, self._made, self._end = servers, 0, 0
        topics.make(servers, TOPIC)

    def block(self, way: str, rows: int, batches: int) -> Sample:
        """``batches`` of ``rows`` each, one after another. ``way``: sink, transactions (by hand) or
        producer (by hand, idempotent). A first batch, which makes connections, is not timed."""
        self._made += 1
        prepared = [
            [topics.value(number * rows + i) for i in range(rows)] for number in range(batches + 1)
        ]
        writing = {
            "sink": self._by_sink,
            "transactions": self._in_transactions,
            "producer": self._by_producer,
        }[way](prepared)
        with worker.seldom_collected():
            next(writing)
            began = time.perf_counter()
            for _ in writing:
                pass
            seconds = time.perf_counter() - began
        values, self._end = topics.committed(self._servers, TOPIC, self._end)
        check(values, [record for batch in prepared for record in batch])
        return {
            "seconds": seconds,
            "rows_per_second": rows * batches / seconds,
            "ms_per_batch": 1000 * seconds / batches,
        }

    def _by_sink(self, prepared: list[list[bytes]]) -> Iterator[None]:
        sink = KafkaSink(self._servers, TOPIC, stamp_headers=False)
        source, conf = TupleSource("sales", 0, "default", Fields("tx", "value")), TopologyConf({})
        resources: dict[str, Any] = {}
        try:
            for txid, batch in enumerate(prepared, 1):
                attempt = TransactionAttempt(txid, 0)
                # A component of its own, so that the notes of an earlier block do not count for
                # this block.
                context = bare_loop.context(f"write-{self._made}", "commit", resources)
                sink.prepare(conf, context, bare_loop.Collected(), attempt)
                for record in batch:
                    sink.execute(Tuple((attempt, record), source))
                sink.finish_batch()
                yield
        finally:
            for resource in resources.values():
                if hasattr(resource, "close"):
                    resource.close()

    def _in_transactions(self, prepared: list[list[bytes]]) -> Iterator[None]:
        producer = self._producer({"transactional.id": f"by-hand-{self._made}"})
        producer.init_transactions(topics.ANSWER_S)
        for batch in prepared:
            producer.begin_transaction()
            topics.produce(producer, TOPIC, batch)
            producer.commit_transaction(topics.ANSWER_S)
            yield

    def _by_producer(self, prepared: list[list[bytes]]) -> Iterator[None]:
        producer = self._producer({})
        for batch in prepared:
            topics.produce(producer, TOPIC, batch)
            if producer.flush(topics.ANSWER_S):
                raise RuntimeError("records are left")
            yield

    def _producer(self, more: dict[str, Any]) -> Any:
        return confluent_kafka.Producer(
            {"bootstrap.servers": self._servers, "enable.idempotence": True, **more}
        )

    def close(self) -> None:
        """Nothing is left open."""
