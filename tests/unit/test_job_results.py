"""The driver's use of the records of a job's last level: one computation of every slot, or the
attempt fails (R33)."""

from __future__ import annotations

import dataclasses
import functools
import threading
import types
from multiprocessing import connection
from typing import Any, NoReturn, cast

import pytest

from tests.patience import wait_until
from txtopo import TransactionAttempt, errors
from txtopo.dataplane import wire
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import Report, Tally
from txtopo.dataplane.receive import MixedEmissionsError
from txtopo.dataplane.wire import Frame
from txtopo.engine.jobs import reading, result_of
from txtopo.runtime.run import TopologyRun
from txtopo.spark import resident_task
from txtopo.spark.jobs import PinnedBlocks, SparkJobs
from txtopo.spark.resident_task import ResidentTasks, Seats

pytestmark = pytest.mark.rule(33)

JOB = Job("run", "processing", TransactionAttempt(2, 1), {"keep": 2})
FRAMES = [Frame("held", "keep", slot, "", -1, b"held") for slot in range(2)]


def report(slot: int, task_attempt: int, job: str = JOB.name, **lineage: int) -> bytes:
    """``lineage``: ``l0s1=7`` is slot 1 of level 0, computed by task attempt 7."""
    places = {(int(place[1]), int(place[3])): made_by for place, made_by in lineage.items()}
    return wire.pack_report(Report(job, slot, task_attempt, own=Tally({"keep": 1}), lineage=places))


def test_reports_and_frames_of_one_computation_are_put_together_in_any_order() -> None:
    records = [
        wire.pack_frames(FRAMES[1:]),
        report(1, 11, l0s0=5, l0s1=6),
        report(0, 10, l0s0=5, l0s1=6),
        wire.pack_frames(FRAMES[:1]),
    ]
    result = result_of(JOB, records, 2, functools.partial(PinnedBlocks, None))
    assert sorted(result.frames) == FRAMES
    assert result.tally.executed == {"keep": 2}
    assert result.pinned == PinnedBlocks(None, (10, 11)), "by slot"


def test_slots_that_stem_from_different_computations_of_an_earlier_one_are_refused() -> None:
    with pytest.raises(
        MixedEmissionsError, match=r"level 0, slot 1 was computed twice: as task attempts 6 and 8"
    ):
        result_of(JOB, [report(0, 10, l0s0=5, l0s1=6), report(1, 11, l0s0=5, l0s1=8)], 2)


@pytest.mark.parametrize(
    "records",
    [
        [report(0, 10)],
        [report(0, 10), report(0, 11)],
        [report(0, 10), report(1, 11), report(1, 12)],
        [report(0, 10), report(1, 11, job="2:0:processing")],
    ],
    ids=["missing", "another's twice", "twice", "of another attempt"],
)
def test_a_report_that_is_missing_doubled_or_of_another_attempt_is_refused(
    records: list[bytes],
) -> None:
    with pytest.raises(MixedEmissionsError, match=r"2:1:processing: \d reports came from 2 slots"):
        result_of(JOB, records, 2)


def levels_of(slots: int) -> Any:
    level = dataclasses.make_dataclass("Level", ["slots"])(slots)
    return dataclasses.make_dataclass("Levels", ["levels"])([level])


@pytest.mark.parametrize(("slots", "forwarding"), [(2, 0), (1, 2), (3, 2)])
def test_a_job_that_reads_pinned_results_gets_the_task_attempts_that_made_them(
    slots: int, forwarding: int
) -> None:
    told = reading(JOB, levels_of(slots), PinnedBlocks(None, (10, 11)))
    assert (told.expected, told.forwarding_slots) == ((10, 11), forwarding)
    assert reading(JOB, levels_of(slots), FRAMES).expected is None


class Rdd:
    """An RDD that notes the calls before its computation."""

    def __init__(self, records: list[bytes]) -> None:
        self.records = records
        self.done: list[str] = []
        self.prev = self._jrdd = self

    def persist(self, level: Any) -> None:
        self.done.append("persist")

    def localCheckpoint(self) -> None:
        self.done.append("cut off")

    def mapPartitionsWithIndex(self, function: Any) -> Rdd:
        return self

    def collect(self) -> list[bytes]:
        self.done.append("compute")
        return self.records

    def getNumPartitions(self) -> int:
        return 2

    def rdd(self) -> Rdd:
        return self

    def cleanShuffleDependencies(self, blocking: bool) -> None:
        self.done.append("clean shuffles")


def test_pinned_results_are_cut_off_from_their_lineage_so_that_a_lost_block_fails_its_reader() -> (
    None
):
    """Persisted first, and so serialized: only such blocks are sealed by their checksums."""
    rdd = Rdd([report(0, 10), report(1, 11)])
    result = cast(Any, SparkJobs)._collect(
        None, dataclasses.replace(JOB, pinned=True), rdd, 2, shuffles=True
    )
    assert result.pinned.task_attempts == (10, 11)
    assert rdd.done[:3] == ["persist", "cut off", "compute"]


def test_a_resident_task_that_is_lost_with_the_jvm_is_no_crash_of_the_transaction() -> None:
    def gone(group: str, address: str) -> None:
        raise ConnectionRefusedError("Connection refused")

    on_spark: Any = object.__new__(SparkJobs)
    on_spark._resident = resident = ResidentTasks("run", 2, gone, lambda group: None, Seats())
    try:
        with pytest.raises(errors.SparkLostError, match="Connection refused"):
            on_spark.run(
                dataclasses.replace(JOB, part="whole"),
                dataclasses.make_dataclass("Plan", ["levels_of"])(levels_of),
            )
    finally:
        resident.close()


@pytest.mark.parametrize("error", [None, errors.SparkLostError("no answer")])
def test_a_jvm_that_is_lost_while_a_run_stops_is_told_unless_it_is_the_runs_error(
    caplog: pytest.LogCaptureFixture, error: errors.SparkLostError | None
) -> None:
    """The run's last job may have been abandoned just before."""

    def gone() -> NoReturn:
        raise ConnectionRefusedError("Connection refused")

    on_spark: Any = object.__new__(SparkJobs)
    on_spark._resident, on_spark._run = None, types.SimpleNamespace(late_tasks="")
    on_spark._broadcast = types.SimpleNamespace(destroy=gone)
    run: Any = object.__new__(TopologyRun)
    run.topology_id, run._error, run._jobs = "words", error, on_spark
    run._engine, run._end = object(), lambda error: None
    run._state = run._store = types.SimpleNamespace(close=lambda *end: None)
    run._close()
    told = [each.getMessage() for each in caplog.records]
    expected = "topology 'words' has stopped, but Spark's JVM has ended, or does not answer any more: Connection refused"
    assert [each.splitlines()[0] for each in told] == ([] if error else [expected])


def test_a_part_of_a_run_that_fails_to_close_keeps_no_other_part_open() -> None:
    def fails(end: object) -> NoReturn:
        raise RuntimeError("unexpected")

    closed: list[str] = []
    run: Any = object.__new__(TopologyRun)
    run._engine, run._error, run._end = object(), None, lambda error: None
    run._state = types.SimpleNamespace(close=fails)
    run._store = types.SimpleNamespace(close=lambda: closed.append("store"))
    run._jobs = types.SimpleNamespace(close=lambda: closed.append("jobs"))
    with pytest.raises(RuntimeError, match="unexpected"):
        run._close()
    assert closed == ["store", "jobs"]


def test_an_unexpected_error_on_a_thread_of_resident_tasks_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the task does not end, and Spark cannot cancel its job either."""
    goes_on = threading.Event()

    def launch(group: str, address: str) -> None:
        with connection.Client(address, "AF_UNIX") as channel:
            channel.send_bytes(channel.recv_bytes())
            goes_on.wait()

    def cancel(group: str) -> NoReturn:
        raise AttributeError("unexpected")

    for bound in ("_IDLE_S", "_END_S"):
        monkeypatch.setattr(resident_task, bound, 0.0)
    on_spark: Any = object.__new__(SparkJobs)
    on_spark._resident = resident = ResidentTasks("run", 2, launch, cancel, Seats())
    try:
        assert resident.ask("run/1", b"a") == b"a"
        with pytest.raises(AttributeError, match="unexpected"):
            wait_until(resident.raise_unexpected)
        plan = dataclasses.make_dataclass("Plan", ["levels_of"])(levels_of)
        with pytest.raises(AttributeError, match="unexpected"):
            on_spark.run(JOB, plan)
    finally:
        goes_on.set()
        resident.close()


class GoneRdd:
    """An RDD of a JVM that has ended."""

    def unpersist(self, blocking: bool) -> None:
        raise ConnectionRefusedError("Connection refused")


def test_blocks_of_an_ended_jvm_need_no_release() -> None:
    """The run ends because Spark is lost, and must say so; giving back Spark's blocks must not fail
    before the message."""
    PinnedBlocks(GoneRdd(), (1,)).release()


def test_in_a_jvm_that_has_ended_no_task_runs() -> None:
    def gone() -> Any:
        raise ConnectionRefusedError("Connection refused")

    on_spark: Any = object.__new__(SparkJobs)
    on_spark._resident, on_spark._context = None, types.SimpleNamespace(statusTracker=gone)
    assert not on_spark.is_running("group")
