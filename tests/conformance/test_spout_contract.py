"""The contract of spouts, over every spout there is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers.clusters import Journal
from tests.topologies.spouts import Partitioned, Ranges
from tests.wrong import spouts
from txtopo.connectors.files import (
    CsvTransactionalSpout,
    FileTransactionalSpout,
    JsonLinesTransactionalSpout,
    ParquetTransactionalSpout,
    growing,
)
from txtopo.testing import (
    ArrowMemoryTransactionalSpout,
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
    check_spout,
)

RULES = pytest.mark.rule(4, 5, 9, 17, 18, 19, 20, 21, 22, 23)
ROWS: dict[int, list[tuple[str]]] = {
    0: [(f"a{n}",) for n in range(20)],
    1: [(f"b{n}",) for n in range(7)],
    3: [(f"c{n}",) for n in range(12)],
}
"""Partition 2 is empty."""


def test_batches_beyond_the_inline_bound_are_checked_as_others_are() -> None:
    rows = [(letter * 600_000,) for letter in "abc"]
    report = check_spout(lambda: MemoryTransactionalSpout({0: rows}, ["word"], 2), expected=rows)
    assert (report.is_exhausted, report.tuples) == (True, 3)


@pytest.mark.in_gate("MemoryTransactionalSpout-always ready")
@RULES
@pytest.mark.parametrize("always_ready", [False, True], ids=["ready with data", "always ready"])
@pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
def test_the_memory_spouts_keep_the_contract_while_rows_and_partitions_are_added(
    kind: Any, always_ready: bool
) -> None:
    instances: list[Any] = []
    numbers = itertools.count()

    def make() -> Any:
        instances.append(kind(ROWS, ["word"], 3, always_ready))
        return instances[-1]

    def grow(spout: Any) -> None:
        spout.append(next(numbers) % 2 * 4, [("grown",), ("grown",)])

    rows = [*itertools.chain.from_iterable(ROWS.values()), *[("grown",)] * 4]
    report = check_spout(make, expected=rows, grow=grow)
    assert (report.is_exhausted, report.tuples, report.partitions) == (True, len(rows), 5)
    for spout in instances:
        spout.close()


@pytest.mark.rule(18, 20)
def test_the_opaque_memory_spout_keeps_the_contract_while_a_partition_is_away_for_a_time() -> None:
    instances: list[OpaqueMemoryTransactionalSpout] = []
    turns = itertools.cycle([True, False])

    def make() -> OpaqueMemoryTransactionalSpout:
        instances.append(OpaqueMemoryTransactionalSpout(ROWS, ["word"], 3))
        return instances[-1]

    rows = itertools.chain.from_iterable(ROWS.values())
    report = check_spout(
        make, expected=rows, grow=lambda spout: spout.set_disabled(1, next(turns)), stories=20
    )
    assert report.is_exhausted
    for spout in instances:
        spout.close()


class Files:
    """A directory of files, brought back to its beginning for every run."""

    def __init__(self, directory: Path, line: Callable[[int], str]) -> None:
        self.directory, self.line = directory, line
        self.numbers: Iterator[int] = iter(())

    def write(self) -> None:
        """Five files: an empty file, and a file without an end of its last line, are among them."""
        self.numbers = itertools.count()
        for file, lines in enumerate([3, 0, 11, 1, 4]):
            self.path(file).write_text(
                "".join(self.line(next(self.numbers)) + "\n" for _ in range(lines)).rstrip(
                    "\n" if file == 2 else ""
                )
            )

    def path(self, file: int) -> Path:
        return self.directory / f"{file}.txt"

    def append(self) -> None:
        """Two lines more in the last file."""
        with self.path(4).open("a") as file:
            file.writelines(self.line(next(self.numbers)) + "\n" for _ in range(2))


@pytest.mark.in_gate("json-7")
@RULES
@pytest.mark.parametrize("partitions", [1, 2, 7])
@pytest.mark.parametrize("format", ["lines", "json"])
def test_the_file_spout_keeps_the_contract_while_the_last_file_grows(
    tmp_path: Path, format: Any, partitions: int
) -> None:
    line: Callable[[int], str] = (
        (lambda n: f"line {n} žluťoučký")
        if format == "lines"
        else (lambda n: json.dumps({"n": n, "text": "x" * (n % 5)}))
    )
    files = Files(tmp_path, line)

    def make() -> FileTransactionalSpout:
        files.write()
        fields = ("line",) if format == "lines" else ("n", "text")
        return FileTransactionalSpout(
            str(tmp_path / "*.txt"),
            bytes_per_batch=40,
            partitions=partitions,
            fields=fields,
            format=format,
        )

    expected = [(line(n),) if format == "lines" else (n, "x" * (n % 5)) for n in range(23)]
    report = check_spout(make, expected=expected, grow=lambda spout: files.append())
    assert (report.is_exhausted, report.tuples, report.partitions) == (True, 23, partitions)


@RULES
@pytest.mark.parametrize("argument", ["growing", "follow"])
def test_the_file_spout_keeps_the_contract_while_files_are_added_or_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    monkeypatch.setattr(growing, "pause_s", lambda listing_s: 0.0)
    log, numbers = tmp_path / "app.log", itertools.count()

    def write(path: Path) -> None:
        path.write_text("".join(f"{next(numbers)}\n" for _ in range(9)))

    def make() -> FileTransactionalSpout:
        nonlocal numbers
        numbers = itertools.count(100)
        for path in tmp_path.iterdir():
            path.unlink()
        write(log)
        if argument == "follow":
            return FileTransactionalSpout(log, 16, follow=True)
        return FileTransactionalSpout(f"{tmp_path}/*", 16, growing=True)

    def grow(spout: Any) -> None:
        if argument == "follow":
            log.rename(f"{log}.{next(numbers)}")
            write(log)
        else:
            write(tmp_path / f"b{next(numbers)}")

    report = check_spout(make, grow=grow)
    assert (report.is_exhausted, report.tuples) == (True, 27)


NUMBERS = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.mark.in_gate("Csv*-7")
@RULES
@pytest.mark.parametrize("partitions", [1, 2, 7])
@pytest.mark.parametrize("kind", [CsvTransactionalSpout, JsonLinesTransactionalSpout])
def test_the_spouts_over_files_in_columns_keep_the_contract_while_the_last_file_grows(
    tmp_path: Path, kind: Any, partitions: int
) -> None:
    is_csv = kind is CsvTransactionalSpout
    files = Files(
        tmp_path,
        lambda n: f"{n},{'x' * (n % 5)}" if is_csv else json.dumps({"n": n, "text": "x" * (n % 5)}),
    )

    def make() -> Any:
        files.write()
        without_header = {"header": False} if is_csv else {}
        return kind(
            str(tmp_path / "*.txt"),
            NUMBERS,
            bytes_per_batch=40,
            partitions=partitions,
            **without_header,
        )

    report = check_spout(
        make, expected=[(n, "x" * (n % 5)) for n in range(23)], grow=lambda spout: files.append()
    )
    assert (report.is_exhausted, report.tuples, report.partitions) == (True, 23, partitions)


@pytest.mark.in_gate("3")
@RULES
@pytest.mark.parametrize("partitions", [1, 3])
def test_the_parquet_spout_keeps_the_contract(tmp_path: Path, partitions: int) -> None:
    numbers = itertools.count()
    for file, rows in enumerate([5, 0, 12, 1]):
        of_file = list(itertools.islice(numbers, rows))
        table = pa.table(
            {
                "n": pa.array(of_file, pa.int64()),
                "text": pa.array(["x" * (n % 5) for n in of_file], pa.string()),
            }
        )
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=3)
    report = check_spout(
        lambda: ParquetTransactionalSpout(
            str(tmp_path / "*.parquet"), rows_per_batch=4, partitions=partitions
        ),
        expected=[(n, "x" * (n % 5)) for n in range(18)],
    )
    assert (report.is_exhausted, report.tuples, report.partitions) == (True, 18, partitions)


@pytest.mark.in_gate("ready with data")
@RULES
@pytest.mark.parametrize("always_ready", [False, True], ids=["ready with data", "always ready"])
def test_the_memory_spout_of_columns_keeps_the_contract_while_batches_and_partitions_are_added(
    always_ready: bool,
) -> None:
    instances: list[Any] = []
    turns = itertools.count()

    def make() -> Any:
        of_partition = {
            p: pa.table({"word": [word for (word,) in rows]}) for p, rows in ROWS.items()
        }
        instances.append(
            ArrowMemoryTransactionalSpout(of_partition, 2, always_ready, rows_per_record_batch=3)
        )
        return instances[-1]

    def grow(spout: Any) -> None:
        spout.append(next(turns) % 2 * 4, pa.record_batch({"word": ["grown", "grown"]}))

    rows = [*itertools.chain.from_iterable(ROWS.values()), *[("grown",)] * 4]
    report = check_spout(make, expected=rows, grow=grow)
    assert (report.is_exhausted, report.tuples, report.partitions) == (True, len(rows), 5)
    for spout in instances:
        spout.close()


@RULES
@pytest.mark.parametrize("kind", ["plain", "planned", "asking"])
def test_the_spouts_of_our_own_tests_keep_the_contract(tmp_path: Path, kind: str) -> None:
    journal = Journal(tmp_path / "journal")

    def make() -> Any:
        return (
            Ranges(journal, 23, 4)
            if kind == "plain"
            else Partitioned(journal, 3, 23, 4, planned=kind == "planned")
        )

    expected = [(p * 1000 + n,) for p in range(1 if kind == "plain" else 3) for n in range(23)]
    report = check_spout(make, expected=expected)
    assert (report.is_exhausted, report.tuples, report.transactions) == (True, len(expected), 6)


@RULES
@pytest.mark.parametrize(
    "kind", ["Plain", "Committing", "Asking", "Planned", "Opaque", "PlannedOpaque"]
)
def test_a_spout_of_every_kind_keeps_the_contract(kind: str) -> None:
    expected = spouts.expected(1 if kind in ("Plain", "Committing") else spouts.PARTITIONS)
    report = check_spout(getattr(spouts, kind), expected=expected)
    kinds = {
        "Plain": "transactional",
        "Committing": "committer",
        "Asking": "partitioned",
        "Planned": "partitioned",
    }
    assert (report.kind, report.is_exhausted, report.tuples) == (
        kinds.get(kind, "opaque"),
        True,
        len(expected),
    )
    assert report.restarts > 20
    assert report.attempts > 100


def test_the_same_seed_tells_the_same_stories() -> None:
    first, same, other = (check_spout(spouts.Opaque, seed=seed, stories=5) for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_a_run_cut_short_says_so_and_is_judged_by_surplus_tuples_only() -> None:
    report = check_spout(spouts.Planned, expected=spouts.expected(), transactions=2)
    assert (report.is_exhausted, report.transactions, report.tuples) == (False, 2, 24)
