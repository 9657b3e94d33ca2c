"""``txtopo config show``, and that every way to start a topology, and to look at it, follows the
same sources."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from txtopo import Config, LocalCluster, UsageError, errors, submit_topology
from txtopo.command import cli, main
from txtopo.config import sources
from txtopo.runtime import cluster
from txtopo.spark import connect, session
from txtopo.state import opening

WORDS = """
from txtopo import BaseBatchBolt, Config, TransactionalTopologyBuilder
from txtopo.testing import MemoryTransactionalSpout


class Swallow(BaseBatchBolt):
    def execute(self, tup):
        pass


topology = TransactionalTopologyBuilder("words", "spout", MemoryTransactionalSpout({0: [("a",)]}, ["word"], 1))
topology.set_bolt("swallow", Swallow()).shuffle_grouping("spout")
conf = Config(max_attempts=7)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a topology, a file of settings, one in the environment and one that
    Spark would be started with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["words.py"])
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.delenv(sources.FILE_VARIABLE)
    monkeypatch.setenv("TXTOPO_MAX_CRASHES", "5")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.txtopo.spill_bytes=4k pyspark-shell")
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "txtopo.toml").write_text(
        'max_spout_pending = 4\n[user]\ndb_password = "hunter2"\n'
    )
    return tmp_path


EVERYWHERE = Config(
    max_crashes=5, spill_bytes=4096, max_spout_pending=4, user={"db_password": "hunter2"}
)
"""The settings of all sources but code and command line."""


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["config", "show", *arguments]) == 0
    return capsys.readouterr().out


def test_every_setting_is_shown_with_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    rows = dict(line.split(maxsplit=1) for line in shown(capsys).splitlines())
    assert rows.keys() == (Config.model_fields.keys() - {"user"}) | {"user.db_password"}
    assert rows["max_spout_pending"] == "4"
    assert rows["message_timeout_s"] == "30.0"
    assert rows["zookeeper"] == "null"
    assert rows["on_error"] == '"stop"'


def test_with_origin_every_setting_says_where_its_value_comes_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shown(
        capsys,
        "words.py",
        "--origin",
        "--set",
        "message_timeout_s=2m",
        "--set",
        "topology.sleep.spout.wait.strategy.time.ms=50",
    )
    rows = {
        name: (value, origin)
        for name, value, origin in (line.split(maxsplit=2) for line in out.splitlines())
    }
    assert {name: row for name, row in rows.items() if row[1] != "default"} == {
        "max_spout_pending": ("4", "file txtopo.toml"),
        "message_timeout_s": ("120.0", "command line"),
        "max_attempts": ("7", "code"),
        "max_crashes": ("5", "environment TXTOPO_MAX_CRASHES"),
        "poll_interval_s": ("0.05", "command line"),
        "spill_bytes": ("4096", "spark.txtopo.spill_bytes"),
        "user.db_password": ('"***"', "file txtopo.toml"),
    }
    columns = {
        line.index(origin)
        for line, (_, origin) in zip(out.splitlines(), rows.values(), strict=True)
    }
    assert len(columns) == 1


def test_json_output_has_each_value_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    settings = json.loads(shown(capsys, "words.py", "--json"))["settings"]
    assert settings["max_attempts"] == {"value": 7, "origin": "code"}
    assert settings["zookeeper"] == {"value": None, "origin": "default"}
    assert settings["user.db_password"] == {"value": "***", "origin": "file txtopo.toml"}


def test_shown_settings_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    before = shown(capsys, "words.py")
    options = [
        f"--set={name}={value}"
        for name, value in (line.split(maxsplit=1) for line in before.splitlines())
        if "***" not in value
    ]
    assert shown(capsys, "words.py", *options) == before


def test_the_spouts_own_window_is_shown(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "words.py").write_text(
        WORDS + 'topology.get_spout_declarer().add_configuration("topology.max.spout.pending", 9)\n'
    )
    assert "max_spout_pending 9 code (the spout's configuration)" in " ".join(
        shown(capsys, "words.py", "--origin").split()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "max_crashs=3"], "unknown setting 'max_crashs'; did you mean 'max_crashes'?"),
        (["--set", "password=hunter2"], "unknown setting 'password'"),
        (["--set", "password:hunter2"], "--set takes key=value, not '***'"),
        (["no.py"], "there is no file no.py"),
    ],
)
def test_a_setting_that_cannot_be_shown_is_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "show", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "hunter2" not in said


# -- who follows the sources ---------------------------------------------------------------------


def test_txtopo_run_follows_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(main, "run", lambda topology, conf, arguments: ran.append(conf))
    cli.main(["run", "words.py", "--max-transactions", "3"])
    assert ran == [EVERYWHERE.replaced(max_attempts=7, max_transactions=3)]


def test_a_program_that_calls_main_follows_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(main, "run", lambda topology, conf, arguments: ran.append(conf))
    main.main(topology(), {"topology.max.spout.pending": 2}, ["--set", "user.a=1"])
    assert ran == [
        EVERYWHERE.replaced(max_spout_pending=2, user={"db_password": "hunter2", "a": 1})
    ]


class Ran:
    """Instead of a run, which has ended already: keeps the arguments."""

    is_alive = False
    given: ClassVar[list[Any]] = []

    def __init__(self, *arguments: Any) -> None:
        Ran.given = [*arguments]


class Submitted(Ran):
    """Instead of a submission."""

    def __enter__(self) -> Any:
        return argparse.Namespace(join=lambda: "status")

    def __exit__(self, *raised: object) -> None: ...


def test_submit_topology_follows_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "Submission", Submitted)
    assert submit_topology("words", Config(max_attempts=2), topology()) == "status"  # type: ignore[comparison-overlap]
    assert Ran.given[1] == EVERYWHERE.replaced(max_attempts=2)
    with pytest.raises(
        UsageError, match=r"submit_topology takes the result of builder.build_topology"
    ):
        submit_topology("words", {}, "words")  # type: ignore[arg-type]


def test_a_local_cluster_follows_every_source_and_the_configuration_of_its_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {
        "spark.txtopo.max_attempts": "3",
        "spark.txtopo.spill_bytes": "8k",
        "spark.master": "local[2]",
    }
    context = argparse.Namespace(getConf=lambda: argparse.Namespace(getAll=settings.items))
    monkeypatch.setattr(session, "spark_context", lambda master, conf: context)
    monkeypatch.setattr(connect, "refuse", lambda *asked: None)
    monkeypatch.setattr(cluster, "TopologyRun", Ran)
    with LocalCluster(zookeeper="zk:2181") as local:
        local.submit_topology("words", {"max_spout_pending": 2}, topology())
    assert Ran.given[1] == EVERYWHERE.replaced(
        max_spout_pending=2, max_attempts=3, spill_bytes=8192
    )


def topology() -> Any:
    names: dict[str, Any] = {"__name__": "words"}
    exec(WORDS, names)
    return names["topology"].build_topology()


@pytest.mark.parametrize(
    "command", [["status"], ["state", "show", "words"], ["state", "reset", "words"]]
)
def test_the_state_is_looked_for_where_a_run_would_keep_it(
    command: list[str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TXTOPO_DATA_DIR", "elsewhere")
    cli.main(command)
    assert "elsewhere" in "".join(capsys.readouterr())
    cli.main([*command, "--data-dir", str(place)])
    assert "elsewhere" not in "".join(capsys.readouterr())
    monkeypatch.setenv("TXTOPO_ZOOKEEPER", "127.0.0.1:1")
    monkeypatch.setenv("TXTOPO_ZOOKEEPER_CONNECT_TIMEOUT_S", "100ms")

    def opened(*where: Any) -> Any:
        raise errors.ZooKeeperUnavailableError(f"looked in {where}")

    monkeypatch.setattr(opening, "opened", opened)
    assert cli.main([*command, "--zookeeper-root", "/other"]) == 5
    expected = opening.Place(Path("elsewhere"), "127.0.0.1:1", "/other")
    assert str(expected) in capsys.readouterr().err
