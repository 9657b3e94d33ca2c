"""``txtopo top``: rows for a canned journal, the choice of the topology, and the terminal.

The rows are compared with ``tests/unit/frames``.
"""

from __future__ import annotations

import dataclasses
import os
import pty
import re
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import patience
from tests.canned_run import PLAN, of_a_while
from tests.patience import PATIENCE_S
from tests.unit import test_watch
from tests.unit.test_journal import AT, write
from txtopo.command import cli, top
from txtopo.journal import live, recording, records, watch
from txtopo.journal.records import Record

FRAMES = Path(__file__).parent / "frames"
OPEN_S = 60.0


def ended(at_s: float, txid: int, n: int, outcome: str, *lengths: float, **more: Any) -> Record:
    """The record of an attempt that ended ``at_s`` after AT."""
    names = ("processing", "processed", "applying")
    steps = tuple(zip(names, lengths, strict=False))
    attempt = test_watch.ended(txid, n, outcome, steps=steps, latency_s=sum(lengths), **more)
    return records.attempt(attempt, AT + at_s, "full")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A run with commits, a failed attempt, a discarded one, and two transactions in flight."""
    place = recording.place(tmp_path, "words")
    failure = test_watch.failure("ValueError: cannot\nparse", "sp\x1blit")
    written = [
        ended(20.0, 7, 0, "committed", 15.0, 1.0, 4.0),
        ended(31.0, 8, 0, "failed", 20.0, failure=failure),
        ended(31.0, 9, 0, "behind", 16.0, 3.0),
        ended(50.0, 8, 1, "committed", 12.0, 0.0, 7.0),
    ]
    write(place, *written, first=test_watch.head())
    run = test_watch.Run(place)
    active: Any = ((9, 1, "processed"), (10, 0, "processing"))
    run.write(1.0, active=((9, 1, "processing"),))
    run.write(16.0, active=active)
    run.moment = live.Moment(AT + 58.0, run.moment.status, AT, False, 0)
    counts: Any = {"committed": 2, "failed": 1, "behind": 1, "tuples_per_s": 3.6}
    run.write(10.0, active=active, state="running", **counts)
    return tmp_path


def rows(data_dir: Path, after_s: float, *arguments: Any) -> list[str]:
    now = AT + after_s
    watched = watch.Watch(recording.place(data_dir, "words"), lambda: now)
    watched.refresh()
    frame = top.frame(watched.view(), now, *arguments)
    return ["".join(text for text, _ in row).rstrip() for row in frame]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_transactions_are_shown_side_by_side(data_dir: Path, width: int) -> None:
    shown = rows(data_dir, OPEN_S, width, 24)
    assert max(map(len, shown)) <= width
    assert shown == (FRAMES / f"top-{width}.txt").read_text(encoding="utf-8").splitlines()


def test_the_newest_transactions_remain_in_a_low_window(data_dir: Path) -> None:
    assert [row.split()[0] for row in rows(data_dir, OPEN_S, 80, 7)[3:5]] == ["9", "10"]


def test_failures_are_shown_with_tracebacks_and_cannot_control_the_terminal(data_dir: Path) -> None:
    *_, failure, trace = rows(data_dir, OPEN_S, 200, 24, "f")
    assert failure.endswith(
        "8:0 failed, committed by 8:1: sp lit, task 0, execute: ValueError: cannot"
    )
    assert trace == "  traceback"


def test_sources_stores_standbys_and_the_plan_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = of_a_while(tmp_path, 8)
    run.moment = dataclasses.replace(run.moment, standbys=2)
    patience.wait_until(lambda: (live.read(run.path) or {}).get("standbys") == 2)
    title, *_, sources, stores = printed(capsys, "--once", "--data-dir", str(tmp_path)).splitlines()
    assert title.endswith("running, ZooKeeper ok, 2 standbys")
    assert sources == "sources   orders/0 1,200 behind · orders/1 0 behind"
    assert stores == "stores    count/counts 8:0, 0 ago · count/totals 8:0, 0 ago"
    watched = watch.Watch(run.path)
    watched.refresh()
    frame = top.frame(watched.view(), time.time(), 100, 24, "p")
    shown = ["".join(text for text, _ in row) for row in frame]
    assert [row.split()[0] for row in shown[3:8]] == [id for id, *_ in PLAN]
    split = re.sub(r" [\d,]+ in, [\d,]+ out/s", " 1 in, 2 out/s", shown[4])
    numbers = "1 in, 2 out/s, skew 1.50, 0.010 ms/tuple"
    assert split.split(None, 1)[1] == f"bolt x2       {numbers}  <- lines: shuffle"
    low = ["".join(text for text, _ in row) for row in top.frame(watched.view(), 0.0, 80, 8)]
    assert not any(row.startswith("stores") for row in low), "transactions come first"
    run.end()


def test_wide_characters_take_two_columns(data_dir: Path) -> None:
    failure = test_watch.failure("ValueError: cannot parse 単語が見つかりません", "sp")
    write(
        recording.place(data_dir, "words"),
        ended(59.0, 9, 1, "failed", 9.0, failure=failure),
        first=test_watch.head(),
    )
    shown = rows(data_dir, OPEN_S, 60, 24)[-1]
    assert shown == "9:1 failed: sp, task 0, execute: ValueError: cannot parse …"
    assert rows(data_dir, OPEN_S, 61, 24)[-1].endswith("単…")


def test_the_lanes_of_a_dead_run_end_and_the_title_says_since_when(data_dir: Path) -> None:
    title, *_ = rows(data_dir, 70.0, 80, 24)
    assert title == "words, epoch 1: running, ZooKeeper ok"  # another machine's: not yet
    title, numbers, *rest = rows(data_dir, 90.0, 80, 24)
    assert title == "words, epoch 1: died 32 s ago"
    assert "2 not finished" in numbers
    later = rows(data_dir, 900.0, 80, 24)
    assert later[0] == "words, epoch 1: died 14 min ago"
    assert later[2:] == rest


def test_an_attempt_that_has_just_ended_is_shown_once(data_dir: Path) -> None:
    place = recording.place(data_dir, "words")
    committed = ended(59.0, 9, 1, "committed", 9.0, 1.0, 9.0)
    write(place, committed, first=test_watch.head())
    (lane,) = (row for row in rows(data_dir, OPEN_S, 80, 24) if row.startswith("       9 "))
    assert "2 attempts" in lane


def test_an_ended_run_says_how_and_has_nothing_in_flight(data_dir: Path) -> None:
    place = recording.place(data_dir, "words")
    error = ValueError("cannot parse\nTraceback")
    write(place, records.run_ended(error, AT + 59, "full"), first=test_watch.head(2))
    title, *_ = rows(data_dir, OPEN_S, 200, 24)
    assert title.startswith(
        "words, epoch 2: ended with exit code 1 at 2026-09-21T14:14:19.000Z: cannot parse"
    )


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main(["top", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_without_a_terminal_the_frame_is_printed_once(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, "--data-dir", str(data_dir))
    assert out.startswith("words, epoch 1: died ")
    assert "\x1b" not in out
    assert out == printed(capsys, "words", "--data-dir", str(data_dir))


def test_several_topologies_are_named_and_a_missing_journal_is_refused(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(recording.place(data_dir, "a/b"), first=test_watch.head())
    where = ("--data-dir", str(data_dir))
    assert "journals of several topologies: a/b, words" in printed(capsys, *where, code=2)
    assert "no journal of topology 'x' in" in printed(capsys, "x", *where, code=2)
    elsewhere = ("--data-dir", str(tmp_path / "none"))
    assert "there is no journal in" in printed(capsys, *elsewhere, code=2)


# -- the terminal --------------------------------------------------------------------------------


class Terminal:
    """A terminal that is this process's standard input and output. ``stimulus`` follows the first
    frame."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ours, theirs = pty.openpty()
        self.stdin, self.stdout = os.fdopen(theirs), os.fdopen(os.dup(theirs), "w")
        self._patch = patch
        self.seen = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.stimulus: Callable[[], object] = lambda: None

    def _read(self) -> None:
        try:
            while chunk := os.read(self.ours, 65536):
                is_first = b"epoch 1" not in self.seen
                self.seen += chunk
                if is_first and b"epoch 1" in self.seen:
                    self.stimulus()
        except OSError:
            pass  # Linux's sign that no process has the terminal open any more.

    def run(self, stimulus: Callable[[], object], *arguments: str) -> int:
        self.stimulus = stimulus
        self._thread.start()
        with self._patch.context() as patch:
            patch.setattr(sys, "stdin", self.stdin)
            patch.setattr(sys, "stdout", self.stdout)
            patch.setenv("TERM", "xterm")
            return cli.main(["top", *arguments])

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.stdin)

    def close(self) -> str:
        """All that the terminal has shown."""
        if not self.stdin.closed:
            self.stdin.close()
            self.stdout.close()
            self._thread.join(PATIENCE_S)
            os.close(self.ours)
        return self.seen.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    opened = Terminal(monkeypatch)
    yield opened
    opened.close()


@pytest.mark.parametrize("is_plain", [False, True])
def test_no_color_is_obeyed(
    data_dir: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", "1" if is_plain else "")
    terminal.run(lambda: os.write(terminal.ours, b"q"), "--data-dir", str(data_dir))
    assert (re.search(r"\x1b\[[\d;]*3[1-7]m", terminal.close()) is None) == is_plain


@pytest.mark.parametrize(
    ("signum", "code"), [(None, 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_the_terminal_is_as_before_after_the_key_q_and_after_signals(
    data_dir: Path, terminal: Terminal, signum: int | None, code: int
) -> None:
    modes: list[list[Any]] = [terminal.modes()]

    def end() -> None:
        modes.append(terminal.modes())
        if signum is None:
            os.write(terminal.ours, b"fpq")
        else:
            os.kill(os.getpid(), signum)

    assert terminal.run(end, "--data-dir", str(data_dir)) == code
    before, meanwhile = modes
    assert before[3] & termios.ECHO
    assert not meanwhile[3] & termios.ECHO
    assert terminal.modes() == before
    seen = terminal.close()
    for shown, hidden in (("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")):
        assert 0 <= seen.rindex(shown) < seen.rindex(hidden)


def test_without_rich_the_frame_is_printed_once_with_the_cure(
    data_dir: Path,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert terminal.run(lambda: None, "--data-dir", str(data_dir)) == 0
    assert "epoch 1: died" in terminal.close()
    assert "pip install 'txtopo[top]'" in capsys.readouterr().err
