"""Topologies that count every record of a topic, by its place and value, or write it to a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txtopo import (
    BaseTransactionalBolt,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.connectors.kafka import (
    KafkaSink,
    KafkaTransactionalSpout,
    OpaqueKafkaTransactionalSpout,
)
from txtopo.stores import SqliteStore


class Keep(BaseTransactionalBolt, ICommitter):
    """Counts every record by its place and value."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def prepare(self, conf: Any, context: Any, collector: Any, attempt: Any) -> None:
        self.context, self.attempt = context, attempt
        self.counts: dict[tuple[Any, ...], int] = {}

    def execute(self, tup: Tuple) -> None:
        key = tuple(tup.values[1:])
        self.counts[key] = self.counts.get(key, 0) + 1

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(self.counts, lambda old, delta: (old or 0) + delta)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx"))


def store_of(directory: Path, name: str) -> SqliteStore:
    """The store of topology ``name``, which begins with ``opaque`` if the spout is."""
    return SqliteStore(directory / f"{name}.db", "records", opaque=name.startswith("opaque"))


def make_topology(directory: Path, name: str, servers: str, topics: Any, **arguments: Any) -> Any:
    """A topology with the id ``name``; ``arguments`` are the spout's. If the name begins with
    ``sink``, the topology writes to the topic of its name."""
    kind = OpaqueKafkaTransactionalSpout if name.startswith("opaque") else KafkaTransactionalSpout
    spout = kind(
        servers, topics, fields=("partition", "offset", "value"), format="text", **arguments
    )
    builder = TransactionalTopologyBuilder(name, "records", spout, 2)
    is_sink = name.startswith("sink")
    kept = (
        KafkaSink(servers, name, format="json", columns=["partition", "offset", "value"])
        if is_sink
        else Keep(store_of(directory, name))
    )
    builder.set_bolt("keep", kept, 2).fields_grouping("records", Fields("value"))
    return builder.build_topology()
