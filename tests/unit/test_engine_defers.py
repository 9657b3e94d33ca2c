"""The engine runs a small transaction in one job, and stops doing so after a failure or a long job:
all of the engine but Spark."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import Journal, fast
from tests.topologies.spouts import Keep, Ranges, keeping_topology
from tests.topologies.step_spouts import TAKE_MAX, OpaquePlanned, Source
from txtopo.dataplane.job import Job, Run
from txtopo.dataplane.outcome import Failure, Tally
from txtopo.engine import deadlines
from txtopo.engine.engine import Engine
from txtopo.engine.jobs import JobLostError, JobResult
from txtopo.engine.status import RunStatus, StatusBoard
from txtopo.spark.machine import Machine
from txtopo.state.memory import MemoryStateStore
from txtopo.state.topology import Holder, TopologyState
from txtopo.stores import SqliteStore

TRANSACTIONS = 12
Step = Callable[[Job], JobResult]


LATE_S = 1e6


@pytest.fixture(autouse=True)
def _nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a test says otherwise, a job may take as long as it takes."""
    monkeypatch.setattr(deadlines, "LATE_S", LATE_S)


class LateAtOnce(Machine):
    """A machine on which every job of transaction 8 is late as soon as it has begun."""

    def after(self, delay_s: float, action: Any) -> None:
        is_late = delay_s == LATE_S and action.args[0].txid == 8
        super().after(0.0 if is_late else delay_s, action)


class Jobs:
    """Notes each job and lets it succeed, taking no time; or does ``instead``, once, for jobs named
    there."""

    def __init__(self, instead: dict[str, Step], busy_s: float = 0.0) -> None:
        self.instead, self.busy_s = instead, busy_s
        self.began: list[Job] = []
        self.changed = threading.Condition()

    def run(self, job: Job, plan: Any, source: Any = (), description: str = "") -> JobResult:
        with self.changed:
            self.began.append(job)
            self.changed.notify_all()
        step = self.instead.pop(job.name, None)
        return (
            JobResult(Tally(busy_s={"processing": self.busy_s, "commit": self.busy_s}))
            if step is None
            else step(job)
        )

    def group(self, job: Job) -> str:
        return job.name

    def cancel(self, group: str) -> None:
        pass

    def is_running(self, group: str) -> bool:
        return False

    def places(self, group: str) -> str:
        return ""

    def parts(self, txid: int) -> list[str]:
        """``attempt id:part`` of the jobs of ``txid``, in order."""
        return [
            f"{job.attempt.attempt_id}:{job.part}" for job in self.began if job.attempt.txid == txid
        ]

    def wait_for(self, txid: int, part: str) -> bool:
        """Until a job of ``txid`` has begun; whether it has."""
        with self.changed:
            return self.changed.wait_for(lambda: f"0:{part}" in self.parts(txid), PATIENCE_S)


def run(
    tmp_path: Path, jobs: Jobs, spout: Any = None, machine: type[Machine] = Machine, **settings: Any
) -> StatusBoard:
    """``TRANSACTIONS`` transactions, of ``spout`` or of ranges of numbers."""
    journal = Journal(tmp_path / "journal")
    keep = Keep(SqliteStore(tmp_path / "kept.db", "kept", opaque=spout is not None), journal)
    graph = keeping_topology("topology", spout or Ranges(journal, 2 * TRANSACTIONS, 2), keep)
    state = TopologyState.open(MemoryStateStore(), "topology", Holder("host", 1, "now"))
    board = StatusBoard(
        RunStatus(
            "topology", "run", generation=state.generation, epoch=state.epoch, current=state.current
        )
    )
    conf = fast(max_transactions=TRANSACTIONS, message_timeout_s=3600.0, **settings)
    Engine(
        Run("run", graph, 2, conf.as_mapping(), state.generation),
        conf,
        jobs,
        state,
        [board],
        random.Random(1),
        lambda: None,
        machine(graph.id),
    ).run()
    assert state.current == TRANSACTIONS + 1
    state.close()
    return board


APART, WHOLE = ["0:processing", "0:commit"], ["0:whole"]


@pytest.mark.parametrize(("pending", "certainly_from"), [(1, 4), (3, 7)])
def test_after_three_small_transactions_each_is_one_job(
    tmp_path: Path, pending: int, certainly_from: int
) -> None:
    """With several in flight some have begun by then."""
    jobs = Jobs({})
    run(tmp_path, jobs, max_spout_pending=pending)
    assert [jobs.parts(txid) for txid in (1, 2, 3)] == [APART] * 3
    assert [jobs.parts(txid) for txid in range(certainly_from, TRANSACTIONS + 1)] == [WHOLE] * (
        TRANSACTIONS + 1 - certainly_from
    )
    assert {job.cores for job in jobs.began if job.part == "whole"} == {1}


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize(
    ("small_s", "busy_s"), [(0.0, 0.0), (0.02, 0.03)], ids=["zero", "not small"]
)
def test_with_zero_or_a_large_bound_no_transaction_is_small(
    tmp_path: Path, pending: int, small_s: float, busy_s: float
) -> None:
    jobs = Jobs({}, busy_s)
    run(tmp_path, jobs, max_spout_pending=pending, small_transaction_s=small_s)
    assert [jobs.parts(txid) for txid in range(1, TRANSACTIONS + 1)] == [APART] * TRANSACTIONS
    assert {job.cores for job in jobs.began} == {2}


@pytest.mark.rule(3)
@pytest.mark.parametrize("is_opaque", [False, True])
def test_while_a_job_takes_too_long_later_transactions_are_processed_beside_the_job(
    tmp_path: Path, is_opaque: bool
) -> None:
    """The job ends after the later transactions: if these waited for the job, only a time-out would
    end the job. Later transactions have all cores, even if planned before."""
    seen: list[bool] = []

    def until_later_ones_are_processed(job: Job) -> JobResult:
        seen.append(all(jobs.wait_for(txid, "processing") for txid in (9, 10)))
        return JobResult(Tally())

    jobs = Jobs({"8:0:whole": until_later_ones_are_processed})
    spout = (
        OpaquePlanned(Source(tmp_path / "journal", TAKE_MAX * TRANSACTIONS, 1))
        if is_opaque
        else None
    )
    board = run(tmp_path, jobs, spout, LateAtOnce, max_spout_pending=3)
    assert seen == [True]
    assert [jobs.parts(txid) for txid in (7, 8, 9, 10)] == [WHOLE, WHOLE, APART, APART]
    assert {job.cores for job in jobs.began if job.attempt.txid in (9, 10)} == {2}
    assert board.snapshot().replays == 0


@pytest.mark.rule(6, 7)
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("how", ["failed", "lost"])
def test_a_transaction_that_failed_in_one_job_is_processed_apart_the_next_time(
    tmp_path: Path, how: str, pending: int
) -> None:
    def fail(job: Job) -> JobResult:
        if how == "lost":
            raise JobLostError("an executor was lost")
        return JobResult(
            Tally(),
            Failure(
                "failed", "keep", 0, job.attempt, "commit", "finish_batch", "FailedException", ""
            ),
        )

    jobs = Jobs({"8:0:whole": fail})
    board = run(tmp_path, jobs, max_spout_pending=pending)
    assert jobs.parts(8) == ["0:whole", "1:processing", "1:commit"]
    assert jobs.parts(12)[-1] == "0:whole", "the others are as small as before"
    assert board.snapshot().replays == 1, "what waited behind it had not begun"
