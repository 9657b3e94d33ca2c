"""Logs that are appended to and rotated: each line is read once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.planned_spouts import Drive
from txtopo.connectors.files import FileTransactionalSpout, blocks
from txtopo.errors import ConfigError, FailedException, InputError


def following(log: Path, positions: Any = None) -> Drive:
    return Drive(FileTransactionalSpout(log, 12, follow=True), positions)


def lines(drive: Drive) -> list[str]:
    return [row[0] for batch in drive.run() for row in batch[0]]


def write(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def renamed(log: Path, name: str = "app.log.1") -> Path:
    """In the way of logrotate: the new file is empty at first."""
    new = log.rename(log.with_name(name))
    log.touch()
    return new


def copied(log: Path) -> Path:
    """In the way of logrotate's copytruncate."""
    new = Path(shutil.copyfile(log, log.with_name("app.log.1")))
    os.truncate(log, 0)
    return new


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "app.log"
    path.write_text("one\ntwo\nthr")
    return path


@pytest.mark.parametrize("rotate", [renamed, copied])
def test_lines_are_read_once_when_they_have_their_end_across_rotation(
    log: Path, rotate: Callable[[Path], Path]
) -> None:
    drive = following(log)
    assert lines(drive) == ["one", "two"]
    write(log, "ee\nfour")
    assert lines(drive) == ["three"]
    rotate(log)
    # The writer has not begun the next file: it may still end its line.
    assert lines(drive) == []
    write(log, "five\n")
    assert lines(following(log, drive.positions)) == ["four", "five"]
    assert lines(drive) == ["four", "five"]


def test_a_copy_that_is_being_made_is_read_when_the_log_has_been_cut(log: Path) -> None:
    drive = following(log)
    assert lines(drive) == ["one", "two"]
    renamed(log, "app.log.2")
    write(log, "four\nfive\n")
    copy = log.with_name("app.log.1")
    for content in ("four\nfi", "four\nfive\n"):
        copy.write_text(content)
        with pytest.raises(FailedException, match=r"app.log.1 has the beginning of .*app.log"):
            lines(drive)
    os.truncate(log, 0)
    assert lines(drive) == ["four", "five"]
    write(log, "six\n")
    assert lines(drive) == ["six"]


def test_a_first_run_may_begin_while_a_copy_is_being_made(log: Path) -> None:
    copy = log.with_name("app.log.1")
    copy.write_text("one\nt")
    drive = following(log)
    assert lines(drive) == ["one", "two"]
    shutil.copyfile(log, copy)
    write(log, "ee\n")
    assert lines(drive) == ["three"]


def test_a_copy_that_is_finished_while_the_files_are_looked_at_fails_the_attempt_only(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = following(log)
    assert lines(drive) == ["one", "two"]
    write(log, "ee\n")
    renamed(log, "app.log.2")
    write(log, "four\nfive\n")
    assert drive.coordinator.is_ready()
    drive.plan()
    copy = log.with_name("app.log.1")
    copy.write_text("four\nfi")
    really_open, steps = blocks.opened, [log]

    def opened(path: str) -> Any:
        if steps:
            copy.write_text("four\nfive\n")
            steps.pop().write_text("later\nand longer\n")
        return really_open(path)

    monkeypatch.setattr(blocks, "opened", opened)
    with pytest.raises(FailedException, match="rotated just now"):
        drive.coordinator.is_ready()
    assert lines(drive) == ["four", "five", "later", "and longer"]


def test_a_small_file_that_begins_as_the_next_one_is_no_copy(log: Path) -> None:
    drive = following(log)
    lines(drive)
    for name in ("app.log.2", "app.log.1"):
        renamed(log, name)
        write(log, "begun\n")
    os.utime(log.with_name("app.log.1"), (1e9, 1e9))
    os.utime(log.with_name("app.log.2"), (1e8, 1e8))
    assert lines(drive) == ["thr", "begun", "begun"]


def test_several_rotations_while_nothing_runs(log: Path) -> None:
    drive = following(log)
    lines(drive)
    # A backup, and another log.
    for name in ("app.log.bak", "app2.log"):
        shutil.copyfile(log, log.with_name(name))
    write(log, "ee\n")
    renamed(log, "app.log.3")
    renamed(log, "app.log.2")
    write(log, "four\n")
    renamed(log, "app-2026-11-27.log")
    write(log, "five\nsix\nseven\n")
    assert lines(following(log, drive.positions)) == ["three", "four", "five", "six", "seven"]


def test_a_batch_is_read_again_under_the_name_that_its_file_has_then(log: Path) -> None:
    drive = following(log)
    assert drive.coordinator.is_ready()
    plan = drive.plan()
    renamed(log)
    write(log, "one\ntwo\nother\n")
    log.with_name("app.log.1").rename(log.with_name("app.log.2"))
    assert drive.emitted(plan, 1) == {0: [("one",), ("two",)]}


def test_a_rotation_while_a_batch_is_planned_or_read_fails_the_attempt_only(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = following(log)
    really_open = blocks.opened
    changes: list[Callable[[Path], Any]] = [renamed]

    def opened(path: str) -> Any:
        if changes:
            changes.pop()(log)
        return really_open(path)

    monkeypatch.setattr(blocks, "opened", opened)
    with pytest.raises(FailedException, match="rotated just now"):
        drive.coordinator.is_ready()
    write(log, "a\nb\n")
    assert drive.coordinator.is_ready()
    plan = drive.plan()
    changes.append(lambda log: os.truncate(log, 1))
    with pytest.raises(FailedException, match="was rotated just now"):
        drive.emitted(plan)


def test_without_its_file_or_with_several_that_it_may_be_nothing_is_read(log: Path) -> None:
    drive = following(log)
    lines(drive)
    old = renamed(log)
    old.rename(log.with_name("elsewhere"))
    with pytest.raises(InputError, match=r"read up to byte 8 is not there.*\n.*delaycompress"):
        drive.coordinator.is_ready()
    for name in ("app.log.1", "app.log.2"):
        shutil.copyfile(log.with_name("elsewhere"), log.with_name(name))
    with pytest.raises(InputError, match=r"may be .*app.log.\d and .*app.log.\d"):
        drive.coordinator.is_ready()


def test_lines_for_a_file_after_the_next_one_has_begun_are_told(log: Path) -> None:
    drive = following(log)
    lines(drive)
    old = renamed(log)
    write(log, "four\n")
    assert lines(drive) == ["thr", "four"]
    write(old, "late\n")
    with pytest.raises(InputError, match=r"app.log.1 has got lines behind byte 11"):
        drive.coordinator.is_ready()


def test_what_was_read_or_is_another_log_is_not_read(log: Path) -> None:
    drive = following(log)
    assert lines(drive) == ["one", "two"]
    for name in ("app.log.2", "app.log.1"):
        renamed(log, name)
        write(log, f"after {name}\n")
    assert lines(drive) == ["thr", "after app.log.2", "after app.log.1"]
    os.utime(log.with_name("app.log.2"))
    for name in ("app.log.1.bak", "app-2.log", "app.log.9.swp"):
        shutil.copyfile(log, log.with_name(name))
    write(log, "last\n")
    assert lines(drive) == ["last"]
    write(log.with_name("app.log.2"), "late\n")
    with pytest.raises(InputError, match=r"app.log.2 has got lines behind byte 11"):
        drive.coordinator.is_ready()


def test_files_with_one_time_are_read_by_their_numbers(log: Path) -> None:
    drive = following(log)
    lines(drive)
    for number in (3, 2, 1):
        renamed(log, f"app.log.{number}")
        write(log, f"after {number}\n")
    for number in (3, 2, 1):
        os.utime(log.with_name(f"app.log.{number}"), (1e9, 1e9))
    assert lines(drive) == ["thr", "after 3", "after 2", "after 1"]


def test_a_compressed_file_that_may_have_been_read_is_told(log: Path) -> None:
    drive = following(log)
    lines(drive)
    renamed(log)
    write(log, "four\n")
    log.with_name("app.log.2.gz").write_bytes(b"...")
    with pytest.raises(InputError, match=r"app.log.2.gz is compressed, and newer"):
        lines(drive)


def test_a_log_begins_with_the_file_that_is_there_at_the_start(log: Path) -> None:
    log.write_text("")
    drive = following(log)
    assert lines(drive) == []
    write(log, "one\n")
    renamed(log)
    write(log, "two\n")
    assert lines(drive) == ["one", "two"]


def test_a_log_that_has_no_file_for_a_moment_is_waited_for(log: Path) -> None:
    drive = following(log)
    lines(drive)
    log.rename(log.with_name("app.log.1"))
    assert lines(drive) == []
    log.write_text("four\n")
    assert lines(drive) == ["thr", "four"]


def test_a_link_to_the_newest_file_and_a_batch_by_bytes(tmp_path: Path) -> None:
    newest = tmp_path / "app-2026-11-27.log"
    newest.write_text("one\ntwo\nthree\nfo")
    log = tmp_path / "app.log"
    log.symlink_to(newest)
    drive = following(log)
    assert [len(batch[0]) for batch in drive.run()] == [2, 1]
    log.unlink()
    log.symlink_to(tmp_path / "app-2026-11-28.log")
    (tmp_path / "app-2026-11-28.log").write_text("five\n")
    assert lines(drive) == ["fo", "five"]


def test_what_cannot_be_followed_is_refused(log: Path) -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"paths_or_glob": f"{log.parent}/*.log"},
        {"paths_or_glob": "s3://bucket/app.log"},
        {"paths_or_glob": log, "partitions": 2},
        {"paths_or_glob": log, "growing": True},
    )
    for arguments in refused:
        with pytest.raises(ConfigError, match="follow"):
            FileTransactionalSpout(**{"follow": True, **arguments})
    with pytest.raises(InputError, match="no file"):
        following(log.with_name("typo.log"))
    with pytest.raises(InputError, match="two of the paths are one log"):
        Drive(FileTransactionalSpout([log, log], follow=True))
    followed = following(log)
    lines(followed)
    with pytest.raises(InputError, match="was read with follow=True"):
        Drive(FileTransactionalSpout(log), followed.positions)
    other = log.with_name("other.log")
    other.touch()
    drive = following(log)
    lines(drive)
    with pytest.raises(InputError, match=r"was read from .*app.log, and now is .*other.log"):
        following(other, drive.positions)
