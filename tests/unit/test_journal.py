"""The journal's files: bounded, private, written beside the run, and read also when damaged."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import functools
import io
import itertools
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests import patience
from txtopo import Config, ConfigError, Fields, TransactionAttempt
from txtopo.config import resolve
from txtopo.dataplane.outcome import Failure
from txtopo.engine import logged
from txtopo.engine.attempts import AttemptFailedError
from txtopo.engine.observer import EndedAttempt
from txtopo.engine.status import RunStatus
from txtopo.journal import documents, fold, live, reader, recording, records, watch, writer
from txtopo.journal.records import Record
from txtopo.page import html, metrics
from txtopo.runtime import progress
from txtopo.spark import log_lines
from txtopo.topology.context import CoordinatorContext
from txtopo.topology.graph import Component, Subscription, TopologyGraph
from txtopo.topology.grouping import Grouping

MIB = 1024 * 1024
AT = 1_790_000_000.0
NOW = datetime.datetime.fromtimestamp(AT, datetime.UTC)


def attempt(txid: int, n: int = 0, outcome: Any = "committed", **more: Any) -> Record:
    """The record of an ended attempt."""
    return records.attempt(EndedAttempt(TransactionAttempt(txid, n), outcome, **more), AT, "full")


def head(generation: str = "first", epoch: int = 1, current: int = 1) -> Record:
    """The record of a run's beginning."""
    facts = {"host": "alpha", "pid": epoch}
    return records.run_began(facts, AT, generation, epoch, current, False)


def write(path: Path, *written: Record, first: Record | None = None, bytes_max: int = MIB) -> None:
    """Write a run's journal."""
    with_head = writer.Writer("words", path, bytes_max, first or head())
    for number, record in enumerate(written):
        if number % 500 == 499:
            patience.wait_until(lambda: not with_head._waiting)
        with_head.put(functools.partial(dict, record))
    with_head.close()


def counts(view: fold.View) -> tuple[int, int, int]:
    """How many transactions are committed, and how many attempts failed or were behind."""
    transactions = view.transactions.values()
    return (
        sum(each.committed is not None for each in transactions),
        sum(len(each.failed) for each in transactions),
        sum(len(each.behind) for each in transactions),
    )


def lines(path: Path) -> list[bytes]:
    return b"".join(segment.read_bytes() for segment in writer.segments(path)).splitlines()


# -- writing -------------------------------------------------------------------------------------


def test_every_segment_begins_with_its_run_and_only_this_user_may_read_it(tmp_path: Path) -> None:
    place = tmp_path / "data" / "journal" / "words"
    write(place, *(attempt(txid, metadata="x" * 1000) for txid in range(1, 400)))
    segments = writer.segments(place)
    assert len(segments) > 1
    beginnings = [records.decode(segment.read_bytes().splitlines()[0]) for segment in segments]
    assert [record["kind"] for record in beginnings] == ["began"] * len(segments)
    assert [record.get("continued", False) for record in beginnings][:2] == [False, True]
    modes = [path.stat().st_mode & 0o777 for path in (place, place.parent, *segments)]
    assert modes == [0o700, 0o700] + [0o600] * len(segments)


def test_the_segments_stay_below_the_bound_and_the_newest_records_remain(tmp_path: Path) -> None:
    for epoch in (1, 2):
        first = 1000 * epoch
        written = [attempt(txid, metadata="x" * 1000) for txid in range(first, first + 1000)]
        write(tmp_path, *written, first=head(epoch=epoch, current=first))
        assert sum(path.stat().st_size for path in writer.segments(tmp_path)) <= MIB
    view = fold.fold(reader.Reader(tmp_path).about(range(1, 9999)))
    assert max(view.transactions) == 2999
    first = min(view.transactions)
    assert reader.Reader(tmp_path).extent() == ("first", first, 3000)
    assert first > 1900
    assert view.holes(first, 9999) == []


def test_metadata_that_outgrow_a_segment_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, attempt(1, metadata="x" * MIB), attempt(2, metadata={"nan": float("nan")}))
    _, large, strange = map(records.decode, lines(tmp_path))
    for record in (large, strange):
        assert (record["meta"], record["meta_left_out"]) == (None, True)


def test_a_copy_beside_a_segment_is_no_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, attempt(1))
    (segment,) = writer.segments(tmp_path)
    shutil.copy(segment, segment.with_name(f"{segment.stem}_copy{writer.SUFFIX}"))
    write(tmp_path, attempt(2))
    assert counts(fold.fold(reader.Reader(tmp_path).about([1, 2])))[0] == 2
    assert caplog.messages == []


def full(*arguments: Any, **more: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("call", "first"), [("open", 0), ("write", 0), ("write", 1)])
def test_a_journal_goes_on_when_the_full_disk_has_room_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    first: int,
) -> None:
    monkeypatch.setattr(writer, "AGAIN_S", 0.0)
    numbers, answer, has_room = itertools.count(), getattr(os, call), threading.Event()

    def refuse_thrice(*arguments: Any) -> Any:
        number = next(numbers)
        if first <= number < first + 3:
            if call == "write" and number == 1:
                return answer(arguments[0], arguments[1][:1500])  # one line, part of another
            return full()
        if number >= first + 3:
            has_room.set()
        return answer(*arguments)

    monkeypatch.setattr(f"os.{call}", refuse_thrice)
    with caplog.at_level(logging.WARNING, "txtopo"):
        journal = writer.Writer("words", tmp_path, MIB, head())
        for txid in range(1, 5):
            journal.put(functools.partial(attempt, txid, metadata="x" * 1000))
        assert has_room.wait(patience.PATIENCE_S)
        journal.put(functools.partial(attempt, 5))
        journal.close()
    (warning,) = caplog.messages
    assert (
        f"cannot write all of its journal now, but the run goes on: {tmp_path}: No space" in warning
    )
    view = fold.fold(reader.Reader(tmp_path).about(range(1, 9999)))
    assert 5 in view.transactions
    assert len(view.transactions) + view.runs[0].get("dropped", 0) == 5


@pytest.mark.parametrize("call", ["write", "open"])
def test_a_disk_that_stays_full_is_told_once_and_holds_no_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    monkeypatch.setattr(f"os.{call}", full)
    with caplog.at_level(logging.WARNING, "txtopo"):
        write(tmp_path, attempt(1), attempt(2))
    (warning,) = caplog.messages
    assert (
        f"cannot write all of its journal now, but the run goes on: {tmp_path}: No space" in warning
    )
    assert writer.segments(tmp_path) == []


def test_a_file_in_place_of_the_directory_ends_the_journal_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal").write_text("mine")
    write(tmp_path / "journal" / "words", attempt(1))
    assert "Not a directory" in caplog.text
    assert (tmp_path / "journal").read_text() == "mine"


def test_a_thread_that_cannot_start_ends_the_journal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    write(tmp_path, attempt(1))
    assert "can't start new thread" in caplog.text


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A disk that answers after a call."""
    answers, write_now = threading.Event(), os.write

    def wait(descriptor: int, data: Any) -> int:
        answers.wait(patience.PATIENCE_S)
        return write_now(descriptor, data)

    monkeypatch.setattr("os.write", wait)
    yield answers.set
    answers.set()


def test_records_that_a_slow_disk_has_no_time_for_are_dropped_and_counted(
    tmp_path: Path, slow_disk: Callable[[], None]
) -> None:
    waiting = writer.Writer("words", tmp_path, MIB, head())
    for txid in range(1, writer.WAITING_MAX + 8):
        waiting.put(functools.partial(attempt, txid))
    slow_disk()
    waiting.close()
    view = fold.fold(reader.Reader(tmp_path).about(range(1, 9999)))
    assert (len(view.transactions), view.runs[0]["dropped"]) == (writer.WAITING_MAX, 7)


def test_a_disk_that_never_answers_does_not_hold_the_end_of_the_run(
    tmp_path: Path,
    slow_disk: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(writer, "END_S", 0.01)
    waiting = writer.Writer("words", tmp_path, MIB, head())
    waiting.put(functools.partial(attempt, 1))
    waiting.close()
    assert "the disk has not answered" in caplog.text


def test_a_close_that_comes_at_the_end_of_a_pause_ends_the_thread(tmp_path: Path) -> None:
    class Late(threading.Event):
        """Is set just after the thread has looked."""

        def wait(self, timeout: float | None = None) -> bool:
            was_set = self.is_set()
            self.set()
            closing._wake.set()
            return was_set

    closing = writer.Writer("words", tmp_path, MIB, head())
    closing._closing = Late()
    closing.put(functools.partial(attempt, 1))
    closing._thread.join(patience.PATIENCE_S)
    assert not closing._thread.is_alive()
    assert len(lines(tmp_path)) == 2


def test_an_error_that_cannot_be_shown_is_named() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert records.text_of(Broken()) == "Broken"


# -- reading -------------------------------------------------------------------------------------


def test_a_torn_line_and_another_version_are_skipped_and_counted(tmp_path: Path) -> None:
    write(tmp_path, attempt(1), attempt(2))
    (segment,) = writer.segments(tmp_path)
    data = segment.read_bytes()
    other = records.encode(attempt(3)).replace(b'"v":1', b'"v":7')
    segment.write_bytes(data + other + b'{"v":1,"kind":\n' + records.encode(attempt(4))[:-40])
    journal = reader.Reader(tmp_path)
    assert counts(fold.fold(journal.about(range(1, 9999))))[0] == 2
    assert (journal.torn, journal.other_versions) == (2, {"7"})


def test_every_cut_of_a_journal_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, attempt(1), attempt(2))
    (segment,) = writer.segments(tmp_path)
    data = segment.read_bytes()
    for size in range(0, len(data), 7):
        segment.write_bytes(data[:size])
        view = fold.fold(reader.Reader(tmp_path).about(range(1, 9999)))
        assert counts(view)[0] == max(data[:size].count(b"\n") - 1, 0)


def test_a_reader_reads_no_more_segments_than_it_needs_and_misses_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [attempt(txid) for txid in range(1, 5001)]
    written.insert(4500, attempt(5000, 0, "failed"))
    write(tmp_path, *written, bytes_max=2 * MIB)
    journal = reader.Reader(tmp_path)
    read: list[Path] = []
    really = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.append(path)
        return really(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    view = fold.fold(journal.about([5000]))
    assert [each["outcome"] for each in view.transactions[5000].attempts] == ["failed", "committed"]
    assert set(view.transactions) == {5000}
    read.clear()
    assert {4999, 5000} <= set(fold.fold(journal.recent(2)).transactions)
    assert len(read) < len(writer.segments(tmp_path))
    assert sorted(fold.fold(journal.failed(3)).transactions) == [5000]


def test_metadata_that_looks_like_a_commit_hides_no_failed_attempt(tmp_path: Path) -> None:
    alike = {"0": {"txid": 9, "attempt": 0, "outcome": "committed"}}
    write(tmp_path, attempt(1), attempt(2, 0, "failed", metadata=alike))
    journal = reader.Reader(tmp_path)
    assert sorted(fold.fold(journal.failed(3)).transactions) == [2]
    assert journal.extent()[2] == 2


def test_a_transaction_is_told_with_the_attempts_discarded_with_it(tmp_path: Path) -> None:
    failing = TransactionAttempt(2, 0)
    write(
        tmp_path,
        attempt(1),
        attempt(3, 0, "behind", because_of=failing),
        attempt(2, 0, "failed"),
        attempt(2, 1),
        attempt(3, 1),
    )
    view = fold.fold(reader.Reader(tmp_path).about([2]))
    assert counts(view) == (1, 1, 1)
    assert [each["attempt"] for each in view.transactions[2].attempts] == [0, 1]


def test_transactions_that_zookeeper_has_and_the_journal_has_not_are_a_hole() -> None:
    lines = [head(), attempt(1), attempt(2), head(epoch=2, current=4), attempt(5)]
    assert fold.fold(lines).holes(1, 9) == [(3, 4)]
    assert fold.fold(lines, current=8).holes(2, 9) == [(3, 4), (6, 7)]
    assert fold.fold(lines, current=8).holes(4, 6) == [(4, 4), (6, 6)]
    assert fold.fold([], current=5).holes(1, 9) == [(1, 4)]


def test_only_commits_whose_records_were_read_and_are_not_there_are_holes(tmp_path: Path) -> None:
    write(tmp_path, *map(attempt, (1, 2, 3)), first=head("before"))
    write(tmp_path, *map(attempt, (1000, 1002)), first=head(current=1000))
    journal = reader.Reader(tmp_path)

    def read_before_the_last_commits() -> list[Record]:
        read_then = documents.read(journal, 20)
        write(tmp_path, *map(attempt, (1003, 1004)), first=head(epoch=2, current=1003))
        return read_then

    view = documents.view_of(journal, read_before_the_last_commits)
    assert (view.begins_at, view.current) == (1000, 1003)
    assert documents.listed(view, 20)[1] == [(1001, 1001)]
    early = documents.view_of(journal, lambda: documents.read(journal, 500, 1))
    assert documents.listed(early, 500, 1) == ([], [])


def test_only_the_present_generation_counts() -> None:
    lines = [head(), attempt(1), attempt(2), head("second"), attempt(1)]
    assert counts(fold.fold(lines))[0] == 1
    assert counts(fold.fold(lines, "first"))[0] == 2
    assert fold.fold(lines, "third").transactions == {}


def test_what_is_asked_of_a_run_and_zookeepers_outages_are_kept(tmp_path: Path) -> None:
    moment = live.Moment(AT, RunStatus("words", "words"), AT, False, 0)
    facts = {"host": "alpha", "pid": 7}
    kept = recording.Recording("words", tmp_path, MIB, "full", facts, lambda: moment)
    kept.note_request("pause", "me@alpha", "before")  # the run begins paused
    kept.note_takeover({"host": "beta", "pid": 8, "epoch": 1})
    kept.began("first", 2, 1, is_resumed=False)
    kept.note_request("pause", "me@alpha", "now")
    place = tmp_path / "journal" / "words"

    def wait_for_lines(count: int) -> None:
        patience.wait_until(lambda: len(lines(place)) == count)

    for is_away, written in ((True, 5), (False, 6)):
        moment = dataclasses.replace(moment, is_away=is_away, at=moment.at + 2.5)
        wait_for_lines(written)
    kept.ended(None)
    _, *noted, _ = [records.decode(line) for line in lines(place)]
    taken = noted.pop(1)
    assert {"kind": "lease", "host": "beta", "pid": 8, "epoch": 1}.items() <= taken.items()
    asked = {"kind": "request", "want": "pause", "by": "me@alpha"}
    for each, asked_at in zip(noted, ("before", "now"), strict=False):
        assert (asked | {"asked_at": asked_at}).items() <= each.items()
    assert [(each["kind"], each["is_away"], each["lasted_s"]) for each in noted[2:]] == [
        ("zookeeper", True, None),
        ("zookeeper", False, 2.5),
    ]
    view = fold.fold(reader.Reader(place).recent(1))
    assert (view.transactions, [run["taken_from"] for run in view.runs]) == ({}, [taken])


# -- secrets -------------------------------------------------------------------------------------

SECRET = "hunter2"
PLANTED = {"address": f"/pg://name:{SECRET}@host/db", "named": f"/password={SECRET}"}


def with_secrets(planted: str) -> Config:
    """Settings, with ``planted`` in each that takes the text, as from Spark's configuration. An error
    about another one does not show the secret."""
    settings: dict[str, Any] = {
        "user.password": SECRET,
        "user.plain": SECRET,
        "user.deep": {"list": [{"api_key": SECRET}]},
    }
    refused = []
    for name in Config.model_fields:
        try:
            spark = {f"spark.txtopo.{name}": planted}
            settings[name] = getattr(resolve(spark=spark).config, name)
        except ConfigError as error:
            refused.append(str(error))
    assert SECRET not in "".join(refused)
    taken = {"zookeeper_root", "zookeeper_user", "zookeeper_password_file", "data_dir"}
    assert taken <= settings.keys()
    return Config(settings)


def test_nothing_that_is_shown_has_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "txtopo")
    (tmp_path / "password").write_text(SECRET)
    monkeypatch.setenv("TXTOPO_ZOOKEEPER_PASSWORD", SECRET)
    master = f"spark://name:{SECRET}@host:7077"
    text = f"OperationalError: postgresql://name:{SECRET}@host/db, password={SECRET}"
    failure = Failure(
        "error", "count", 0, TransactionAttempt(1, 0), "commit", "execute", text, f"  {text}\n"
    )
    failed = AttemptFailedError("fatal", text, failure=failure)
    status = RunStatus("words", "words", last_error=text, last_error_txid=1, last_error_at=NOW)
    moment = live.Moment(AT, status, AT, False, 0)
    CoordinatorContext("words", "first", "lines", dict).log.warning("is late")
    for (name, planted), fullness in itertools.product(PLANTED.items(), get_args(records.Fullness)):
        conf, place = with_secrets(planted), tmp_path / f"{name}-{fullness}"
        facts = records.facts(TopologyGraph("words", {}), "words", conf, master, "4.3.0")
        kept = recording.Recording("words", place, MIB, fullness, facts, lambda: moment)
        kept.began("first", 1, 1, is_resumed=False)
        ended = EndedAttempt(TransactionAttempt(1, 0), "fatal", failed)
        for observer in (kept, logged.LogLines("words")):
            observer.attempt_ended(ended)
            observer.open_failed(1, RuntimeError(text))
            observer.ended(RuntimeError(text))
        written = lines(place / "journal" / "words")
        assert len(written) == 3
        present = (place / "journal" / "words" / live.NAME).read_bytes()
        assert b"last_error" in present
        assert SECRET.encode() not in b"".join([*written, present])
        watching = watch.Watch(place / "journal" / "words")
        watching.refresh()
        page = html.whole(watching.view())
        assert '"zookeeper_root": ' in page
        assert SECRET not in page + metrics.metrics(json.loads(present))
    logged.LogLines("words").away(RuntimeError(text))
    terminal = io.StringIO()
    for over in (False, True):
        line = progress.ProgressLine(terminal, is_terminal=True)
        line.update(dataclasses.replace(status, is_error_over=over))
        line.ended(dataclasses.replace(status, is_error_over=over), "failed")
    formats = [log_lines.formatter(form) for form in ("text", "json")]
    said = "".join(each.format(record) for each in formats for record in caplog.records)
    said += terminal.getvalue() + str(records.text_of(RuntimeError(text)))
    assert "OperationalError: postgresql://name:***" in said
    assert SECRET not in said


def test_a_runs_beginning_has_its_plan() -> None:
    feed = Subscription("lines", "default", Grouping("fields", Fields("word")))
    graph = TopologyGraph(
        "words",
        {
            "lines": Component("lines", "spout", 2, b"", {}, committer=True),
            "count": Component("count", "batch", 3, b"", {}, (feed,), committer=True),
            "rest": Component("rest", "basic", 1, b"", {}),
        },
    )
    assert records.facts(graph, "words", Config(), "local[2]", "4.3.0")["plan"]["components"] == [
        {"id": "lines", "kind": "spout", "tasks": 2, "inputs": []},
        {
            "id": "count",
            "kind": "committer",
            "tasks": 3,
            "inputs": [{"from": "lines", "grouping": "fields(word)"}],
        },
        {"id": "rest", "kind": "bolt", "tasks": 1, "inputs": []},
    ]


def test_a_lean_journal_has_no_text_from_user_code_and_no_metadata() -> None:
    failure = Failure(
        "error", "count", 0, TransactionAttempt(1, 0), "commit", "execute", "ValueError: row 7", "x"
    )
    ended = EndedAttempt(
        TransactionAttempt(1, 0),
        "fatal",
        AttemptFailedError("fatal", "ValueError: row 7", failure=failure),
        metadata={"row": 7},
    )
    record = records.attempt(ended, AT, "lean")
    assert record["cause"]["error"] == "ValueError"
    assert "meta" not in record
    assert "traceback" not in record["cause"]
    assert records.run_ended(ValueError("row 7"), AT, "lean")["error"] == "ValueError"


def test_a_terminal_that_shows_an_error_obeys_nothing_in_it() -> None:
    assert records.shown("first\n\x1b[2Jsecond\x07") == "first\n\\x1b[2Jsecond\\x07"


@pytest.mark.parametrize("length", [records.TEXT_MAX + 100, 100_000])
def test_a_long_error_loses_its_middle(length: int) -> None:
    shown = records.shown(f"Traceback{' ' * length}ValueError: row 7")
    assert shown.startswith("Traceback ")
    assert shown.endswith(" ValueError: row 7")
    assert len(shown) == records.TEXT_MAX


@pytest.mark.parametrize(
    "secret",
    ["postgresql://me:" + "s" * 20 + "@host", "access_token=" + "s" * 1800],
    ids=["address", "token"],
)
def test_a_cut_shows_no_part_of_a_secret(secret: str) -> None:
    short = f" redis://:{'x' * 400}@host" * 40  # redaction makes it shorter, which moves the cuts
    for cut in (records.TEXT_MAX // 2, records.TEXT_MAX // 2 + records._SECRET_MAX):
        for place in range(0, len(secret), len(secret) // 12):
            for beside in ("", short):
                spaces = " " * (cut - place - len(beside))
                text = f"{beside}{spaces}{secret}{' ' * 100_000}{secret}{spaces}{beside}"
                assert "sss" not in records.shown(text)
