"""``--spark-conf``: settings that reach Spark, and settings that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_logging import topology
from tests.unit.test_task_log import parsed_options
from txtopo import Config, ConfigError, SetupError, UsageError
from txtopo.command import main, options
from txtopo.runtime import cluster


def test_sparks_settings_reach_spark_and_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = parsed_options(
        "--spark-conf", "spark.ui.enabled=true", "--spark-conf", "spark.txtopo.max_crashes=3"
    )
    assert main.settings_of(asked, Config(), topology()).max_crashes == 3
    submitted: list[Any] = []

    def not_now(*arguments: object, **more: object) -> None:
        submitted.extend(arguments)
        raise SetupError("not now")

    monkeypatch.setattr(cluster, "Submission", not_now)
    with pytest.raises(SetupError, match="not now"):
        main.run(topology(), Config(), asked)
    assert submitted[4] == {"spark.ui.enabled": "true", "spark.txtopo.max_crashes": "3"}


@pytest.mark.parametrize(
    ("setting", "error", "text"),
    [
        ("spark.ui.enabled", ConfigError, "--spark-conf takes key=value"),
        ("spark.master=local[1]", ConfigError, "Give --master"),
        ("spark.speculation=true", SetupError, "--spark-conf has spark.speculation=true, but"),
        ("spark.remote=sc://host", SetupError, "Spark Connect"),
    ],
)
def test_a_setting_that_spark_must_not_have_is_refused(setting: str, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        main.settings_of(parsed_options("--spark-conf", setting), Config(), topology())


def test_sparks_settings_come_too_late_inside_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(UsageError, match="comes too late"):
        main.settings_of(parsed_options("--spark-conf", "a=b"), Config(), topology())


@pytest.mark.parametrize("text", ["spark.x.password hunter2", "hunter2password"])
def test_a_secret_given_to_spark_is_not_printed(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options.spark_conf_of(parsed_options("--spark-conf", text))
    assert "hunter2" not in str(caught.value)
