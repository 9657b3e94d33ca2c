"""Settings in the configuration of ``spark-submit``, over the environment and a file, under the
program's own options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.starter.commands import STARTERS, done


@pytest.mark.thorough
def test_a_program_given_to_spark_submit_follows_spark_the_environment_and_the_file(
    tmp_path: Path,
) -> None:
    program = STARTERS / "transactional_global_count.py"
    (tmp_path / "txtopo.toml").write_text('data_dir = "kept"\nmax_transactions = 3\n')
    submit: list[str | Path] = ["spark-submit", "--master", "local[2]"]
    one = done(
        [*submit, "--conf", "spark.txtopo.max_transactions=1", program],
        tmp_path,
        TXTOPO_MAX_TRANSACTIONS="2",
    )
    assert "txtopo: global-count done: 1 transaction committed" in one
    assert "(our own, in kept)" in one
    two = done(
        [
            *submit,
            "--conf",
            "spark.txtopo.max_transactions=1",
            program,
            "--set",
            "max_transactions=2",
        ],
        tmp_path,
    )
    assert "txtopo: global-count done: 2 transactions committed" in two
    typo = done(
        [*submit, "--conf", "spark.txtopo.max_transaction=1", program], tmp_path, exit_code=2
    )
    assert (
        "unknown setting 'spark.txtopo.max_transaction'; did you mean 'spark.txtopo.max_transactions'?"
        in typo
    )
