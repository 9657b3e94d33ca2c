"""Files that appear while a run goes on: each is taken up once, in the order of the names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.topologies.planned_spouts import Drive
from txtopo.connectors.files import (
    CsvTransactionalSpout,
    FileTransactionalSpout,
    JsonLinesTransactionalSpout,
    ParquetTransactionalSpout,
    blocks,
    groups,
    growing,
    ranges,
)
from txtopo.errors import ConfigError, FailedException, InputError

N = pa.schema([("n", pa.int64())])
Spout = Callable[..., Any]


def text(pattern: str, **options: Any) -> Any:
    return FileTransactionalSpout(pattern, 6, growing=True, **options)


SPOUTS: dict[str, Spout] = {
    "lines": text,
    "csv": lambda pattern, **options: CsvTransactionalSpout(
        pattern, N, 6, header=False, growing=True, **options
    ),
    "json": lambda pattern, **options: JsonLinesTransactionalSpout(
        pattern, N, 20, growing=True, **options
    ),
    "parquet": lambda pattern, **options: ParquetTransactionalSpout(
        pattern, rows_per_batch=2, schema=N, growing=True, **options
    ),
}


@pytest.fixture(autouse=True)
def listed_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "pause_s", lambda listing_s: 0.0)


def put(directory: Path, name: str, numbers: range, kind: str = "lines") -> Path:
    """A whole file at once, in the way of a careful writer."""
    hidden = directory / f".{name}"
    if kind == "parquet":
        pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), hidden, row_group_size=2)
    else:
        form = '{{"n": {}}}\n' if kind == "json" else "{}\n"
        hidden.write_text("".join(form.format(number) for number in numbers))
    return hidden.rename(directory / name)


def numbers(drive: Drive) -> list[int]:
    return [int(n) for batch in drive.run() for p in sorted(batch) for (n,) in batch[p]]


@pytest.mark.parametrize("kind", SPOUTS)
def test_new_files_are_read_once_within_a_run_and_by_the_next(tmp_path: Path, kind: str) -> None:
    drive = Drive(SPOUTS[kind](f"{tmp_path}/*"))
    assert numbers(drive) == []
    put(tmp_path, "a", range(5), kind)
    assert numbers(drive) == [*range(5)]
    put(tmp_path, "b", range(5, 7), kind)
    put(tmp_path, "c", range(7, 7), kind)
    put(tmp_path, "d", range(7, 8), kind)
    (tmp_path / "_SUCCESS").write_text("")
    assert numbers(drive) == [5, 6, 7]
    put(tmp_path, "e", range(8, 13), kind)
    again = Drive(SPOUTS[kind](f"{tmp_path}/*"), drive.positions)
    assert again.coordinator.is_ready()
    first = again.plan()
    put(tmp_path, "f", range(13, 14), kind)
    assert [int(n) for (n,) in again.emitted(first)[0]] + numbers(again) == [*range(8, 14)]


@pytest.mark.parametrize("kind", SPOUTS)
def test_files_that_were_read_may_go_and_then_a_late_one_is_refused(
    tmp_path: Path, kind: str
) -> None:
    for i in range(4):
        put(tmp_path, f"b{i}", range(i, i + 1), kind)
    drive = Drive(SPOUTS[kind](f"{tmp_path}/*", partitions=2))
    assert sorted(numbers(drive)) == [*range(4)]
    (tmp_path / "b0").unlink()
    (tmp_path / "b3").unlink()
    put(tmp_path, "b4", range(4, 5), kind)
    assert numbers(drive) == [4]
    put(tmp_path, "b5", range(5, 6), kind)
    again = Drive(SPOUTS[kind](f"{tmp_path}/*", partitions=2), drive.positions)
    assert numbers(again) == [5]
    for i in range(9):
        put(tmp_path, f"a{i}", range(1), kind)
    with pytest.raises(
        InputError, match=r"a\d has appeared, but files up to .* were read.*\n.*sorts behind"
    ):
        again.coordinator.is_ready()
    with pytest.raises(InputError, match="has appeared, but files up to"):
        Drive(SPOUTS[kind](f"{tmp_path}/*", partitions=2), again.positions)


def test_a_file_that_took_the_place_of_another_between_two_runs_is_refused(tmp_path: Path) -> None:
    for name in "ac":
        put(tmp_path, name, range(1))
    drive = Drive(text(f"{tmp_path}/*"))
    numbers(drive)
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(InputError, match="one of 2 files has appeared"):
        Drive(text(f"{tmp_path}/*"), drive.positions)


def test_a_file_among_the_unread_ones_is_read_in_its_place(tmp_path: Path) -> None:
    for name in "bd":
        put(tmp_path, name, range(5))
    drive = Drive(text(f"{tmp_path}/*"))
    assert drive.coordinator.is_ready()
    drive.emitted(drive.plan())
    put(tmp_path, "c", range(50, 52))
    assert numbers(drive) == [3, 4, 50, 51, *range(5)]


def test_a_file_between_those_that_are_open_and_those_that_were_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "FILES_OPEN", 2)
    for i in range(6):
        put(tmp_path, f"a{i}", range(i, i + 1))
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*", bytes_per_batch=2, growing=True))
    rows: list[Any] = []
    for _ in range(2):
        assert drive.coordinator.is_ready()
        rows += drive.emitted(drive.plan())[0]
    # The next two are open now.
    assert drive.coordinator.is_ready()
    put(tmp_path, "a1x", range(10, 11))
    assert [int(n) for (n,) in rows] + numbers(drive) == [0, 1, 10, 2, 3, 4, 5]


def test_many_small_files_are_read_a_hundred_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "FILES_PER_BATCH", 3)
    monkeypatch.setattr(growing, "FILES_OPEN", 4)
    for i in range(10):
        put(tmp_path, f"a{i}", range(i, i + 1))
    for i in range(10, 20):
        (tmp_path / f"a{i}").touch()
    put(tmp_path, "b", range(10, 11))
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*", growing=True))
    assert numbers(drive) == [0, *range(1, 11)]
    assert max(len(plan[0]["paths"]) for plan in drive.plans) == 3


def test_a_file_that_has_gone_before_it_was_read_to_its_end_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "a", range(9))
    drive = Drive(text(f"{tmp_path}/*"))
    assert drive.coordinator.is_ready()
    drive.plan()
    path.unlink()
    with pytest.raises(InputError, match="a was read in part, and is no longer there"):
        Drive(text(f"{tmp_path}/*"), drive.positions)


def test_lines_that_are_added_to_the_last_file_are_read_and_a_torn_line_is_refused(
    tmp_path: Path,
) -> None:
    path = put(tmp_path, "a", range(2))
    drive = Drive(text(f"{tmp_path}/*"))
    assert numbers(drive) == [0, 1]
    with path.open("a") as file:
        file.write("2\n3")
    assert numbers(drive) == [2, 3]
    with path.open("a") as file:
        file.write("3\n")
    with pytest.raises(InputError, match="was read as the last one, without an end"):
        drive.coordinator.is_ready()


def test_a_replaced_file_is_refused_when_it_is_read_again(tmp_path: Path) -> None:
    put(tmp_path, "a", range(3))
    drive = Drive(text(f"{tmp_path}/*"))
    assert drive.coordinator.is_ready()
    plan = drive.plan()
    os.replace(put(tmp_path, "b", range(3, 6)), tmp_path / "a")
    with pytest.raises(InputError, match="has been rotated or written anew"):
        drive.emitted(plan)


def test_partitions_and_growing_stay_and_a_directory_must_be_there(tmp_path: Path) -> None:
    put(tmp_path, "a", range(3))
    pattern = f"{tmp_path}/*"
    drive, frozen = Drive(text(pattern)), Drive(FileTransactionalSpout(pattern))
    for each in (drive, frozen):
        numbers(each)
    for other, positions in ((text(pattern, partitions=2), drive), (text(pattern), frozen)):
        with pytest.raises(InputError, match=r"other partitions than|without growing"):
            Drive(other, positions.positions)
    with pytest.raises(InputError, match="no file matched"):
        Drive(text(f"{tmp_path}/typo/*"))
    with pytest.raises(ConfigError, match="same settings"):
        FileTransactionalSpout(["s3://b/*?region=a", "s3://b/*?region=b"], growing=True)


def test_a_missing_directory_is_told_in_a_directory_whose_name_looks_like_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "run[12]"
    (here / "data").mkdir(parents=True)
    monkeypatch.chdir(here)
    drive = Drive(text("data/*.txt"))
    assert numbers(drive) == []
    put(here / "data", "a.txt", range(3))
    assert numbers(drive) == [0, 1, 2]
    for pattern in ("typo/*.txt", f"{here}/typo/*.txt"):
        with pytest.raises(InputError, match="no file matched"):
            Drive(text(pattern))


def test_a_failure_while_files_are_opened_skips_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "FILES_OPEN", 2)
    for i in range(6):
        put(tmp_path, f"a{i}", range(i, i + 1))
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*", growing=True))
    really, failures = blocks.status_of, ["a2", "a4"]

    def status_of(path: str) -> Any:
        if failures and path.endswith(failures[0]):
            del failures[0]
            raise FailedException("too many open files")
        return really(path)

    monkeypatch.setattr(blocks, "status_of", status_of)
    rows: list[Any] = []

    def read_on() -> None:
        while drive.coordinator.is_ready():
            rows.extend(drive.emitted(drive.plan())[0])

    for _ in range(2):
        with pytest.raises(FailedException):
            read_on()
    read_on()
    assert rows == [(f"{n}",) for n in range(6)]


def test_a_file_that_goes_before_the_next_listing_fails_an_attempt_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        put(tmp_path, name, range(3))
    drive = Drive(text(f"{tmp_path}/*"))
    assert drive.coordinator.is_ready()
    monkeypatch.setattr(growing, "pause_s", lambda listing_s: 1e9)
    assert drive.coordinator.is_ready()
    drive.plan()
    (tmp_path / "a").unlink()
    with pytest.raises(FailedException, match="have gone since they were listed"):
        drive.plan()
    assert numbers(drive) == [*range(3)]


def test_a_listing_may_lack_a_file_that_is_older_than_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive, really = Drive(text(f"{tmp_path}/*")), groups.listed
    for name in "ab":
        put(tmp_path, name, range(1))
    hidden = ["a"]

    def listed(patterns: Any) -> list[str]:
        without = hidden.pop() if hidden else "none"
        return [path for path in really(patterns) if not path.endswith(f"/{without}")]

    monkeypatch.setattr(groups, "listed", listed)
    assert numbers(drive) == [0, 0]


def test_a_link_beside_its_file_or_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    put(tmp_path / "in", "a", range(1))
    drive = Drive(text(f"{tmp_path}/**", partitions=2))
    (tmp_path / "in" / "latest").symlink_to(tmp_path / "in" / "a")
    with pytest.raises(InputError, match="one place, and each line is read once"):
        drive.coordinator.is_ready()
    (tmp_path / "in" / "latest").unlink()
    (tmp_path / "other").symlink_to(tmp_path / "in")
    with pytest.raises(InputError, match="one place, and each line is read once"):
        drive.coordinator.is_ready()


def test_a_file_with_a_torn_line_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = put(tmp_path, "a", range(1))
    with path.open("a") as file:
        file.write("2")
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*", growing=True))
    assert drive.coordinator.is_ready()
    with path.open("a") as file:
        file.write("2\n")
    assert [plan["whole"] for plan in drive.plan().values()] == [False]
    assert numbers(drive) == [22]


def test_the_metadata_of_a_batch_has_a_bounded_number_of_paths(tmp_path: Path) -> None:
    spout = FileTransactionalSpout(f"{tmp_path}/*", growing=True, partitions=400)
    assert ranges.files_per_batch(spout) == 4
