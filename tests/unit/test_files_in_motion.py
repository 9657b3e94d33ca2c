"""Files that change while they are listed, planned and read; files under two names, compressed, or
in directories that cannot be listed."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.topologies.planned_spouts import Drive
from txtopo.connectors.files import (
    CsvTransactionalSpout,
    FileTransactionalSpout,
    JsonLinesTransactionalSpout,
    ParquetTransactionalSpout,
    blocks,
)
from txtopo.errors import InputError

AB = pa.schema([("a", pa.string()), ("b", pa.string())])


def rows(drive: Drive) -> list[tuple[Any, ...]]:
    return [row for batch in drive.run() for partition in sorted(batch) for row in batch[partition]]


@contextlib.contextmanager
def once_after_opening(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]
) -> Iterator[None]:
    """As soon as a file has been opened for reading, ``change`` happens, once."""
    really_open, changes = blocks.opened, [change]

    def opened(path: str) -> Any:
        file = really_open(path)
        if changes:
            changes.pop()()
        return file

    with monkeypatch.context() as patch:
        patch.setattr(blocks, "opened", opened)
        yield
    assert not changes


@pytest.mark.rule(18, 38)
@pytest.mark.parametrize("bytes_per_batch", [4, 1 << 20])
def test_the_header_is_of_the_file_whose_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_batch: int
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    drive = Drive(CsvTransactionalSpout(path, AB, bytes_per_batch))
    while drive.coordinator.is_ready():
        plan = drive.plan()

    def replace() -> None:
        (tmp_path / "new").write_text("b,a\n1,2\n")
        (tmp_path / "new").rename(path)

    with once_after_opening(monkeypatch, replace):
        assert drive.emitted(plan) == {0: [("1", "2")]}


@pytest.mark.rule(18, 38)
def test_a_file_that_is_written_anew_in_place_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("".join(f"old {i:04}\n" for i in range(1000)))
    drive = Drive(FileTransactionalSpout(path))
    plan = drive.plan()
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    reading, reads = blocks._read, []

    def read(file: Any, name: str, start: int, amount: int) -> bytes:
        reads.append(start)
        if len(reads) == 4:
            # As logrotate's copytruncate does it, and the writer goes on.
            path.write_text("".join(f"new {i:04}\n" for i in range(2000)))
        return reading(file, name, start, amount)

    monkeypatch.setattr(blocks, "_read", read)
    with pytest.raises(
        InputError,
        match="a has been rotated or written anew: the 4096 bytes before byte 9000 are not those that were planned",
    ):
        drive.emitted(plan)
    assert len(reads) > 4


SPOUTS: dict[str, Callable[..., Any]] = {
    "tuples": lambda path, size: FileTransactionalSpout(path, size),
    "json": lambda path, size: JsonLinesTransactionalSpout(
        path, pa.schema([("a", pa.int64())]), size
    ),
    "csv": lambda path, size: CsvTransactionalSpout(
        path, pa.schema([("a", pa.string())]), size, header=False
    ),
}
each_spout = pytest.mark.parametrize("make", SPOUTS.values(), ids=SPOUTS)
FIRST, SECOND = '{"a": 1}\n', '{"a": 22222}\n'


@pytest.mark.rule(9, 20, 38)
@pytest.mark.parametrize("bytes_per_batch", [1, 12, 1 << 20])
@each_spout
def test_half_a_line_of_a_file_that_grows_is_left_for_the_next_run(
    tmp_path: Path, make: Callable[..., Any], bytes_per_batch: int
) -> None:
    path = tmp_path / "a"
    path.write_text(FIRST + SECOND[:5])
    drive = Drive(make(path, bytes_per_batch))
    with path.open("a") as file:
        file.write(SECOND[5:])
    assert len(rows(drive)) == 1
    assert not drive.coordinator.is_ready()
    (row,) = rows(Drive(make(path, bytes_per_batch), drive.positions))
    assert "22222" in str(row[0])


@pytest.mark.rule(9, 20)
@pytest.mark.parametrize("more", ["", "\n", "\r\n"])
def test_a_last_line_that_only_gets_its_end_is_whole(tmp_path: Path, more: str) -> None:
    path = tmp_path / "a"
    path.write_text("1\n2")
    drive = Drive(FileTransactionalSpout(path))
    with path.open("a") as file:
        file.write(more)
    assert rows(drive) == [("1",), ("2",)]
    assert rows(Drive(FileTransactionalSpout(path), drive.positions)) == []


@pytest.mark.rule(9, 20)
def test_half_a_line_alone_is_left_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("ha")
    drive = Drive(FileTransactionalSpout(path))
    with path.open("a") as file:
        file.write("lf\n")
    assert drive.plan() == {0: None}
    assert not drive.coordinator.is_ready()
    assert rows(Drive(FileTransactionalSpout(path), drive.positions)) == [("half",)]


@pytest.mark.rule(20, 38)
def test_half_a_line_of_a_file_that_is_not_the_last_one_is_an_error_and_the_next_run_reads_the_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_text("1\nha")
    (tmp_path / "b").write_text("2\n")
    for bytes_per_batch in (2, 4, 1 << 20):
        (tmp_path / "a").write_text("1\nha")
        drive = Drive(FileTransactionalSpout(f"{tmp_path}/*", bytes_per_batch))
        with (tmp_path / "a").open("a") as file:
            file.write("lf\n")
        with pytest.raises(
            InputError,
            match=r"/a: the line before byte 4 has been continued since the run began\n  Start the run again",
        ):
            drive.run()
        assert rows(
            Drive(FileTransactionalSpout(f"{tmp_path}/*", bytes_per_batch), drive.positions)
        )[-2:] == [("half",), ("2",)]


@pytest.mark.rule(38)
def test_a_file_under_two_names_is_refused_and_not_read_twice(tmp_path: Path) -> None:
    (tmp_path / "2026").mkdir()
    (tmp_path / "2026" / "a").write_text('{"a": 1}\n')
    (tmp_path / "latest").symlink_to("2026")
    for partitions in (1, 2):
        with pytest.raises(
            InputError,
            match=r"2026/a and .*/latest/a are one file: one path is a symbolic link, or leads through a symbolic link\n  Leave one path out",
        ):
            Drive(FileTransactionalSpout(f"{tmp_path}/**", partitions=partitions))
    assert rows(Drive(FileTransactionalSpout(tmp_path / "latest" / "a"))) == [('{"a": 1}',)], (
        "one name may be a link"
    )
    (tmp_path / "2026" / "b").hardlink_to(tmp_path / "2026" / "a")
    assert len(rows(Drive(FileTransactionalSpout(f"{tmp_path}/2026/*")))) == 2, (
        "a hard link is a file like another"
    )
    pa.parquet.write_table(pa.table({"n": [1]}), tmp_path / "p1")
    (tmp_path / "p2").symlink_to("p1")
    with pytest.raises(InputError, match=r"p1 and .*p2 are one file"):
        Drive(ParquetTransactionalSpout(f"{tmp_path}/p*"))


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    "pattern", ["**/*.txt", "**", "*/*.txt", "d/*.txt", "[d]/[x].txt", "**/d/*.txt"]
)
def test_a_directory_that_cannot_be_listed_is_an_error_and_its_files_are_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    for directory in ("c", "d"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "x.txt").write_text("x\n")
    forbidden, listing, opening = str(tmp_path / "d"), os.scandir, os.open

    def refuse(path: Any) -> None:
        if str(path).rstrip("/") == forbidden:
            raise PermissionError(13, "Permission denied", str(path))

    def scandir(path: Any) -> Any:
        refuse(path)
        return listing(path)

    def open_it(path: Any, *args: Any, **options: Any) -> int:
        refuse(path)
        return opening(path, *args, **options)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "open", open_it)
    with pytest.raises(
        InputError, match=rf"^{forbidden} may not be read by this user\n  Allow it with `chmod`"
    ):
        Drive(FileTransactionalSpout([f"{tmp_path}/{pattern}", tmp_path / "c" / "x.txt"]))


COMPRESSED = {
    "gzip": gzip.compress(b"a\n"),
    "bzip2": bz2.compress(b"a\n"),
    "xz": lzma.compress(b"a\n"),
    "zstd": b"\x28\xb5\x2f\xfd\x04\x58\x11\0\0a\n",
    "zip": b"PK\3\4\n\0a\n",
    "lz4": b"\x04\x22\x4d\x18\n",
}


@pytest.mark.rule(38)
@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_compressed_file_is_refused_and_its_bytes_are_no_lines(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a b"
    for data in (
        COMPRESSED[kind],
        COMPRESSED[kind][:12],
        COMPRESSED[kind] * 2,
        COMPRESSED[kind] + b"more\n",
    ):
        path.write_bytes(data)
        spouts = [make(path, 1 << 20) for make in SPOUTS.values()]
        spouts += [
            FileTransactionalSpout(path, 1, encoding="latin-1"),
            FileTransactionalSpout(path, errors="replace"),
        ]
        for spout in spouts:
            with pytest.raises(
                InputError,
                match=rf"a b is compressed \({kind}\): its bytes are no lines\n  Decompress it first, .* '.*/a b'",
            ):
                Drive(spout).run()


def test_text_that_begins_like_a_compressed_file_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("BZh9 is how bzip2 begins\nPK is zip\n")
    assert len(rows(Drive(FileTransactionalSpout(path)))) == 2


@pytest.mark.rule(38)
def test_the_directory_above_a_link_is_that_of_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/deep")
    (tmp_path / "a").write_text("wrong\n")
    (tmp_path / "real" / "a").write_text("right\n")
    monkeypatch.chdir(tmp_path)
    for path in (
        f"{tmp_path}/link/../a",
        "link/../a",
        "link/../[a]",
        "./link/../../real/a",
        "link/./..//a",
    ):
        assert rows(Drive(FileTransactionalSpout(path))) == [("right",)], path
    assert FileTransactionalSpout("real/../a").patterns == (f"{tmp_path}/a",), (
        "positions of an earlier run know files by their paths"
    )


@pytest.mark.rule(38)
def test_a_directory_is_read_by_its_own_name_and_is_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, sibling = tmp_path / "a*b" / "run[12]", tmp_path / "a*b" / "run1"
    for directory in (here / "data", sibling / "data"):
        directory.mkdir(parents=True)
        (directory / "x.txt").write_text(f"{directory.parent.name}\n")
    (tmp_path / "link").symlink_to(here / "data")
    monkeypatch.chdir(here)
    patterns = (
        "data/*.txt",
        "./**/x.txt",
        "d*/x.txt",
        "../run[[]12]/data/*.txt",
        f"{tmp_path}/link/../data/*.txt",
        "data/x.txt",
    )
    for pattern in (*patterns, f"{tmp_path}/a*b/run[[]12]/data/x.txt"):
        assert rows(Drive(FileTransactionalSpout(pattern))) == [("run[12]",)], pattern
    assert rows(Drive(FileTransactionalSpout("../run[1]/data/*.txt"))) == [("run1",)]
    (sibling / "data" / "y.txt").write_text("y\n")
    with pytest.raises(InputError, match=r"no file .*run\[12\]/data/y\.txt\n"):
        Drive(FileTransactionalSpout("data/y.txt"))
    with pytest.raises(
        InputError,
        match=r"run\[12\]/data is a directory, and a pattern that matches .*/run1/data\n  Give glob\.escape",
    ):
        Drive(FileTransactionalSpout(here / "data" / "*.txt"))
    sibling.rename(tmp_path / "a*b" / "other")
    assert rows(Drive(FileTransactionalSpout(here / "data" / "*.txt"))) == [("run[12]",)], (
        "nothing else of that name"
    )


AS_ANOTHER = """
import os
from txtopo.connectors.files import FileTransactionalSpout, groups
if os.getuid() == 0:
    os.setuid(65534)
for pattern in ("data/*.txt", "*/*.txt", "**"):
    print(groups.listed(FileTransactionalSpout(pattern).patterns) == [os.path.abspath("data/x.txt")])
"""


@pytest.mark.rule(38)
def test_a_directory_above_the_current_one_need_not_be_listed() -> None:
    # The directories of pytest are closed to other users.
    with tempfile.TemporaryDirectory(prefix="txtopo-test-") as home:
        here = Path(home, "run[12]")
        (here / "data").mkdir(parents=True)
        (here / "data" / "x.txt").touch()
        Path(home).chmod(0o111)
        done = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER],
            cwd=here,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "True\n" * 3, done.stderr
