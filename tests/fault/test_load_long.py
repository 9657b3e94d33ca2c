"""Load that takes longer: data beyond any heap, a tuple beyond every bound, more tuples and keys
than memory ever holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.test_load import MIB, PATIENT, SMALL
from tests.processes.load_driver import Scenario, drive

pytestmark = pytest.mark.thorough


def total(stored: dict[str, int], beginning: str) -> int:
    return sum(value for key, value in stored.items() if key.startswith(beginning))


@pytest.mark.rule(12)
def test_held_state_larger_than_the_heap_stays_on_disk_until_its_commit(tmp_path: Path) -> None:
    spark = {**SMALL, "spark.executor.pyspark.memory": "6g"}
    outcome = drive(
        tmp_path,
        Scenario(
            "hoard", 8000, 100_000, transactions=2, conf=PATIENT, spark=spark, is_cleaned=True
        ),
    )
    assert outcome.error is None
    assert (total(outcome.stored, "rows"), total(outcome.stored, "bytes")) == (
        16_000,
        1_600_000_000,
    )
    assert outcome.pinned_replays >= 1


@pytest.mark.rule(7)
def test_tuples_of_which_a_few_fill_the_memory_are_streamed_too(tmp_path: Path) -> None:
    outcome = drive(tmp_path, Scenario("weigh-shuffled", 200, 8 * MIB, conf=PATIENT, spark=SMALL))
    assert outcome.error is None
    assert outcome.stored == {"transactions": 1, "rows": 200, "bytes": 200 * 8 * MIB}


@pytest.mark.rule(7)
def test_a_huge_number_of_tiny_tuples_is_streamed(tmp_path: Path) -> None:
    outcome = drive(tmp_path, Scenario("weigh-shuffled", 4_000_000, 4, conf=PATIENT, spark=SMALL))
    assert outcome.error is None
    assert outcome.stored == {"transactions": 1, "rows": 4_000_000, "bytes": 16_000_000}


@pytest.mark.rule(7)
@pytest.mark.parametrize(
    ("gib", "spark", "error", "setting"),
    [
        (2.2, {}, "BatchTooLargeError", "blob_bytes_max"),
        (2.2, SMALL, "OutOfMemoryError", "spark.executor.pyspark.memory"),
    ],
)
def test_a_tuple_larger_than_anything_takes_is_an_error_that_names_the_setting(
    tmp_path: Path, gib: float, spark: dict[str, str], error: str, setting: str
) -> None:
    conf = {**PATIENT, "blob_bytes_max": 1 << 30}
    outcome = drive(
        tmp_path,
        Scenario(
            "weigh-shuffled",
            2,
            int(gib * (1 << 30)),
            transactions=2,
            huge=2,
            conf=conf,
            spark=spark,
        ),
    )
    assert outcome.error is not None
    assert outcome.error[0] == error
    assert setting in outcome.error[1]


@pytest.mark.rule(32)
def test_a_store_transaction_takes_far_more_keys_than_it_keeps_rows(tmp_path: Path) -> None:
    outcome = drive(
        tmp_path, Scenario("keys", 300_000, 4, transactions=2, conf=PATIENT, spark=SMALL)
    )
    assert outcome.error is None
    assert outcome.stored == {"keys": 300_000, "sum": 600_000}


@pytest.mark.rule(7)
def test_an_executor_whose_heap_is_full_ends_the_run_after_max_crashes_and_names_the_setting(
    tmp_path: Path,
) -> None:
    scenario = Scenario(
        "weigh-shuffled",
        4,
        300 * MIB,
        transactions=2,
        conf={**PATIENT, "blob_bytes_max": 512 * MIB, "max_crashes": 2},
        spark={"spark.executor.memory": "512m"},
        master="local-cluster[1,2,512]",
    )
    outcome = drive(tmp_path, scenario)
    assert outcome.error is not None
    assert outcome.error[0] == "WorkerCrashError"
    assert "spark.executor.memory" in outcome.error[1]
    assert (outcome.current, outcome.stored) == (1, {})
