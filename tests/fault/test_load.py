"""Load: a topology that is fed faster than it commits stays as large as it is, and a batch larger
than memory goes to disk or fails whole."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes.load_driver import Outcome, Sample, Scenario, drive
from tests.servers.clusters import Journal, fast
from tests.topologies.floods import Flood, store_of, weighing
from txtopo import LocalCluster, WorkerCrashError

MIB = 1 << 20
SMALL = {"spark.executor.pyspark.memory": "256m", "spark.driver.memory": "480m"}
"""Address space of each Python worker; and a heap near the minimum of Spark.
"""
PATIENT = {"spill_bytes": 16 * MIB, "message_timeout_s": 3600}
PENDING, INLINE_BYTES_MAX = 6, 200_000


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Hundreds of transactions, each of which is processed long before it may commit."""
    scenario = Scenario(
        "weigh",
        rows=20,
        row_bytes=1000,
        transactions=210,
        sample_every=15,
        total={"pause_s": 0.2, "ballast_bytes": 100_000},
        conf={"max_spout_pending": PENDING, "inline_bytes_max": INLINE_BYTES_MAX},
    )
    return drive(tmp_path_factory.mktemp("fed"), scenario)


def late_and_early(outcome: Outcome, value: Callable[[Sample], int]) -> tuple[int, int]:
    """The median of the last five samples, and of five early samples: one-time costs are over by
    then."""
    values = [value(each) for each in outcome.samples]
    return sorted(values[-5:])[2], sorted(values[3:8])[2]


@pytest.mark.thorough
@pytest.mark.rule(2, 3)
def test_processed_transactions_that_wait_to_commit_stay_within_the_window(fed: Outcome) -> None:
    assert fed.error is None
    assert fed.stored == {"transactions": 210, "rows": 210 * 20, "bytes": 210 * 20_000}
    waiting = [each.waiting_to_commit for each in fed.samples]
    assert sorted(waiting)[len(waiting) // 2] >= PENDING - 2, (
        "it was not fed faster than it commits"
    )
    assert max(waiting) <= PENDING


@pytest.mark.thorough
@pytest.mark.rule(2, 12)
def test_held_results_in_the_driver_are_bounded_by_two_settings(fed: Outcome) -> None:
    held = [each.held_by_driver for each in fed.samples]
    assert max(held) > 100_000
    assert max(held) <= (PENDING + 1) * INLINE_BYTES_MAX, (
        "at most max_spout_pending times what is inline"
    )


@pytest.mark.thorough
def test_memory_threads_and_files_stay_as_they_are(fed: Outcome) -> None:
    grown = {}
    for name, tolerance, floor in (
        ("driver_rss", 1.1, 8 * MIB),
        ("driver_threads", 1.0, 2),
        ("heap", 1.2, 16 * MIB),
        ("jvm_threads", 1.2, 40),
        ("workers_rss", 1.2, 32 * MIB),
        ("workers", 1.0, 2),
        ("local_files", 1.0, 20),
        ("local_bytes", 1.0, 2 * MIB),
        ("persisted", 1.0, 0),
    ):
        late, early = late_and_early(fed, operator.attrgetter(name))
        if late > early * tolerance + floor:
            grown[name] = (early, late)
    assert grown == {}


@pytest.mark.thorough
@pytest.mark.rule(25)
def test_state_in_zookeeper_stays_as_it_is(fed: Outcome) -> None:
    assert late_and_early(fed, lambda each: each.znodes)[0] <= 15 + PENDING
    late, early = late_and_early(fed, lambda each: each.znode_bytes)
    assert late <= early + 100, "numbers have more digits, nothing else may grow"


@pytest.mark.rule(7, 28)
@pytest.mark.parametrize(
    "rows", [600, pytest.param(6000, marks=pytest.mark.thorough)], ids=["60 MB", "600 MB"]
)
def test_a_large_batch_spills_and_survives_the_kill_of_a_worker(tmp_path: Path, rows: int) -> None:
    """60 MB where 1 MiB stays in memory; or 600 MB in 256 MiB of address space, and a heap that
    holds less than that. Through a shuffle with fields grouping."""
    conf = PATIENT if rows > 600 else {**PATIENT, "spill_bytes": MIB}
    outcome = drive(
        tmp_path,
        Scenario(
            "weigh-shuffled",
            rows,
            100_000,
            transactions=3,
            huge=2,
            kill_at=(2, rows // 6),
            conf=conf,
            spark=SMALL,
            is_cleaned=rows > 600,
        ),
    )
    assert outcome.error is None
    assert outcome.stored == {"transactions": 3, "rows": rows + 2, "bytes": (rows + 2) * 100_000}
    assert outcome.replays >= 1
    assert Journal(tmp_path / "journal").lines() == ["killed", "spilled"]


@pytest.mark.thorough
@pytest.mark.rule(7, 12)
def test_held_state_larger_than_memory_ends_with_the_settings_by_name_and_commits_nothing_of_its_transaction(
    tmp_path: Path,
) -> None:
    conf = {**PATIENT, "inline_bytes_max": 0}
    outcome = drive(
        tmp_path,
        Scenario(
            "hoard", 6000, 100_000, transactions=3, huge=2, conf=conf, spark=SMALL, is_cleaned=True
        ),
    )
    assert outcome.error is not None
    kind, text = outcome.error
    assert kind == "OutOfMemoryError"
    assert "component 'committer'" in text
    assert "256 MiB, from spark.executor.pyspark.memory" in text
    assert outcome.current == 2
    assert sum(value for key, value in outcome.stored.items() if key.startswith("rows")) == 1, (
        "transaction 1 and nothing else"
    )


@pytest.mark.thorough
@pytest.mark.rule(7)
def test_a_disk_that_takes_no_more_ends_with_the_settings_by_name_and_commits_nothing_of_its_transaction(
    tmp_path: Path,
) -> None:
    outcome = drive(
        tmp_path,
        Scenario(
            "weigh-shuffled",
            3000,
            100_000,
            transactions=3,
            huge=2,
            file_bytes_max=32 * MIB,
            conf=PATIENT,
            is_cleaned=True,
        ),
    )
    assert outcome.error is not None
    kind, text = outcome.error
    assert kind == "LocalDiskError"
    assert f"cannot be spilled to {tmp_path}/local/" in text
    assert "spark.local.dir" in text
    assert (outcome.current, outcome.stored["transactions"]) == (2, 1)


@pytest.mark.thorough
@pytest.mark.rule(7)
def test_a_worker_that_is_killed_for_its_memory_each_time_ends_the_run_after_max_crashes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The system does the same to a process when memory is short: SIGKILL."""
    topology = weighing(
        "killed-for-memory",
        tmp_path,
        Flood(2, 50, 10, huge=2),
        shuffled=False,
        kill_at=(2, 20),
        kills=99,
    )
    run = cluster.submit_topology("killed-for-memory", fast(max_crashes=3), topology)
    with pytest.raises(WorkerCrashError) as caught:
        run.join(PATIENCE_S)
    assert (caught.value.txid, caught.value.crashes) == (2, 3)
    assert Journal(tmp_path / "journal").lines() == ["killed"] * 3
    assert "spark.executor.memoryOverhead" in str(caught.value)
    assert "make the batches smaller" in str(caught.value)
    assert store_of(tmp_path).get("transactions") == 1
