"""How a run looks: one line that is rewritten on a terminal, otherwise few lines that each say something new."""

from __future__ import annotations

import io
from dataclasses import replace

from txtopo.runtime.progress import INTERVAL_S, Progress, describe
from txtopo.runtime.status import RunStatus

RUNNING = RunStatus("words", "run", state="running", generation="0123456789abcdef", epoch=1, current=1)
IN_FLIGHT = ((42, 0, "committing"), (43, 0, "processing"))
BUSY = replace(RUNNING, current=42, active=IN_FLIGHT, tuples_per_s=12345.6, last_commit_latency_s=0.214, replays=2, committed=41)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Shown:
    """A progress, and what it has written."""

    def __init__(self, is_terminal: bool) -> None:
        self.clock, self.stream = Clock(), io.StringIO()
        self.progress = Progress(self.stream, self.clock, is_terminal)

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
    assert describe(BUSY) == "txid 41 committed, 2 in flight, 12,346 tuples/s, last commit took 0.21 s, 2 replays"
    assert describe(replace(BUSY, idle=True)).endswith(", 2 replays, waiting for input")
    assert describe(replace(BUSY, state="draining", idle=True)).endswith(", 2 replays, stopping")
    assert describe(replace(BUSY, replays=1, last_error="ValueError: x\n  in component 'a'")).endswith(", 1 replay, last error: ValueError: x")


def test_the_first_line_says_where_the_run_begins_and_the_last_how_it_ended() -> None:
    shown = Shown(is_terminal=False)
    shown.progress.started(RUNNING, "127.0.0.1:2181", "local[2]")
    shown.progress.started(replace(RUNNING, epoch=3, current=42), "127.0.0.1:2181", "local[2]")
    shown.progress.stopping()
    shown.progress.ended(replace(BUSY, tuples=1, replays=1), "stopped")
    assert shown.lines == [
        "txtopo: words begins at txid 1 (generation 01234567, epoch 1); ZooKeeper 127.0.0.1:2181; Spark local[2]",
        "txtopo: words resumes at txid 42 (generation 01234567, epoch 3); ZooKeeper 127.0.0.1:2181; Spark local[2]",
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
    assert shown.lines == [f"txtopo: {describe(BUSY)}", f"txtopo: {describe(replace(BUSY, current=60))}"]


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
    assert shown.text.endswith("\r\x1b[Ktxtopo: stopping: finishing commits in flight (again to stop now)\n")


def test_a_terminal_line_never_wraps() -> None:
    shown = Shown(is_terminal=True)
    shown.update(replace(BUSY, last_error="x" * 10_000))
    assert len(shown.text) < 1000


def test_whether_there_is_a_terminal_is_asked_of_the_stream() -> None:
    stream = io.StringIO()
    clock = Clock()
    progress = Progress(stream, clock)
    progress.update(BUSY)
    assert stream.getvalue() == ""
