"""``txtopo reset`` over every destination of the library: after it the next run begins anew."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest

import txtopo
from tests.local_engine import run_to_idle
from tests.servers import kafka, mariadb, postgres, redis_server
from tests.topologies import sinks
from tests.topologies.numbered_lines import Queueing
from txtopo import Count, Fields, TransactionalTopologyBuilder, UsageError
from txtopo.command import cli
from txtopo.command.reset import places_of, reset
from txtopo.connectors.by_address import open_kept
from txtopo.connectors.delta import DeltaSink
from txtopo.connectors.files import FileSink, read_committed
from txtopo.connectors.kafka import KafkaSink
from txtopo.exports import ExportQueue
from txtopo.sinks.simulated import SimulatedSink
from txtopo.state.memory import MemoryServer, MemoryStateStore
from txtopo.state.opening import Opened
from txtopo.stores import RedisStore, SqliteStore, SqlStore
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology.destination import Destination

pytestmark = pytest.mark.rule(27)

ROWS = [(number, 10 * number) for number in range(6)]


def sqlite_store(directory: Path) -> Any:
    return SqliteStore(directory / "kept.db", "counts")


def sql_store(server: Callable[[], Any]) -> Callable[[Path], Any]:
    return lambda directory: SqlStore(server().url(server().new_database()), "counts")


def redis_store(directory: Path) -> Any:
    server = redis_server.running_server()
    return RedisStore(server.url(), server.new_name())


def sql_sink(backend: str) -> Callable[[Path], Any]:
    return lambda directory: sinks.shop(backend, directory, sinks.LOOSE).sink()


def kafka_sink(**arguments: Any) -> Callable[[Path], Any]:
    def make(directory: Path) -> Any:
        server = kafka.running_server()
        named: dict[str, Any] = {name: server.new_topic() + "-tx" for name in arguments}
        return KafkaSink(server.servers, server.new_topic(), format="json", **named)

    return make


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in kafka.TIME_OUTS:
        monkeypatch.setattr(module, name, kafka.ENDLESS_S)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "SqliteStore": sqlite_store,
    "SqlStore, PostgreSQL": sql_store(postgres.running_server),
    "SqlStore, MariaDB": sql_store(mariadb.running_server),
    "RedisStore": redis_store,
    "SqlSink, SQLite": sql_sink("sqlite"),
    "SqlSink, PostgreSQL": sql_sink("postgresql"),
    "KafkaSink": kafka_sink(),
    "KafkaSink with a topic of its own": kafka_sink(transactions_topic=""),
    "FileSink": lambda directory: FileSink(directory / "files"),
    "ExportQueue": lambda directory: ExportQueue("ids", sqlite_store(directory)),
    "DeltaSink": lambda directory: DeltaSink(directory / "table"),
}


def topology(destination: Any) -> Any:
    builder = TransactionalTopologyBuilder(
        "reset",
        "numbers",
        MemoryTransactionalSpout({0: ROWS}, Fields("id", "cents"), take_per_partition=4),
    )
    if isinstance(destination, ExportQueue):
        builder.set_bolt("write", Queueing(destination), 2).fields_grouping("numbers", Fields("id"))
    elif hasattr(destination, "finish_batch"):
        builder.set_bolt("write", destination, 2).fields_grouping("numbers", Fields("id"))
    else:
        builder.set_aggregate("write", Count(), destination, 2).group_by("numbers", Fields("id"))
    return builder.build_topology()


def contents(destination: Any) -> list[Any]:
    if isinstance(destination, DeltaSink):
        return list(deltalake.DeltaTable(destination.ledger.root).to_pyarrow_table().to_pylist())
    if isinstance(destination, FileSink):
        return list(read_committed(destination.ledger.root).to_arrow().to_pylist())
    if isinstance(destination, KafkaSink):
        return kafka.running_server().values(destination.shape.topic)
    if hasattr(destination, "ledger"):
        return sinks.Shop(
            getattr(destination.ledger, "url", "") or destination.ledger.path, None
        ).sales
    return list(getattr(destination, "store", destination).items())


@pytest.mark.in_gate(*(kind for kind in MAKERS if kind != "SqlStore, MariaDB"))
@pytest.mark.parametrize("kind", MAKERS)
def test_the_next_run_begins_anew(kind: str, tmp_path: Path) -> None:
    destination, server = MAKERS[kind](tmp_path), MemoryServer()
    graph, opened = topology(destination), Opened(MemoryStateStore(server), "memory", True)
    assert run_to_idle(graph, MemoryStateStore(server)) == 3
    first = contents(destination)
    assert len(first) == len(ROWS)
    (kept,) = places_of(graph).kept.values()
    for action in ("adopt", "clear"):
        typed = cli._parser().parse_args(shlex.split(kept.command(action, "reset"))[1:])
        by_address = open_kept(typed.store, typed.table, typed.topology)
        assert (by_address.fences(), bool(by_address.fences())) == (kept.fences(), True)
    lines = reset(graph, opened, "memory", leave_rows=False, execute=False)
    assert any(line.startswith(f"would remove from {kept.address}: ") for line in lines)
    assert not [line for line in lines if "only you can empty" in line or "does not have" in line]
    rows_stay = getattr(destination, "keeps_rows", False)
    if rows_stay:
        assert any(
            line.startswith(
                f"would stay: the rows in {places_of(graph).rows_left('reset')[0]}, which are yours"
            )
            for line in lines
        )
        with pytest.raises(UsageError, match="are not empty, and are yours"):
            reset(graph, opened, "memory", leave_rows=False, execute=True)
        assert kept.fences() != []
    reset(graph, opened, "memory", leave_rows=True, execute=True)
    assert kept.fences() == []
    assert run_to_idle(graph, MemoryStateStore(server)) == 3
    again = contents(destination)
    assert sorted(map(repr, again)) == sorted(map(repr, [*first, *first] if rows_stay else first))


def test_each_of_two_kafka_sinks_is_reset_and_a_topic_without_rows_of_the_topology_is_no_hindrance() -> (
    None
):
    server, state = kafka.running_server(), MemoryServer()
    own = server.new_topic()
    server.produce(own, ["of another program"])
    sinks = [
        KafkaSink(server.servers, own, format="json", name="a"),
        KafkaSink(server.servers, server.new_topic(), format="json", name="b"),
    ]
    builder = TransactionalTopologyBuilder(
        "reset-two",
        "numbers",
        MemoryTransactionalSpout({0: ROWS}, Fields("id", "cents"), take_per_partition=4),
    )
    for number, sink in enumerate(sinks):
        builder.set_bolt(f"write-{number}", sink).global_grouping("numbers")
    graph, opened = builder.build_topology(), Opened(MemoryStateStore(state), "memory", True)
    assert places_of(graph).rows_left("reset-two") == []
    assert run_to_idle(graph, MemoryStateStore(state)) == 3
    assert len(places_of(graph).rows_left("reset-two")) == 2
    reset(graph, opened, "memory", leave_rows=True, execute=True)
    assert [kept.fences() for kept in places_of(graph).kept.values()] == [[], []]
    assert run_to_idle(graph, MemoryStateStore(state)) == 3


def test_every_destination_of_the_library_is_reset_here(tmp_path: Path) -> None:
    for module in pkgutil.walk_packages(txtopo.__path__, "txtopo."):
        if not module.name.startswith(
            ("txtopo.testing", "txtopo.demo")
        ) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    known, waiting = set[str](), [Destination]
    while waiting:
        cls = waiting.pop()
        waiting.extend(cls.__subclasses__())
        is_for_tests = cls.__module__.startswith("txtopo.testing") or issubclass(cls, SimulatedSink)
        if (
            cls.__module__.startswith("txtopo.")
            and not is_for_tests
            and not inspect.isabstract(cls)
        ):
            known.add(f"{cls.__module__}.{cls.__name__}")
    reset_here = [
        type(part)
        for make in MAKERS.values()
        for part in places_of(topology(make(tmp_path))).destinations
    ]
    assert known == {f"{cls.__module__}.{cls.__name__}" for cls in reset_here}
