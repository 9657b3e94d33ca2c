"""Spark Connect is refused by its name, wherever it is asked for, before anything is started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.topologies import counted_words
from tests.unit.test_submit_line import CLUSTER, refused
from txtopo import Config, LocalCluster, SetupError
from txtopo.command import cli
from txtopo.runtime import cluster
from txtopo.spark import connect, session, settings
from txtopo.state import embedded

NAMED = r"is Spark Connect, which has no SparkContext"
ASKED: list[tuple[str, Mapping[str, str]]] = [
    ("sc://host:15002", {}),
    ("SC://host", {}),
    ("local[2]", {"spark.remote": "sc://host:15002"}),
    ("local[2]", {"spark.remote": "local[2]"}),
    ("local[2]", {"spark.api.mode": "connect"}),
    ("local[2]", {"spark.api.mode": "Connect"}),
    ("local[2]", {"spark.master": "sc://host"}),
]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment that says nothing of Spark, in which neither a server nor a JVM can be
    started."""

    def start(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("something was started")

    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("PYSPARK_", "SPARK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(embedded.EmbeddedZooKeeper, "start", start)
    monkeypatch.setattr(session, "spark_context", start)
    monkeypatch.setattr(session, "submitted_context", start)


@pytest.mark.parametrize(("master", "conf"), ASKED)
def test_a_local_cluster_refuses_spark_connect(master: str, conf: Mapping[str, str]) -> None:
    with pytest.raises(SetupError, match=NAMED) as caught:
        LocalCluster(master=master, spark_conf=conf)
    assert caught.value.exit_code == 2
    assert "\n  Unset SPARK_REMOTE" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SPARK_REMOTE", "sc://host"),
        ("SPARK_REMOTE", "local[2]"),
        ("SPARK_API_MODE", "connect"),
        ("SPARK_API_MODE", "CONNECT"),
        ("SPARK_CONNECT_MODE_ENABLED", "1"),
        ("SPARK_CONNECT_MODE_ENABLED", ""),
    ],
)
def test_the_environment_is_heeded_as_pyspark_heeds_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SetupError, match=rf"{variable}={re.escape(value)} {NAMED}"):
        LocalCluster()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SPARK_REMOTE", ""), ("SPARK_API_MODE", "classic"), ("SPARK_API_MODE", "")],
)
def test_an_environment_that_asks_for_the_classic_spark_is_let_in(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    connect.refuse("local[2]")


@pytest.mark.parametrize("line", ["spark.remote sc://host", "spark.api.mode=connect"])
def test_sparks_own_file_is_heeded_and_given_settings_win(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(line + "\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with pytest.raises(SetupError, match=NAMED):
        LocalCluster()
    connect.refuse("local[2]", {"spark.remote": "", "spark.api.mode": "classic"})


def test_an_option_for_pyspark_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--remote sc://host:15002 pyspark-shell")
    assert settings.all_before_start(os.environ)["spark.remote"] == "sc://host:15002"
    with pytest.raises(SetupError, match=f"spark.remote=sc://host:15002 {NAMED}"):
        LocalCluster()


def test_a_submitted_topology_and_the_command_line_refuse_spark_connect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("words.py").write_text(
        "from tests.topologies import counted_words\ntopology = counted_words.in_files('words', '*.txt', 'out')\n"
    )
    assert cli.main(["run", "words.py", "--master", "sc://host"]) == 2
    assert "sc://host is Spark Connect" in capsys.readouterr().err
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(SetupError, match=NAMED):
        cluster.Submission("words", Config(), counted_words.in_files("words", "*.txt", "out"))
    assert cli.main(["run", "words.py"]) == 2
    assert "SPARK_REMOTE=sc://host is Spark Connect" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--master", "sc://host"],
        ["--master", CLUSTER, "--", "--remote", "sc://host"],
        ["--master", CLUSTER, "--", "--remote=sc://host"],
        ["--master", CLUSTER, "--", "--conf", "spark.remote=sc://host"],
        ["--master", CLUSTER, "--", "--conf", "spark.api.mode=connect"],
    ],
)
def test_the_line_of_submit_refuses_spark_connect(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert "is Spark Connect" in refused(capsys, "words.py", *arguments)


@pytest.mark.parametrize(
    ("key", "value"), [("spark.remote", "sc://host"), ("spark.api.mode", "connect")]
)
def test_settings_of_spark_submit_are_heeded(
    monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.undo()
    for name in ("SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    conf = {key: value}

    class Conf:
        def get(self, name: str, default: str | None = None) -> str | None:
            return conf.get(name, default)

        def getAll(self) -> list[tuple[str, str]]:
            return list(conf.items())

    class Context:
        _active_spark_context = None

        @staticmethod
        def _ensure_initialized() -> None:
            pass

        def __init__(self, conf: Any) -> None:
            raise AssertionError("a context was made")

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(pyspark, "SparkContext", Context)
    monkeypatch.setattr(pyspark, "SparkConf", Conf)
    with pytest.raises(SetupError, match=NAMED):
        session.submitted_context()
