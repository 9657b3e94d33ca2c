"""Kafka spouts under the simulator: the user's sample or made-up records, and no broker."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from txtopo import (
    BasePartitionedTransactionalSpout,
    Count,
    Fields,
    TransactionalTopologyBuilder,
)
from txtopo.connectors.kafka import (
    KafkaColumnSpout,
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
        SERVERS, "lines", 10, format="text", start="group:nobody", client_group="dashboard"
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


def test_the_sample_is_read_once_whole_and_in_order() -> None:
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
