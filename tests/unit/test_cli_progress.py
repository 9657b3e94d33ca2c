"""The progress of a run: one line that is rewritten on a terminal, otherwise few lines, each with
news."""

from __future__ import annotations

import io
import logging
import shutil
from dataclasses import replace

import pytest

from txtopo.engine.observer import EndedAttempt
from txtopo.engine.spout_hooks import SourceProgress
from txtopo.engine.status import RunStatus, StatusBoard
from txtopo.runtime.progress import (
    INTERVAL_S,
    ProgressLine,
    ShownRun,
    Warnings,
    describe,
    should_show,
)
from txtopo.topology.transaction import TransactionAttempt

RUNNING = RunStatus(
    "words", "run", state="running", generation="0123456789abcdef", epoch=1, current=1
)
IN_FLIGHT = ((42, 0, "committing"), (43, 0, "processing"))
BUSY = replace(
    RUNNING,
    current=42,
    active=IN_FLIGHT,
    tuples_per_s=12345.6,
    last_commit_latency_s=0.214,
    replays=2,
    committed=41,
)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Shown:
    """A progress, and its written lines."""

    def __init__(self, is_terminal: bool) -> None:
        self.clock, self.stream = Clock(), io.StringIO()
        self.progress = ProgressLine(self.stream, self.clock, is_terminal)

    def update(self, status: RunStatus, after_s: float = 0.0) -> None:
        self.clock.now += after_s
        self.progress.update(status)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def test_a_line_says_what_is_committed_how_fast_and_what_went_wrong() -> None:
    assert describe(RUNNING) == "nothing committed yet, 0 in flight, 0 tuples/s, 0 replays"
    assert (
        describe(BUSY)
        == "txid 41 committed, 2 in flight, 12,346 tuples/s, last transaction took 0.21 s, 2 replays"
    )
    replayed = describe(replace(BUSY, failed=1, behind=1))
    assert replayed.endswith(", 2 replays (1 failed, 1 behind)")
    assert describe(replace(BUSY, idle=True)).endswith(", 2 replays, waiting for input")
    assert describe(replace(BUSY, state="draining", idle=True)).endswith(", 2 replays, stopping")
    assert describe(
        replace(BUSY, replays=1, last_error="ValueError: x\n  in component 'a'")
    ).endswith(", 1 replay, last error: ValueError: x")


def test_the_first_line_says_where_the_run_begins_and_the_last_how_it_ended() -> None:
    shown = Shown(is_terminal=False)
    shown.progress.started(RUNNING, "127.0.0.1:2181", "local[2]")
    shown.progress.started(replace(RUNNING, epoch=3, current=42), "127.0.0.1:2181", "local[2]")
    shown.progress.stopping()
    shown.progress.ended(replace(BUSY, tuples=1, replays=1), "stopped")
    assert shown.lines == [
        "txtopo: words begins at txid 1 (generation 01234567, epoch 1); ZooKeeper 127.0.0.1:2181",
        "txtopo: Spark local[2]",
        "txtopo: words resumes at txid 42 (generation 01234567, epoch 3); ZooKeeper 127.0.0.1:2181",
        "txtopo: Spark local[2]",
        "txtopo: stopping: finishing commits in flight (again to stop now)",
        "txtopo: words stopped: 41 transactions committed, 1 tuple, 1 replay; the next run begins at txid 42",
    ]


def test_without_a_terminal_there_is_a_line_now_and_then_and_none_that_says_nothing_new() -> None:
    shown = Shown(is_terminal=False)
    shown.update(BUSY)
    shown.update(BUSY, INTERVAL_S / 2)
    assert shown.lines == []
    shown.update(BUSY, INTERVAL_S / 2)
    assert len(shown.lines) == 1
    shown.update(replace(BUSY, current=50), INTERVAL_S / 2)
    assert len(shown.lines) == 1
    shown.update(replace(BUSY, current=60), INTERVAL_S / 2)
    assert len(shown.lines) == 2
    shown.update(replace(BUSY, current=60), 100 * INTERVAL_S)
    assert shown.lines == [
        f"txtopo: {describe(BUSY)}",
        f"txtopo: {describe(replace(BUSY, current=60))}",
    ]


def test_a_change_of_state_is_shown_at_once() -> None:
    shown = Shown(is_terminal=False)
    shown.update(BUSY)
    shown.update(replace(BUSY, state="draining"))
    shown.update(replace(BUSY, state="draining", current=43))
    assert shown.lines == [f"txtopo: {describe(replace(BUSY, state='draining'))}"]


def test_a_terminal_has_one_line_that_is_rewritten_and_gives_way_to_lines_that_stay() -> None:
    shown = Shown(is_terminal=True)
    shown.update(RUNNING)
    shown.update(BUSY)
    shown.progress.stopping()
    assert "\n" not in shown.text.partition("txtopo: ")[0]
    assert shown.text.startswith(f"\r{describe(RUNNING)}"[:60])
    assert shown.text.endswith(
        "\r\x1b[Ktxtopo: stopping: finishing commits in flight (again to stop now)\n"
    )


def test_a_terminal_line_never_wraps() -> None:
    shown = Shown(is_terminal=True)
    shown.update(replace(BUSY, last_error="x" * 10_000))
    assert len(shown.text) < 1000


def test_whether_there_is_a_terminal_is_asked_of_the_stream() -> None:
    stream = io.StringIO()
    clock = Clock()
    progress = ProgressLine(stream, clock)
    progress.update(BUSY)
    assert stream.getvalue() == ""


def test_the_first_lines_fit_into_a_hundred_columns() -> None:
    shown = Shown(is_terminal=False)
    shown.progress.started(RUNNING, "127.0.0.1:43251 (our own, in .txtopo)", "local[*]")
    shown.progress.started(replace(RUNNING, topology_id="w"), "a:1", "local")
    assert shown.lines == [
        "txtopo: words begins at txid 1 (generation 01234567, epoch 1)",
        "txtopo: ZooKeeper 127.0.0.1:43251 (our own, in .txtopo); Spark local[*]",
        "txtopo: w begins at txid 1 (generation 01234567, epoch 1); ZooKeeper a:1; Spark local",
    ]
    assert max(map(len, shown.lines)) <= 100


def test_how_much_of_the_input_is_done_is_shown_where_the_spout_knows() -> None:
    assert ", 41 % of the input, 2 in flight" in describe(replace(BUSY, fraction_done=0.419))
    assert ", 99 % of the input, " in describe(replace(BUSY, fraction_done=0.9999))
    assert ", 100 % of the input, " in describe(replace(BUSY, fraction_done=1.0))
    assert "%" not in describe(BUSY)


class Board(StatusBoard):
    """A board with a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(RUNNING, self.clock)

    def begin(self, after_s: float = 0.0) -> None:
        self.clock.now += after_s
        self.began("first", 1, 1, is_resumed=False)

    def commit(self, after_s: float, tuples: int) -> None:
        self.clock.now += after_s
        self.committed(EndedAttempt(TransactionAttempt(1, 0), tuples=tuples, latency_s=after_s))

    @property
    def rate(self) -> float:
        return self.snapshot().tuples_per_s


def test_the_first_rate_counts_from_the_beginning_of_the_run_and_not_from_the_first_commit() -> (
    None
):
    board = Board()
    board.begin(60.0)
    assert board.rate == 0
    board.commit(4.0, 1000)
    assert board.rate == 250
    board.commit(1.0, 1000)
    assert board.rate == 400


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    board = Board()
    board.begin()
    for _ in range(40):
        board.commit(1.0, 100)
    assert board.rate == pytest.approx(100, rel=0.1)
    for _ in range(40):
        board.commit(1.0, 500)
    assert board.rate == pytest.approx(500, rel=0.1)


def test_where_a_commit_takes_longer_than_the_window_the_rate_is_that_of_the_last_one() -> None:
    board = Board()
    board.begin()
    for _ in range(3):
        board.commit(30.0, 600)
        assert board.rate == 20
    board.clock.now += 20.0
    assert 10 < board.rate < 20


def test_an_error_that_the_run_has_got_past_leaves_the_line_and_is_told_at_the_end_with_its_time() -> (
    None
):
    board, shown = Board(), Shown(is_terminal=False)
    board.failed("ValueError: x\n  in component 'a'", 5)
    board.update(current=5)
    assert describe(board.snapshot()).endswith(", last error: ValueError: x")
    board.update(current=6)
    status = board.snapshot()
    assert status.standing_error is None
    assert "last error" not in describe(status)
    assert (status.last_error, status.last_error_txid) == ("ValueError: x\n  in component 'a'", 5)
    assert status.last_error_at is not None
    shown.progress.ended(status, "done")
    at = status.last_error_at.astimezone().strftime("%H:%M:%S")
    assert (
        shown.lines[0]
        == f"txtopo: the last attempt that failed was of txid 5, at {at}: ValueError: x"
    )
    board.failed("KeyError: y", 7)
    assert describe(board.snapshot()).endswith(", last error: KeyError: y")


def test_a_spout_that_answers_again_has_got_past_its_error() -> None:
    board = Board()
    board.open_failed(3, ConnectionError("no connection"))
    board.answered(4, SourceProgress())
    assert board.snapshot().standing_error == "opening txid 3: no connection"
    board.answered(3, SourceProgress())
    assert board.snapshot().standing_error is None


def test_an_answer_of_the_spout_leaves_an_error_of_another_cause_standing() -> None:
    board = Board()
    board.open_failed(3, ConnectionError("no connection"))
    board.failed("there is no ZooKeeper", None)
    board.answered(3, SourceProgress())
    assert board.snapshot().standing_error == "there is no ZooKeeper"


def test_the_error_that_ended_the_run_stays_after_any_commits() -> None:
    board = Board()
    board.failed("KeyError: y", 7)
    board.update(current=9)
    board.failed("it broke", None, state="failed")
    assert board.snapshot().standing_error == "it broke"


class Program:
    """A program that waits for a run, now and then."""

    def __init__(self, is_terminal: bool) -> None:
        self.shown = Shown(is_terminal)
        self.run = ShownRun(self.shown.progress, "127.0.0.1:1", "local[2]", self.shown.clock)

    def waits(self, status: RunStatus, after_s: float = 1.0) -> Program:
        self.shown.clock.now += after_s
        self.run.update(status, RUNNING)
        return self


def test_a_program_that_waits_has_the_line_and_gets_its_terminal_back_clean() -> None:
    program = Program(is_terminal=True).waits(RUNNING).waits(BUSY)
    program.run.pause()
    begins = "txtopo: words begins at txid 1 (generation 01234567, epoch 1); ZooKeeper 127.0.0.1:1; Spark local[2]"
    width = shutil.get_terminal_size().columns - 1
    assert program.shown.text == f"{begins}\n\r{describe(BUSY)[:width]}\x1b[K\r\x1b[K"
    program.run.pause()
    assert program.shown.text.endswith("\x1b[K\r\x1b[K")
    program.run.ended(BUSY, "done")
    program.run.ended(BUSY, "done")
    assert program.shown.text.count("words done: 41 transactions committed") == 1


def test_a_line_is_rewritten_no_oftener_than_a_person_can_read() -> None:
    program = Program(is_terminal=True).waits(RUNNING)
    for _ in range(100):
        program.waits(BUSY, after_s=0.009)
    assert 8 <= program.shown.text.count("\r") <= 9


def test_a_run_that_stands_by_says_so_once_and_is_announced_when_it_begins() -> None:
    program = Program(is_terminal=False)
    for _ in range(3):
        program.shown.clock.now += 1
        program.run.update(
            replace(RUNNING, state="standby", last_error="held by pid 7\nmore"), None
        )
    program.waits(RUNNING)
    assert program.shown.lines[0] == "txtopo: standing by: held by pid 7"
    assert program.shown.lines[1].startswith("txtopo: words begins at txid 1 ")


@pytest.mark.parametrize(
    ("asked", "is_terminal", "expected"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_a_program_shows_progress_where_a_person_looks_or_as_it_is_told(
    asked: bool | None, is_terminal: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    assert should_show(asked) is expected


@pytest.mark.parametrize(
    "error", [OSError("the terminal is gone"), ValueError("I/O operation on closed file")]
)
def test_a_terminal_that_has_gone_does_not_disturb_the_program(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(is_terminal=True).waits(RUNNING).waits(BUSY)
    written: list[str] = []

    def write(text: str) -> int:
        written.append(text)
        raise error

    monkeypatch.setattr(program.shown.stream, "write", write)
    program.waits(BUSY).waits(BUSY)
    program.run.pause()
    program.run.ended(BUSY, "done")
    assert len(written) == 1, "it is not tried again"


def test_a_warning_that_cannot_be_shown_does_not_break_its_caller() -> None:
    """The thread that warns is the run's own."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    logger = logging.Logger("run")
    logger.addHandler(Warnings(ProgressLine(Gone())))
    logger.warning("a worker died")
