"""Hazards of executors and Spark for an attempt, on a cluster of two executor processes as txtopo
starts it: the attempt fails, is replayed, and counts once.

Each scenario loses, doubles or mixes data without its guards: ``test_spark_hazards_guards`` shows
this, guard by guard.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.topologies.fresh_emissions import DRIVER_WAITS
from tests.wrong.hazards import ROOT, Answer, HazardousCluster

COMMITTED = 3
"""Transactions of a planned run; learnt by emitting they are a random number more."""


@pytest.fixture(scope="module")
def hazardous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HazardousCluster]:
    with HazardousCluster("strict", tmp_path_factory.mktemp("hazards") / "log") as cluster:
        yield cluster


def survived(answer: Answer, strike: str, replays: int = 1) -> None:
    """The fault was hit, the attempt was replayed, and nothing was lost, counted twice or mixed."""
    assert answer.struck == [f"struck {strike}"]
    assert answer.violations == []
    assert answer.replays >= replays
    assert answer.committed >= COMMITTED


OF_THE_LOSS = (
    "ExecutorLostFailure",
    "FetchFailed",
    "has failed the maximum allowable number of times",
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND",
    "Failed to connect to",
    "Connection reset",
    "Failed to get broadcast",
    "TaskResultLost",
)
"""What Spark says when an executor, or what was on it, is gone."""


def refused(answer: Answer, *reason: str) -> None:
    """A job was lost for this reason, and each other one for the loss of the executor, which may
    cost jobs of the replay, too."""
    assert any(all(text in refusal for text in reason) for refusal in answer.refusals), (
        answer.refusals
    )
    others = [
        refusal
        for refusal in answer.refusals
        if not any(text in refusal for text in (*OF_THE_LOSS, *reason[-1:]))
    ]
    assert others == []


def attempts_at(answer: Answer, beginning: str) -> list[str]:
    """The attempts that came to a point, each once."""
    attempts = [line.split()[3] for line in answer.journal if line.startswith(beginning)]
    assert len(attempts) == len(set(attempts)), "Spark ran a task again within one attempt"
    return attempts


@pytest.mark.rule(8, 33)
def test_an_executor_killed_between_map_and_reduce_fails_the_attempt(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    answer = hazardous.play("killed between map and reduce", tmp_path)
    survived(answer, "pass 1 finish kill executor after sibling")
    refused(answer, "failed 1 times", "ExecutorLostFailure")


@pytest.mark.thorough
@pytest.mark.rule(4, 33)
def test_an_executor_killed_after_a_batch_was_learnt_by_emitting_leaves_metadata_and_tuples_of_one_emission(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    survived(
        hazardous.play("killed between map and reduce, emitted beforehand", tmp_path),
        "pass 1 finish kill executor after sibling",
    )


@pytest.mark.thorough
@pytest.mark.rule(10, 33)
def test_shuffle_files_that_are_lost_fail_the_attempt_instead_of_a_second_try_of_the_stage(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    answer = hazardous.play("shuffle files lost", tmp_path)
    survived(answer, "pass 0 finish delete shuffle files")
    refused(answer, "has failed the maximum allowable number of times: 1")
    assert attempts_at(answer, "pass 0 finish 2:")[:2] == ["2:0", "2:1"]


@pytest.mark.thorough
@pytest.mark.rule(12, 33)
def test_results_in_the_driver_outlive_their_executor(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    answer = hazardous.play("killed between the phases, inline", tmp_path)
    survived(answer, "between the phases", replays=0)
    assert answer.refusals == []
    assert answer.replays == 0


@pytest.mark.thorough
@pytest.mark.rule(12, 33)
def test_a_pinned_block_lost_between_the_phases_fails_the_commit_instead_of_running_the_spout_again(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    answer = hazardous.play("killed between the phases, pinned", tmp_path)
    survived(answer, "between the phases", replays=2)
    lost = [
        refusal for refusal in answer.refusals if "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in refusal
    ]
    # On a busy machine a job of the replay may fall ill of the loss, too; how many do is Spark's
    # affair.
    assert answer.refusals[0] in lost
    assert all(refusal.startswith("commit: ") for refusal in lost)
    emitted = [
        line.split()[:4] for line in answer.journal if re.match(r"numbers \d+ emitted ", line)
    ]
    assert [line for line in emitted if emitted.count(line) > 1] == [], (
        "Spark asked the spout again within one attempt"
    )


@pytest.mark.thorough
@pytest.mark.rule(4, 33)
def test_a_pinned_block_that_spark_made_again_by_itself_is_refused(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    """Lost before its lineage is cut, the block is computed again within the same job: only the
    number of the task attempt tells the two apart."""
    answer = hazardous.play("killed when half is pinned", tmp_path)
    survived(answer, "numbers 1 emitted wait")
    refused(answer, "a pinned result was made by task attempt")
    first = [line for line in answer.journal if line.startswith("numbers 0 emitted 2:")]
    attempts = [line.split()[3] for line in first]
    assert any(attempts.count(attempt) == 2 for attempt in attempts), (
        "Spark did not ask the spout again within one attempt"
    )


@pytest.mark.rule(28, 29)
@pytest.mark.parametrize(
    ("scenario", "strike"),
    [
        pytest.param(
            "before the effect", "keep 0 before kill executor", marks=pytest.mark.thorough
        ),
        pytest.param("inside the store", "keep 0 inside kill executor", marks=pytest.mark.thorough),
        ("after the effect", "keep 0 after kill executor"),
    ],
    ids=["before", "inside", "after"],
)
def test_an_executor_killed_during_commit_leaves_each_effect_once(
    hazardous: HazardousCluster, tmp_path: Path, scenario: str, strike: str
) -> None:
    answer = hazardous.play(f"killed during commit, {scenario}", tmp_path)
    survived(answer, strike)
    refused(answer, "commit: ", "ExecutorLostFailure")


@pytest.mark.rule(29, 33)
def test_a_zombie_that_writes_when_another_attempt_has_committed_is_refused(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    """Its executor is suspended and cannot be stopped: the wait for it ends after
    ``zombie_wait_s``, and the fence does the rest."""
    answer = hazardous.play("zombie in user code", tmp_path)
    survived(answer, "keep 0 before stop executor")
    assert answer.notes == ["keep 0 2:0 was refused: StaleAttemptError", "store unchanged: True"]
    assert attempts_at(answer, "keep 0 after 2:") == ["2:1"]


@pytest.mark.thorough
@pytest.mark.rule(33)
def test_the_replays_commit_begins_when_no_task_of_the_broken_one_runs(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    """One task of a commit has died, and the job with it; the other cannot be stopped, and writes
    when the replay has been processed."""
    answer = hazardous.play("zombie that is waited for", tmp_path)
    assert len(answer.struck) == 2
    assert answer.violations == []
    waits = [place for place, line in enumerate(answer.journal) if line == DRIVER_WAITS]
    assert len(waits) > 2, "the driver did not wait"
    of_replay = [
        place
        for place, line in enumerate(answer.journal)
        if line.startswith(("keep 0 before 2:1 ", "keep 1 before 2:1 "))
    ]
    assert waits[2] < of_replay[0], "two commits of one transaction ran side by side"
    of_zombie = [
        place
        for place, line in enumerate(answer.journal)
        if line.startswith(("keep 0 inside 2:0 ", "keep 0 after 2:0 "))
    ]
    assert of_zombie == [] or of_zombie[-1] < of_replay[0]


@pytest.mark.thorough
@pytest.mark.rule(8, 29, 33)
def test_a_task_cancelled_inside_its_store_transaction_leaves_no_rows_and_no_lasting_locks(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    answer = hazardous.play("zombie inside the store", tmp_path)
    survived(answer, "keep 0 inside wait")
    assert any("cancelled" in refusal for refusal in answer.refusals)
    assert [line.split()[3] for line in answer.journal if line.startswith("keep 0 after 2:")][
        -1:
    ] != ["2:0"]


@pytest.mark.thorough
@pytest.mark.rule(10, 33)
def test_a_whole_transaction_in_one_task_is_not_run_again_within_its_attempt(
    hazardous: HazardousCluster, tmp_path: Path
) -> None:
    """The executor is taken away when one committer has stored its part. If Spark blames a loss on
    no task, Spark itself tries again."""
    answer = hazardous.play("taken away during a whole job", tmp_path)
    survived(answer, "keep 0 after wait")
    refused(answer, "whole: ", "RepeatedTaskError")
    assert attempts_at(answer, "keep 0 after 6:")[:2] == ["6:0", "6:1"]


SAYS_ITS_SETTINGS = """
import txtopo
from txtopo.spark import session

with txtopo.LocalCluster(master="local[1]") as cluster:
    conf = dict(cluster.context.getConf().getAll())
    print("HAS", *(f"{key}={conf[key]}" for key in session.REQUIRED))
"""


@pytest.mark.thorough
@pytest.mark.rule(33)
def test_speculation_and_retries_in_sparks_own_defaults_are_neutralised_and_that_is_said(
    tmp_path: Path,
) -> None:
    """Where they are given to us they are refused: ``tests/integration/test_session.py``,
    ``tests/starter/test_spark_submit.py``."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.speculation true\nspark.task.maxFailures 4\nspark.stage.maxConsecutiveAttempts 4\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SAYS_ITS_SETTINGS]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    has = "HAS spark.speculation=false spark.stage.maxAttempts=1 spark.stage.maxConsecutiveAttempts=1 spark.task.maxFailures=1"
    assert has in done.stdout, done.stderr
    for setting in (
        "spark.speculation=true, but false is used here",
        "spark.task.maxFailures=4, but",
        "spark.stage.maxConsecutiveAttempts=4, but",
    ):
        assert f"Spark's own configuration has {setting}" in done.stderr


@pytest.mark.thorough
@pytest.mark.rule(33)
@pytest.mark.parametrize("round", range(2))
@pytest.mark.parametrize(
    "scenario",
    [
        "killed between map and reduce",
        "killed between map and reduce, emitted beforehand",
        "shuffle files lost",
        "killed between the phases, pinned",
        "killed when half is pinned",
    ],
)
def test_no_attempt_mixes_two_emissions_however_often_it_is_tried(
    hazardous: HazardousCluster, tmp_path: Path, scenario: str, round: int
) -> None:
    answer = hazardous.play(scenario, tmp_path)
    assert len(answer.struck) == 1
    assert answer.violations == []


@pytest.mark.thorough
@pytest.mark.rule(29, 31, 33)
@pytest.mark.parametrize("kind", ["inline", "pinned"])
def test_executors_killed_at_random_moments_lose_double_and_mix_nothing(
    hazardous: HazardousCluster, tmp_path: Path, kind: str
) -> None:
    answer = hazardous.play(f"killed at random, {kind}", tmp_path)
    assert len(answer.struck) >= 2, "it was over before anybody was killed"
    assert answer.violations == []
    print(
        f"{len(answer.struck)} executors killed, {answer.replays} replays, {answer.committed} transactions"
    )
