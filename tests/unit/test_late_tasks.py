"""A late task's component, task, hook and stack reach the driver, and so the time-out's message."""

from __future__ import annotations

import ctypes
import faulthandler
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.topologies.recording import (
    FIRST,
    InProcessTopology,
    NotingBasicBolt,
    NotingBolt,
    NotingCommitter,
    RowsEmitter,
    RowsSpout,
    builder,
    pass_on,
    planned,
    rows,
)
from txtopo.dataplane import outcome
from txtopo.dataplane.guard import Guard
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import Failure
from txtopo.spark import late_tasks
from txtopo.spark.late_reports import LateReports, Line, locked_stack
from txtopo.spark.late_tasks import Watch, Watcher

pytestmark = pytest.mark.rule(8)

JOB = Job("run", "processing", FIRST, {})
SECRET = b"s" * 32
LATER = float("inf")

places: list[Failure] = []


def look(*ignored: Any) -> None:
    """Look at this thread as the watcher would, from inside a hook."""
    places.append(late_tasks.place(JOB, sys._getframe()))


class ClosingSpout(RowsSpout):
    """A spout whose emitters look when they are closed."""

    def get_emitter(self, conf: Any, context: Any) -> RowsEmitter:
        class Emitter(RowsEmitter):
            def close(self) -> None:
                look()

        return Emitter(self, context)


@pytest.mark.parametrize("cores", [1, 2], ids=["fused", "shuffled"])
def test_the_innermost_hook_is_named_with_the_stack_inside_it(cores: int) -> None:
    declared = builder(ClosingSpout())
    declared.set_bolt("first", NotingBolt(pass_on, look, look), 2).shuffle_grouping("spout")
    declared.set_bolt("basic", NotingBasicBolt(look)).shuffle_grouping("first")
    declared.set_bolt("count", NotingCommitter(look, look), 2).all_grouping("first")
    places.clear()
    with InProcessTopology(declared.build_topology(), cores) as topology:
        assert topology.run(planned({0: rows("x")})).failure is None
    assert {(each.component, each.task, each.phase, each.hook) for each in places} == {
        ("spout", 0, "processing", "close"),
        ("first", 0, "processing", "prepare"),
        ("first", 1, "processing", "prepare"),
        ("first", 0, "processing", "finish_batch"),
        ("first", 1, "processing", "finish_batch"),
        ("basic", 0, "processing", "execute"),
        ("count", 0, "processing", "execute"),
        ("count", 1, "processing", "execute"),
        ("count", 0, "commit", "finish_batch"),
        ("count", 1, "commit", "finish_batch"),
    }
    for each in places:
        assert "in look" in each.traceback
        assert "/txtopo/dataplane/" not in each.traceback


def test_a_task_between_two_hooks_is_told_without_a_component() -> None:
    look()
    assert (places[-1].component, places[-1].hook) == ("", "outside hooks")


@pytest.fixture
def reports() -> Iterator[LateReports]:
    at_driver = LateReports(SECRET)
    yield at_driver
    at_driver.close()


class Stuck:
    """A task of ``component`` that waits in C code inside its hook, until the test ends."""

    def __init__(self, line: Line, component: str, slot: int) -> None:
        self._begun, self._ends = threading.Event(), threading.Event()
        self._component, self._slot, self._line = component, slot, line
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        def wait_in_execute() -> None:
            self._begun.set()
            self._ends.wait()

        guard = Guard(JOB, "processing")
        self.watch = Watch(self._line, 10.0, JOB, 0, self._slot)
        guard.call(self._component, self._slot, "execute", wait_in_execute)

    def __enter__(self) -> Watch:
        self.thread.start()
        assert self._begun.wait(PATIENCE_S)
        return self.watch

    def __exit__(self, *raised: object) -> None:
        self._ends.set()
        self.thread.join()


def running() -> bool:
    return True


@pytest.mark.parametrize("address", [(), ("127.0.0.1", "127.0.0.1")], ids=["local", "cluster"])
def test_all_late_tasks_are_named_with_their_stacks(address: tuple[str, ...]) -> None:
    at_driver = LateReports(SECRET, *address)
    lines = [Line(at_driver.address, SECRET) for _ in range(2)]
    with Stuck(lines[0], "split", 0) as first, Stuck(lines[1], "count", 1) as second:
        for watch in (first, second):
            watch.look(0.0)
        assert "no task says where it is" in at_driver.places(JOB.name, running)
        for watch in (first, second):
            watch.look(LATER)
        told: list[str] = []

        def both_are_told() -> bool:
            told.append(at_driver.places(JOB.name, running))
            return "count" in told[-1] and "split" in told[-1]

        wait_until(both_are_told)
    assert told[-1].splitlines()[0] == (
        ": component 'split', task 0, execute; component 'count', task 1, execute"
    )
    assert told[-1].count("in wait_in_execute") == told[-1].count("self._ends.wait()") == 2
    assert "no task says where it is" in at_driver.places("another job", running)
    for line in lines:
        line.close()
    at_driver.close()


def test_a_task_reports_its_newest_hook_and_only_a_few_times(
    reports: LateReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(reports.address, SECRET)
    for hook in ("prepare", "execute"):
        line.report(JOB.name, (0, 0), Failure("late", "a", 0, FIRST, "processing", hook, "", ""))
    assert reports.places(JOB.name, running).splitlines()[0] == ": component 'a', task 0, execute"
    sent: list[object] = []
    monkeypatch.setattr(line, "report", lambda *report: sent.append(report))
    with Stuck(line, "a", 0) as watch:
        for _ in range(10):
            watch.look(LATER)
    assert len(sent) == late_tasks._REPORTS_MAX
    line.close()


def test_the_time_that_earlier_levels_took_counts(reports: LateReports) -> None:
    line = Line(reports.address, SECRET)
    late = Watch(line, 3600.0, JOB, 1, 0, submitted_at=0.0)
    late.look(time.monotonic())
    assert "between two hooks" in reports.places(JOB.name, running)
    line.close()


def test_silence_is_explained_by_whether_a_task_runs(reports: LateReports) -> None:
    silent = reports.places(JOB.name, lambda: True)
    waiting = reports.places(JOB.name, lambda: False)
    assert "dead, suspended or cut off" in silent
    assert "no free slot" in waiting


def test_bytes_without_the_signature_are_not_read_and_do_not_stop_the_driver() -> None:
    at_driver = LateReports(SECRET, "127.0.0.1", "127.0.0.1")
    assert isinstance(at_driver.address, tuple)
    foreign = outcome.signed(
        (JOB.name, (0, 0), Failure("late", "x", 0, FIRST, "", "", "", "")), b"another"
    )
    endless: Any = Endless()
    at_driver._connections[endless] = bytearray()
    with (
        socket.create_connection(at_driver.address),
        socket.create_connection(at_driver.address) as forger,
    ):
        forger.sendall(f"{foreign}tail".encode())
        wait_until(lambda: forged_bytes_arrived(at_driver))
        for _ in range(3):
            assert "no task says where it is" in at_driver.places(JOB.name, running)
        assert all(len(data) <= 256 * 1024 for data in at_driver._connections.values())
    at_driver.close()


def forged_bytes_arrived(at_driver: LateReports) -> bool:
    at_driver.places("another job", running)
    Endless.reads = 0
    return len(at_driver._connections) == 3 and any(
        isinstance(each, socket.socket) and at_driver._connections[each]
        for each in at_driver._connections
    )


class Endless:
    """A connection that always has bytes to read."""

    reads = 0

    def recv(self, size: int) -> bytes:
        Endless.reads += 1
        assert Endless.reads < 20, "the driver reads on and on"
        return b"x" * size

    def close(self) -> None:
        """There is nothing to close."""


def test_a_worker_of_a_cluster_that_reaches_no_driver_prints_its_report(
    capfd: pytest.CaptureFixture[str],
) -> None:
    at_driver = LateReports(SECRET, "127.0.0.1", "127.0.0.1")
    line = Line(at_driver.address, SECRET)
    failure = Failure("late", "split", 0, FIRST, "processing", "execute", "", "")
    line.report(JOB.name, (0, 0), failure)
    assert capfd.readouterr().err == ""
    at_driver.close()
    line.report(JOB.name, (0, 0), failure)
    assert "1:0:processing is late\n  in component 'split', task 0" in capfd.readouterr().err
    assert line.fileno() == 2
    line.awake()


def test_a_worker_whose_local_run_has_ended_prints_nothing(
    reports: LateReports, capfd: pytest.CaptureFixture[str]
) -> None:
    line = Line(reports.address, SECRET)
    reports.close()
    line.report(JOB.name, (0, 0), Failure("late", "a", 0, FIRST, "", "", "", ""))
    assert capfd.readouterr().err == ""
    assert line.fileno() == 2


def test_c_code_that_keeps_the_lock_shows_its_stack_through_faulthandler(
    reports: LateReports,
) -> None:
    line = Line(reports.address, SECRET)
    with Stuck(line, "split", 0):
        faulthandler.dump_traceback(file=line.fileno())
    told = reports.places(JOB.name, running)
    assert told.splitlines()[0] == ": C code keeps Python's lock"
    assert "in wait_in_execute" in told
    assert "/txtopo/dataplane/" not in told
    line.awake()
    assert "no task says where it is" in reports.places(JOB.name, running)
    line.close()


def test_faulthandlers_stack_is_turned_round() -> None:
    with tempfile.TemporaryFile("w+") as file:
        line = Line("", SECRET)
        with Stuck(line, "split", 0):
            faulthandler.dump_traceback(file=file)
        file.seek(0)
        text = file.read()
    calls = [line for line in locked_stack(text).splitlines() if line.startswith("  File")]
    assert calls[0].endswith(", in wait_in_execute")
    assert calls[-1].endswith(", in wait")
    assert locked_stack('Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n') == ""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Watcher]:
    """The watchers that began, after a look before any C code of a task."""
    threads: list[Watcher] = []
    looked: set[Watcher] = set()

    def start(self: Watcher) -> None:
        assert self in looked
        threads.append(self)

    monkeypatch.setattr(late_tasks, "_watcher", None)
    monkeypatch.setattr(Watcher, "start", start)
    monkeypatch.setattr(Watcher, "try_look", lambda self: looked.add(self))
    monkeypatch.setattr(Watcher, "is_alive", lambda self: True)
    return threads


def test_a_process_has_one_thread_and_a_new_one_if_it_has_died_or_is_too_slow(
    begun: list[Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(timeout_s: float) -> None:
        with Watch(Line("", SECRET), timeout_s, JOB) as nothing:
            assert nothing is None
            assert late_tasks._watcher is not None
            assert late_tasks._watcher.task is not None
        assert late_tasks._watcher.task is None

    for timeout_s in (30.0, 30.0, 60.0):
        watch(timeout_s)
    assert [thread.timeout_s for thread in begun] == [30.0]
    watch(5.0)
    assert [thread.timeout_s for thread in begun] == [30.0, 5.0]
    monkeypatch.setattr(Watcher, "is_alive", lambda self: False)
    watch(30.0)
    assert [thread.timeout_s for thread in begun] == [30.0, 5.0, 30.0]

    def no_thread_is_left(self: Watcher) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Watcher, "start", no_thread_is_left)
    watch(30.0)


def test_faulthandler_is_called_off_before_a_connection_is_closed(
    reports: LateReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, open_at_the_call = Line(reports.address, SECRET), list[bool]()

    def cancel() -> None:
        assert line._connection is not None
        open_at_the_call.append(line._connection.fileno() >= 0)

    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", cancel)
    line.fileno()
    line.close()
    assert open_at_the_call == [True]


def test_a_task_that_is_closed_late_leaves_the_next_task_watched(begun: list[Watcher]) -> None:
    line = Line("", SECRET)
    first, second = Watch(line, 30.0, JOB), Watch(line, 30.0, JOB)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert begun[0].task is second


def test_each_look_puts_faulthandler_off_and_a_late_look_voids_its_stacks(
    reports: LateReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_off: list[tuple[float, Line]] = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda after_s, file: put_off.append((after_s, file))
    )
    line = Line(reports.address, SECRET)
    with Stuck(line, "split", 0) as watch:
        watcher = Watcher(watch)
        watcher.task, watcher._looked_at = watch, 0.0
        watcher.look(5.0)
        faulthandler.dump_traceback(file=line.fileno())
        assert "C code keeps Python's lock" in reports.places(JOB.name, running)
        watcher.look(10.0)
        assert "C code keeps Python's lock" in reports.places(JOB.name, running)
        watcher.look(20.0)
        assert "C code keeps Python's lock" not in reports.places(JOB.name, running)
        watcher.task = None
        watcher.look(21.0)
        watch.look(LATER)
        assert "component 'split', task 0, execute" in reports.places(JOB.name, running)
    assert put_off == [(7.0, line)] * 4
    monkeypatch.setenv("PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS", "5")
    watcher.look(22.0)
    assert len(put_off) == 4, "Spark uses the timer itself"
    line.close()


def test_an_error_does_not_end_the_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher = Watcher(Watch(Line("", SECRET), 1e-3, JOB))
    monkeypatch.setattr(late_tasks, "_watcher", watcher)
    looks = iter([ValueError("one"), ValueError("two")])

    def fail(now: float) -> None:
        error = next(looks, None)
        if error is None:
            monkeypatch.setattr(late_tasks, "_watcher", None)
        else:
            raise error

    monkeypatch.setattr(watcher, "look", fail)
    watcher.run()
    assert "ValueError: two" in capsys.readouterr().err


def sleep() -> None:
    threading.Event().wait()


def spin() -> None:
    while True:
        pass


def wait_in_c() -> None:
    ctypes.CDLL(None).pause()


def keep_the_lock() -> None:
    ctypes.PyDLL(None).pause()


HANGS = {hang.__name__: hang for hang in (sleep, spin, wait_in_c, keep_the_lock)}


def hang_here(address: str, hang: str) -> None:
    """In a process of its own: hang in ``execute``."""
    with Watch(Line(address, SECRET), 0.5, JOB):
        Guard(JOB, "processing").call("split", 0, "execute", HANGS[hang])


@pytest.mark.in_gate("spin", "keep_the_lock")
@pytest.mark.parametrize("hang", HANGS)
def test_every_way_to_hang_in_a_worker_is_shown(reports: LateReports, hang: str) -> None:
    code = "import sys; from tests.unit.test_late_tasks import hang_here; hang_here(*sys.argv[1:])"
    worker = subprocess.Popen([sys.executable, "-c", code, str(reports.address), hang])
    try:
        wait_until(lambda: f"in {hang}" in reports.places(JOB.name, running), "a report")
        told = reports.places(JOB.name, running)
    finally:
        worker.kill()
        worker.wait()
    kept, named = ": C code keeps Python's lock", ": component 'split', task 0, execute"
    assert told.splitlines()[0] == (kept if hang == "keep_the_lock" else named)
