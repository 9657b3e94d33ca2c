"""The sink for files: storage, decisions, forms of a file, what readers see (R27 to R31)."""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import obstore.exceptions
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from tests import strides
from tests.topologies import micro_batches
from tests.topologies.file_sinks import ROWS, Writing, seen
from txtopo import TransactionAttempt, errors
from txtopo.connectors import by_address
from txtopo.connectors.files import (
    FileSink,
    decisions,
    local,
    memory,
    objects,
    read_committed,
    upkeep,
)
from txtopo.connectors.files.storage import Storage
from txtopo.stores.visible import VisibleTxid
from txtopo.testing import check_sink


def globbed(root: Path) -> list[str]:
    """All lines in the files where a reader looks that knows nothing of txtopo."""
    return sorted(line for path in root.glob("*.jsonl") for line in path.read_text().splitlines())


class TestStorage:
    """One contract for all storage."""

    @pytest.fixture(params=["memory", "local", "objects"])
    def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
        if request.param == "objects":
            return objects.ObjectStorage("s3://files", obstore.store.MemoryStore())
        return (
            memory.MemoryStorage()
            if request.param == "memory"
            else local.LocalStorage(str(tmp_path))
        )

    def test_holds_for(self, storage: Storage) -> None:
        check_storage(storage)

    def test_a_file_that_is_deleted_meanwhile_ends_no_listing(self, tmp_path: Path) -> None:
        storage = local.LocalStorage(str(tmp_path))
        for number in range(10):
            storage.put(f"log/{number}", b"")
        listing = storage.entries("log")
        first = next(listing)
        storage.delete([f"log/{number}" for number in range(4) if first.path != f"log/{number}"])
        assert len({first.path, *(each.path for each in listing)}) >= 6

    def test_a_server_may_list_from_the_first_name_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = objects.ObjectStorage("az://files", obstore.store.MemoryStore())
        listed = storage._list
        for name in "123":
            storage.put(f"log/{name}", b"")
        monkeypatch.setattr(storage, "_list", lambda prefix, offset: listed(prefix, None))
        assert [each.path for each in storage.entries("log", "2")] == ["log/3"]

    def test_a_fault_while_an_object_is_read_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        storage = objects.ObjectStorage("s3://files", obstore.store.MemoryStore())
        storage.put("one", b"hello")

        def fail(*args: Any, **kwargs: Any) -> Any:
            raise obstore.exceptions.GenericError("connection reset")

        with storage.open("one") as file:
            monkeypatch.setattr(storage, "_api", SimpleNamespace(get_range=fail))
            with pytest.raises(errors.FailedException, match="s3://files/one cannot be reached"):
                file.read(1)


def check_storage(storage: Storage) -> None:
    """Every promise of :class:`Storage`."""
    with storage.create("a/one") as file:
        file.write(b"hel")
        file.write(b"lo")
    assert storage.read("a/one") == b"hello"
    assert storage.read("a/none") is None
    with storage.open("a/one") as file:
        file.seek(2)
        assert (file.read(2), file.read()) == (b"ll", b"o")
    with pytest.raises(FileNotFoundError):
        storage.open("a/none").read()
    assert (storage.put("log/1", b"x"), storage.put("log/1", b"y"), storage.put("log/2", b"")) == (
        True,
        False,
        True,
    )
    assert storage.read("log/1") == b"x"
    assert not storage.put("log/2", b"")
    assert sorted(each.path for each in storage.entries("log")) == ["log/1", "log/2"]
    assert [each.path for each in storage.entries("log", "1")] == ["log/2"]
    assert list(storage.entries("log", "2")) == list(storage.entries("none")) == []
    assert {(each.path, each.bytes) for each in storage.walk()} >= {("a/one", 5), ("log/2", 0)}
    entry = storage.stat("a/one")
    assert entry is not None
    assert (entry.path, entry.bytes, storage.stat("a/none")) == ("a/one", 5, None)
    if storage.renames:
        assert storage.rename("a/one", "b/c=1/two")
        assert (storage.read("b/c=1/two"), storage.stat("a/one")) == (b"hello", None)
        assert not storage.rename("a/one", "b/three")
        assert not storage.rename("log/2", "log/1")
        assert storage.read("log/1") == b"x"
    storage.delete(["log/1", "log/none"])
    assert storage.stat("log/1") is None


class TestContract:
    """check_sink, over three forms of files."""

    @pytest.mark.in_gate("every 12th-lines")
    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"opaque": True, "format": "parquet", "partition_by": ["account"]},
            {"visible": "file"},
        ],
        ids=["lines", "opaque", "file by file"],
    )
    @pytest.mark.parametrize("stride", [12, 1], ids=strides.NAMES)
    def test_a_transaction_is_there_once_and_whole(
        self, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], stride: int
    ) -> None:
        strides.kill_at_every(stride, monkeypatch)
        report = check_sink(
            functools.partial(FileSink, **arguments),
            ROWS,
            fields=("account", "cents"),
            contents=lambda root: [
                row for _, rows in seen(root, isolation="read_all") for row in rows
            ],
        )
        assert report.takes_back is ("opaque" in arguments)
        assert report.points > 100 // stride


class TestVisible:
    """What readers see, and when."""

    def test_nothing_before_the_last_task(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path), tasks=2)
        assert writing.write(1, 0, ROWS[:2]) == [(2,)]
        assert (seen(tmp_path), globbed(tmp_path)) == ([], [])
        writing.write(1, 0, ROWS[2:], task=1)
        assert seen(tmp_path) == [(1, sorted(ROWS))]
        assert len(globbed(tmp_path)) == len(ROWS)

    def test_a_replay_after_the_decision_gives_the_files_their_names(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writing = Writing(FileSink(tmp_path), tasks=2)
        writing.write(1, 0, ROWS[:2])

        def die(*paths: str) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(local.LocalStorage, "rename", die)
            with pytest.raises(KeyboardInterrupt):
                writing.write(1, 0, ROWS[2:], task=1)
        # The decision counts: readers of transactions see it at once.
        assert (seen(tmp_path), globbed(tmp_path)) == ([(1, sorted(ROWS))], [])
        again = Writing(FileSink(tmp_path), tasks=2)
        again.write(1, 1, ROWS[:2])
        again.write(1, 1, ROWS[2:], task=1)
        assert seen(tmp_path) == [(1, sorted(ROWS))]
        assert len(globbed(tmp_path)) == len(ROWS)

    def test_an_opaque_transaction_appears_with_the_next(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path, opaque=True))
        writing.write(1, 0, ROWS[:1])
        assert (seen(tmp_path), globbed(tmp_path)) == ([], [])
        writing.write(1, 3, ROWS[1:2])
        writing.write(2, 0, ROWS[2:])
        assert seen(tmp_path) == [(1, ROWS[1:2])]
        assert globbed(tmp_path) == ['{"account":"bob","cents":250}']
        assert [txid for txid, _ in seen(tmp_path, isolation="read_all")] == [1, 2]

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
    def test_a_disk_that_is_full_or_read_only_leaves_all_to_the_next_attempt(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        writing = Writing(FileSink(tmp_path), tasks=2)
        writing.write(1, 0, ROWS[:2])
        really_sync, is_broken = os.fsync, True

        def sync(descriptor: int) -> None:
            if is_broken:
                raise OSError(number, os.strerror(number))
            really_sync(descriptor)

        monkeypatch.setattr(os, "fsync", sync)
        with pytest.raises((errors.FailedException, errors.SetupError), match=os.strerror(number)):
            writing.write(1, 1, ROWS[2:], task=1)
        is_broken = False
        writing.write_all(1, 2, ROWS)
        assert seen(tmp_path) == [(1, sorted(ROWS))]

    def test_a_late_attempt_changes_nothing(self, tmp_path: Path) -> None:
        late = Writing(FileSink(tmp_path, opaque=True))
        late.write(1, 0, ROWS[:1])
        Writing(FileSink(tmp_path, opaque=True)).write(2, 5, ROWS[1:])
        with pytest.raises(errors.StaleAttemptError):
            late.write(2, 4, ROWS[:1])
        assert seen(tmp_path, isolation="read_all") == [(1, ROWS[:1]), (2, sorted(ROWS[1:]))]

    def test_a_task_that_runs_twice_names_no_opaque_file(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path, opaque=True))
        writing.write(1, 0, [("failed", 1)])
        writing.write(1, 0, [("failed", 1)])
        assert globbed(tmp_path) == []
        writing.write(1, 1, ROWS[:1])
        writing.write(2, 0, ROWS[1:])
        assert seen(tmp_path) == [(1, ROWS[:1])]

    def test_a_void_attempt_is_never_named(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path, opaque=True), tasks=2)
        writing.write_all(1, 0, ROWS[:2])
        writing.write_all(2, 0, [("void", 1), ("void", 2)])
        recorded = {"write/files": TransactionAttempt(1, 0)}
        for task in range(2):
            writing.write(3, 0, ROWS[2 + task :][:1], task, known_stores=recorded)
        writing.write_all(4, 0, ROWS)
        assert [txid for txid, _ in seen(tmp_path)] == [1, 3]
        assert not any("void" in line for line in globbed(tmp_path))
        assert len(list((tmp_path / "_txtopo/00000/log").glob(f"{2:020d}.*"))) == 2

    def test_a_late_task_of_an_unsealed_batch_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live, late = Writing(FileSink(tmp_path)), Writing(FileSink(tmp_path))
        put = local.LocalStorage.put

        def be_late(storage: local.LocalStorage, path: str, data: bytes) -> bool:
            if "/log/" in path:
                monkeypatch.setattr(local.LocalStorage, "put", put)
                late.write(1, 0, [("other", 1)])
            return put(storage, path, data)

        monkeypatch.setattr(local.LocalStorage, "put", be_late)
        with pytest.raises(errors.StateMismatchError, match="never sealed"):
            live.write(1, 1_000_000, [("now", 1)], first_attempt=1_000_000)

    def test_until_and_follow(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path, opaque=True))
        for txid in (1, 2, 3):
            writing.write(txid, 0, [("ann", txid)])
        assert [txid for txid, _ in seen(tmp_path, until=2)] == [1, 2]
        upkeep.open_records(str(tmp_path), "files").adopt("sales", "two", 1, ["write"])
        again = Writing(FileSink(tmp_path, opaque=True), generation="two")
        for txid in (2, 3, 4):
            again.write(txid, 0, [("bob", txid)])
        following = read_committed(tmp_path).follow(0.0)
        assert [next(following)[0] for _ in range(5)] == [1, 2, 3, 2, 3]
        again.write(5, 0, [])
        assert next(following)[0] == 4
        assert len(globbed(tmp_path)) == 6

    def test_as_of_has_what_is_recorded(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path, opaque=True))
        for txid in (1, 2):
            writing.write(txid, 1, [("ann", txid)])

        def as_of(txid: int, attempt: int) -> VisibleTxid:
            stores = {"write/files": TransactionAttempt(txid, attempt)}
            return VisibleTxid(txid, "sales", "one", stores)

        assert [txid for txid, _ in seen(tmp_path, as_of=as_of(1, 1))] == [1]
        assert [txid for txid, _ in seen(tmp_path, as_of=as_of(2, 1))] == [1, 2]
        for txid, attempt in [(2, 2), (3, 0)]:
            with pytest.raises(errors.StateMismatchError, match="an older copy"):
                seen(tmp_path, as_of=as_of(txid, attempt))

    def test_a_missing_file_is_an_error(self, tmp_path: Path) -> None:
        Writing(FileSink(tmp_path)).write(1, 0, ROWS)
        for path in tmp_path.glob("*.jsonl"):
            path.write_text("more than before\n" * 99)
            with pytest.raises(errors.StateMismatchError, match="was written with"):
                seen(tmp_path)
            path.unlink()
        with pytest.raises(errors.StateMismatchError, match="is missing"):
            seen(tmp_path)

    def test_a_generation_writes_no_pieces_beside_those_of_another(self, tmp_path: Path) -> None:
        first, other = (
            Writing(FileSink(tmp_path), tasks=2, generation=name) for name in ("one", "two")
        )
        first.write(1, 0, ROWS[:1], task=0)
        for task in range(2):
            with pytest.raises(errors.StateMismatchError, match="belongs to generation one"):
                other.write(1, 0, ROWS[1:2], task=task)
        first.write(1, 0, ROWS[2:], task=1)
        assert seen(tmp_path) == [(1, sorted([ROWS[0], *ROWS[2:]]))]

    def test_a_process_outlives_a_clearing(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path))
        writing.write(1, 0, ROWS)
        upkeep.open_records(str(tmp_path), "files").clear("sales")
        with pytest.raises(errors.FailedException, match="was cleared while"):
            writing.write(1, 0, ROWS[:1])
        writing.write(1, 1, ROWS[:1])
        writing.write(2, 0, ROWS[1:])
        assert seen(tmp_path) == [(1, ROWS[:1]), (2, sorted(ROWS[1:]))]


class TestSegments:
    """A thousand decisions become one."""

    def test_transactions_are_the_same_before_and_after(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(decisions, "SEGMENT", 4)
        writing = Writing(FileSink(tmp_path))
        for txid in range(1, 15):
            writing.write(txid, 0, [(f"account {txid}", txid)])
            if txid % 3 == 0:
                writing.write(txid, 1, [(f"account {txid}", txid)])
        log = sorted(path.name for path in (tmp_path / "_txtopo/00000/log").iterdir())
        assert (len(log), log[0]) == (6, f"{9:020d}.json")
        assert [txid for txid, _ in seen(tmp_path)] == list(range(1, 15))
        assert [txid for txid, _ in seen(tmp_path, after=6, until=12)] == [*range(7, 13)]
        assert [path.rpartition("/")[2] for path in read_committed(tmp_path, after=13).paths()] == [
            f"{14:020d}-00000.jsonl"
        ]
        with pytest.raises(errors.StaleAttemptError):
            Writing(FileSink(tmp_path)).write(3, 2, [("account 3", 3)])

    def test_a_late_decision_is_in_no_segment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(decisions, "SEGMENT", 4)
        writing = Writing(FileSink(tmp_path))
        for txid in range(1, 9):
            writing.write(txid, 0, [("ann", txid)])
        log = decisions.Log(local.LocalStorage(str(tmp_path)))
        log.decide(log.generations()[0], decisions.Decision(1, 7, (0,), ()))
        for txid in range(9, 14):
            writing.write(txid, 0, [("ann", txid)])
        assert seen(tmp_path) == [(txid, [("ann", txid)]) for txid in range(1, 14)]


class TestQueries:
    """Structured Streaming: a micro-batch is a transaction."""

    @pytest.fixture(autouse=True)
    def forget(self) -> Iterator[None]:
        yield
        micro_batches.forget_resources()

    def test_whole_batches(self, tmp_path: Path) -> None:
        write = FileSink(tmp_path).foreach_batch("q")
        for batch, rows in enumerate([[(1, 10), (2, 20)], [], [(3, 30)]]):
            for _ in range(2):
                micro_batches.forget_resources()
                write(micro_batches.Frame(reversed(rows)), batch)
        assert seen(tmp_path) == [(1, [(1, 10), (2, 20)]), (2, []), (3, [(3, 30)])]
        for batch, rows, checkpoint in ((2, [(3, 30), (4, 40)], "first"), (0, [(1, 1)], "new")):
            with pytest.raises(errors.StateMismatchError) as caught:
                write(micro_batches.Frame(rows, checkpoint), batch)
            # The command would remove the rows of all batches.
            assert "begin_at" not in str(caught.value)
            assert "forget" not in str(caught.value)

    def test_partitions(self, tmp_path: Path) -> None:
        writer = FileSink(tmp_path).foreach_writer("q", partitions=2)
        micro_batches.part(writer, 0, 0, [(1, 10), (2, 20)])
        assert seen(tmp_path) == []
        with pytest.raises(errors.StateMismatchError, match="wrote 2 rows"):
            micro_batches.part(writer, 0, 0, [(1, 10)])
        micro_batches.part(writer, 0, 0, [(1, 10), (2, 20)])
        micro_batches.part(writer, 1, 0, [(3, 30)])
        micro_batches.part(writer, 0, 1, [])
        micro_batches.part(writer, 1, 1, [(4, 40)])
        assert seen(tmp_path) == [(1, [(1, 10), (2, 20), (3, 30)]), (2, [(4, 40)])]
        with pytest.raises(errors.UsageError, match="same order"):
            FileSink(tmp_path, visible="file").foreach_writer("q", partitions=2)

    def test_another_number_of_partitions_leaves_the_first_one_as_it_was(
        self, tmp_path: Path
    ) -> None:
        before, now = (FileSink(tmp_path).foreach_writer("q", partitions=n) for n in (3, 2))
        micro_batches.part(before, 0, 0, [(1, 10)])
        for partition in (0, 1):
            with pytest.raises(errors.StateMismatchError, match="with partitions=3"):
                micro_batches.part(now, partition, 0, [(1, 10)])
        for partition in range(3):
            micro_batches.part(before, partition, 0, [(1, 10)])
        assert seen(tmp_path) == [(1, [(1, 10)] * 3)]

    def test_a_partition_that_is_repeated_alone_names_the_files_of_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(*_: Any) -> NoReturn:
            raise OSError("the process dies")

        writer = FileSink(tmp_path).foreach_writer("q", partitions=3)
        for partition in range(3):
            with monkeypatch.context() as dying, contextlib.suppress(OSError):
                dying.setattr(local.LocalStorage, "rename", failing)
                micro_batches.part(writer, partition, 0, [(partition, 10)])
        assert not [*tmp_path.glob("*.jsonl")]
        micro_batches.part(writer, 2, 0, [(2, 10)])
        assert len([*tmp_path.glob("*.jsonl")]) == 3

    def test_fewer_partitions_than_said(self, tmp_path: Path) -> None:
        writer = FileSink(tmp_path).foreach_writer("q", partitions=3)
        micro_batches.part(writer, 0, 0, [(1, 10)])
        with pytest.raises(errors.StateMismatchError, match="begin again with an empty") as caught:
            micro_batches.part(writer, 0, 1, [(2, 10)])
        # It would lose the rows that wait.
        assert "begin_at" not in str(caught.value)

    def test_a_cleared_sink_keeps_the_form_of_its_new_rows(self, tmp_path: Path) -> None:
        write = FileSink(tmp_path).foreach_batch("q")
        write(micro_batches.Frame([(1, 10)], "first"), 0)
        upkeep.open_records(str(tmp_path), "files").clear("q")
        write(micro_batches.Frame([(2, 20)], "second"), 0)
        assert seen(tmp_path) == [(1, [(2, 20)])]

    def test_a_sink_that_is_adopted_while_a_batch_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write, decide = FileSink(tmp_path).foreach_batch("q"), decisions.Log.decide
        write(micro_batches.Frame([(1, 10)]), 0)

        def adopted(log: Any, *arguments: Any) -> decisions.Decision:
            monkeypatch.undo()
            records = upkeep.open_records(str(tmp_path), "files")
            records.adopt("q", "first", 1, ["foreach_batch"])
            return decide(log, *arguments)

        monkeypatch.setattr(decisions.Log, "decide", adopted)
        with pytest.raises(errors.StateMismatchError, match="batch 1 has been written"):
            write(micro_batches.Frame([(2, 20)]), 1)

    def test_another_query_changes_nothing_before_the_first_rows(self, tmp_path: Path) -> None:
        sink = FileSink(tmp_path, format="parquet")
        first, other = (sink.foreach_batch(name) for name in ("q", "r"))
        first(micro_batches.Frame([]), 0)
        with pytest.raises(errors.SetupError, match="cannot share"):
            other(micro_batches.Frame([("1", "10")]), 0)
        first(micro_batches.Frame([(1, 10)]), 1)
        assert seen(tmp_path) == [(1, []), (2, [(1, 10)])]

    def test_a_directory_of_each_machine_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for master in ("local[2]", "spark://far:7077"):
            spark = SimpleNamespace(master=master)
            monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", spark)
            FileSink("file:///mnt/sales").foreach_writer("q", partitions=2)
            FileSink("sales").foreach_batch("q")
            if master == "local[2]":
                FileSink("sales").foreach_writer("q", partitions=2)
        with pytest.raises(errors.UsageError, match="executors of spark://far:7077 are on other"):
            FileSink("sales").foreach_writer("q", partitions=2)


class TestForms:
    """What is in the files."""

    def test_lines(self, tmp_path: Path) -> None:
        sink = FileSink(tmp_path, format="lines", columns=["account"], compression="gzip")
        Writing(sink).write(1, 0, [("ann", 1), (b"b\xc3\xb6b", 2)])
        (path,) = tmp_path.glob("*.txt.gz")
        assert gzip.decompress(path.read_bytes()) == "ann\nböb\n".encode()

    @pytest.mark.parametrize("value", [2**63, "\ud83d", [1, "a"]], ids=["int", "text", "list"])
    def test_values_of_json_without_an_arrow_type(self, value: Any, tmp_path: Path) -> None:
        Writing(FileSink(tmp_path)).write(1, 0, [("ann", value)])
        committed = read_committed(tmp_path)
        with pytest.raises(errors.InputError, match=r"no Arrow type.*\n.*by rows\(\)"):
            committed.to_arrow()
        ((_, [file]),) = committed
        assert list(committed.rows(file)) == [("ann", value)]

    def test_first_rows_without_a_type_in_parquet_keep_no_form(self, tmp_path: Path) -> None:
        with pytest.raises(errors.SetupError, match="Parquet has no type for the first rows"):
            Writing(FileSink(tmp_path, format="parquet")).write(1, 0, [("ann", {})])
        Writing(FileSink(tmp_path, format="parquet")).write(1, 1, [("ann", {"a": 1})])
        assert seen(tmp_path) == [(1, [("ann", {"a": 1})])]

    def test_csv(self, tmp_path: Path) -> None:
        rows = [("a,b", None), ("", 1.5), ('say "x"', True), ("c", datetime.date(2026, 11, 27))]
        Writing(FileSink(tmp_path, format="csv")).write(1, 0, rows)
        assert seen(tmp_path)[0][1] == sorted(
            [("a,b", None), ("", "1.5"), ('say "x"', "true"), ("c", "2026-11-27")], key=repr
        )
        (path,) = tmp_path.glob("*.csv")
        assert path.read_text() == 'account,cents\n"a,b",\n"",1.5\n"say ""x""",true\nc,2026-11-27\n'

    def test_parquet_in_folders(self, tmp_path: Path) -> None:
        sink = FileSink(tmp_path, format="parquet", partition_by=["account"])
        rows = [("ann", 1), (None, 2), ("b/c=d", 3), ("ann", 4)]
        Writing(sink).write(1, 0, rows)
        folders = sorted(path.parent.name for path in tmp_path.glob("*/*.parquet"))
        assert folders == ["account=__HIVE_DEFAULT_PARTITION__", "account=ann", "account=b%2Fc%3Dd"]
        table = pq.read_table(tmp_path, partitioning="hive")
        assert sorted(table["cents"].to_pylist()) == [1, 2, 3, 4]
        assert seen(tmp_path) == [(1, sorted(rows, key=repr))]

    def test_record_batches_are_written_as_they_are(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path, format="parquet", columns={"id": "account"}))
        writing.begin(1, 0)
        batch = pa.record_batch(
            {"account": pa.array([1, 2], pa.int32()), "more": pa.array(["a", "b"])}
        )
        writing.sink.execute_batch(batch)
        writing.sink.finish_batch()
        assert read_committed(tmp_path).to_arrow().schema == pa.schema({"id": pa.int32()})

    def test_files_roll(self, tmp_path: Path) -> None:
        sink = FileSink(tmp_path, roll_bytes=60)
        Writing(sink).write(1, 0, ROWS)
        assert len(list(tmp_path.glob("*.jsonl"))) == 2
        assert seen(tmp_path) == [(1, sorted(ROWS))]

    def test_a_held_sink_goes_on_with_more_files(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path))
        writing.begin(1, 0)
        writing.execute(ROWS[:1])
        assert len(writing.sink.__getstate__()["_files"]) == 1
        writing.execute(ROWS[1:2])
        writing.sink.finish_batch()
        assert seen(tmp_path) == [(1, ROWS[:2])]

    def test_a_failure_that_user_code_swallows_fails_the_attempt(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path))
        writing.begin(1, 0)
        told: list[BaseException] = []
        writing.sink.context.on_failure = told.append
        with pytest.raises(errors.RowRefusedError):
            writing.execute([("ann", object())])
        with pytest.raises(errors.RowRefusedError):
            writing.sink.finish_batch()
        assert len(told) == 1

    @pytest.mark.parametrize(
        ("arguments", "row", "message"),
        [
            ({}, ("ann", object()), r"at \$"),
            ({"format": "lines", "columns": ["account"]}, ("a\nb", 1), "two lines"),
            ({"format": "csv"}, ("ann", [1]), "CSV has no text"),
            ({"partition_by": ["account"]}, ("", 1), "names a folder"),
            ({"partition_by": ["account"], "format": "parquet"}, ("", 1), "names a folder"),
            ({"format": "parquet"}, ("ann", 2**70), "too large"),
            ({"partition_by": ["account"]}, ("\ud800", 1), "names a folder"),
            ({"partition_by": ["account"]}, ("x" * 300, 1), "255 at most"),
        ],
    )
    def test_a_row_without_a_place_is_refused(
        self, arguments: dict[str, Any], row: Any, message: str, tmp_path: Path
    ) -> None:
        writing = Writing(FileSink(tmp_path, **arguments))
        with pytest.raises(errors.RowRefusedError, match=message):
            writing.write(1, 0, [row])
        assert seen(tmp_path) == []


class TestRefused:
    """Directories and arguments that do not fit: nothing is written."""

    def test_another_form(self, tmp_path: Path) -> None:
        Writing(FileSink(tmp_path, format="parquet")).write(1, 0, ROWS)
        for arguments, rows, message in (
            ({"format": "csv"}, ROWS, "format='parquet'"),
            ({"format": "parquet", "partition_by": ["account"]}, ROWS, "partition_by"),
            (
                {
                    "format": "parquet",
                    "schema": pa.schema({"account": pa.string(), "cents": pa.int32()}),
                },
                ROWS,
                "other types",
            ),
        ):
            with pytest.raises(errors.SetupError, match=message):
                Writing(FileSink(tmp_path, **arguments)).write(2, 0, rows)
        with pytest.raises(errors.RowRefusedError, match="values are of type str"):
            Writing(FileSink(tmp_path, format="parquet")).write(2, 0, [("ann", "a text")])
        Writing(FileSink(tmp_path, format="parquet")).write(2, 0, [(None, None)])
        assert [txid for txid, _ in seen(tmp_path)] == [1, 2]

    def test_another_topology_and_generation(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path))
        writing.write(1, 0, ROWS)
        with pytest.raises(errors.StateMismatchError, match="belongs to generation one"):
            Writing(FileSink(tmp_path), generation="two").write(1, 0, ROWS)
        with pytest.raises(errors.SetupError, match="cannot share them"):
            Writing(FileSink(tmp_path), component="other").write(2, 0, ROWS)

    def test_an_emptied_or_older_directory(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path / "a"))
        writing.write(1, 0, ROWS)
        recorded = {"write/files": TransactionAttempt(2, 0)}
        with pytest.raises(errors.StateMismatchError, match="is behind"):
            Writing(writing.sink).write(3, 0, ROWS, known_stores=recorded)
        with pytest.raises(errors.StateMismatchError, match="holds nothing"):
            Writing(FileSink(tmp_path / "b")).write(3, 0, ROWS, known_stores=recorded)

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / f"{1:020d}-00000.jsonl").write_text("not ours\n")
        with pytest.raises(errors.StateMismatchError, match="is in the way"):
            Writing(FileSink(tmp_path)).write(1, 0, ROWS)

    def test_a_file_with_other_rows_of_the_same_size(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path, visible="file"), tasks=2)
        writing.write(1, 0, [("a", 1)])
        with pytest.raises(errors.StateMismatchError, match="is in the way"):
            writing.write(1, 1, [("b", 8)])

    def test_a_line_has_one_column(self, tmp_path: Path) -> None:
        with pytest.raises(errors.UsageError, match="a line has one"):
            Writing(FileSink(tmp_path, format="lines")).write(1, 0, ROWS)

    def test_another_number_of_rows_or_tasks(self, tmp_path: Path) -> None:
        Writing(FileSink(tmp_path)).write(1, 0, ROWS)
        with pytest.raises(errors.TxtopoError, match=r"wrote 4 rows .* now has 3"):
            Writing(FileSink(tmp_path)).write(1, 1, ROWS[1:])
        with pytest.raises(errors.StateMismatchError, match="written by 1 tasks"):
            Writing(FileSink(tmp_path), tasks=2).write(1, 1, ROWS)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"format": "xml"}, "format is 'xml'"),
            ({"visible": "row"}, "visible is 'row'"),
            ({"compression": "lz4"}, "compression is 'lz4'"),
            ({"visible": "file", "opaque": True}, "cannot take files back"),
            ({"schema": 1}, "schema is for"),
            ({"partition_by": "day"}, "partition_by is 'day'"),
            ({"columns": ["a"], "partition_by": ["b"]}, "partition_by is"),
            ({"roll_bytes": 0}, "roll_bytes is 0"),
            ({"columns": "a"}, "columns is 'a'"),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
        with pytest.raises(errors.ConfigError, match=message):
            FileSink(tmp_path, **arguments)


class TestUpkeep:
    """Commands for the directory."""

    def test_adopt_and_clear(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path))
        for txid in (1, 2):
            writing.write(txid, 0, [(f"account {txid}", txid)])
        records = upkeep.open_records(str(tmp_path), "files")
        assert records.exists()
        assert [fence.txid for fence in records.fences()] == [2]
        records.adopt("sales", "two", 7, ["write"])
        again = Writing(FileSink(tmp_path), generation="two")
        again.write(8, 0, [("ann", 8)])
        with pytest.raises(errors.StaleAttemptError):
            writing.write(3, 0, ROWS)
        assert [txid for txid, _ in seen(tmp_path)] == [1, 2, 8]
        assert [txid for txid, _ in seen(tmp_path, until=1)] == [1]
        records.adopt("sales", "three", 0, ["write"])
        Writing(FileSink(tmp_path), generation="three").write(1, 0, [("ann", 1)])
        assert [txid for txid, _ in seen(tmp_path)] == [1, 2, 8, 1]
        assert len(globbed(tmp_path)) == 4
        with pytest.raises(errors.StateMismatchError, match="two transactions 1"):
            seen(tmp_path, after=1)
        below = Writing(FileSink(tmp_path / "below"))
        below.write(1, 0, ROWS)
        assert records.clear("sales", dry_run=True).rows == 4
        records.clear("sales")
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path for path in files if tmp_path / "below" not in path.parents] == []
        assert seen(tmp_path / "below") == [(1, sorted(ROWS))]

    def test_a_late_opaque_task_of_an_adopted_generation_is_refused(self, tmp_path: Path) -> None:
        late = Writing(FileSink(tmp_path, opaque=True))
        late.write(1, 0, ROWS[:1])
        collected = late.begin(2, 0)
        late.execute(ROWS[1:])
        upkeep.open_records(str(tmp_path), "files").adopt("sales", "two", 1, ["write"])
        newest = decisions.Log.newest
        with pytest.MonkeyPatch.context() as patch:
            # It has looked before the adoption.
            patch.setattr(
                decisions.Log,
                "newest",
                lambda log, generation, txid=0: (
                    [each for each in newest(log, generation, txid) if not each.is_void]
                    if txid == 1
                    else newest(log, generation, txid)
                ),
            )
            with pytest.raises(errors.StaleAttemptError):
                late.sink.finish_batch()
        assert collected.values == []

    def test_an_adoption_that_was_broken_off_is_done_again(self, tmp_path: Path) -> None:
        Writing(FileSink(tmp_path)).write(1, 0, ROWS)
        records = upkeep.FileRecords(str(tmp_path), "files", {})
        (generation,) = records.log.generations()
        assert records._close(generation) == records._close(generation) == (1, 0)
        records.adopt("sales", "two", 1, ["write"])
        assert seen(tmp_path) == [(1, sorted(ROWS))]

    def test_commands_take_a_directory_that_is_empty_or_none(self, tmp_path: Path) -> None:
        kept = by_address.open_kept(str(tmp_path), "files", "sales", must_exist=False)
        assert isinstance(kept, upkeep.FileRecords)
        assert (kept.exists(), kept.shown(), kept.problems(), kept.garbage()) == (False, [], [], [])
        with pytest.raises(errors.UsageError, match="no FileSink has written"):
            upkeep.require_records(str(tmp_path / "none"))

    def test_verify_and_vacuum(self, tmp_path: Path) -> None:
        writing = Writing(FileSink(tmp_path), tasks=2)
        writing.write(1, 0, ROWS[:2])
        writing.write(1, 1, ROWS[:2])
        writing.write(1, 1, ROWS[2:], task=1)
        records = upkeep.open_records(str(tmp_path), "files")
        assert records.problems() == []
        assert records.garbage() == []
        (garbage,) = records.garbage(now=2e9)
        assert ".0.00000.0." in garbage.path
        (path, other) = sorted(tmp_path.glob("*.jsonl"))
        path.unlink()
        other.write_text("less\n")
        missing, shorter = records.problems()
        assert "is missing" in missing
        assert "has 5 bytes" in shorter
