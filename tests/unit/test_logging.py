"""The logger ``txtopo``: messages and their levels; a library logs only warnings by itself."""

from __future__ import annotations

import argparse
import io
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.topologies.recording import NotingBolt, builder
from txtopo import Config
from txtopo.command import main, options
from txtopo.dataplane.outcome import Failure
from txtopo.engine import logged
from txtopo.engine.attempts import AttemptFailedError
from txtopo.engine.observer import EndedAttempt
from txtopo.errors import InputError, ZooKeeperUnavailableError
from txtopo.runtime import cluster
from txtopo.runtime.progress import ProgressLine
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import TransactionAttempt

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


NOT_NOW = Failure(
    "failed", "a", 3, TransactionAttempt(1, 0), "processing", "execute", "FailedException", ""
)


def play(lines: logged.LogLines) -> None:
    """A run with every logged event."""
    attempt = TransactionAttempt(1, 0)
    lines.began("first", 2, 1, is_resumed=False)
    for failure in (
        AttemptFailedError("failed", "FailedException: not now\n  in component 'a'", None, NOT_NOW),
        AttemptFailedError("outgrown", "the results go another way"),
    ):
        lines.attempt_ended(EndedAttempt(attempt, failure.kind, failure, is_replayed=True))
    lines.away(
        ZooKeeperUnavailableError("there is no room left in the data directory /data\n  Make room")
    )
    lines.committed(EndedAttempt(attempt, tuples=7))
    lines.ended(InputError("KeyError: 'x'\n  in component 'a'"))


def lines() -> logged.LogLines:
    return logged.LogLines("words")


def test_each_event_of_a_run_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "txtopo"):
        play(lines())
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("txtopo", "INFO", "topology 'words' begins at txid 1 (epoch 2)"),
        ("txtopo", "WARNING", "topology 'words' replays txid 1: FailedException: not now"),
        ("txtopo", "INFO", "topology 'words' replays txid 1: the results go another way"),
        (
            "txtopo",
            "WARNING",
            "topology 'words' waits for its ZooKeeper: there is no room left in the data directory /data",
        ),
        ("txtopo", "DEBUG", "topology 'words': 1 transactions committed, the last with 7 tuples"),
        (
            "txtopo",
            "ERROR",
            "topology 'words' ended with an error, which wait_* and join raise: KeyError: 'x'",
        ),
    ]


def test_every_level_that_is_used_is_in_the_documentation(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "txtopo"):
        play(lines())
    section = PAGE.read_text(encoding="utf-8").partition("## Logging")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([A-Z]+)` \|", section, flags=re.MULTILINE)) == {
        record.levelname for record in caplog.records
    }


def test_a_program_that_configures_no_logging_sees_warnings_and_errors_only() -> None:
    code = "from tests.unit.test_logging import lines, play; play(lines())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=PAGE.parents[1],
    )
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "topology 'words' replays txid 1: FailedException: not now",
        "topology 'words' waits for its ZooKeeper: there is no room left in the data directory /data",
        "topology 'words' ended with an error, which wait_* and join raise: KeyError: 'x'",
    ]


def test_a_command_shows_warnings_among_its_lines_and_errors_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logged.LOGGER, "propagate", False)
    stream = io.StringIO()
    with main._logs_shown(ProgressLine(stream)):
        play(lines())
    assert stream.getvalue().splitlines() == [
        "txtopo: topology 'words' replays txid 1: FailedException: not now",
        "txtopo: topology 'words' waits for its ZooKeeper: there is no room left in the data directory /data",
    ]
    assert logged.LOGGER.handlers == []


def test_a_command_leaves_warnings_to_a_program_that_has_said_where_its_logs_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = io.StringIO()
    with main._logs_shown(ProgressLine(stream)):
        play(lines())
    assert stream.getvalue() == ""
    assert "not now" in caplog.text


def test_a_cluster_and_a_command_say_that_spark_starts_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NotNowError(Exception):
        pass

    def not_now(*arguments: object, **more: object) -> None:
        raise NotNowError

    monkeypatch.setattr(cluster, "EmbeddedZooKeeper", not_now)
    with pytest.raises(NotNowError):
        cluster.LocalCluster(data_dir=tmp_path, progress=True)
    assert capsys.readouterr().err == "txtopo: starting Spark …\n"
    with pytest.raises(NotNowError):
        cluster.LocalCluster(data_dir=tmp_path)
    assert capsys.readouterr().err == "", "this is no terminal"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotNowError):
        main.run(topology(), Config(), arguments())
    assert capsys.readouterr().err == "txtopo: starting Spark …\n"


def arguments() -> argparse.Namespace:
    parser = options.Parser()
    options.add_run_options(parser)
    return parser.parse_args([])


def topology() -> TopologyGraph:
    declared = builder()
    declared.set_bolt("note", NotingBolt()).shuffle_grouping("spout")
    return declared.build_topology()
