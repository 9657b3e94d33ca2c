"""The sink for files on HDFS, on an S3 server and on Spark (R28 to R31)."""

from __future__ import annotations

import datetime
import http.server
import os
import threading
import urllib.parse
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers.clusters import run_to_idle
from tests.servers.cut_wire import Wire
from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import SECRET_VARIABLE, S3Server
from tests.topologies.file_sinks import ROWS, Writing, seen
from tests.unit.test_file_sink import check_storage
from txtopo import LocalCluster, TransactionalTopologyBuilder, errors
from txtopo.connectors.delta import DeltaSink
from txtopo.connectors.files import (
    CommittedFilesSpout,
    CsvTransactionalSpout,
    FileSink,
    FileTransactionalSpout,
    ParquetTransactionalSpout,
    groups,
    objects,
    parquet,
    read_committed,
    storage,
    upkeep,
)
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology.stream import Fields

NUMBERS = pa.schema([("n", pa.int64())])
OBJECTS = ("s3", "versitygw", "azurite", "fake_gcs")


@pytest.fixture(params=["hdfs", *OBJECTS])
def place(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A new folder, and the settings to reach it."""
    server = request.getfixturevalue(request.param)
    return server.new_root(), getattr(server, "client", {})


class TestPlaces:
    """Other machines keep the promises of a directory."""

    @pytest.mark.in_gate("hdfs", "s3")
    def test_storage(self, place: tuple[str, dict[str, Any]]) -> None:
        check_storage(storage.open_storage(*place))

    @pytest.mark.in_gate("hdfs", "s3")
    def test_transactions_are_there_once_and_whole(self, place: tuple[str, dict[str, Any]]) -> None:
        root, client = place
        first = Writing(FileSink(root, client=client), tasks=2)
        first.write(1, 0, ROWS[:2])
        assert seen(root, client=client) == []
        again = Writing(FileSink(root, client=client), tasks=2)
        again.write_all(1, 1, ROWS)
        again.write_all(2, 3, ROWS[:1])
        with pytest.raises(errors.StaleAttemptError):
            first.write(1, 0, ROWS[2:], task=1)
        assert seen(root, client=client) == [(1, sorted(ROWS)), (2, ROWS[:1])]
        records = upkeep.open_records(storage.address_of(root, client), "files")
        assert records.problems() == []
        records.clear("sales")
        assert list(records.log.storage.walk()) == []

    @pytest.mark.in_gate("s3")
    def test_opaque_transactions(self, place: tuple[str, dict[str, Any]]) -> None:
        root, client = place
        arguments: dict[str, Any] = {"opaque": True, "format": "parquet", "client": client}
        writing = Writing(FileSink(root, **arguments), tasks=2)
        writing.write_all(1, 0, ROWS)
        writing.write_all(1, 1, ROWS[:1])
        writing.write_all(2, 0, ROWS[1:])
        assert seen(root, client=client) == [(1, ROWS[:1])]

    @pytest.mark.thorough
    @pytest.mark.parametrize("place", OBJECTS, indirect=True)
    def test_a_table_of_delta(self, place: tuple[str, dict[str, Any]]) -> None:
        root, client = place
        sink = DeltaSink(root, opaque=True, compact_every=2, client=client)
        writing = Writing(sink, tasks=2)
        for txid in range(1, 4):
            writing.write_all(txid, 0, ROWS)
        writing.write_all(3, 1, ROWS[:1])
        options = {**objects.config(root, client), "allow_http": "true"}
        read = deltalake.DeltaTable(root, storage_options=options).to_pyarrow_table().to_pylist()
        assert sorted(tuple(row.values()) for row in read) == sorted([*2 * ROWS, ROWS[0]])

    @pytest.mark.thorough
    def test_transactions_behind_another_one(self, place: tuple[str, dict[str, Any]]) -> None:
        root, client = place
        writing = Writing(FileSink(root, client=client))
        for txid in range(1, 4):
            writing.write(txid, 0, ROWS[:txid])
        assert [txid for txid, _ in seen(root, after=2, client=client)] == [3]
        assert seen(root, after=3, client=client) == []

    @pytest.mark.in_gate("s3")
    @pytest.mark.parametrize("place", OBJECTS[:3], indirect=True)
    def test_a_lost_answer_is_decided_by_what_is_there(
        self, place: tuple[str, dict[str, Any]]
    ) -> None:
        root, client = place
        endpoint = urllib.parse.urlsplit(client["endpoint"])
        assert endpoint.port is not None
        for lost in range(8):
            folder = f"{root}/{lost}"
            with Wire(endpoint.port) as wire:
                other = endpoint._replace(netloc=f"127.0.0.1:{wire.port}").geturl()
                writing = Writing(FileSink(folder, client={**client, "endpoint": other}))
                wire.lose_answer(lost)
                for attempt in range(3):
                    try:
                        writing.write(1, attempt, ROWS)
                        break
                    except errors.FailedException:
                        continue
            assert seen(folder, client=client) == [(1, sorted(ROWS))]

    @pytest.mark.thorough
    @pytest.mark.parametrize("place", OBJECTS[1:3], indirect=True)
    def test_a_missing_bucket_and_a_wrong_secret_are_told(
        self, place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root, client = place
        with pytest.raises(errors.SetupError, match="there is no bucket"):
            Writing(FileSink(root.replace("//files", "//none"), client=client)).write(1, 0, ROWS)
        for name in client:
            if name.endswith("_env"):
                monkeypatch.setenv(client[name], "d3Jvbmc=")
        with pytest.raises(errors.SetupError, match="refused access"):
            Writing(FileSink(root, client=client)).write(1, 0, ROWS)
        with pytest.raises(errors.SetupError, match="refused access"):
            groups.listed([storage.address_of(f"{root}/*", client)])


@pytest.mark.thorough
def test_a_name_node_that_is_in_safe_mode_away_or_started_again(hdfs: HdfsServer) -> None:
    root = hdfs.new_root()
    writing = Writing(FileSink(root), tasks=2)
    writing.write_all(1, 0, ROWS)
    hdfs.safe_mode("enter")
    try:
        with pytest.raises(errors.FailedException):
            writing.write(2, 0, ROWS[:2])
    finally:
        hdfs.safe_mode("leave")
    writing.write(2, 1, ROWS[:2])
    hdfs.kill()
    with pytest.raises(errors.FailedException):
        writing.write(2, 1, ROWS[2:], task=1)
    hdfs.start()
    # Another process than the one that has lost its connection.
    again = Writing(FileSink(root), tasks=2)
    again.write_all(2, 2, ROWS)
    again.write_all(3, 0, ROWS)
    assert seen(root) == [(txid, sorted(ROWS)) for txid in (1, 2, 3)]


class TestS3:
    """Traps of object stores."""

    def test_listing_readers_see_each_file_once(self, s3: S3Server) -> None:
        root, client = s3.new_root(), s3.client
        arguments: dict[str, Any] = {"visible": "file", "client": client}
        Writing(FileSink(root, **arguments), tasks=2).write(1, 0, ROWS[::2])
        Writing(FileSink(root, **arguments), tasks=2).write_all(1, 1, ROWS)
        listed = [
            each.path
            for each in storage.open_storage(root, client).walk()
            if not each.path.startswith("_txtopo")
        ]
        assert sorted(listed) == [f"{1:020d}-0000{task}.jsonl" for task in range(2)]
        assert seen(root, client=client) == [(1, sorted(ROWS))]

    def test_a_wrong_secret_a_missing_bucket_and_a_server_that_is_away(
        self, s3: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = s3.client
        with pytest.raises(errors.SetupError, match="there is no bucket"):
            Writing(FileSink("s3://none/folder", client=client)).write(1, 0, ROWS)
        away = {**client, "endpoint": "http://127.0.0.1:9"}
        with pytest.raises(errors.FailedException, match="cannot be reached just now"):
            Writing(FileSink(s3.new_root(), client=away)).write(1, 0, ROWS)
        monkeypatch.setenv("TEST_WRONG_SECRET", "wrong")
        wrong = {**client, "secret_access_key_env": "TEST_WRONG_SECRET"}
        with pytest.raises(errors.SetupError, match="refused access"):
            Writing(FileSink(s3.new_root(), client=wrong)).write(1, 0, ROWS)
        for root, settings, said in (
            (s3.new_root(), wrong, r"refused access to s3(.|\n)*\n  Check the keys"),
            ("s3://none/folder", client, "there is no bucket for s3"),
        ):
            for growing in (False, True):
                with pytest.raises(errors.SetupError, match=said):
                    CsvTransactionalSpout(
                        f"{root}/*", NUMBERS, client=settings, growing=growing
                    ).groups()
        monkeypatch.delenv(SECRET_VARIABLE)
        with pytest.raises(errors.SetupError, match=f"variable {SECRET_VARIABLE}"):
            Writing(FileSink(s3.new_root(), client=client)).write(1, 0, ROWS)

    @pytest.mark.parametrize(
        ("code", "expected"),
        [("ExpiredToken", errors.SetupError), ("RequestTimeout", errors.FailedException)],
    )
    def test_a_request_that_is_refused_for_good_is_not_tried_again(
        self, s3: S3Server, code: str, expected: type[Exception]
    ) -> None:
        with _careless(code) as endpoint:
            store = storage.open_storage(s3.new_root(), {**s3.client, "endpoint": endpoint})
            for use in (lambda: list(store.walk()), lambda: store.read("a")):
                with pytest.raises(expected, match=f"400 Bad Request: .*{code}"):
                    use()

    def test_a_server_without_conditional_puts_is_refused(self, s3: S3Server) -> None:
        with _careless() as endpoint:
            client = {**s3.client, "endpoint": endpoint}
            with pytest.raises(errors.SetupError, match="takes no conditional puts"):
                Writing(FileSink(s3.new_root(), client=client)).write(1, 0, ROWS)


class _Careless(http.server.BaseHTTPRequestHandler):
    """Takes every put, also over an object that is there, and is empty. With ``refusal``, refuses
    every get."""

    refusal = ""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_GET(self) -> None:
        if self.refusal:
            self._answer(400, f"<Error><Code>{self.refusal}</Code></Error>".encode())
            return
        is_listing = "list-type" in self.path
        nothing = b"<ListBucketResult><Name>files</Name><KeyCount>0</KeyCount></ListBucketResult>"
        self._answer(200 if is_listing else 404, nothing if is_listing else b"")

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Be quiet."""


class _careless:
    def __init__(self, refusal: str = "") -> None:
        self._handler = type("_Refusing", (_Careless,), {"refusal": refusal})

    def __enter__(self) -> str:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *error: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def with_secret_file(client: dict[str, Any], folder: Path) -> dict[str, Any]:
    """``client`` for Spark's processes, which were started before the secret was known."""
    settings = dict(client)
    for name, variable in client.items():
        if name.endswith("_env"):
            secret = folder / name
            secret.write_text(os.environ[variable])
            settings[f"{name.removesuffix('_env')}_file"] = str(secret)
            del settings[name]
    return settings


class TestSources:
    """Spouts read files on other machines as they read local ones."""

    @pytest.mark.in_gate("s3")
    def test_patterns_ranges_and_columns(
        self, place: tuple[str, dict[str, Any]], cluster: LocalCluster, tmp_path: Path
    ) -> None:
        root, client = place
        client = with_secret_file(client, tmp_path)
        store = storage.open_storage(root, client)
        lines = [f"{n},{n * n}" for n in range(1000)]
        parts = ["\n".join(some).encode() for some in (lines[:400], lines[400:])]
        store.put("in/day=2026-11-20/part-0.csv", parts[0])
        store.put("in/_SUCCESS", b"")
        schema = pa.schema([("n", pa.int64()), ("square", pa.int64()), ("day", pa.date32())])
        spout = CsvTransactionalSpout(
            f"{root}/in/**", schema, 3000, header=False, client=client, growing=True
        )
        builder = TransactionalTopologyBuilder(f"squares-{tmp_path.name}", "csv", spout)
        sink = FileSink(f"{root}/out", format="parquet", partition_by=["day"], client=client)
        builder.set_bolt("write", sink, 2).shuffle_grouping("csv")
        topology = builder.build_topology()
        run_to_idle(cluster, topology, max_spout_pending=2)
        store.put("in/day=2026-11-21/part-1.csv", parts[1])
        store.delete(["in/day=2026-11-20/part-0.csv"])
        run_to_idle(cluster, topology, max_spout_pending=2)
        expected = sorted(
            (int(n), int(square), datetime.date(2026, 11, 20 + (int(n) >= 400)))
            for n, square in (line.split(",") for line in lines)
        )
        read = read_committed(f"{root}/out", client=client)
        assert len(list(read)) > 2
        assert sorted(zip(*read.to_arrow().to_pydict().values(), strict=True)) == expected
        again = ParquetTransactionalSpout(read.paths(), columns=["square", "day"], client=client)
        footers = [parquet.Footer(path) for path in again.groups()[0].paths]
        squares = [
            square
            for footer in footers
            for batch in footer.batches(0, 1, pa.schema([("square", pa.int64())]), ())
            for square in batch.column("square").to_pylist()
        ]
        assert sorted(squares) == [square for _, square, _ in expected]
        assert again.schema.names == ["square", "day"]

    @pytest.mark.in_gate("hdfs", "s3")
    def test_what_is_not_there_is_told(self, place: tuple[str, dict[str, Any]]) -> None:
        root, client = place
        spout = FileTransactionalSpout(f"{root}/none.txt", client=client)
        with pytest.raises(errors.InputError, match="no file"):
            groups.sized(spout.groups())


@pytest.mark.thorough
def test_topologies_chain_transaction_by_transaction(cluster: LocalCluster, tmp_path: Path) -> None:
    rows = [(f"day-{n % 3}", n) for n in range(30)]
    spout = MemoryTransactionalSpout({0: rows}, Fields("day", "n"), take_per_partition=10)
    previous = tmp_path
    formats: tuple[tuple[str, Any], ...] = (("a", "json"), ("b", "parquet"), ("c", "json"))
    for name, format in formats:
        source: Any = spout if name == "a" else CommittedFilesSpout(previous)
        builder = TransactionalTopologyBuilder(f"chain-{name}", "source", source, 2)
        sink = FileSink(tmp_path / name, format=format, partition_by=["day"])
        builder.set_bolt("write", sink, 2).shuffle_grouping("source")
        run_to_idle(cluster, builder.build_topology(), max_spout_pending=3)
        previous = tmp_path / name
        by_transaction = [
            (txid, sorted(tuple(row) for row in some)) for txid, some in seen(previous)
        ]
        assert by_transaction == [(k + 1, sorted(rows[10 * k :][:10])) for k in range(3)]


def test_delta_on_spark_and_on_an_object_store(
    cluster: LocalCluster, tmp_path: Path, s3: S3Server
) -> None:
    rows = [(f"day-{n % 3}", n) for n in range(30)]
    root, client = s3.new_root(), with_secret_file(s3.client, tmp_path)
    for uri, options in ((tmp_path / "table", {}), (root, client)):
        spout = MemoryTransactionalSpout({0: rows}, Fields("day", "n"), take_per_partition=10)
        builder = TransactionalTopologyBuilder(f"table-{len(options)}", "spout", spout)
        sink = DeltaSink(uri, partition_by=["day"], compact_every=3, client=options)
        builder.set_bolt("write", sink, 2).shuffle_grouping("spout")
        run_to_idle(cluster, builder.build_topology(), max_spout_pending=3)
        table = deltalake.DeltaTable(
            str(uri),
            storage_options=options and {**objects.config(str(uri), options), "allow_http": "true"},
        )
        read = table.to_pyarrow_table()
        assert sorted(zip(read["day"].to_pylist(), read["n"].to_pylist(), strict=True)) == sorted(
            rows
        )
        assert table.version() == 4


def test_spark_and_pyarrow_read_the_rows_of_a_topology(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    rows = [(f"day-{n % 3}", n) for n in range(30)]
    spout = MemoryTransactionalSpout({0: rows}, Fields("day", "n"), take_per_partition=10)
    builder = TransactionalTopologyBuilder("files-seen", "spout", spout)
    sink = FileSink(tmp_path, format="parquet", partition_by=["day"])
    builder.set_bolt("write", sink, 2).shuffle_grouping("spout")
    run_to_idle(cluster, builder.build_topology(), max_spout_pending=3)
    expected = sorted(rows)
    assert sorted(row for _, rows in seen(tmp_path) for row in rows) == expected
    table = pq.read_table(tmp_path, partitioning="hive")
    assert sorted(zip(table["day"].to_pylist(), table["n"].to_pylist(), strict=True)) == expected
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    frame = spark.read.parquet(str(tmp_path))
    assert sorted((row.day, row.n) for row in frame.collect()) == expected
    paths = read_committed(tmp_path, after=2).paths()
    frame = spark.read.option("basePath", str(tmp_path)).parquet(*paths)
    assert frame.count() == 10
