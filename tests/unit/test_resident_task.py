"""A resident task: its requests, its end, and the rest of a request without an answer. A thread
stands in for Spark's task."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import NoReturn

import pytest

from tests.patience import PATIENCE_S
from txtopo.spark import resident_task, sockets
from txtopo.spark.resident_task import ResidentTasks, Seats, TaskLostError

ENDLESS_S = 1e6
"""Longer than any test."""


class Spark:
    """Runs the "jobs": each answers a request with the request itself, its group in front, until
    the driver hangs up."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.cancelled: list[str] = []
        self.in_request = threading.Event()
        self.goes_on = threading.Event()

    def launch(self, group: str, address: str) -> None:
        self.jobs.append(group)
        try:
            with Client(address, "AF_UNIX") as channel:
                while True:
                    request = channel.recv_bytes()
                    if request == b"die":
                        raise RuntimeError("the worker died")
                    if request == b"hang":
                        self.in_request.set()
                        self.goes_on.wait()
                    channel.send_bytes(group.encode() + b" " + request)
        except (EOFError, OSError):
            if self.cancelled:
                raise RuntimeError("the job was cancelled") from None
        finally:
            self.ended.put(group)

    def cancel(self, group: str) -> None:
        self.cancelled.append(group)
        self.goes_on.set()


@pytest.fixture
def spark() -> Spark:
    return Spark()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where addresses are made."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(sockets, "directory", lambda: tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _stays(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a test says otherwise, no time is long enough to end a task."""
    for bound, time_s in {"_LIFE_S": math.inf, "_IDLE_S": ENDLESS_S, "_END_S": ENDLESS_S}.items():
        monkeypatch.setattr(resident_task, bound, time_s)


@contextlib.contextmanager
def tasks(
    spark: Spark,
    cores: int = 2,
    launch: Callable[[str, str], None] | None = None,
    seats: Seats | None = None,
) -> Iterator[ResidentTasks]:
    resident_tasks = ResidentTasks(
        "run", cores, launch or spark.launch, spark.cancel, seats or Seats()
    )
    try:
        yield resident_tasks
    finally:
        spark.goes_on.set()
        resident_tasks.close()


def first(number: int = 1) -> bytes:
    return f"run/resident-{number}:whole".encode()


def in_background(asked: Callable[[], object]) -> Callable[[], object]:
    """Begin ``asked`` on a thread; the returned function waits for the result, or raises the
    exception."""
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(asked())
        except TaskLostError as error:
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    return lambda: answers.get(timeout=PATIENCE_S)


def test_one_task_answers_one_request_after_the_other(spark: Spark) -> None:
    with tasks(spark) as resident_tasks:
        assert [resident_tasks.ask(f"run/{n}", b"%d" % n) for n in range(5)] == [
            first() + b" %d" % n for n in range(5)
        ]
        assert spark.jobs == ["run/resident-1:whole"]
        assert resident_tasks.spark_group("run/4") is None, "it has answered"


def test_an_idle_task_ends_and_the_next_request_gets_a_new_task(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_task, "_IDLE_S", 0.01)
    with tasks(spark) as resident_tasks:
        resident_tasks.ask("run/1", b"a")
        assert spark.ended.get(timeout=PATIENCE_S) == "run/resident-1:whole"
        assert resident_tasks.ask("run/2", b"b") == first(2) + b" b"


def test_a_task_at_work_is_not_idle(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident_task, "_IDLE_S", 0.001)
    with tasks(spark) as resident_tasks:
        answer = in_background(lambda: resident_tasks.ask("run/1", b"hang"))
        assert spark.in_request.wait(PATIENCE_S)
        assert not spark.goes_on.wait(0.1), "a hundred times as long as an idle task stays"
        spark.goes_on.set()
        assert answer() == first() + b" hang"


def test_an_old_task_answers_and_ends(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident_task, "_LIFE_S", 0.0)
    with tasks(spark) as resident_tasks:
        assert [resident_tasks.ask(f"run/{n}", b"a") for n in (1, 2)] == [
            first(1) + b" a",
            first(2) + b" a",
        ]
        assert {spark.ended.get(timeout=PATIENCE_S) for _ in (1, 2)} == {
            "run/resident-1:whole",
            "run/resident-2:whole",
        }


def test_the_end_of_a_task_is_told_and_only_its_request_is_lost(spark: Spark) -> None:
    with tasks(spark) as resident_tasks:
        resident_tasks.ask("run/1", b"a")
        with pytest.raises(TaskLostError, match="the worker died"):
            resident_tasks.ask("run/2", b"die")
        assert resident_tasks.ask("run/3", b"c") == first(2) + b" c"
        assert resident_tasks.spark_group("run/2") == "run/resident-1:whole", (
            "its Spark job is what may still be running"
        )
        assert resident_tasks.spark_group("run/1") is None


def test_a_job_that_spark_refuses_is_an_error_of_the_request(spark: Spark, directory: Path) -> None:
    def refused(group: str, address: str) -> None:
        raise RuntimeError("no executor")

    with tasks(spark, launch=refused) as resident_tasks:
        with pytest.raises(TaskLostError, match="no executor"):
            resident_tasks.ask("run/1", b"a")
    assert list(directory.iterdir()) == []


@pytest.mark.rule(33)
def test_a_request_is_cancelled_with_the_spark_job_that_serves_it(spark: Spark) -> None:
    with tasks(spark) as resident_tasks:
        resident_tasks.ask("run/1", b"a")
        answer = in_background(lambda: resident_tasks.ask("run/2", b"hang"))
        assert spark.in_request.wait(PATIENCE_S)
        assert resident_tasks.spark_group("run/2") == "run/resident-1:whole"
        resident_tasks.cancel("run/2")
        assert isinstance(answer(), TaskLostError)
        assert spark.cancelled == ["run/resident-1:whole"]
        assert resident_tasks.spark_group("run/2") == "run/resident-1:whole"
        assert resident_tasks.ask("run/3", b"c") == first(2) + b" c"


@pytest.mark.rule(33)
def test_an_answer_that_comes_while_its_request_is_cancelled_does_not_count(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def ask() -> object:
        try:
            return resident_tasks.ask("run/1", b"hang")
        finally:
            answered.set()

    def cancel(group: str) -> None:
        spark.goes_on.set()
        assert answered.wait(PATIENCE_S)

    monkeypatch.setattr(spark, "cancel", cancel)
    with tasks(spark) as resident_tasks:
        answer = in_background(ask)
        assert spark.in_request.wait(PATIENCE_S)
        resident_tasks.cancel("run/1")
        assert isinstance(answer(), TaskLostError)


@pytest.mark.rule(33)
def test_a_request_that_was_answered_is_not_cancelled_with_the_next(spark: Spark) -> None:
    with tasks(spark) as resident_tasks:
        resident_tasks.ask("run/1", b"a")
        answer = in_background(lambda: resident_tasks.ask("run/2", b"hang"))
        assert spark.in_request.wait(PATIENCE_S)
        resident_tasks.cancel("run/1")
        assert spark.cancelled == []
        spark.goes_on.set()
        assert answer() == first() + b" hang"


def test_a_request_cancelled_beforehand_is_never_sent(spark: Spark) -> None:
    with tasks(spark) as resident_tasks:
        resident_tasks.cancel("run/1")
        with pytest.raises(TaskLostError, match="run/1 was cancelled"):
            resident_tasks.ask("run/1", b"a")
        assert spark.jobs == []


class Turnstile:
    """A lock that is taken by a second thread as soon as released: ``then`` is called once, at a
    release on the thread that made the turnstile."""

    def __init__(self, lock: threading.Lock, then: Callable[[], object]) -> None:
        self._lock, self._then = lock, then
        self._on = threading.current_thread()
        self._was_passed = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        passes = not self._was_passed and threading.current_thread() is self._on
        self._was_passed = self._was_passed or passes
        self._lock.release()
        if passes:
            self._then()


@pytest.mark.parametrize("ended_by", ["the watch", "another job"])
def test_the_idle_timer_does_not_end_a_task_with_a_new_request(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    asked: list[Callable[[], object]] = []
    with tasks(spark) as resident_tasks:

        def ask() -> None:
            monkeypatch.setattr(resident_task, "_IDLE_S", ENDLESS_S)
            asked.append(in_background(lambda: resident_tasks.ask("run/2", b"hang")))
            assert spark.in_request.wait(PATIENCE_S)

        resident_tasks.ask("run/1", b"a")
        task = resident_tasks._task
        assert task is not None
        monkeypatch.setattr(resident_tasks, "_lock", Turnstile(threading.Lock(), ask))
        if ended_by == "the watch":
            monkeypatch.setattr(resident_task, "_IDLE_S", 0.0)
            resident_tasks._watch(task)
        else:
            with resident_tasks.making_room():
                pass
        spark.goes_on.set()
        assert str(asked[0]()).endswith(" hang'")


def test_an_idle_task_makes_room_for_other_jobs(spark: Spark) -> None:
    with tasks(spark) as resident_tasks:
        resident_tasks.ask("run/1", b"a")
        with resident_tasks.making_room():
            assert spark.ended.get(timeout=PATIENCE_S) == "run/resident-1:whole"
        assert resident_tasks.ask("run/2", b"b") == first(2) + b" b"


def test_a_task_at_work_makes_room_when_it_has_answered(spark: Spark) -> None:
    with tasks(spark) as resident_tasks:
        answer = in_background(lambda: resident_tasks.ask("run/1", b"hang"))
        assert spark.in_request.wait(PATIENCE_S)
        with resident_tasks.making_room():
            spark.goes_on.set()
            assert answer() == first() + b" hang"
            assert spark.ended.get(timeout=PATIENCE_S) == "run/resident-1:whole"
        resident_tasks.ask("run/2", b"b")
        assert resident_tasks.ask("run/3", b"c") == first(2) + b" c", (
            "nobody else wants the slot any more"
        )


@pytest.mark.parametrize(
    ("cores", "served"), [(1, [True, False]), (2, [True, False]), (3, [True, True])]
)
def test_resident_tasks_leave_a_slot_to_others(
    spark: Spark, cores: int, served: list[bool]
) -> None:
    seats = Seats()
    with tasks(spark, cores, seats=seats) as one, tasks(spark, cores, seats=seats) as other:
        assert [one.ask("a", b"a") is not None, other.ask("b", b"b") is not None] == served
        one.close()
        assert other.ask("c", b"c") is not None, "the seat is free again"


@pytest.mark.parametrize(
    ("cores", "age_s", "answered_by"),
    [(1, ENDLESS_S, [1, 2, 3, 3]), (2, ENDLESS_S, [1, 1, 1, 1]), (1, 0.0, [1, 1, 1, 1])],
)
def test_with_one_slot_a_task_makes_room_for_jobs_of_others(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, cores: int, age_s: float, answered_by: list[int]
) -> None:
    """A job of the user's, say: each of its tasks would wait for as long as a task may stay."""
    init = resident_task._Task.__init__

    def aged(task: resident_task._Task, group: str) -> None:
        init(task, group)
        task.began -= age_s

    monkeypatch.setattr(resident_task._Task, "__init__", aged)
    wanted = iter([True, True, False, False])
    resident_tasks = ResidentTasks(
        "run", cores, spark.launch, spark.cancel, Seats(), lambda: next(wanted)
    )
    try:
        assert [resident_tasks.ask(f"run/{n}", b"a") for n in range(4)] == [
            first(number) + b" a" for number in answered_by
        ]
    finally:
        resident_tasks.close()


def test_only_one_process_is_let_in_and_nothing_is_left_behind(
    spark: Spark, directory: Path
) -> None:
    second: queue.SimpleQueue[str] = queue.SimpleQueue()

    def twice(group: str, address: str) -> None:
        assert Path(address).parent.stat().st_mode & 0o077 == 0
        with Client(address, "AF_UNIX") as channel:
            channel.send_bytes(channel.recv_bytes())
            try:
                Client(address, "AF_UNIX").close()
                second.put("let in")
            except OSError:
                second.put("refused")
            with contextlib.suppress(EOFError):
                channel.recv_bytes()

    with tasks(spark, launch=twice) as resident_tasks:
        assert resident_tasks.ask("run/1", b"a") == b"a"
        assert second.get(timeout=PATIENCE_S) == "refused"
        assert list(directory.iterdir()) == []


def test_where_a_socket_has_no_path_there_is_no_resident_task(
    spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(sockets, "directory", lambda: deep)
    seats = Seats()
    with tasks(spark, seats=seats) as resident_tasks:
        assert resident_tasks.ask("run/1", b"a") is None
    assert spark.jobs == []
    assert list(deep.iterdir()) == []
    assert seats.take(2), "the seat was given back"


def test_closing_ends_the_task(spark: Spark) -> None:
    with tasks(spark) as resident_tasks:
        resident_tasks.ask("run/1", b"a")
    assert spark.ended.get_nowait() == "run/resident-1:whole"


def test_a_task_that_does_not_end_when_it_is_to_is_cancelled(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is suspended, say: it would hold its slot for ever, and two such tasks every
    thread there is for them."""
    monkeypatch.setattr(resident_task, "_LIFE_S", 0.0)
    monkeypatch.setattr(resident_task, "_IDLE_S", 0.01)
    monkeypatch.setattr(resident_task, "_END_S", 0.01)
    cancelled = {f"run/resident-{number}:whole": threading.Event() for number in (1, 2, 3)}

    def suspended(group: str, address: str) -> None:
        with Client(address, "AF_UNIX") as channel:
            channel.send_bytes(channel.recv_bytes())
            cancelled[group].wait()

    resident_tasks = ResidentTasks(
        "run", 2, suspended, lambda group: cancelled[group].set(), Seats()
    )
    answers = in_background(lambda: [resident_tasks.ask(f"run/{n}", b"%d" % n) for n in (1, 2, 3)])
    try:
        assert [event.wait(PATIENCE_S) for event in cancelled.values()] == [True] * 3
        assert answers() == [b"1", b"2", b"3"]
    finally:
        for event in cancelled.values():
            event.set()
        resident_tasks.close()


def test_a_channel_is_not_closed_while_its_answer_is_read(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor may be another's a moment later, which would be read then."""
    closed = threading.Event()
    closed_while_read: list[bool] = []

    class Watched(Connection):
        def close(self) -> None:
            closed.set()
            super().close()

        def recv_bytes(self, maxlength: int | None = None) -> bytes:
            try:
                return super().recv_bytes(maxlength)
            finally:
                closed_while_read.append(closed.wait(0.1))

    monkeypatch.setattr(resident_task, "Connection", Watched)
    held: list[Connection] = []

    def dies(group: str, address: str) -> None:
        channel = Client(address, "AF_UNIX")
        held.append(channel)  # by a process of the worker's, which goes on
        channel.recv_bytes()
        raise RuntimeError("the worker died")

    with tasks(spark, launch=dies) as resident_tasks:
        with pytest.raises(TaskLostError, match="the worker died"):
            resident_tasks.ask("run/1", b"a")
        assert closed_while_read == [False]
        assert closed.wait(PATIENCE_S)


def test_a_task_that_ended_while_it_was_let_in_is_asked_for_nothing(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of its worker still has the socket, so that no hang-up would end the wait for an
    answer."""
    held: list[Connection] = []

    def dies(group: str, address: str) -> None:
        held.append(Client(address, "AF_UNIX"))
        raise RuntimeError("the worker died")

    class LetIn(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            task.hold(dies)
            return super().accept()

    monkeypatch.setattr(socket, "socket", LetIn)
    task = resident_task._Task("run/resident-1:whole")
    lost = in_background(lambda: task.ask(b"a"))()
    assert isinstance(lost, TaskLostError)
    assert "the worker died" in str(lost)


def test_a_driver_that_cannot_let_the_task_in_does_not_wait_for_it(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    class Full(socket.socket):
        def accept(self) -> NoReturn:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with tasks(spark) as resident_tasks:
        with monkeypatch.context() as no_more:
            no_more.setattr(socket, "socket", Full)
            lost = in_background(lambda: resident_tasks.ask("run/1", b"a"))()
        assert isinstance(lost, TaskLostError)
        assert list(directory.iterdir()) == []
        assert resident_tasks.ask("run/2", b"b") == first(2) + b" b"


@pytest.mark.parametrize("lacking", ["descriptors", "threads"])
def test_a_task_that_cannot_be_begun_leaves_nothing_behind(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, directory: Path, lacking: str
) -> None:
    def no_socket(*args: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def no_threads(*args: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    seats = Seats()
    with tasks(spark, seats=seats) as resident_tasks:
        with monkeypatch.context() as lacks:
            if lacking == "descriptors":
                lacks.setattr(socket, "socket", no_socket)
                assert resident_tasks.ask("run/1", b"a") is None
            else:
                lacks.setattr(resident_task, "WorkThreads", no_threads)
                with pytest.raises(RuntimeError, match="new thread"):
                    resident_tasks.ask("run/1", b"a")
        assert list(directory.iterdir()) == []
        assert resident_tasks.ask("run/2", b"b") is not None, "the seat was given back"


@pytest.mark.rule(33)
def test_a_lost_request_is_remembered_after_any_number_of_cancellations(spark: Spark) -> None:
    """With a transaction fail all after it, and each of them has several groups."""
    with tasks(spark) as resident_tasks:
        with pytest.raises(TaskLostError):
            resident_tasks.ask("run/1", b"die")
        for n in range(3_000):
            resident_tasks.cancel(f"run/{n}:processing")
        assert resident_tasks.spark_group("run/1") == "run/resident-1:whole"


def test_cancellations_are_remembered_within_a_bound(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_task, "_REMEMBERED_MAX", 3)
    with contextlib.closing(ResidentTasks("run", 2, spark.launch, spark.cancel, Seats())) as tasks:
        for number in range(20):
            tasks.cancel(f"group {number}")
        with pytest.raises(TaskLostError, match="group 19 was cancelled before it began"):
            tasks.ask("group 19", b"late")
        assert tasks.ask("group 0", b"early") == b"run/resident-1:whole early", (
            "it was forgotten long ago"
        )
