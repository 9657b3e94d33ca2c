"""``spark-submit file.py``: the same file, the SparkContext of spark-submit, the same exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from starter import transactional_global_count
from tests.starter.commands import STARTERS, done


@pytest.mark.thorough
def test_a_starter_given_to_spark_submit_twice_resumes_and_counts_nothing_twice(
    tmp_path: Path,
) -> None:
    run: list[str | Path] = [
        "spark-submit",
        "--master",
        "local[2]",
        STARTERS / "transactional_global_count.py",
    ]
    store = transactional_global_count.open_store(tmp_path / transactional_global_count.STORE_PATH)
    first = done(run, tmp_path)
    assert "txtopo: global-count begins at txid 1 (generation " in first
    assert "; Spark local[2]\n" in first
    assert (
        "txtopo: global-count done: 3 transactions committed, 19 tuples, 0 replays; the next run begins at txid 4\n"
        in first
    )
    assert store.get("GLOBAL-COUNT") == 19
    second = done(run, tmp_path)
    assert "txtopo: global-count resumes at txid 4 (generation " in second
    assert (
        "txtopo: global-count done: 0 transactions committed, 0 tuples, 0 replays; the next run begins at txid 4\n"
        in second
    )
    assert store.get("GLOBAL-COUNT") == 19


def test_options_come_after_the_file_and_an_error_of_ours_is_the_exit_code_of_spark_submit(
    tmp_path: Path,
) -> None:
    program = STARTERS / "transactional_global_count.py"
    said = done(
        ["spark-submit", "--master", "local[2]", program, "--set", "max_spout_pendign=5"],
        tmp_path,
        exit_code=2,
    )
    assert (
        "txtopo: error: unknown setting 'max_spout_pendign'; did you mean 'max_spout_pending'?"
        in said
    )


@pytest.mark.thorough
@pytest.mark.rule(33)
def test_settings_of_spark_submit_are_kept_and_refused_where_they_could_mix_two_emissions(
    tmp_path: Path,
) -> None:
    program = STARTERS / "transactional_global_count.py"
    unsafe: list[str | Path] = [
        "spark-submit",
        "--master",
        "local[1]",
        "--conf",
        "spark.speculation=true",
        program,
    ]
    said = done(unsafe, tmp_path, exit_code=2)
    assert "spark.speculation=true, but a second copy of a task would emit the batch twice" in said
