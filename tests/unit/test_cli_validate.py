"""``txtopo validate`` and ``txtopo explain`` name the promise for each store and sink, and refuse a
promise that could not be kept."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path

import pytest

from tests.servers import memory_kafka
from txtopo.command import cli

TOPOLOGY = """\
from txtopo import BaseCommitterTransactionalSpout, BaseTransactionalBolt, Destination, Fields, Guarantee, ICommitter, TransactionalTopologyBuilder
from txtopo.connectors.delta import DeltaSink
from txtopo.connectors.files import FileSink, FileTransactionalSpout
from txtopo.connectors.kafka import KafkaSink, KafkaTransactionalSpout
from txtopo.connectors.sql import SqlSink
from txtopo.stores import RedisStore, SqliteStore, SqlStore
from txtopo.testing import OpaqueMemoryTransactionalSpout



class Sink(Destination):
    def guarantee(self):
        return Guarantee("a sink", "rows", takes_back=True, is_keyed=False, cure="")


class Writes(BaseTransactionalBolt, ICommitter):
    def __init__(self, *stores):
        self.stores = stores

    def execute(self, tup):
        pass


class OwnKeys(Writes):
    has_own_keys = True


SERVER = "postgresql+psycopg://me@db.example/bank"


def topology(kind="server", tasks=2, grouping="fields", bolt=Writes, opaque=False):
    lines = OpaqueMemoryTransactionalSpout({0: [("a",)]}, Fields("line"), 1) if opaque else FileTransactionalSpout("*.txt", bytes_per_batch=10)
    builder = TransactionalTopologyBuilder("judged", "lines", lines)
    stores = {"server": [SqlStore(SERVER, "counts", opaque=opaque)], "file": [SqliteStore("counts.db", "counts", opaque=opaque)], "sink": [Sink()]}
    stores["plain"] = [SqlStore(SERVER, "counts", plain=True)]
    stores["both"], stores["none"] = stores["server"] + stores["sink"], []
    declare = builder.set_bolt("count", bolt(*stores[kind]), tasks)
    getattr(declare, f"{grouping}_grouping")("lines", *([Fields("line")] if grouping == "fields" else []))
    return builder.build_topology()


def to_kafka():
    builder = TransactionalTopologyBuilder("judged", "lines", FileTransactionalSpout("*.txt", bytes_per_batch=10))
    builder.set_bolt("count", KafkaSink("kafka.example:9092", "orders", value="line"), 2).shuffle_grouping("lines")
    return builder


def own():
    return topology(grouping="shuffle", bolt=OwnKeys)


def wrong():
    return topology(grouping="none")


class Acknowledges(BaseCommitterTransactionalSpout):
    def declare_output_fields(self, declarer):
        declarer.declare(Fields("tx", "line"))

    def get_coordinator(self, conf, context):
        return None

    def get_emitter(self, conf, context):
        return None


def acknowledging(*stores):
    spout = Acknowledges()
    spout.stores = stores
    builder = TransactionalTopologyBuilder("judged", "lines", spout)
    builder.set_bolt("count", Writes(SqlStore(SERVER, "counts"))).shuffle_grouping("lines")
    return builder


def acknowledging_in_a_store():
    return acknowledging(Sink())


def from_kafka():
    spout = KafkaTransactionalSpout("memory:9092", "orders")
    builder = TransactionalTopologyBuilder("judged", "spout", spout)
    builder.set_bolt("write", Writes()).global_grouping("spout")
    return builder.build_topology()


def writing(kind, *place):
    bolts = {"FileSink": FileSink, "DeltaSink": DeltaSink, "SqliteStore": lambda path: Writes(SqliteStore(path, "counts"))}
    bolts["SqlStore"] = lambda: Writes(SqlStore("postgresql+psycopg://me@localhost:1/bank", "counts"))
    bolts["RedisStore"] = lambda: Writes(RedisStore("redis://localhost:1", "counts"))
    builder = TransactionalTopologyBuilder("judged", "lines", FileTransactionalSpout("*.txt", bytes_per_batch=10))
    builder.set_bolt("write", bolts[kind](*place)).global_grouping("lines")
    return builder


def sinking(*fields, sink="sql", **options):
    builder = TransactionalTopologyBuilder("judged", "lines", FileTransactionalSpout("*.txt", bytes_per_batch=10))
    kafka = KafkaSink("localhost:1", "lines", value=fields[0], format="text") if sink == "kafka" else None
    builder.set_bolt("write", kafka or SqlSink("shop.db", "sales", list(fields) or None, **options)).global_grouping("lines")
    return builder


class Chosen:
    def choose_tasks(self, task_index, values):
        return [0]


def chosen():
    builder = TransactionalTopologyBuilder("judged", "lines", FileTransactionalSpout("*.txt", bytes_per_batch=10))
    builder.set_bolt("count", Writes(SqlStore(SERVER, "counts")), 2).custom_grouping("lines", Chosen())
    return builder
"""
REPEATED = "guarantees, for batches that a replay repeats exactly (transactional spout):\n"
CHANGED = "guarantees, for batches that a replay may change (opaque spout):\n"
KEPT = "SqlStore postgresql+psycopg://db.example/bank#counts, transactional values: exactly once; a key has one writer, "
KEPT_PLAIN = KEPT.replace("transactional values: exactly once", "plain values: the last write")


@pytest.fixture(autouse=True)
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "judged.py").write_text(TOPOLOGY)
    (tmp_path / "lines.txt").write_text("a\nb\n")


@pytest.mark.rule(31, 32)
@pytest.mark.parametrize(
    ("attribute", "promised"),
    [
        ("topology", f"{REPEATED}  count  {KEPT}by fields(line)\n"),
        ("topology('server', 1, 'shuffle')", f"{REPEATED}  count  {KEPT}for there is one task\n"),
        ("topology('server', 2, 'global')", f"{REPEATED}  count  {KEPT}for one task gets all\n"),
        ("topology('plain')", f"{REPEATED}  count  {KEPT_PLAIN}by fields(line)\n"),
        ("own", f"{REPEATED}  count  {KEPT}as OwnKeys says of its keys\n"),
        (
            "chosen",
            f"{REPEATED}  count  {KEPT}if the sender sees to it; two are refused when they meet\n",
        ),
        ("topology('sink', 2, 'shuffle')", f"{REPEATED}  count  a sink, rows: exactly once\n"),
        (
            "topology('both')",
            f"{REPEATED}  count  {KEPT}by fields(line)\n  count  a sink, rows: exactly once\n",
        ),
        (
            "to_kafka",
            f"{REPEATED}  count  KafkaSink kafka://kafka.example:9092#orders, records, appended: exactly once for readers of committed records\n",
        ),
        (
            "topology('none')",
            f"{REPEATED}  count  no store or sink is known in it: it is called again on a replay, and must write once by itself\n",
        ),
        (
            "acknowledging",
            f"{REPEATED}  lines  no store or sink is known in it: it is called again on a replay, and must write once by itself\n"
            f"  count  {KEPT}for there is one task\n",
        ),
        (
            "acknowledging_in_a_store",
            f"{REPEATED}  lines  a sink, rows: exactly once\n  count  {KEPT}for there is one task\n",
        ),
        (
            "topology('file', opaque=True)",
            f"{CHANGED}  count  SqliteStore counts.db#counts, opaque values: exactly once;"
            " what a failed attempt wrote is taken back; a key has one writer, by fields(line)\n"
            "  needs a local master: its rows are kept in temporary files on the driver's machine (lines)\n"
            "  needs a local master: SqliteStore writes a file on this machine (count)\n",
        ),
    ],
)
def test_validate_tells_the_promise_for_each_store_and_sink(
    attribute: str, promised: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", f"judged.py:{attribute}", "--master", "local[2]"]) == 0
    assert capsys.readouterr().out == f"topology judged is valid with master local[2]\n{promised}"
    assert cli.main(["explain", f"judged.py:{attribute}"]) == 0
    assert capsys.readouterr().out.endswith(f"\n\n{promised}")


@pytest.mark.rule(32)
@pytest.mark.parametrize("command", ["validate", "explain"])
def test_a_topology_that_cannot_count_once_is_refused_with_exit_code_2(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "judged.py:wrong"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "none grouping on 'lines' gives equal keys to different tasks" in said.err


@pytest.mark.rule(31)
def test_plain_values_behind_an_opaque_spout_are_refused_with_the_cure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        cli.main(["validate", "judged.py:topology('plain', opaque=True)", "--master", "local[2]"])
        == 2
    )
    said = capsys.readouterr().err
    assert "holds plain values, but the spout 'lines' is opaque" in said
    assert "give the store opaque=True instead of plain=True" in said


@pytest.mark.rule(31)
@pytest.mark.parametrize("command", [["validate"], ["explain", "--cores", "4"]])
@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host"])
def test_a_file_on_the_drivers_machine_is_refused_for_a_cluster(
    command: list[str], master: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "judged.py:topology('file')", "--master", master]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert (
        f"component 'count': SqliteStore writes a file on this machine, but the master is {master}"
        in said.err
    )


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local[7]", "local"])
def test_a_store_in_a_server_is_valid_for_every_master(
    master: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", "judged.py", "--master", master]) == 0
    assert f"topology judged is valid with master {master}\n" in capsys.readouterr().out


def test_a_plan_for_a_cluster_is_for_as_many_cores_as_are_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["explain", "judged.py", "--master", "yarn", "--cores", "12"]) == 0
    assert "planned for 12 cores\n" in capsys.readouterr().out


@pytest.mark.parametrize("master", ["", "local[x]", "mesos://host", "localhost[2"])
def test_an_address_that_no_spark_understands_is_refused(
    master: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", "judged.py", "--master", master]) == 2
    assert f"--master {master!r} is no Spark master" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["validate", "explain"])
@pytest.mark.parametrize("sink", ["sinking('lime')", "sinking('lime', sink='kafka')"])
def test_a_field_of_a_sink_that_the_stream_does_not_have_is_refused_with_the_near_one(
    command: str, sink: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, f"judged.py:{sink}"]) == 2
    said = "bolt 'write' needs the field 'lime', but stream 'default' of 'lines' has tx, line; did you mean 'line'?"
    assert said in capsys.readouterr().err


def test_validate_asks_the_database_for_table_and_columns_where_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        code = cli.main(["validate", "judged.py:sinking()", *arguments])
        captured = capsys.readouterr()
        return captured.err if code else ""

    assert said() == ""
    assert "shop.db" in said("--connect")
    assert not (tmp_path / "shop.db").exists(), "nothing is made"
    with contextlib.closing(sqlite3.connect("shop.db")) as shop:
        assert "finds no table 'sales'" in said("--connect")
        shop.execute("CREATE TABLE sales (lines TEXT)")
        assert "has no column 'line'\n  It has lines." in said("--connect")
        shop.execute("ALTER TABLE sales ADD COLUMN Line")
        assert said("--connect") == ""
        assert shop.execute("SELECT name FROM sqlite_master").fetchall() == [("sales",)]


def test_validate_asks_the_brokers_for_the_topics_of_a_spout_where_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = memory_kafka.patched_in(monkeypatch)
    command = ["validate", "judged.py:from_kafka()"]
    assert cli.main(command) == 0
    assert cli.main([*command, "--connect"]) == 2
    assert "topic 'orders'" in capsys.readouterr().err
    kafka.new_topic("orders")
    assert cli.main([*command, "--connect"]) == 0


@pytest.mark.parametrize(
    ("writer", "said"),
    [
        ("'SqlStore'", "the store postgresql+psycopg://localhost:1/bank#counts is not there"),
        ("'RedisStore'", "the store redis://localhost:1/0#counts is not there"),
        ("'FileSink', 'lines.txt'", "must be able to make and write"),
        ("'DeltaSink', 'lines.txt'", "must be able to make and write"),
        ("'SqliteStore', 'new.db'", ""),
        ("'FileSink', 'new'", ""),
        ("'DeltaSink', 'new'", ""),
    ],
)
def test_validate_asks_stores_and_directories_where_it_is_told_to(
    writer: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    command = ["validate", f"judged.py:writing({writer})"]
    assert cli.main(command) == 0
    assert cli.main([*command, "--connect"]) == (2 if said else 0)
    assert said in capsys.readouterr().err
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before
