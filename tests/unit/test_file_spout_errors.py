"""The file spout's input is not as it should be, or not as it was: an ``InputError`` that names the
file and the cure."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.planned_spouts import Drive
from txtopo.connectors.files import FileTransactionalSpout, blocks
from txtopo.errors import FailedException, InputError


def ran(spout: FileTransactionalSpout) -> dict[int, Any]:
    """The positions after a run over all there is."""
    drive = Drive(spout)
    drive.run()
    return drive.positions


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def test_nothing_matches(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=rf"no file matched {tmp_path}/\*\.txt when the topology was built\n  Mend the paths",
    ):
        Drive(FileTransactionalSpout(f"{tmp_path}/*.txt"))
    with pytest.raises(InputError, match="no file matched an empty list"):
        Drive(FileTransactionalSpout([]))


def test_a_missing_file_is_found_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")
    with pytest.raises(InputError, match=rf"no file {tmp_path}/b\n  Mend the path"):
        Drive(FileTransactionalSpout([tmp_path / "a", tmp_path / "b"]))


def test_a_dangling_link_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=f"no file {tmp_path}/link"):
        Drive(FileTransactionalSpout(f"{tmp_path}/*"))


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=rf"{tmp_path} is a directory, not a file\n  Name the files in it"
    ):
        Drive(FileTransactionalSpout(tmp_path))


def test_a_named_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is not a regular file"):
        Drive(FileTransactionalSpout(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied"),
            "may not be read by this user\n.*chmod",
        ),
        (OSError(errno.EIO, "Input/output error"), "cannot be read: Input/output error"),
    ],
)
def test_an_unreadable_file_is_found_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, message: str
) -> None:
    (tmp_path / "a").write_text("a\n")

    def refused(*_: Any) -> int:
        raise error

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(InputError, match=message):
        Drive(FileTransactionalSpout(tmp_path / "a"))


def test_a_file_that_vanishes_after_planning_is_found_by_the_emitter(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")
    drive = Drive(FileTransactionalSpout(tmp_path / "a"))
    plan = drive.plan()
    (tmp_path / "a").unlink()
    with pytest.raises(InputError, match="Every machine that runs tasks must see the file"):
        drive.emitted(plan)


@pytest.mark.rule(7)
def test_a_fault_that_may_pass_fails_the_attempt_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("a\n")
    drive = Drive(FileTransactionalSpout(tmp_path / "a"))
    plan = drive.plan()

    def stale(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(blocks, "open", stale, raising=False)
    with pytest.raises(FailedException, match="just now: Stale file handle"):
        drive.emitted(plan)


@pytest.mark.rule(18)
def test_a_file_that_shrank_after_planning_is_found_by_the_emitter(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("three\n")
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*"))
    plan = drive.plan()
    (tmp_path / "a").write_text("one\n")
    with pytest.raises(
        InputError,
        match=f"{tmp_path}/a has shrunk: it has 4 bytes, but was planned up to byte 8\n.*txtopo state reset",
    ):
        drive.emitted(plan)


def test_a_file_that_shrank_is_found_by_planning(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n" * 10)
    drive = Drive(FileTransactionalSpout(tmp_path / "a", bytes_per_batch=20))
    (tmp_path / "a").write_text("one\n")
    with pytest.raises(InputError, match="has shrunk"):
        drive.plan()


@pytest.mark.rule(23)
def test_a_file_that_shrank_between_two_runs_is_found_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    positions = ran(FileTransactionalSpout(tmp_path / "a"))
    (tmp_path / "a").write_text("one\n")
    with pytest.raises(InputError, match="a has shrunk: it has 4 bytes"):
        Drive(FileTransactionalSpout(tmp_path / "a"), positions)


@pytest.mark.rule(23)
@pytest.mark.parametrize("change", ["added", "removed", "renamed", "partitions"])
def test_another_list_of_files_is_refused_when_a_run_resumes(tmp_path: Path, change: str) -> None:
    for name in "bcd":
        (tmp_path / name).write_text(f"{name}\n")
    positions = ran(FileTransactionalSpout(f"{tmp_path}/*"))
    if change == "added":
        (tmp_path / "a").write_text("a\n")
    elif change == "removed":
        (tmp_path / "c").unlink()
    elif change == "renamed":
        (tmp_path / "c").rename(tmp_path / "cc")
    spout = FileTransactionalSpout(f"{tmp_path}/*", partitions=2 if change == "partitions" else 1)
    with pytest.raises(
        InputError,
        match=r"partition 0 no longer has the files that were read.*\n.*txtopo state reset",
    ):
        Drive(spout, positions)


@pytest.mark.rule(23)
def test_fewer_partitions_are_refused_when_a_run_resumes(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n")
    positions = ran(FileTransactionalSpout(f"{tmp_path}/*", partitions=2))
    del positions[0]
    with pytest.raises(
        InputError, match="partition 1 was read by an earlier run, but now there are 1 partitions"
    ):
        Drive(FileTransactionalSpout(f"{tmp_path}/*"), positions)


@pytest.mark.rule(23)
def test_a_replay_in_a_later_run_refuses_another_list_of_files(tmp_path: Path) -> None:
    for name in "bc":
        (tmp_path / name).write_text(f"{name}\n")
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*"))
    sealed = drive.plan()
    (tmp_path / "a").write_text("a\n")
    with pytest.raises(InputError, match="no longer has the files"):
        Drive(FileTransactionalSpout(f"{tmp_path}/*")).emitted(sealed)
    with pytest.raises(InputError, match="no longer has the files"):
        Drive(FileTransactionalSpout(f"{tmp_path}/*")).emitted({1: sealed[0]})


@pytest.mark.rule(23)
def test_lines_added_to_a_file_already_left_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n")
    positions = ran(FileTransactionalSpout(f"{tmp_path}/*"))
    append(tmp_path / "a", "late\n")
    with pytest.raises(
        InputError,
        match=f"the files before {tmp_path}/b have 7 bytes, but had 2 when they were read",
    ):
        Drive(FileTransactionalSpout(f"{tmp_path}/*"), positions)


@pytest.mark.rule(20, 23)
def test_a_later_run_reads_files_behind_all_others_and_lines_added_to_the_last(
    tmp_path: Path,
) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n")
    positions = ran(FileTransactionalSpout(f"{tmp_path}/*"))
    append(tmp_path / "b", "b2\n")
    append(tmp_path / "c", "c\n")
    assert Drive(FileTransactionalSpout(f"{tmp_path}/*"), positions).run() == [
        {0: [("b2",), ("c",)]}
    ]


@pytest.mark.rule(20, 23)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_last_line_that_got_its_end_between_two_runs_is_not_read_again(
    tmp_path: Path, end: str
) -> None:
    (tmp_path / "a").write_text("one\ntwo")
    positions = ran(FileTransactionalSpout(tmp_path / "a"))
    append(tmp_path / "a", end)
    drive = Drive(FileTransactionalSpout(tmp_path / "a"), positions)
    assert drive.run() == []
    append(tmp_path / "a", f"three{end}")
    drive = Drive(FileTransactionalSpout(tmp_path / "a"), positions)
    assert drive.run() == [{0: [("three",)]}]
    assert Drive(FileTransactionalSpout(tmp_path / "a"), drive.positions).run() == []


@pytest.mark.rule(23)
def test_a_last_line_that_was_continued_between_two_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntw")
    positions = ran(FileTransactionalSpout(tmp_path / "a"))
    append(tmp_path / "a", "o\n")
    with pytest.raises(
        InputError,
        match="the line before byte 6 was read as the last one, without an end, and has been continued",
    ):
        Drive(FileTransactionalSpout(tmp_path / "a"), positions)


def test_bytes_that_are_no_text_are_named_by_file_and_offset(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"fine\nfine\n\xff\n")
    drive = Drive(FileTransactionalSpout(tmp_path / "a", bytes_per_batch=5))
    drive.plan()
    with pytest.raises(
        InputError,
        match=rf"{tmp_path}/a: byte 10 is not utf-8 \(invalid start byte\)\n.*errors='replace'",
    ):
        drive.run()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "the line at byte 9 is not JSON: "),
        ("[1]", "the line at byte 9 is not a JSON object but a list\n  Mend the line"),
        (
            '{"b": 1, "c": 2}',
            "the line at byte 9 has no field 'a'; it has 'b', 'c'\n.*errors='replace'",
        ),
        ("{}", "the line at byte 9 has no field 'a'; it has none"),
        ("[" * 100_000, "is not JSON: maximum recursion"),
    ],
)
def test_a_line_that_is_not_the_expected_json_is_named_by_file_and_offset(
    tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "a").write_bytes(b'{"a":1}\r\n' + line.encode() + b"\n")
    with pytest.raises(InputError, match=f"{tmp_path}/a: .*{message}"):
        Drive(FileTransactionalSpout(tmp_path / "a", fields=("a",), format="json")).run()


@pytest.mark.parametrize("line", ["{", "null"])
def test_a_line_that_is_no_json_object_is_an_error_also_under_replace(
    tmp_path: Path, line: str
) -> None:
    (tmp_path / "a").write_text(line)
    with pytest.raises(InputError, match="the line at byte 0 is not"):
        Drive(
            FileTransactionalSpout(tmp_path / "a", fields=("a",), format="json", errors="replace")
        ).run()
