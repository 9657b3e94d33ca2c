"""A file that differs from the file read before: rotated, cut or written anew, between two runs or
within one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.topologies.planned_spouts import Drive
from txtopo.connectors.files import (
    CsvTransactionalSpout,
    FileTransactionalSpout,
    JsonLinesTransactionalSpout,
)
from txtopo.connectors.files import blocks as file_lines
from txtopo.errors import InputError

Spout = Callable[[Path], Any]
SPOUTS: dict[str, Spout] = {
    "tuples": lambda path: FileTransactionalSpout(path, 20),
    "json": lambda path: JsonLinesTransactionalSpout(path, pa.schema([("a", pa.int64())]), 20),
    "csv": lambda path: CsvTransactionalSpout(
        path, pa.schema([("a", pa.string())]), 20, header=False
    ),
}


Change = Callable[[Path, str], None]


def lines(first: int, count: int) -> str:
    return "".join(f'{{"a": {number}}}\n' for number in range(first, first + count))


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Nine lines: more than one batch."""
    path = tmp_path / "app"
    path.write_text(lines(100, 9))
    return path


def replaced(path: Path, text: str) -> None:
    """In the way of logrotate: the old file goes on under another name, outside of the glob."""
    path.rename(path.parent / "rotated")
    path.write_text(text)


def in_place(path: Path, text: str) -> None:
    """As logrotate's copytruncate does it."""
    with path.open("r+") as file:
        file.truncate(0)
        file.write(text)


each_spout = pytest.mark.parametrize("make", SPOUTS.values(), ids=SPOUTS)
each_change = pytest.mark.parametrize("change", [replaced, in_place])

REFUSED = r"app has been rotated or written anew: the \d+ bytes before byte \d+ are not those that were planned or read\n  Restore the file"


@pytest.mark.rule(20, 23, 38)
@each_change
@each_spout
def test_a_file_that_was_rotated_between_two_runs_is_refused_before_anything_runs(
    app: Path, make: Spout, change: Change
) -> None:
    first = Drive(make(app))
    first.run()
    change(app, lines(200, 9))
    with pytest.raises(InputError, match=REFUSED):
        Drive(make(app), first.positions)


@pytest.mark.rule(20, 23, 38)
@each_change
@each_spout
def test_a_file_that_is_rotated_within_a_run_is_refused_by_the_next_plan(
    app: Path, make: Spout, change: Change
) -> None:
    drive = Drive(make(app))
    drive.plan()
    change(app, lines(200, 9))
    with pytest.raises(InputError, match=REFUSED):
        drive.plan()


@pytest.mark.rule(18, 38)
@each_spout
def test_a_replay_of_a_file_that_was_written_anew_is_refused(app: Path, make: Spout) -> None:
    drive = Drive(make(app))
    plan = drive.plan()
    drive.emitted(plan)
    replaced(app, lines(200, 9))
    with pytest.raises(InputError, match=REFUSED):
        drive.emitted(plan, attempt_id=1)


@pytest.mark.rule(18, 38)
def test_each_file_of_a_batch_is_looked_at(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(lines(100, 2))
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*"))
    plan = drive.plan()
    (tmp_path / "b").write_text(lines(200, 2))
    with pytest.raises(
        InputError,
        match=rf"^{tmp_path}/b has been rotated or written anew: the 22 bytes before byte 22 ",
    ):
        drive.emitted(plan)


@pytest.mark.rule(18)
def test_a_batch_is_read_of_one_file_though_another_gets_its_name_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "app"
    path.write_text(lines(100, 3))
    with pytest.MonkeyPatch.context() as patch, file_lines.opened(str(path)) as file:
        blocks = file_lines.line_blocks(file, str(path), 0, 33, file_lines.tail(str(path), 33))
        patch.setattr(file_lines, "BLOCK_BYTES", 11)
        read = next(blocks)[1]
        replaced(path, lines(200, 3))
        read += b"".join(block for _, block in blocks)
    assert read.decode() == lines(100, 3)


@pytest.mark.rule(20, 23)
@each_spout
def test_a_file_that_grows_goes_on(app: Path, make: Spout) -> None:
    first = Drive(make(app))
    first.run()
    with app.open("a") as file:
        file.write(lines(109, 2))
    assert len([row for batch in Drive(make(app), first.positions).run() for row in batch[0]]) == 2


@pytest.mark.rule(25)
def test_the_identity_of_the_files_of_a_batch_is_small(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:04}").write_bytes(b"x\n")
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*"))
    assert len(json.dumps(drive.plan()[0])) < 32 * 1024


@pytest.mark.rule(38)
def test_only_the_last_bytes_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "app"
    path.write_bytes(b"a\n" * 4000)
    before = file_lines.tail(str(path), 8000)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"b", 8000 - file_lines.TAIL_BYTES - 2)
    assert file_lines.tail(str(path), 8000) == before
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"b", 8000 - file_lines.TAIL_BYTES)
    assert file_lines.tail(str(path), 8000) != before
