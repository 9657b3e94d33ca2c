"""Every store and every sink of the library under the simulator: their content is compared, and the
user's own places stay untouched."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import txtopo.connectors
import txtopo.stores
import txtopo.testing
from tests.topologies.numbered_lines import Putting, Queueing, topology
from tests.topologies.sinks import Shop
from txtopo import (
    BaseTransactionalBolt,
    ICommitter,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from txtopo.connectors import delta
from txtopo.connectors.files import FileSink, file_ledger
from txtopo.connectors.files import memory as file_memory
from txtopo.connectors.kafka import KafkaSink
from txtopo.connectors.kafka import ledger as kafka_ledger
from txtopo.connectors.sql import SqlSink
from txtopo.connectors.sql.ledger import Ledger, SqliteLedger, SqlLedger, open_ledger
from txtopo.connectors.sql.simulated import SimulatedLedger
from txtopo.connectors.sql.target import target_of
from txtopo.dataplane.worker import Resources
from txtopo.errors import FailedException, TxtopoError
from txtopo.exports import ExportQueue
from txtopo.stores import RedisStore, SqliteStore, SqlStore, StoreConflict
from txtopo.testing import MemoryStore, MemoryTransactionalSpout, Simulation, simulate
from txtopo.testing.simulator.simulated_store import SimulatedStore
from txtopo.topology import destination

POSTGRESQL = "postgresql+psycopg://ann@nowhere/shop"
MYSQL = "mysql+pymysql://ann@nowhere/shop"

Made = Callable[[Path], Any]

BOLTS: dict[str, tuple[type, Made]] = {
    "SqliteStore": (
        SqliteStore,
        lambda directory: Putting(SqliteStore(directory / "a.db", "counts")),
    ),
    "opaque SqliteStore": (
        SqliteStore,
        lambda directory: Putting(SqliteStore(directory / "a.db", "counts", opaque=True)),
    ),
    "plain SqliteStore": (
        SqliteStore,
        lambda directory: Putting(SqliteStore(directory / "a.db", "counts", plain=True)),
    ),
    "SqlStore, PostgreSQL": (SqlStore, lambda directory: Putting(SqlStore(POSTGRESQL, "counts"))),
    "SqlStore, MySQL": (
        SqlStore,
        lambda directory: Putting(SqlStore(MYSQL, "counts", opaque=True)),
    ),
    "RedisStore": (
        RedisStore,
        lambda directory: Putting(RedisStore("redis://nowhere/0", "counts")),
    ),
    "MemoryStore": (
        MemoryStore,
        lambda directory: Putting(MemoryStore("counts", "counts of a test")),
    ),
    "SqlSink, SQLite": (
        SqliteLedger,
        lambda directory: SqlSink(directory / "a.db", "lines", ["word", "number"]),
    ),
    "SqlSink, SQLite, upserts": (
        SqliteLedger,
        lambda directory: SqlSink(directory / "a.db", "lines", ["word", "number"], key=["word"]),
    ),
    "SqlSink, PostgreSQL": (SqlLedger, lambda directory: SqlSink(POSTGRESQL, "shop.lines")),
    "SqlSink, PostgreSQL, upserts": (
        SqlLedger,
        lambda directory: SqlSink(POSTGRESQL, "lines", ["word", "number"], key=["word"]),
    ),
    "SqlSink, MySQL, statement": (
        SqlLedger,
        lambda directory: SqlSink(MYSQL, statement="INSERT INTO lines VALUES (:word, :number)"),
    ),
    "SqlSink, opaque, mark": (
        SqlLedger,
        lambda directory: SqlSink(MYSQL, "lines", ["word", "number"], opaque=True, mark="of"),
    ),
    "SqlSink, opaque, upserts": (
        SqlLedger,
        lambda directory: SqlSink(
            POSTGRESQL, "lines", ["word", "number"], key=["word"], opaque=True
        ),
    ),
    "KafkaSink": (
        kafka_ledger.Ledger,
        lambda directory: KafkaSink("nowhere:9092", "sales", key="word", format="json"),
    ),
    "KafkaSink, fields": (
        kafka_ledger.Ledger,
        lambda directory: KafkaSink(
            "nowhere:9092",
            "field:word",
            format="json",
            columns=["number"],
            transactions_topic="other",
            client={"sasl.password_env": "NOT_SET"},
        ),
    ),
    "FileSink, folders": (
        file_ledger.FileLedger,
        lambda directory: FileSink("s3://nowhere/lines", partition_by=["word"]),
    ),
    "FileSink, opaque, Parquet": (
        file_ledger.FileLedger,
        lambda directory: FileSink(directory / "lines", opaque=True, format="parquet"),
    ),
    "ExportQueue, opaque": (
        ExportQueue,
        lambda directory: Queueing(
            ExportQueue("lines", SqliteStore(directory / "a.db", "counts", opaque=True))
        ),
    ),
    "DeltaSink, opaque": (
        delta.sink.DeltaLedger,
        lambda directory: delta.DeltaSink(directory / "table", opaque=True),
    ),
}
"""Destinations, by a person's name for each: the class of the library, and a bolt that writes to
it."""


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    yield package
    for entry in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        try:
            module = importlib.import_module(entry.name)
        except ImportError:
            continue
        yield from modules_of(module) if entry.ispkg else [module]


def destinations_of_the_library() -> set[type]:
    """Every class of the library that a bolt may write to."""
    destinations: set[type] = set()
    for module in [
        module
        for package in (txtopo.stores, txtopo.connectors, txtopo.exports, txtopo.testing)
        for module in modules_of(package)
    ]:
        for cls in vars(module).values():
            if (
                isinstance(cls, type)
                and cls.__module__ == module.__name__
                and not inspect.isabstract(cls)
            ):
                is_committer = issubclass(cls, ICommitter) and issubclass(
                    cls, BaseTransactionalBolt
                )
                if issubclass(cls, destination.Destination) or is_committer:
                    destinations.add(cls)
    return destinations


def test_no_store_and_no_sink_of_the_library_is_left_out() -> None:
    """A new class of the library gets a line in ``BOLTS``, or this fails."""
    substitutes = {
        SimulatedStore,
        SimulatedLedger,
        kafka_ledger._SimulatedLedger,
        file_memory.SimulatedLedger,
    }
    assert destinations_of_the_library() - substitutes == {cls for cls, _ in BOLTS.values()} | {
        SqlSink,
        KafkaSink,
        FileSink,
        delta.DeltaSink,
    }


@pytest.mark.in_gate(
    "SqliteStore", "SqlSink, opaque, upserts", "FileSink, opaque, Parquet", "KafkaSink"
)
@pytest.mark.parametrize("name", BOLTS)
@pytest.mark.rule(28)
def test_a_right_topology_passes_with_every_store_and_sink(name: str, tmp_path: Path) -> None:
    report = simulate(
        topology(BOLTS[name][1](tmp_path), False, "opaque" in name), seeds=25, other_processes=False
    )
    assert report.violation is None, str(report)
    assert report.schedules == 25
    assert not list(tmp_path.iterdir()), "nothing of the user's is touched"


@pytest.mark.in_gate(
    "opaque SqliteStore",
    "RedisStore",
    "SqlSink, MySQL, statement",
    "FileSink, folders",
    "ExportQueue, opaque",
)
@pytest.mark.parametrize("name", BOLTS)
@pytest.mark.rule(28)
def test_a_wrong_topology_is_found_with_every_store_and_sink(name: str, tmp_path: Path) -> None:
    report = simulate(
        topology(BOLTS[name][1](tmp_path), True, "opaque" in name), seeds=25, other_processes=False
    )
    assert report.violation is not None
    kind = "sink" if "Sink" in name else "store"
    assert any(f" of {kind} " in difference.place for difference in report.violation.differences), (
        str(report.violation)
    )


def test_the_content_of_a_sink_is_shown_row_by_row(tmp_path: Path) -> None:
    report = simulate(
        topology(SqlSink(tmp_path / "a.db", "lines", ["word", "number"]), True, False),
        seeds=25,
        other_processes=False,
    )
    assert report.violation is not None
    text = str(report.violation)
    assert f"of sink {tmp_path}/a.db#lines is " in text
    assert "row word='" in text
    assert "without failures it is absent" in text or "without failures it is there once" in text


def test_two_sinks_of_one_database_write_to_two_tables(tmp_path: Path) -> None:
    builder = TransactionalTopologyBuilder(
        "two", "spout", MemoryTransactionalSpout({0: [("dog", 1)]}, ["word", "number"], 1)
    )
    for table in ("lines", "copies"):
        builder.set_bolt(
            f"write {table}", SqlSink(tmp_path / "a.db", table, ["word", "number"])
        ).global_grouping("spout")
    with Simulation(builder.build_topology()) as simulation:
        expected = simulation.expected.rows
    assert expected == {
        f"{tmp_path}/a.db#{table}": {"word='dog', number=1": 1} for table in ("lines", "copies")
    }


class Own(Putting, destination.Destination):
    """A bolt that is its own destination."""

    def guarantee(self) -> destination.Guarantee:
        return self.store.guarantee()

    def simulated(self, world: destination.World) -> destination.Destination:
        return InMemory(world.store(self.store))


class InMemory(Own):
    """Stands for ``Own``, and brings no substitute itself."""

    def simulated(self, world: destination.World) -> Any:
        return None


def test_a_bolt_that_is_its_own_destination_is_replaced_once(tmp_path: Path) -> None:
    bolt = Own(SqliteStore(tmp_path / "a.db", "counts"))
    with Simulation(topology(bolt)) as simulation:
        (substitute,) = (
            each for each in simulation.subject.stores if not isinstance(each, MemoryStore)
        )
    assert type(substitute) is InMemory
    assert not list(tmp_path.iterdir())


# -- the substitute behaves like the real sink ---------------------------------------------------


TARGETS: dict[str, dict[str, Any]] = {
    "inserts": {},
    "marks": {"mark": "mark", "opaque": True},
    "upserts": {"key": ["word"]},
    "upserts opaque": {"key": ["word"], "opaque": True},
}


@pytest.mark.in_gate("0-*")
@pytest.mark.parametrize("form", TARGETS)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.rule(28, 29, 30, 31, 32)
def test_the_simulated_sink_has_the_content_of_the_real_sink(
    tmp_path: Path, seed: int, form: str
) -> None:
    """Applied, replayed with other rows, late and from other tasks, chosen by chance: in both the
    same rows, or the same kind of error."""
    shop, real, copy = ledgers(tmp_path, TARGETS[form])
    resources, rng = Resources(), random.Random(seed)
    txid, attempt = 1, 0
    for _ in range(60):
        step = rng.random()
        txid, attempt = (
            (txid + 1, 0) if step < 0.4 else (txid, attempt + 1) if step < 0.8 else (txid, attempt)
        )
        late = TransactionAttempt(txid, max(0, attempt - rng.choice((0, 0, 1))))
        rows: list[tuple[Any, ...]] = [
            (rng.choice("abcd"), rng.randrange(9)) for _ in range(rng.randrange(3))
        ]
        rows.extend([(None, 0)] * (rng.random() < 0.05))
        task = rng.randrange(2)
        assert applied(real, resources, late, task, rows) == applied(
            copy, resources, late, task, rows
        )
        kept = [
            dict(zip(("word", "number"), row, strict=True))
            for row in shop.execute("SELECT word, number FROM lines")
        ]
        assert sorted(repr(row) for row in kept) == sorted(
            repr(dict(zip(row.columns, row.values, strict=True))) for row in copy.rows()
        )
    assert copy.commits > 0, "by which the simulator tells writes outside of a store"
    copy._store.forget()
    resources.close()


def ledgers(directory: Path, arguments: dict[str, Any]) -> tuple[Shop, Ledger, SimulatedLedger]:
    path = directory / "lines.db"
    shop = Shop(
        str(path),
        f"CREATE TABLE lines (word TEXT{' UNIQUE' if 'key' in arguments else ''}, number INTEGER, mark TEXT)",
    )
    target = target_of(
        "lines",
        **{
            "columns": ["word", "number"],
            "key": (),
            "statement": None,
            "mark": None,
            "opaque": False,
            **arguments,
        },
    )
    real = open_ledger(str(path), "sink_transactions", target, {})
    return shop, real, SimulatedLedger(real, SimulatedStore(real, f"simulated {path}"))


def applied(
    ledger: Ledger,
    resources: Resources,
    attempt: TransactionAttempt,
    task: int,
    rows: list[tuple[Any, ...]],
) -> Any:
    """The result of ``apply``, or the kind of its error."""
    context = TopologyContext(
        "topology", "generation", "write", task, {"write": 2}, "commit", resources.get
    )
    try:
        return ledger.apply(context, attempt, (), rows)
    except (FailedException, StoreConflict, TxtopoError) as error:
        return type(error)
