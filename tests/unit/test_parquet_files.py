"""Parquet files in columns: the row groups of a batch, and the check that a file is the planned
file."""

from __future__ import annotations

import datetime
import os
import subprocess
import types
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.topologies.planned_spouts import Drive
from txtopo import TransactionAttempt
from txtopo.connectors.files import ParquetTransactionalSpout, parquet, ranges
from txtopo.errors import ConfigError, InputError
from txtopo.topology.conf import TopologyConf


def write(path: Path, numbers: range, rows_per_group: int = 2, **types: pa.DataType) -> None:
    words = pa.array([f"w{n}" for n in numbers], pa.string())
    pq.write_table(
        pa.table({"word": words, "n": pa.array(numbers, types.get("n", pa.int64()))}),
        path,
        row_group_size=rows_per_group,
    )


def numbers(batches: list[dict[int, list[Any]]]) -> list[dict[int, list[int]]]:
    return [
        {partition: [row[-1] for row in rows] for partition, rows in batch.items()}
        for batch in batches
    ]


@pytest.mark.rule(20)
def test_a_batch_is_as_many_whole_row_groups_as_fit_and_one_at_least(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", range(7))
    write(tmp_path / "b.parquet", range(7, 9))
    drive = Drive(ParquetTransactionalSpout(f"{tmp_path}/*.parquet", rows_per_batch=4))
    assert numbers(drive.run()) == [{0: [0, 1, 2, 3]}, {0: [4, 5, 6]}, {0: [7, 8]}]
    assert numbers(
        Drive(ParquetTransactionalSpout(f"{tmp_path}/*.parquet", rows_per_batch=1)).run()
    )[0] == {0: [0, 1]}
    assert numbers(Drive(ParquetTransactionalSpout(f"{tmp_path}/*.parquet")).run()) == [
        {0: list(range(9))}
    ]
    first, second, third = (plan[0] for plan in drive.plans)
    assert (
        first["file"],
        first["row_group"],
        first["end_file"],
        first["end_row_group"],
        first["rows"],
    ) == (0, 0, 0, 2, 4)
    assert (second["row_group"], second["end_row_group"], second["rows"]) == (2, 4, 3)
    assert (third["file"], third["end_file"], len(third["footers"])) == (1, 1, 1)


@pytest.mark.rule(19, 21)
def test_files_are_dealt_out_to_partitions_and_files_without_rows_are_passed_over(
    tmp_path: Path,
) -> None:
    for i, name in enumerate("abcde"):
        write(tmp_path / name, range(0) if name in "ad" else range(10 * i, 10 * i + 2))
    drive = Drive(ParquetTransactionalSpout(f"{tmp_path}/*", partitions=2))
    assert numbers(drive.run()) == [{0: [20, 21, 40, 41], 1: [10, 11]}]
    assert drive.plan() == {0: None, 1: None}


def test_a_batch_spans_a_bounded_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "FILES_PER_BATCH", 2)
    for i, name in enumerate("abcde"):
        write(tmp_path / name, range(i, i + 1))
    assert numbers(Drive(ParquetTransactionalSpout(f"{tmp_path}/*")).run()) == [
        {0: [0, 1]},
        {0: [2, 3]},
        {0: [4]},
    ]


def test_columns_are_chosen_ordered_and_kept_as_dictionaries_on_request(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3))
    spout = ParquetTransactionalSpout(tmp_path / "a", columns=["n", "word"], dictionaries=["word"])
    assert spout.schema == pa.schema(
        [("n", pa.int64()), ("word", pa.dictionary(pa.int32(), pa.string()))]
    )
    assert Drive(spout).run() == [{0: [(0, "w0"), (1, "w1"), (2, "w2")]}]


def test_large_row_groups_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROWS_AT_ONCE", 10)
    write(tmp_path / "a", range(95), 1000)
    emitter = ParquetTransactionalSpout(tmp_path / "a").get_emitter(
        TopologyConf({}), cast(Any, None)
    )
    rows: list[int] = []

    class Counted:
        def emit_batch(self, batch: pa.RecordBatch) -> None:
            rows.append(batch.num_rows)

    plan = Drive(ParquetTransactionalSpout(tmp_path / "a")).plan()
    emitter.emit_partition_batch(TransactionAttempt(1, 0), cast(Any, Counted()), 0, plan[0])
    assert rows == [10] * 9 + [5]


@pytest.mark.rule(18)
def test_a_replay_of_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", range(4))
    drive = Drive(ParquetTransactionalSpout(tmp_path / "a"))
    plan = drive.plan()
    assert (
        numbers([drive.emitted(plan)]) == numbers([drive.emitted(plan, 1)]) == [{0: [0, 1, 2, 3]}]
    )
    write(tmp_path / "a", range(1, 5))
    with pytest.raises(InputError, match="has changed since a batch was planned from it"):
        drive.emitted(plan)
    with pytest.raises(InputError, match="has changed since a batch was planned from it"):
        Drive(ParquetTransactionalSpout(tmp_path / "a"), drive.positions)


def corrected(path: Path) -> None:
    """Equal shape, statistics and footer: one value differs."""
    for numbers in ([1, 2, 9], [1, 3, 9]):
        before = parquet.Footer(str(path)) if path.exists() else None
        pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)
    assert before is not None
    after = parquet.Footer(str(path))
    assert after.identity == before.identity
    os.utime(path, ns=(after.written, before.written + 5_000_001))


@pytest.mark.rule(18, 23, 38)
def test_a_file_that_was_corrected_without_a_trace_in_its_footer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    pq.write_table(pa.table({"n": pa.array([1, 2, 9], pa.int64())}), path)
    drive = Drive(ParquetTransactionalSpout(path))
    plan = drive.plan()
    written = plan[0]["written"][0]
    corrected(path)
    for read in (
        lambda: drive.emitted(plan),
        lambda: Drive(ParquetTransactionalSpout(path), drive.positions),
    ):
        with pytest.raises(
            InputError, match="a b was written again since a batch was planned from it"
        ) as raised:
            read()
        assert (
            f"If this is a copy with the same rows: touch -d @{written // 10**9}.{written % 10**9:09} '{path}'"
            in str(raised.value)
        )
    command = str(raised.value).rpartition("the same rows: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert numbers([drive.emitted(plan)]) == [{0: [1, 3, 9]}], "as the user says"


@pytest.mark.rule(18, 23)
@pytest.mark.parametrize("unit", [1, 100, 10**3, 10**6, 10**9])
def test_a_copy_that_keeps_its_time_is_the_same_file(tmp_path: Path, unit: int) -> None:
    path = tmp_path / "a"
    write(path, range(4))
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    drive = Drive(ParquetTransactionalSpout(path))
    plan = drive.plan()
    contents = path.read_bytes()
    path.unlink()
    path.write_bytes(contents)
    os.utime(path, ns=(0, 1_700_000_000_123_456_789 // unit * unit))
    assert numbers([drive.emitted(plan)]) == [{0: [0, 1, 2, 3]}]
    Drive(ParquetTransactionalSpout(path), drive.positions)


@pytest.mark.rule(18)
def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, range(4))
    footer = parquet.Footer(str(path))
    batches = footer.batches(0, 2, pa.schema([("n", pa.int64())]), ())
    next(batches)
    os.utime(path, ns=(0, footer.written + 1))
    with pytest.raises(InputError, match="was written again since a batch was planned from it"):
        list(batches)


@pytest.mark.rule(20, 23)
def test_files_that_sort_behind_are_read_by_the_next_run_and_others_are_refused(
    tmp_path: Path,
) -> None:
    write(tmp_path / "b", range(2))
    drive = Drive(ParquetTransactionalSpout(f"{tmp_path}/*"))
    drive.run()
    write(tmp_path / "c", range(2, 4))
    assert numbers(Drive(ParquetTransactionalSpout(f"{tmp_path}/*"), drive.positions).run()) == [
        {0: [2, 3]}
    ]
    write(tmp_path / "a", range(2))
    with pytest.raises(InputError, match="no longer has the files that were read"):
        Drive(ParquetTransactionalSpout(f"{tmp_path}/*"), drive.positions)
    with pytest.raises(InputError, match="partition 1 was read by an earlier run"):
        Drive(ParquetTransactionalSpout(f"{tmp_path}/*"), {1: drive.positions[0]})


def test_a_file_of_other_types_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", range(2))
    write(tmp_path / "b", range(2), n=pa.int32())
    with pytest.raises(InputError, match=r"b has int32 in column 'n'; the others have int64"):
        Drive(ParquetTransactionalSpout(f"{tmp_path}/*")).run()


@pytest.mark.parametrize(
    "contents",
    [b"", b"PAR1", b"x" * 100, b"PAR1" + b"\xff\xff\0\0PAR1", b"PAR1" + b"junk" + b"\4\0\0\0PAR1"],
)
def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "a").write_bytes(contents)
    with pytest.raises(
        InputError,
        match=r"a cannot be read as Parquet: .*\n  Check that the file was written to its end",
    ):
        ParquetTransactionalSpout(tmp_path / "a")


def test_damaged_row_groups_are_an_error_and_not_a_crash(tmp_path: Path) -> None:
    write(tmp_path / "a", range(1000), 1000)
    drive = Drive(ParquetTransactionalSpout(tmp_path / "a"))
    data = bytearray((tmp_path / "a").read_bytes())
    data[4:200] = b"\xff" * 196
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        drive.run()


@pytest.mark.rule(38)
def test_a_row_group_of_which_arrow_reads_other_rows_than_the_footer_says_is_an_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    table = pa.table({"n": pa.array(range(100), pa.int64())})
    pq.write_table(table, path, use_dictionary=False, compression="none", write_statistics=False)
    drive = Drive(ParquetTransactionalSpout(path))
    data = bytearray(path.read_bytes())
    # The kind of the first page: no page of data, so Arrow passes over it and gives no rows, and no
    # error.
    assert data[5] == 0
    data[5] = 2
    path.write_bytes(data)
    drive = Drive(ParquetTransactionalSpout(path))
    with pytest.raises(
        InputError,
        match=r"a cannot be read as Parquet: row group 0 has 0 rows, and 100 by the footer\n  Check that the file",
    ):
        drive.run()


@pytest.mark.rule(38)
def test_a_page_that_contradicts_its_checksum_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    table = pa.table({"n": pa.array(range(100), pa.int64())})
    pq.write_table(table, path, use_dictionary=False, compression="none", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[data.index((57).to_bytes(8, "little"))] = 58
    path.write_bytes(data)
    with pytest.raises(
        InputError, match="a cannot be read as Parquet: could not verify page integrity"
    ):
        Drive(ParquetTransactionalSpout(path)).run()


def test_missing_files_and_impossible_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file matched"):
        ParquetTransactionalSpout(f"{tmp_path}/*.parquet")
    with pytest.raises(InputError, match="no file"):
        ParquetTransactionalSpout(tmp_path / "a")
    schema = pa.schema([("n", pa.int64())])
    later = ParquetTransactionalSpout(f"{tmp_path}/*.parquet", schema=schema)
    with pytest.raises(InputError, match="no file matched"):
        Drive(later)
    write(tmp_path / "a", range(2))
    impossible: list[tuple[Any, str]] = [
        ({"columns": ["m"]}, "no column 'm'; there are word, n"),
        ({"columns": []}, "no columns"),
        ({"dictionaries": ["m"]}, "no column 'm'"),
        ({"columns": "n"}, r"columns is 'n'; it is a list of names: \['n'\]"),
        ({"dictionaries": "n"}, r"dictionaries is 'n'; it is a list of names"),
        (
            {"dictionaries": ["n"]},
            "column 'n' is int64; only text and bytes stay dictionary-encoded",
        ),
    ]
    for arguments, said in impossible:
        with pytest.raises(ConfigError, match=said):
            ParquetTransactionalSpout(tmp_path / "a", **arguments)
    with pytest.raises(ConfigError, match="rows_per_batch is 0"):
        ParquetTransactionalSpout(tmp_path / "a", rows_per_batch=0)


def test_a_column_that_is_there_twice_is_refused_unless_it_is_left_out(tmp_path: Path) -> None:
    pq.write_table(
        pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "c"]),
        tmp_path / "a",
    )
    for columns in (None, ["a"], ["c", "a"]):
        with pytest.raises(
            ConfigError, match="there are 2 columns 'a'; list the columns to read, without 'a'"
        ):
            ParquetTransactionalSpout(tmp_path / "a", columns)
    assert Drive(ParquetTransactionalSpout(tmp_path / "a", ["c"])).run() == [{0: [(3,)]}]


@pytest.mark.rule(20)
def test_a_file_that_was_empty_when_it_was_listed_is_read_once_it_is_written(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a", range(2))
    (tmp_path / "b").touch()
    drive = Drive(ParquetTransactionalSpout(f"{tmp_path}/*", rows_per_batch=2))
    write(tmp_path / "b", range(2, 4))
    assert numbers(drive.run()) == [{0: [0, 1]}, {0: [2, 3]}]


def test_the_coordinator_says_how_much_of_the_files_is_read(tmp_path: Path) -> None:
    for name, rows in (("a", range(8)), ("b", range(2)), ("c", range(0))):
        write(tmp_path / name, rows)
    sizes = {name: (tmp_path / name).stat().st_size for name in "abc"}
    drive = Drive(ParquetTransactionalSpout(f"{tmp_path}/*", rows_per_batch=4))
    assert drive.coordinator.fraction_done({}) == 0
    drive.run()
    assert drive.coordinator.fraction_done(drive.plans[0]) == pytest.approx(
        sizes["a"] / 2 / sum(sizes.values())
    )
    assert drive.coordinator.fraction_done(drive.plans[1]) == pytest.approx(
        sizes["a"] / sum(sizes.values())
    )
    assert drive.coordinator.fraction_done(drive.positions) == 1


@pytest.mark.rule(38)
def test_times_of_96_bits_are_declared_in_one_unit(tmp_path: Path) -> None:
    us, ns = pa.timestamp("us"), pa.timestamp("ns")
    table = pa.table({"x": pa.array([1], us), "y": pa.array([1], us)})
    pq.write_table(table, tmp_path / "a", use_deprecated_int96_timestamps=True, store_schema=False)
    spout = ParquetTransactionalSpout(tmp_path / "a", schema=pa.schema([("x", us), ("y", ns)]))
    emitter = spout.get_emitter(TopologyConf({}), cast(Any, None))
    with pytest.raises(InputError, match=r"'x' in us, 'y' in ns\n  Declare them .* in one unit"):
        emitter.emit_partition_batch(
            TransactionAttempt(1, 0), cast(Any, None), 0, Drive(spout).plan()[0]
        )


def test_a_time_of_96_bits_is_kept_or_refused(tmp_path: Path) -> None:
    def read(value: Any, type: pa.DataType, declared: pa.DataType | None = None) -> pa.Array:
        table = pa.table({"a": [1, 2], "t": pa.array([value, None], type)})
        pq.write_table(
            table, tmp_path / "a", use_deprecated_int96_timestamps=True, store_schema=False
        )
        spout = ParquetTransactionalSpout(
            tmp_path / "a", ["t"], schema=None if declared is None else pa.schema([("t", declared)])
        )
        batches: list[pa.RecordBatch] = []
        collector = cast(Any, types.SimpleNamespace(emit_batch=batches.append))
        spout.get_emitter(TopologyConf({}), cast(Any, None)).emit_partition_batch(
            TransactionAttempt(1, 0), collector, 0, Drive(spout).plan()[0]
        )
        return batches[0].column(0)

    us, ns = pa.timestamp("us"), pa.timestamp("ns")
    far, digits = datetime.datetime(9999, 12, 31, 2), 1_577_836_800_000_000_001
    assert read(far, us, us).equals(pa.array([far, None], us))
    assert read([far], pa.list_(us), pa.list_(us)).to_pylist() == [[far], None]
    assert read(digits, ns).equals(pa.array([digits, None], ns))
    for refused in [
        (far, us),
        ([far], pa.list_(us)),
        ({"b": far}, pa.struct([("b", us)])),
        (digits, ns, us),
        (-(2**62), us, ns),
    ]:
        with pytest.raises(
            InputError,
            match=r"a: row group 0 has a time in column 't' that .*timestamp\[.s\].* would change\n  Declare the column",
        ):
            read(*refused)
