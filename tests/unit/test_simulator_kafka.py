"""Kafka spouts under the simulator: the user's sample or made-up records, and no broker."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from txtopo import (
    BaseBasicBolt,
    BasePartitionedTransactionalSpout,
    BasicOutputCollector,
    Count,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.connectors.kafka import (
    KafkaColumnSpout,
    KafkaSink,
    KafkaTransactionalSpout,
    OpaqueKafkaColumnSpout,
    OpaqueKafkaTransactionalSpout,
)
from txtopo.errors import UsageError
from txtopo.testing import MemoryStore, Simulation, simulate
from txtopo.topology.graph import TopologyGraph

SERVERS = "nowhere.example:9092"
SPOUTS: dict[str, Any] = {
    "transactional": KafkaTransactionalSpout(
        SERVERS, "lines", 10, format="text", start="group:shop", client_group="dashboard"
    ),
    "pattern": KafkaTransactionalSpout(
        SERVERS, re.compile("li.*"), 20, format="text", start="latest"
    ),
    "objects": KafkaTransactionalSpout(SERVERS, "lines", 10, fields=("n", "m"), format="json"),
    "opaque": OpaqueKafkaTransactionalSpout(
        SERVERS, "lines", 10, format="text", client={"sasl.password_file": "/nowhere"}
    ),
    "columns": KafkaColumnSpout(SERVERS, "lines", records_per_batch=10, format="text"),
    "opaque columns": OpaqueKafkaColumnSpout(
        SERVERS,
        "lines",
        records_per_batch=10,
        format="json",
        schema=pa.schema([("word", pa.string()), ("n", pa.int64()), ("day", pa.date32())]),
    ),
}


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a client of the real library an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a client for real brokers was made")

    for module, name in (
        ("confluent_kafka", "Consumer"),
        ("confluent_kafka", "Producer"),
        ("confluent_kafka.admin", "AdminClient"),
    ):
        monkeypatch.setattr(f"{module}.{name}", refuse)


def counting(spout: Any, field: str) -> TopologyGraph:
    is_opaque = "Opaque" in type(spout).__name__
    builder = TransactionalTopologyBuilder("kafka", "lines", spout, 2)
    builder.set_aggregate("count", Count(), MemoryStore("counts", opaque=is_opaque), 2).group_by(
        "lines", Fields(field)
    )
    return builder.build_topology()


@pytest.mark.rule(18, 19, 40)
@pytest.mark.parametrize("name", SPOUTS)
def test_a_spout_runs_on_records_that_are_made_up(name: str) -> None:
    field = {"objects": "n", "opaque columns": "word"}.get(name, "value")
    report = simulate(counting(SPOUTS[name], field), seeds=6, other_processes=False)
    assert (report.schedules, report.violation) == (6, None)
    assert report.transactions >= 2


def test_every_record_of_the_sample_is_read_once() -> None:
    spout = KafkaTransactionalSpout(SERVERS, "lines", 4, format="text", fields=("key", "value"))
    spout.sample = [(f"k{n % 2}", f"v{n}") for n in range(30)]
    with Simulation(counting(spout, "value")) as simulation:
        (counts,) = simulation.expected.stores.values()
    assert counts == {f"v{n}": 1 for n in range(30)}


def test_avro_needs_a_sample() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "word", "type": "string"}]}
    spout = KafkaColumnSpout(
        SERVERS,
        "lines",
        format="avro",
        schema=pa.schema([("word", pa.string())]),
        avro_schema=schema,
    )
    with pytest.raises(UsageError, match=r"no Avro records are made up.*\n  Set spout.sample"):
        simulate(counting(spout, "word"), seeds=1)


class Delegating(BasePartitionedTransactionalSpout):
    """A user's spout around a Kafka spout."""

    def __init__(self, inner: KafkaTransactionalSpout) -> None:
        self.inner = inner

    def get_coordinator(self, conf: Any, context: Any) -> Any:
        return self.inner.get_coordinator(conf, context)

    def get_emitter(self, conf: Any, context: Any) -> Any:
        return self.inner.get_emitter(conf, context)

    def declare_output_fields(self, declarer: Any) -> None:
        self.inner.declare_output_fields(declarer)


def test_a_spout_within_a_spout_reads_no_broker_either() -> None:
    with Simulation(counting(Delegating(SPOUTS["transactional"]), "value")) as simulation:
        assert simulation.expected.committed > 1


def test_uncommitted_records_are_samples_too() -> None:
    spout = KafkaTransactionalSpout(
        SERVERS, "lines", fields=("n",), format="json", isolation="read_uncommitted"
    )
    spout.sample = [f'{{"n": {n}}}' for n in range(20)]
    with Simulation(counting(spout, "n")) as simulation:
        (counts,) = simulation.expected.stores.values()
    assert sum(counts.values()) > 20


def test_a_sample_that_is_no_record_is_refused() -> None:
    spout = KafkaTransactionalSpout(SERVERS, "lines", format="text")
    spout.sample = [{"value": 1}]
    with pytest.raises(UsageError, match=r"spout.sample has .'value': 1.\n  Give values"):
        simulate(counting(spout, "value"), seeds=1)


def test_two_sinks_on_one_topic_have_records_of_their_own() -> None:
    builder = TransactionalTopologyBuilder("kafka", "lines", SPOUTS["objects"], 2)
    for name, fields in (("a", ["n"]), ("b", ["m"])):
        sink = KafkaSink(
            SERVERS,
            "txtopo.out",
            format="json",
            columns=fields,
            transactions_topic=f"tx-{name}",
            name=name,
            partition="n",
            client={"message.max.bytes": "2000000"},
        )
        builder.set_bolt(f"write-{name}", sink, 2).none_grouping("lines")
    with Simulation(builder.build_topology()) as simulation:
        written = [sorted(sink.rows(), key=str) for sink in simulation.subject.stores]
    assert [len(rows) for rows in written] == [60, 60]
    assert {row.component for row in written[0]} == {"write-a"}


def test_a_bolt_that_hashes_is_found_under_a_kafka_spout() -> None:
    builder = TransactionalTopologyBuilder("kafka", "lines", SPOUTS["transactional"], 2)
    builder.set_bolt("hash", Hashing(), 2).none_grouping("lines")
    builder.set_aggregate("count", Count(), MemoryStore("counts"), 2).group_by("hash", Fields("n"))
    report = simulate(builder.build_topology(), seeds=2)
    assert report.violation is not None
    assert report.violation.component == "hash"


class Hashing(BaseBasicBolt):
    """Emits what differs from process to process."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([tup[0], hash(tup["value"]) % 7])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))
