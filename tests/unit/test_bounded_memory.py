"""A task's memory does not grow with its batch: rows, chunks, results and held bolts turn into
bytes, and the bytes go to disk."""

from __future__ import annotations

import errno
import io
import itertools
import os
import pickle
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.servers.clusters import Journal
from tests.topologies import floods
from txtopo import (
    Fields,
    LocalDiskError,
    OutOfMemoryError,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from txtopo.dataplane import collector as emit
from txtopo.dataplane import out_of_resources, receive, route, spill, wire
from txtopo.dataplane.inbox import Inbox, Lane
from txtopo.dataplane.job import Batch, Job, Limits, Run
from txtopo.dataplane.outcome import FailureInTaskError, Report, from_text
from txtopo.dataplane.row_encoding import Runs
from txtopo.dataplane.slot import SlotRun
from txtopo.dataplane.spill import SpillBuffer
from txtopo.dataplane.wire import ChunkHeader, Frame
from txtopo.dataplane.worker import WorkerRun
from txtopo.engine import status
from txtopo.engine.jobs import JobLostError
from txtopo.engine.observer import EndedAttempt
from txtopo.spark.jobs import SparkJobs
from txtopo.topology.grouping import Grouping
from txtopo.topology.stream import StreamSpec, TupleSource

MIB = 1 << 20
ATTEMPT = TransactionAttempt(1, 0)
BATCH = Batch("whole", {"txid": 1})


class Scene:
    """One topology on two slots, whose slots are computed in turn, and whose output is looked at
    and dropped, or kept on disk."""

    def __init__(self, topology: Any, spill_bytes: int = MIB, **limits: int) -> None:
        self.topology = topology
        self.worker = WorkerRun(
            Run(
                "run",
                topology,
                2,
                {},
                "generation",
                limits=Limits(spill_bytes=spill_bytes, **limits),
            )
        )

    def job(
        self, pinned: bool = False, batch: Batch = BATCH, expected: tuple[int, ...] | None = None
    ) -> Job:
        return Job(
            "run",
            "processing",
            ATTEMPT,
            self.topology.task_counts,
            batch=batch,
            pinned=pinned,
            expected=expected,
        )

    def slot(
        self,
        level: int,
        slot: int,
        incoming: Iterable[bytes] = (b"",),
        pinned: bool = False,
        batch: Batch = BATCH,
        expected: tuple[int, ...] | None = None,
    ) -> Iterator[tuple[int, bytes]]:
        return SlotRun(
            self.worker, self.job(pinned, batch, expected), level, slot, 10 * level + slot
        ).run(iter(incoming))


def peak_of(work: Callable[[], Any]) -> int:
    """The most memory that ``work`` had, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("rows", "row_bytes"), [(200, MIB), (24, 16 * MIB), (30_000, 4000)])
def test_a_spout_streams_a_batch_far_larger_than_its_memory(
    tmp_path: Path, rows: int, row_bytes: int
) -> None:
    scene = Scene(
        floods.weighing("bounded", tmp_path, floods.Flood(1, rows, row_bytes), shuffled=True)
    )
    sent = [0, 0]

    def emit_all() -> None:
        for to, data in scene.slot(0, 0):
            sent[to] += len(data)

    assert peak_of(emit_all) < 30 * MIB + 5 * row_bytes
    assert sum(sent) > rows // 2 * row_bytes


@pytest.mark.thorough
def test_rows_too_light_to_be_weighed_do_not_gather_either(tmp_path: Path) -> None:
    scene = Scene(floods.weighing("light", tmp_path, floods.Flood(1, 250_000, 16), shuffled=True))
    sent = [0, 0]

    def emit_all() -> None:
        for to, data in scene.slot(0, 0):
            sent[to] += len(data)

    assert peak_of(emit_all) < 12 * MIB, "the half of the rows that this slot emits would be 18 MiB"
    assert sum(sent) > 2 * MIB


@pytest.mark.rule(4)
def test_a_recorded_emission_is_sent_on_without_being_in_memory(tmp_path: Path) -> None:
    scene = Scene(floods.weighing("recorded", tmp_path, floods.Flood(1, 1, 1), shuffled=True))
    sent = [0, 0]

    def recorded() -> Iterator[bytes]:
        for n in range(60):
            runs: Runs = [("default", [(ATTEMPT, n, bytes([n]) * MIB)])]
            yield wire.pack_frames(
                [Frame("rows", "flood", 0, "flood", 0, wire.pack_runs(runs, "run"))]
            )
        yield wire.pack_report(Report("1:0:emission", 0, 7))

    def send_on() -> None:
        for to, data in scene.slot(0, 0, recorded(), batch=Batch("recorded"), expected=(7,)):
            sent[to] += len(data)

    assert peak_of(send_on) < 35 * MIB
    assert sum(sent) > 60 * MIB


@pytest.mark.rule(17)
@pytest.mark.parametrize("row_bytes", [MIB, 4000])
def test_a_receiver_takes_a_batch_far_larger_than_its_memory(
    tmp_path: Path, row_bytes: int
) -> None:
    rows = 100 * MIB // row_bytes
    scene = Scene(
        floods.weighing("bounded", tmp_path, floods.Flood(1, rows, row_bytes), shuffled=True)
    )
    # As Spark would: the chunks of both senders, from disk.
    chunks = SpillBuffer(0)
    places = [
        chunks.append(data) for sender in range(2) for to, data in scene.slot(0, sender) if to == 0
    ]
    assert chunks._end > 25 * MIB
    results: list[bytes] = []

    def receive_all() -> None:
        results.extend(data for _, data in scene.slot(1, 0, map(chunks.read, places)))

    assert peak_of(receive_all) < 24 * MIB
    chunks.close()
    assert results


@pytest.mark.rule(12)
def test_pinned_results_leave_one_after_the_other(tmp_path: Path) -> None:
    builder = floods.committing(
        "pinned",
        floods.Hoard(floods.store_of(tmp_path), Journal(tmp_path / "journal")),
        floods.Flood(1, 100, MIB),
    )
    scene = Scene(builder)
    chunks = SpillBuffer(0)
    places = [
        chunks.append(data) for sender in range(2) for to, data in scene.slot(0, sender) if to == 0
    ]
    sizes: list[int] = []
    reports: list[Report] = []

    def hold_all() -> None:
        for _, data in scene.slot(1, 0, map(chunks.read, places), pinned=True):
            if data[:1] == wire.REPORT:
                reports.append(wire.unpack_report(data))
            sizes.append(len(data))

    held = chunks._end
    peak = peak_of(hold_all)
    assert sum(sizes) > 0.9 * held
    assert peak < sum(sizes) + 32 * MIB, "the bolt itself, and not its pickle a second time"
    assert reports[0].result_bytes == sum(sizes) - sizes[-1]
    chunks.close()


def test_a_held_bolt_is_restored_without_its_pickle_in_memory(tmp_path: Path) -> None:
    buffer = SpillBuffer(0)
    handles: list[spill.Handle] = []
    writer = wire.PieceWriter(MIB, lambda piece: handles.append(buffer.append(piece)))
    wire.ReferencePickler(writer, "run").dump([bytes(100_000) + bytes([i]) for i in range(200)])
    writer.close()
    received = receive.Received(buffer, held={("hoard", 0): handles})
    restored: list[Any] = []

    def restore() -> None:
        file = received.held_file("hoard", 0)
        assert file is not None
        restored.append(pickle.load(file))

    assert peak_of(restore) < 20 * MIB + 4 * MIB
    assert [row[-1] for row in restored[0]] == list(range(200))
    assert received.held_file("hoard", 1) is None
    buffer.close()


@pytest.mark.rule(33)
def test_chunks_that_come_in_the_wrong_order_wait_on_disk() -> None:
    job = Job("run", "processing", ATTEMPT, {})
    total = 60

    def backwards() -> Iterator[bytes]:
        for number in reversed(range(total)):
            is_last = number + 1 == total
            header = ChunkHeader(
                job.name,
                0,
                0,
                7,
                number,
                total if is_last else 0,
                Report(job.name, 0, 7) if is_last else None,
            )
            yield wire.pack_chunk(
                header, [Frame("rows", "sum", 0, "spout", 0, bytes([number]) * MIB)]
            )

    taken: list[receive.Received] = []
    buffer = SpillBuffer(2 * MIB)
    assert (
        peak_of(lambda: taken.append(receive.receive(job, 1, 1, None, backwards(), buffer)))
        < 12 * MIB
    )
    payloads = map(buffer.read, taken[0].lanes["sum", 0]["spout", 0])
    assert [payload[0] for payload in payloads] == list(range(total))
    buffer.close()


@pytest.mark.rule(17)
def test_heavy_rows_that_wait_for_an_earlier_neighbour_wait_on_disk() -> None:
    buffer = SpillBuffer(0)
    seen: list[tuple[str, int]] = []
    order = {"a": 0, "b": 1}
    source = TupleSource("b", 0, "s", Fields("n", "payload"))

    class Seeing:
        def execute_all(self, rows: Iterable[route.Row], source: TupleSource) -> None:
            seen.extend((row[0], row[1][0]) for row in rows)

        def execute_columns(self, batch: object, source: TupleSource) -> None:
            raise AssertionError("nobody here emits columns")

        def sender(self, source: TupleSource, lane: Lane, wait: route.Send) -> route.Send:
            return lambda row: self.execute_all([row], source) if lane.is_first else wait(row)

    inbox = Inbox(
        {}, {("a", 0), ("b", 0)}, order, buffer, lambda key, stream: source, Seeing(), "run"
    )
    inbox.advance()
    late, early = inbox.sender(("b", 0), "s"), inbox.sender(("a", 0), "s")

    def wait() -> None:
        for n in range(50):
            if n % 5 == 4:
                inbox.pack()
            late(("b", bytes([n]) * MIB))

    assert peak_of(wait) < 20 * MIB
    early(("a", b"\xff"))
    inbox.close(("a", 0))
    inbox.close(("b", 0))
    assert seen == [("a", 255), *(("b", n) for n in range(50))]
    assert inbox.complete
    buffer.close()


@pytest.mark.parametrize(
    "value",
    ["x" * 1000, b"x" * 1000, ("x" * 600, ("y" * 400,)), ["x" * 1000]],
    ids=["text", "bytes", "nested", "mutable"],
)
def test_a_heavy_row_is_told_before_it_is_sent_and_a_light_one_is_not(value: Any) -> None:
    told: list[Any] = []
    collector = emit.Collector(
        "spout", ATTEMPT, {"default": StreamSpec(Fields("tx", "value"), False)}, "run"
    )
    collector.connect("default", lambda row: told.append("sent"))
    collector.on_heavy = told.append
    collector.emit([ATTEMPT, value])
    assert told[1:] == ["sent"]
    assert 1000 <= told[0] < 1200
    told.clear()
    collector.emit([ATTEMPT, "light"])
    collector.emit([ATTEMPT, 17])
    assert told == ["sent", "sent"]


@pytest.mark.rule(16)
def test_long_keys_are_routed_but_not_remembered() -> None:
    sent: list[int] = []
    lanes = [lambda row, task=task: sent.append(task) for task in range(3)]
    by_key = Grouping("fields", Fields("key"))
    memory = route.SenderMemory(by_key, 0, 1, len(lanes))
    send = route.make_send(by_key, Fields("tx", "key"), 0, lanes, memory)
    keys = (f"{number:05}" + "k" * 20_000 for number in range(2000))
    assert peak_of(lambda: [send((ATTEMPT, key)) for key in keys]) < 4 * MIB
    assert set(sent) == {0, 1, 2}


def test_spilled_bytes_are_where_spark_keeps_its_own_and_have_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    buffer = SpillBuffer(0)
    buffer.append(b"abc")
    assert buffer._file is not None
    opened = os.readlink(f"/proc/self/fd/{buffer._file.fileno()}")
    assert opened.startswith(f"{tmp_path}/")
    assert list(tmp_path.iterdir()) == [], (
        "a file without a name is gone when its process is, also after kill -9"
    )
    buffer.close()
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert spill.directory() != str(tmp_path)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*ignored: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", no_room)


@pytest.mark.rule(7)
@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("level", [0, 1], ids=["emitting", "receiving"])
def test_a_full_disk_fails_the_task_with_an_error_that_names_the_setting(
    tmp_path: Path, level: int
) -> None:
    scene = Scene(
        floods.weighing("full", tmp_path, floods.Flood(1, 100, MIB // 2), shuffled=True),
        spill_bytes=0,
    )
    frames = [Frame("rows", "weigh", 0, "flood", 0, b"payload")]
    chunk = wire.pack_chunk(ChunkHeader(scene.job().name, 0, 0, 7, 0), frames)
    with pytest.raises(FailureInTaskError) as caught:
        list(scene.slot(level, 0, [chunk] if level else [b""]))
    failure = from_text(str(caught.value), scene.worker.run.secret)
    assert failure is not None
    error = failure.to_error()
    assert isinstance(error, LocalDiskError)
    assert "No space left on device" in str(error)
    assert "spark.local.dir" in str(error)


@pytest.mark.rule(7)
def test_so_does_a_disk_that_fails_while_tuples_for_a_later_level_are_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = TransactionalTopologyBuilder("passing", "flood", floods.Flood(1, 8, 8), 2)
    weigh = floods.Weigh(Journal(tmp_path / "journal"), None, 0)
    builder.set_bolt("weigh", weigh, 3).fields_grouping("flood", Fields("key"))
    builder.set_bolt("both", weigh).global_grouping("weigh").global_grouping("flood")
    scene = Scene(builder.build_topology(), spill_bytes=0)
    chunks = [data for sender in range(2) for to, data in scene.slot(0, sender) if to == 0]

    def broken(*ignored: Any) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(FailureInTaskError) as caught:
        list(scene.slot(1, 0, chunks))
    failure = from_text(str(caught.value), scene.worker.run.secret)
    assert failure is not None
    assert isinstance(failure.to_error(), LocalDiskError)
    assert failure.hook == "handing over tuples and held bolts"


@pytest.mark.rule(7, 12)
def test_memory_that_ends_while_a_bolt_is_held_is_not_taken_for_a_member_that_cannot_be_pickled(
    tmp_path: Path,
) -> None:
    scene = Scene(
        floods.committing(
            "held", NoMemoryWhenHeld(floods.store_of(tmp_path)), floods.Flood(1, 4, 8)
        )
    )
    chunks = [data for sender in range(2) for to, data in scene.slot(0, sender) if to == 0]
    with pytest.raises(FailureInTaskError) as caught:
        list(scene.slot(1, 0, chunks))
    failure = from_text(str(caught.value), scene.worker.run.secret)
    assert failure is not None
    error = failure.to_error()
    assert isinstance(error, OutOfMemoryError)
    assert error.component == "committer"
    assert "spark.executor.pyspark.memory" in error.error


class NoMemoryWhenHeld(floods.ManyKeys):
    """A bolt whose state there is no memory to pickle."""

    def __getstate__(self) -> Any:
        if hasattr(self, "numbers"):
            raise MemoryError
        return self.__dict__


@pytest.mark.rule(7)
def test_a_worker_whose_memory_is_bounded_names_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_EXECUTOR_MEMORY_MB", "350")
    assert "350 MiB, from spark.executor.pyspark.memory" in out_of_resources.of_memory(
        MemoryError()
    )
    monkeypatch.delenv("PYSPARK_EXECUTOR_MEMORY_MB")
    assert "the machine gives no more" in out_of_resources.of_memory(MemoryError("array too big"))


@pytest.mark.rule(7)
@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (
            "Total size of serialized results of 2 tasks (1100.0 MiB) is bigger than spark.driver.maxResultSize (1024.0 MiB)",
            "inline_bytes_max",
        ),
        ("java.io.IOException: No space left on device", "spark.local.dir"),
        (
            "pyspark.errors.exceptions.base.PythonException: …\nMemoryError",
            "spark.executor.pyspark.memory",
        ),
        ("java.lang.OutOfMemoryError: Java heap space", "spark.driver.memory"),
        (
            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137",
            "memoryOverhead",
        ),
        ("ExecutorLostFailure: The executor exited with exit code 52", "spark.executor.memory"),
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            "spark.executor.pyspark.memory",
        ),
        ("Answer from Java side is empty", "spark.driver.memory"),
    ],
)
def test_sparks_text_about_a_lost_job_is_answered_with_the_setting_to_change(
    words: str, setting: str
) -> None:
    assert setting in str(out_of_resources.cure_of(words))


LOST = "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137"


def test_an_executor_ended_by_kill_9_is_told_with_the_signal_and_memory_where_there_is_a_sign_of_it() -> (
    None
):
    assert str(out_of_resources.cure_of(LOST)).startswith(
        "An executor was ended by SIGKILL (exit code 137). Spark does not know the sender. If "
    )
    for sign in ("OOMKilled", "Container killed by YARN for exceeding memory limits"):
        assert str(out_of_resources.cure_of(f"{LOST}\n{sign}")).startswith(
            "An executor was killed for its memory: raise "
        )


def test_the_first_line_about_a_lost_job_is_whole() -> None:
    """The progress of a run shows the first line alone."""
    on_spark: Any = object.__new__(SparkJobs)
    on_spark._run, on_spark._resident = SimpleNamespace(secret=b"", local_master=False), None

    def lost(*arguments: object) -> None:
        raise RuntimeError(LOST)

    on_spark._begin = lost
    with pytest.raises(JobLostError) as caught:
        on_spark.run(
            Job("run", "processing", ATTEMPT, {}), SimpleNamespace(levels_of=lambda part: None)
        )
    first, second, *rest = str(caught.value).splitlines()
    assert first == out_of_resources.cure_of(LOST)
    assert (second, rest) == ("Spark says:", [LOST])


def test_where_nothing_ran_out_nothing_is_said() -> None:
    assert out_of_resources.cure_of("FetchFailed(BlockManagerId(1), shuffleId=3)") is None
    refused = "FetchFailed(BlockManagerId(1), message=Connection refused: /10.0.0.2:41733)"
    assert out_of_resources.cure_of(refused) is None


def test_the_memory_of_commits_does_not_grow_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("txtopo.engine.status.time.monotonic", lambda: float(next(seconds)))
    board = status.StatusBoard(status.RunStatus("id", "name"))
    for _ in range(1000):
        board.committed(EndedAttempt(TransactionAttempt(1, 0), tuples=5))
    assert len(board._recent) < 20
    assert board.snapshot().committed == 1000


def test_the_rate_is_of_the_commits_in_the_window_and_of_no_others() -> None:
    now = 0.0
    board = status.StatusBoard(status.RunStatus("id", "name"), clock=lambda: now)
    board.began("first", 1, 1, is_resumed=False)
    for second in range(1, 21):
        now = float(second)
        board.committed(EndedAttempt(TransactionAttempt(1, 0), tuples=100 * second))
    # The window begins with the last commit that is older than ten seconds; its own tuples came
    # before.
    assert board.snapshot().tuples_per_s == sum(100 * second for second in range(10, 21)) / 11
    now = 25.5
    assert board.snapshot().tuples_per_s == sum(100 * second for second in range(16, 21)) / 10.5
    board.began("first", 1, 1, is_resumed=False)
    now = 26.5
    board.committed(EndedAttempt(TransactionAttempt(1, 0), tuples=7))
    assert board.snapshot().tuples_per_s == 7


def test_a_piece_reader_is_a_file() -> None:
    file = io.BufferedReader(wire.PieceReader(itertools.chain([b"ab", b""], [b"cdef"])))
    assert (file.read(3), file.read(), file.read()) == (b"abc", b"def", b"")
