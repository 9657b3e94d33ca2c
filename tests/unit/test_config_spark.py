"""``spark.txtopo.*`` before there is a SparkContext: from the places where Spark itself would
read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from txtopo import ConfigError
from txtopo.spark import settings

DEFAULTS = r"""
# spark.txtopo.comment 1
spark.master                    local[2]
spark.txtopo.max_crashes        3
spark.txtopo.max_attempts=4
spark.txtopo.on_error = replay
  spark.txtopo.zookeeper : zk\:2181/a
spark.txtopo.user.words         [1, 2]
"""
OF_DEFAULTS = {
    "spark.txtopo.max_crashes": "3",
    "spark.txtopo.max_attempts": "4",
    "spark.txtopo.on_error": "replay",
    "spark.txtopo.zookeeper": "zk:2181/a",
    "spark.txtopo.user.words": "[1, 2]",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory as SPARK_HOME."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    return tmp_path


def test_ours_are_read_from_sparks_file_of_defaults(home: Path) -> None:
    assert settings.before_start({"SPARK_HOME": str(home)}) == OF_DEFAULTS
    assert (
        settings.before_start({"SPARK_HOME": "elsewhere", "SPARK_CONF_DIR": str(home / "conf")})
        == OF_DEFAULTS
    )


def test_the_arguments_of_spark_submit_win_over_the_file(home: Path) -> None:
    arguments = "--conf spark.txtopo.max_crashes=5 --conf=spark.txtopo.a=b=c -c 'spark.txtopo.d=e f' --conf spark.ui.port=1 pyspark-shell"
    assert settings.before_start({"SPARK_HOME": str(home), "PYSPARK_SUBMIT_ARGS": arguments}) == {
        **OF_DEFAULTS,
        "spark.txtopo.max_crashes": "5",
        "spark.txtopo.a": "b=c",
        "spark.txtopo.d": "e f",
    }


@pytest.mark.parametrize("option", ["--properties-file {}", "--properties-file={}"])
def test_another_file_may_be_named_instead(home: Path, option: str) -> None:
    other = home / "other.conf"
    other.write_text("spark.txtopo.max_crashes 9\n")
    arguments = f"{option.format(other)} pyspark-shell"
    assert settings.before_start({"SPARK_HOME": str(home), "PYSPARK_SUBMIT_ARGS": arguments}) == {
        "spark.txtopo.max_crashes": "9"
    }


def test_without_file_and_arguments_there_is_nothing(tmp_path: Path) -> None:
    assert settings.before_start({"SPARK_HOME": str(tmp_path)}) == {}
    assert settings.before_start({}) == {}


def test_a_file_that_is_no_text_is_refused(home: Path) -> None:
    (home / "conf" / "spark-defaults.conf").write_bytes(b"spark.txtopo.a \xff")
    with pytest.raises(
        ConfigError, match=r"Spark's settings in .*spark-defaults\.conf cannot be read"
    ):
        settings.before_start({"SPARK_HOME": str(home)})
