"""The sink for Delta tables: one commit per transaction, taking back, what stands in the way (R27 to
R31)."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tests.topologies import micro_batches
from tests.topologies.file_sinks import ROWS, Writing
from txtopo import TransactionAttempt, errors
from txtopo.connectors import by_address
from txtopo.connectors.delta import DeltaSink, table
from txtopo.connectors.files import FileSink, decisions

RECORDED = {"write/delta": TransactionAttempt(1, 0)}


def rows(root: Path) -> list[tuple[Any, ...]]:
    """The rows that a reader of Delta tables sees."""
    read = deltalake.DeltaTable(root).to_pyarrow_table().select(["account", "cents"])
    return sorted(tuple(row.values()) for row in read.to_pylist())


def commits(root: Path) -> int:
    """How many commits the table has had, without its making."""
    return int(deltalake.DeltaTable(root).version())


class Dies:
    """Stands for the death of the process at a call of a method, before or after it."""

    def __init__(
        self, patch: pytest.MonkeyPatch, owner: type, name: str, after: bool = False
    ) -> None:
        real = getattr(owner, name)

        def die(*arguments: Any, **named: Any) -> Any:
            if after:
                real(*arguments, **named)
            raise KeyboardInterrupt

        patch.setattr(owner, name, die)


class TestCommits:
    """One transaction is one commit, once."""

    def test_two_tasks_make_one_commit(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path), tasks=2)
        writing.write(1, 0, ROWS[:2])
        assert (rows(tmp_path), commits(tmp_path)) == ([], 0)
        writing.write(1, 0, ROWS[2:], task=1)
        assert (rows(tmp_path), commits(tmp_path)) == (sorted(ROWS), 1)
        writing.write_all(1, 1, ROWS)
        writing.write_all(2, 0, ROWS)
        assert (rows(tmp_path), commits(tmp_path)) == (sorted(ROWS * 2), 2)

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("opaque", [False, True])
    @pytest.mark.parametrize(
        ("owner", "name"), [(decisions.Log, "decide"), (table.Table, "_write")]
    )
    def test_a_death_at_each_step(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        owner: type,
        name: str,
        opaque: bool,
        after: bool,
    ) -> None:
        Writing(DeltaSink(tmp_path, opaque=opaque)).write(1, 0, ROWS[:1])
        with monkeypatch.context() as patch:
            Dies(patch, owner, name, after)
            with pytest.raises(KeyboardInterrupt):
                Writing(DeltaSink(tmp_path, opaque=opaque)).write(2, 0, ROWS[1:2])
        again = ROWS[2:] if opaque else ROWS[1:2]
        Writing(DeltaSink(tmp_path, opaque=opaque)).write(2, 1, again)
        Writing(DeltaSink(tmp_path, opaque=opaque)).write(3, 0, [])
        assert rows(tmp_path) == sorted([*ROWS[:1], *again])

    def test_a_failed_attempt_is_taken_back_in_one_commit(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path, opaque=True), tasks=2)
        writing.write_all(1, 0, ROWS)
        writing.write_all(1, 1, ROWS[:2])
        assert (rows(tmp_path), commits(tmp_path)) == (sorted(ROWS[:2]), 2)
        writing.write_all(1, 2, [])
        assert (rows(tmp_path), commits(tmp_path)) == ([], 3)

    def test_a_void_attempt_is_taken_back(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path, opaque=True))
        writing.write(1, 0, ROWS[:1])
        writing.write(2, 0, [("void", 1)])
        writing.write(3, 0, ROWS[1:], known_stores=RECORDED)
        assert rows(tmp_path) == sorted(ROWS)

    @pytest.mark.parametrize("is_void", [False, True])
    def test_a_late_commit_after_an_attempt_without_rows_adds_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_void: bool
    ) -> None:
        writing = Writing(DeltaSink(tmp_path, opaque=True))
        writing.write(1, 0, ROWS[:1])
        with monkeypatch.context() as patch:
            Dies(patch, table.Table, "_write")
            with pytest.raises(KeyboardInterrupt):
                writing.write(2, 0, [("late", 1)])
        if not is_void:
            writing.write(2, 1, [])
        writing.write(3, 0, ROWS[1:], known_stores=RECORDED if is_void else None)
        log = writing.sink.ledger.kept("sales", "").log
        (generation,) = log.generations()
        late = log.decision_at(generation, 2, 0)
        writing.sink.ledger.tell(log, generation, late, (), None)
        assert rows(tmp_path) == sorted(ROWS)

    @pytest.mark.parametrize("opaque", [False, True])
    def test_a_late_writer_of_the_same_version_loses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opaque: bool
    ) -> None:
        late, live = (Writing(DeltaSink(tmp_path, opaque=opaque)) for _ in range(2))
        live.write(1, 0, ROWS[:1])
        write = table.Table._write

        def be_late(*arguments: Any) -> None:
            monkeypatch.setattr(table.Table, "_write", write)
            live.write(2, 1, ROWS[1:2])
            write(*arguments)

        monkeypatch.setattr(table.Table, "_write", be_late)
        late.write(2, 0, ROWS[1:2])
        assert (rows(tmp_path), commits(tmp_path)) == (sorted(ROWS[:2]), 2)

    def test_other_writers_go_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        writing = Writing(DeltaSink(tmp_path))
        writing.write(1, 0, ROWS[:1])
        write = table.Table._write

        def be_slower(*arguments: Any) -> None:
            monkeypatch.setattr(table.Table, "_write", write)
            deltalake.write_deltalake(
                tmp_path, pa.table({"account": ["other"], "cents": [1]}), mode="append"
            )
            write(*arguments)

        monkeypatch.setattr(table.Table, "_write", be_slower)
        writing.write(2, 0, ROWS[1:])
        assert rows(tmp_path) == sorted([*ROWS, ("other", 1)])


class TestTables:
    """Tables of other shapes, and tables that were changed behind the sink's back."""

    def test_folders_and_batches(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path, partition_by=["account"]))
        some = [("a b/c%2F=ü", 1), (None, 2), ("x", 3)]
        writing.write(1, 0, some)
        writing.begin(2, 0)
        writing.sink.execute_batch(pa.RecordBatch.from_pydict({"account": ["x"], "cents": [4]}))
        writing.sink.finish_batch()
        read = deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
        by_cents = sorted((row["cents"], row["account"]) for row in read)
        assert by_cents == [(1, "a b/c%2F=ü"), (2, None), (3, "x"), (4, "x")]

    def test_odd_folders_are_taken_back_and_compacted(self, tmp_path: Path) -> None:
        sink = DeltaSink(tmp_path, partition_by=["account"], opaque=True, compact_every=3)
        writing = Writing(sink)
        odd = [("a b/c%2F=ü", 1), (None, 2)]
        for txid in range(1, 5):
            writing.write(txid, 0, [*odd, ("failed", 3)])
            writing.write(txid, 1, odd)
        counts: dict[Any, int] = collections.Counter(
            row["account"] for row in deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
        )
        assert counts == {"a b/c%2F=ü": 4, None: 4}
        assert len(deltalake.DeltaTable(tmp_path).file_uris()) == 6

    def test_a_table_with_other_columns_is_refused_at_once(self, tmp_path: Path) -> None:
        deltalake.write_deltalake(tmp_path, pa.table({"account": ["a"]}))
        with pytest.raises(errors.SetupError, match="no column cents"):
            Writing(DeltaSink(tmp_path)).write(1, 0, ROWS)
        assert len(list(tmp_path.glob("*.parquet"))) == 1

    @pytest.mark.parametrize(
        "type", [pa.uint64(), pa.timestamp("ns"), pa.timestamp("us", "Asia/Tokyo"), pa.time64("us")]
    )
    def test_types_that_delta_does_not_have_are_refused(self, tmp_path: Path, type: Any) -> None:
        writing = Writing(DeltaSink(tmp_path))
        writing.begin(1, 0)
        with pytest.raises(errors.SetupError, match="cannot keep the types"):
            writing.sink.execute_batch(pa.record_batch([pa.nulls(1, type)], names=["count"]))
        assert not list(tmp_path.rglob("*.parquet"))

    @pytest.mark.parametrize(
        ("configuration", "nullable", "message"),
        [
            ({"delta.enableDeletionVectors": "true"}, True, "deletionVectors"),
            ({"delta.appendOnly": "true"}, True, "appendOnly"),
            ({}, False, "cents as long without null"),
        ],
    )
    def test_tables_with_rules_of_their_own_are_refused(
        self, tmp_path: Path, configuration: dict[str, str], nullable: bool, message: str
    ) -> None:
        fields = [("account", pa.string()), pa.field("cents", pa.int64(), nullable)]
        deltalake.DeltaTable.create(tmp_path, pa.schema(fields), configuration=configuration)
        with pytest.raises(errors.SetupError, match=message):
            Writing(DeltaSink(tmp_path, opaque=True)).write(1, 0, ROWS)
        assert not list(tmp_path.rglob("*.parquet"))

    def test_a_file_sink_keeps_away(self, tmp_path: Path) -> None:
        Writing(DeltaSink(tmp_path)).write(1, 0, ROWS)
        with pytest.raises(errors.SetupError, match="has a Delta table"):
            Writing(FileSink(tmp_path)).write(2, 0, ROWS)

    def test_a_state_that_is_adopted_twice_goes_on(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path))
        for txid in range(1, 6):
            writing.write(txid, 0, [("first", txid)])
        records = by_address.open_kept(str(tmp_path), "delta", "sales")
        records.adopt("sales", "one", 2, ["write"])
        again = Writing(DeltaSink(tmp_path))
        for txid in range(3, 7):
            again.write(txid, 0, [("second", txid)])
        assert len(rows(tmp_path)) == 9

    def test_a_restored_or_removed_table_is_refused(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path))
        for txid in (1, 2):
            writing.write(txid, 0, ROWS)
        log = sorted((tmp_path / "_delta_log").glob("*.json"))
        log[-1].unlink()
        with pytest.raises(errors.StateMismatchError, match="lacks transaction 2"):
            Writing(DeltaSink(tmp_path)).write(3, 0, ROWS)
        for path in log[:-1]:
            path.unlink()
        with pytest.raises(errors.StateMismatchError, match="no Delta table"):
            Writing(DeltaSink(tmp_path)).write(3, 1, ROWS)

    def test_compaction(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path, opaque=True, compact_every=4))
        for txid in range(1, 9):
            writing.write(txid, 0, [("failed", 1)])
            writing.write(txid, 1, [("ann", txid)])
        assert rows(tmp_path) == [("ann", txid) for txid in range(1, 9)]
        assert len(deltalake.DeltaTable(tmp_path).file_uris()) == 2

    def test_rows_that_were_compacted_are_not_taken_back_in_silence(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path, opaque=True))
        for txid in (1, 2):
            writing.write(txid, 0, ROWS)
        deltalake.DeltaTable(tmp_path).optimize.compact()
        with pytest.raises(errors.StateMismatchError, match="OPTIMIZE"):
            writing.write(2, 1, ROWS[:1])

    def test_files_that_vacuum_has_removed_before_the_commit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Writing(DeltaSink(tmp_path)).write(1, 0, ROWS)
        with monkeypatch.context() as patch:
            Dies(patch, table.Table, "_write")
            with pytest.raises(KeyboardInterrupt):
                Writing(DeltaSink(tmp_path)).write(2, 0, ROWS)
        (path,) = tmp_path.glob(f"{2:020d}*")
        path.unlink()
        with pytest.raises(errors.StateMismatchError, match="VACUUM has removed it"):
            Writing(DeltaSink(tmp_path)).write(2, 1, ROWS)

    def test_a_table_that_has_changed_is_noticed_before_the_decision(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path))
        writing.write(1, 0, ROWS)
        other = pa.table({"account": ["a"], "count": [1]})
        deltalake.write_deltalake(tmp_path, other, mode="overwrite", schema_mode="overwrite")
        with pytest.raises(errors.SetupError, match="no column cents"):
            writing.write(2, 0, ROWS)
        assert not list((tmp_path / "_txtopo/00000/log").glob(f"{2:020d}*"))

    def test_a_table_that_is_there_and_first_transactions_without_rows(
        self, tmp_path: Path
    ) -> None:
        deltalake.write_deltalake(tmp_path, pa.table({"account": ["other"], "cents": [1]}))
        writing = Writing(DeltaSink(tmp_path, opaque=True))
        for txid, some in ((1, []), (2, ROWS), (3, [])):
            writing.write(txid, 0, some)
        assert rows(tmp_path) == sorted([*ROWS, ("other", 1)])

    def test_columns_without_nulls(self, tmp_path: Path) -> None:
        writing = Writing(DeltaSink(tmp_path))
        writing.begin(1, 0)
        schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
        writing.sink.execute_batch(pa.record_batch([pa.array([1, 2])], schema=schema))
        writing.sink.finish_batch()
        assert deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pydict() == {"n": [1, 2]}

    def test_a_compaction_beside_another_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writing = Writing(DeltaSink(tmp_path, compact_every=3))
        for txid in (1, 2):
            writing.write(txid, 0, [("ann", txid)])
        commit, late = table.Table._commit, deltalake.DeltaTable(tmp_path)

        def be_second(*arguments: Any) -> None:
            monkeypatch.setattr(table.Table, "_commit", commit)
            commit(*arguments)
            with contextlib.suppress(deltalake.exceptions.CommitFailedError):
                late.optimize.compact()

        monkeypatch.setattr(table.Table, "_commit", be_second)
        writing.write(3, 0, [("ann", 3)])
        assert rows(tmp_path) == [("ann", txid) for txid in (1, 2, 3)]

    def test_adopt_tells_of_the_last_decision_and_clear_keeps_the_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            Dies(patch, table.Table, "_write")
            with pytest.raises(KeyboardInterrupt):
                Writing(DeltaSink(tmp_path)).write(1, 0, ROWS)
        records = by_address.open_kept(str(tmp_path), "delta", "sales")
        records.adopt("sales", "two", 1, ["write"])
        assert rows(tmp_path) == sorted(ROWS)
        Writing(DeltaSink(tmp_path), generation="two").write(2, 0, ROWS)
        records.clear("sales")
        assert (rows(tmp_path), records.exists()) == (sorted(ROWS * 2), False)

    def test_arguments(self, tmp_path: Path) -> None:
        with pytest.raises(errors.ConfigError, match="compact_every is 0"):
            DeltaSink(tmp_path, compact_every=0)


class TestQueries:
    """Structured Streaming: a micro-batch is a transaction."""

    @pytest.fixture(autouse=True)
    def forget(self) -> Iterator[None]:
        yield
        micro_batches.forget_resources()

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_files_that_vacuum_has_removed_in_the_middle_of_a_batch_are_written_again(
        self, tmp_path: Path, order: tuple[int, ...]
    ) -> None:
        writer = DeltaSink(tmp_path, columns={"account": "id", "cents": "cents"}).foreach_writer(
            "q", partitions=2
        )
        for batch, partition in ((0, 0), (0, 1), (1, 0)):
            micro_batches.part(writer, partition, batch, [(batch, partition)])
        deltalake.DeltaTable(tmp_path).vacuum(0, False, False, full=True)
        with pytest.raises(errors.FailedException, match="Start the query again"):
            micro_batches.part(writer, 1, 1, [(1, 1)])
        for partition in order:
            micro_batches.part(writer, partition, 1, [(1, partition)])
        assert rows(tmp_path) == [(0, 0), (0, 1), (1, 0), (1, 1)]

    def test_other_files_in_the_folder_of_a_table_are_refused_in_the_same_process(
        self, tmp_path: Path
    ) -> None:
        DeltaSink(tmp_path).foreach_batch("q")(micro_batches.Frame([(1, 10)]), 0)
        with pytest.raises(errors.SetupError, match="has a Delta table"):
            FileSink(tmp_path, format="parquet").foreach_batch("q")(
                micro_batches.Frame([(2, 20)]), 1
            )
