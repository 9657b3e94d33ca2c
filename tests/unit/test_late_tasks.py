"""A late task's component, task, hook and stack reach the time-out's message: on a local master by a
file, on a cluster by the executor's standard error."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
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
from txtopo.dataplane.guard import Guard
from txtopo.dataplane.job import Job
from txtopo.spark import late_tasks
from txtopo.spark.late_tasks import Watch, Watcher

pytestmark = pytest.mark.rule(8)

JOB = Job("run", "processing", FIRST, {})
LATER = float("inf")

seen: list[str] = []


def run_in(directory: Path | str, timeout_s: float = 10.0) -> Any:
    """A run whose workers write into ``directory``, or print if there is none."""
    conf = {"message_timeout_s": timeout_s}
    return SimpleNamespace(
        late_tasks=str(directory), conf=conf, graph=SimpleNamespace(id="words"), token="run"
    )


def look(*ignored: Any) -> None:
    """Look at this thread as the watcher would, from inside a hook."""
    seen.append(late_tasks.place(sys._getframe()))


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
    seen.clear()
    with InProcessTopology(declared.build_topology(), cores) as topology:
        assert topology.run(planned({0: rows("x")})).failure is None
    assert {each.splitlines()[0] for each in seen} == {
        "component 'spout', task 0, close",
        *(
            f"component '{component}', task {task}, {hook}"
            for component, hooks in {
                "first": ("prepare", "finish_batch"),
                "count": ("execute", "finish_batch"),
            }.items()
            for task in (0, 1)
            for hook in hooks
        ),
        "component 'basic', task 0, execute",
    }
    for each in seen:
        assert "in look" in each
        assert "/txtopo/dataplane/" not in each


def test_a_task_between_two_hooks_is_told_without_a_component() -> None:
    look()
    assert seen[-1].splitlines()[0] == "unknown component, between two hooks"


class Stuck:
    """A task of ``component`` that waits in C code inside its hook, until the test ends."""

    def __init__(self, run: Any, component: str, slot: int) -> None:
        self._begun, self._ends = threading.Event(), threading.Event()
        self._run, self._component, self._slot = run, component, slot
        self.thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        def wait_in_execute() -> None:
            self._begun.set()
            self._ends.wait()

        self.watch = Watch(self._run, JOB, 0, self._slot)
        Guard(JOB, "processing").call(self._component, self._slot, "execute", wait_in_execute)

    def __enter__(self) -> Watch:
        self.thread.start()
        assert self._begun.wait(PATIENCE_S)
        return self.watch

    def __exit__(self, *raised: object) -> None:
        self._ends.set()
        self.thread.join()


def running() -> bool:
    return True


@pytest.fixture
def no_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_tasks, "_watcher", None)


@pytest.mark.usefixtures("no_watcher")
def test_all_late_tasks_are_named_with_their_stacks_once(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    with Stuck(run, "split", 0) as first, Stuck(run, "count", 1) as second:
        for now in (0.0, LATER):
            for watch in (first, second):
                watch.look(now)
            if now == 0.0:
                assert "no task says" in late_tasks.places(run, JOB.name, running)
        assert "no task says" in late_tasks.places(run, "another job", running)
        told = late_tasks.places(run, JOB.name, running)
        assert told.splitlines()[0] == (
            ": component 'split', task 0, execute; component 'count', task 1, execute"
        )
        assert told.count("in wait_in_execute") == told.count("self._ends.wait()") == 2
        assert "no task says" in late_tasks.places(run, JOB.name, running), "files are removed"


@pytest.mark.usefixtures("no_watcher")
def test_on_a_cluster_the_place_is_printed_and_the_message_says_how_to_search_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = run_in("")
    with Stuck(run, "split", 0) as watch:
        for _ in range(10):
            watch.look(LATER)
    printed = capfd.readouterr().err
    assert printed.startswith(
        "words 1:0:processing is late\n  in component 'split', task 0, execute\n"
    )
    assert printed.count("in wait_in_execute") == late_tasks._PRINTED_MAX
    told = late_tasks.places(run, JOB.name, running)
    assert told.splitlines()[0] == (
        ": only the executor knows where, search its standard error for 'words 1:0:processing is late'"
    )


def test_silence_is_explained_by_whether_a_task_runs(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert "dead or suspended" in late_tasks.places(run, JOB.name, lambda: True)
    for each in (run, run_in("")):
        assert "no free slot" in late_tasks.places(each, JOB.name, lambda: False)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, no_watcher: None) -> list[Watcher]:
    """The watchers that began, after a look before any C code of a task."""
    threads: list[Watcher] = []
    looked: set[Watcher] = set()

    def start(self: Watcher) -> None:
        assert self in looked
        threads.append(self)

    monkeypatch.setattr(Watcher, "start", start)
    monkeypatch.setattr(Watcher, "try_look", lambda self: looked.add(self))
    monkeypatch.setattr(Watcher, "is_alive", lambda self: True)
    return threads


@pytest.mark.usefixtures("no_watcher")
def test_the_time_that_earlier_levels_took_counts(tmp_path: Path) -> None:
    run = run_in(tmp_path, 3600.0)
    for submitted_at, files in ((time.time(), 0), (0.0, 1)):
        Watch(run, JOB, 1, 0, submitted_at).look(time.monotonic())
        assert len(list(tmp_path.iterdir())) == files


@pytest.mark.parametrize("ends", ["after the look", "during the look", "after the run"])
def test_a_task_that_ends_leaves_no_file(
    tmp_path: Path, begun: list[Watcher], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    run = run_in(tmp_path if ends != "after the run" else tmp_path / "removed")
    watch, place = Watch(run, JOB), late_tasks.place
    watch.__enter__()
    if ends == "during the look":

        def end(frame: Any) -> str:
            watch.__exit__()
            return place(frame)

        monkeypatch.setattr(late_tasks, "place", end)
    watch.look(LATER)
    if ends == "after the look":
        assert [path.name for path in tmp_path.iterdir()] == [f"{JOB.name}.0.0"]
    if ends != "during the look":
        watch.__exit__()
    assert list(tmp_path.iterdir()) == []
    assert begun[0].task is None


@pytest.mark.usefixtures("no_watcher")
def test_a_file_is_not_read_before_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = run_in(tmp_path), list[str]()
    monkeypatch.setattr(
        Path, "replace", lambda *paths: told.append(late_tasks.places(run, JOB.name, running))
    )
    Watch(run, JOB).look(LATER)
    assert "no task says" in told[0]


def test_a_process_has_one_thread_and_a_new_one_if_it_has_died_or_is_too_slow(
    begun: list[Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(timeout_s: float) -> None:
        with Watch(run_in("", timeout_s), JOB):
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


def test_a_task_that_is_closed_late_leaves_the_next_task_watched(begun: list[Watcher]) -> None:
    first, second = Watch(run_in(""), JOB), Watch(run_in(""), JOB)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert begun[0].task is second


def test_each_look_puts_faulthandler_off_unless_spark_uses_its_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_off: list[float] = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda after_s, file: put_off.append(after_s)
    )
    watcher = Watcher(5.0)
    watcher.look(0.0)
    watcher.task = Watch(run_in("", 10.0), JOB)
    watcher.look(0.0)
    monkeypatch.setenv("PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS", "5")
    watcher.look(0.0)
    assert put_off == [4.0, 8.0]


def test_an_error_does_not_end_the_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher = Watcher(1e-3)
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


def hang_here(directory: str, hang: str) -> None:
    """In a process of its own: hang in ``execute``."""
    with Watch(run_in(directory, 0.5), JOB):
        Guard(JOB, "processing").call("split", 0, "execute", HANGS[hang])


@pytest.fixture
def hung(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The directory of a worker that hangs, with its standard error in ``stderr``."""
    code = "import sys; from tests.unit.test_late_tasks import hang_here; hang_here(*sys.argv[1:])"
    (tmp_path / "late").mkdir()
    with (tmp_path / "stderr").open("w") as stderr:
        worker = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "late"), request.param], stderr=stderr
        )
    yield tmp_path
    worker.kill()
    worker.wait()


@pytest.mark.in_gate("spin")
@pytest.mark.parametrize("hung", [sleep.__name__, spin.__name__, wait_in_c.__name__], indirect=True)
def test_every_way_to_hang_in_a_worker_is_told(hung: Path, request: pytest.FixtureRequest) -> None:
    told: list[str] = []

    def is_told() -> bool:
        told.append(late_tasks.places(run_in(hung / "late"), JOB.name, running))
        return "component" in told[-1]

    wait_until(is_told, "a place")
    assert told[-1].splitlines()[0] == ": component 'split', task 0, execute"
    assert f"in {request.node.callspec.params['hung']}" in told[-1]


@pytest.mark.parametrize("hung", [keep_the_lock.__name__], indirect=True)
def test_c_code_that_keeps_the_lock_is_shown_on_standard_error(hung: Path) -> None:
    wait_until(lambda: "in keep_the_lock" in (hung / "stderr").read_text(), "a stack")
    assert os.listdir(hung / "late") == []
