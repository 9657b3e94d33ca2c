"""Before an attempt is applied, no task of an earlier, broken commit job runs any more, or
``zombie_wait_s`` has passed (R33)."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.servers.clusters import Journal
from tests.topologies.spouts import Keep, Ranges, keeping_topology
from txtopo import TransactionAttempt
from txtopo.dataplane.job import Batch, Job, Part, Run
from txtopo.dataplane.outcome import Failure, Tally
from txtopo.engine.attempts import Attempt, AttemptFailedError, AttemptRunner
from txtopo.engine.jobs import JobLostError, JobResult
from txtopo.stores import SqliteStore
from txtopo.topology.context import SOME_TIME

pytestmark = pytest.mark.rule(33)

FIRST, SECOND, THIRD = (TransactionAttempt(2, n) for n in range(3))


class VirtualTime:
    """As much of the surroundings as an attempt's jobs use; sleeping takes no time."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, duration_s: float) -> None:
        self.time += duration_s


class Jobs:
    """Commit jobs end as ``ends`` says; tasks of a group run until the time in ``running_until``."""

    def __init__(self, surroundings: VirtualTime) -> None:
        self.surroundings = surroundings
        self.ends: dict[str, Callable[[], JobResult]] = {}
        self.running_until: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.cancelled: list[str] = []

    def run(self, job: Job, plan: Any, source: Any = (), description: str = "") -> JobResult:
        self.started[self.group(job)] = self.surroundings.now()
        return self.ends.get(self.group(job), lambda: JobResult(Tally()))()

    def group(self, job: Job) -> str:
        return job.name

    def cancel(self, group: str) -> None:
        self.cancelled.append(group)

    def is_running(self, group: str) -> bool:
        return self.surroundings.now() < self.running_until.get(group, 0.0)

    def places(self, group: str) -> str:
        return ""


class Batches:
    """Every batch is the same."""

    def batch(self, txid: int, own: Any = None) -> Batch:
        return Batch("whole")

    def opened_at(self, txid: int) -> datetime.datetime:
        return SOME_TIME


class Scene:
    """A runner over fakes; ``apply`` runs the commit job of an attempt that was processed, or all
    of one that was deferred."""

    def __init__(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "journal")
        graph = keeping_topology(
            "topology",
            Ranges(journal, 10, 2),
            Keep(SqliteStore(tmp_path / "kept.db", "kept"), journal),
        )
        self.time = VirtualTime()
        self.jobs = Jobs(self.time)
        run = Run("run", graph, 2, {}, "generation")
        self.runner = AttemptRunner(
            run,
            self.jobs,
            cast(Any, Batches()),
            cast(Any, SimpleNamespace(known_stores={}, current=2)),
            "stop",
            lambda attempt: None,
            self.time,
        )

    def begin(self, attempt: TransactionAttempt, part: Part = "commit") -> Attempt:
        """``attempt`` as it is when its turn to commit has come: processed, or deferred and then
        ``whole``."""
        work = self.runner.begin(attempt, self.runner._run.graph.task_counts, 2)
        work.result = JobResult(Tally()) if part == "commit" else None
        return work

    def apply(
        self, attempt: TransactionAttempt, zombie_wait_s: float = 10.0, part: Part = "commit"
    ) -> Attempt:
        work = self.begin(attempt, part)
        self.runner.apply(work, zombie_wait_s)
        return work

    def lose(
        self, attempt: TransactionAttempt, runs_on_for_s: float, part: Part = "commit"
    ) -> None:
        """The commit job of ``attempt`` breaks, but a task of it runs on."""
        group = f"{attempt}:{part}"

        def lost() -> JobResult:
            raise JobLostError("an executor was lost")

        self.jobs.ends[group] = lost
        self.jobs.running_until[group] = self.time.now() + runs_on_for_s
        with pytest.raises(AttemptFailedError, match="an executor was lost"):
            self.apply(attempt, part=part)

    def waited_s(
        self, attempt: TransactionAttempt, zombie_wait_s: float = 10.0, part: Part = "commit"
    ) -> float:
        """How long the commit job of ``attempt`` waited."""
        began = self.time.now()
        self.apply(attempt, zombie_wait_s, part)
        return self.jobs.started[f"{attempt}:{part}"] - began


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_commit_waits_until_no_task_of_a_broken_commit_runs(scene: Scene) -> None:
    scene.lose(FIRST, runs_on_for_s=1.0)
    assert 1.0 <= scene.waited_s(SECOND) < 1.2


def test_a_commit_waits_for_a_cancelled_one_too(scene: Scene) -> None:
    work = scene.apply(FIRST)
    scene.jobs.running_until["2:0:commit"] = scene.time.now() + 1.0
    scene.runner.cancel(work)
    assert scene.jobs.cancelled == ["2:0:commit"]
    assert 1.0 <= scene.waited_s(SECOND) < 1.2


def test_a_commit_waits_for_one_whose_user_code_failed_when_it_is_cancelled(scene: Scene) -> None:
    failure = Failure("failed", "keep", 0, FIRST, "commit", "finish_batch", "FailedException", "")
    scene.jobs.ends["2:0:commit"] = lambda: JobResult(Tally(), failure)
    work = scene.runner.begin(FIRST, scene.runner._run.graph.task_counts, 2)
    work.result = JobResult(Tally())
    with pytest.raises(AttemptFailedError):
        scene.runner.apply(work, 10.0)
    scene.jobs.running_until["2:0:commit"] = scene.time.now() + 1.0
    scene.runner.cancel(work)
    assert 1.0 <= scene.waited_s(SECOND) < 1.2


def test_the_wait_ends_after_zombie_wait_s_and_is_not_made_again(scene: Scene) -> None:
    scene.lose(FIRST, runs_on_for_s=1000.0)
    assert 3.0 <= scene.waited_s(SECOND, zombie_wait_s=3.0) < 3.2
    assert scene.waited_s(THIRD, zombie_wait_s=3.0) == 0.0


def test_several_broken_commits_are_waited_for_within_one_bound(scene: Scene) -> None:
    broken = [scene.apply(FIRST), scene.apply(SECOND)]
    scene.jobs.running_until |= {
        "2:0:commit": scene.time.now() + 2.0,
        "2:1:commit": scene.time.now() + 1000.0,
    }
    for work in broken:
        scene.runner.cancel(work)
    assert 5.0 <= scene.waited_s(THIRD, zombie_wait_s=5.0) < 5.2


def test_nothing_is_waited_for_where_nothing_broke(scene: Scene) -> None:
    scene.apply(FIRST)
    scene.jobs.running_until["2:0:commit"] = scene.time.now() + 1000.0
    assert scene.waited_s(TransactionAttempt(3, 0)) == 0.0


def test_a_processing_job_that_was_cancelled_is_not_waited_for(scene: Scene) -> None:
    work = scene.runner.begin(FIRST, scene.runner._run.graph.task_counts, 2)
    work.groups["2:0:processing"] = "processing"
    scene.jobs.running_until["2:0:processing"] = scene.time.now() + 1000.0
    scene.runner.cancel(work)
    assert scene.waited_s(SECOND) == 0.0


# -- a transaction in one task: the whole job counts as commit -----------------------------------


def test_a_commit_waits_until_no_task_of_a_broken_whole_job_runs(scene: Scene) -> None:
    scene.lose(FIRST, runs_on_for_s=1.0, part="whole")
    assert 1.0 <= scene.waited_s(SECOND) < 1.2


def test_a_commit_waits_for_a_whole_job_that_timed_out_and_was_cancelled(scene: Scene) -> None:
    """The time-out comes while it runs: it is cancelled then, and ends, or does not, when it will."""
    work = scene.begin(FIRST, "whole")

    def cancelled() -> JobResult:
        scene.runner.cancel(work)
        raise JobLostError("Job 7 cancelled as part of cancellation of group")

    scene.jobs.ends["2:0:whole"] = cancelled
    scene.jobs.running_until["2:0:whole"] = scene.time.now() + 1.0
    with pytest.raises(AttemptFailedError, match="cancelled as part"):
        scene.runner.apply(work, 10.0)
    assert scene.jobs.cancelled == ["2:0:whole"]
    assert 1.0 <= scene.waited_s(SECOND) < 1.2


def test_a_commit_waits_for_a_whole_job_whose_user_code_failed_when_it_is_cancelled(
    scene: Scene,
) -> None:
    """The driver has heard of the failure, which does not say that the task has ended."""
    failure = Failure("failed", "keep", 0, FIRST, "processing", "execute", "FailedException", "")
    scene.jobs.ends["2:0:whole"] = lambda: JobResult(Tally(), failure)
    work = scene.begin(FIRST, "whole")
    with pytest.raises(AttemptFailedError):
        scene.runner.apply(work, 10.0)
    scene.jobs.running_until["2:0:whole"] = scene.time.now() + 1.0
    scene.runner.cancel(work)
    assert 1.0 <= scene.waited_s(SECOND) < 1.2


@pytest.mark.parametrize("part", ["commit", "whole"])
def test_a_whole_job_waits_for_a_broken_commit_of_either_kind(scene: Scene, part: Part) -> None:
    scene.lose(FIRST, runs_on_for_s=1.0, part=part)
    assert 1.0 <= scene.waited_s(TransactionAttempt(3, 0), part="whole") < 1.2


def test_a_whole_job_that_ended_well_is_not_waited_for(scene: Scene) -> None:
    scene.apply(FIRST, part="whole")
    scene.jobs.running_until["2:0:whole"] = scene.time.now() + 1000.0
    assert scene.waited_s(TransactionAttempt(3, 0), part="whole") == 0.0


def test_a_deferred_attempt_that_is_discarded_before_its_job_begins_has_none(scene: Scene) -> None:
    work = scene.begin(FIRST, "whole")
    scene.runner.cancel(work)
    with pytest.raises(AttemptFailedError, match="discarded"):
        scene.runner.apply(work, 10.0)
    assert scene.jobs.started == {}
