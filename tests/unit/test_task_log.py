"""``context.log`` names component, task, txid, attempt and phase, in text and in JSON; all lines of
a command in JSON; a worker's handler."""

from __future__ import annotations

import argparse
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.topologies.recording import (
    InProcessTopology,
    NotingBolt,
    NotingCommitter,
    builder,
    planned,
    rows,
)
from tests.unit.test_logging import lines, play, topology
from txtopo import Config, ConfigError, UsageError
from txtopo.command import main, options
from txtopo.engine import logged
from txtopo.runtime import cluster
from txtopo.spark import log_lines
from txtopo.topology import log
from txtopo.topology.context import CoordinatorContext

SCHEMA = {"ts", "level", "logger", "msg", "context"}


def say(bolt: Any, *ignored: Any) -> None:
    """Log through an attribute that a held bolt keeps across the phases."""
    bolt.log = getattr(bolt, "log", bolt.context.log)
    bolt.log.info("hello from %s", "a hook")


def test_every_hooks_line_names_its_task_attempt_and_present_phase(
    caplog: pytest.LogCaptureFixture,
) -> None:
    declared = builder()
    declared.set_bolt("split", NotingBolt(say, say, say)).shuffle_grouping("spout")
    declared.set_bolt("count", NotingCommitter(say, say, say)).shuffle_grouping("spout")
    graph = declared.build_topology()
    with InProcessTopology(graph) as ran, caplog.at_level(logging.INFO, "txtopo.tasks"):
        assert ran.run(planned({0: rows("x")})).failure is None
    contexts = [record.__dict__["context"] for record in caplog.records]
    assert {(each["component"], each["phase"]) for each in contexts} == {
        ("split", "processing"),
        ("count", "processing"),
        ("count", "commit"),
    }
    for each in contexts:
        task = {"topology": graph.id, "task": "0", "txid": "1", "attempt": "0"}
        assert task.items() <= each.items()
    assert {record.getMessage() for record in caplog.records} == {"hello from a hook"}


def test_a_spout_coordinators_line_names_its_component(caplog: pytest.LogCaptureFixture) -> None:
    CoordinatorContext("words", "first", "lines", dict).log.warning("late", extra={"lag": 3})
    assert caplog.records[0].__dict__["context"] == {"topology": "words", "component": "lines"}
    assert caplog.records[0].__dict__["lag"] == 3


def record(error: Exception | None = None) -> logging.LogRecord:
    cause = None if error is None else (type(error), error, error.__traceback__)
    line = logging.LogRecord("txtopo.tasks", logging.INFO, "", 0, "got %d", (3,), cause)
    line.__dict__["context"] = {"component": "split", "txid": "2"}
    return line


def test_a_line_in_text_has_the_fields_before_the_message() -> None:
    assert (
        log_lines.formatter("text").format(record()).endswith(" INFO component=split txid=2: got 3")
    )


def test_a_line_in_json_has_pysparks_fields() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        parsed = json.loads(log_lines.formatter("json").format(record(error)))
    assert set(parsed) == {*SCHEMA, "exception"}
    assert (parsed["msg"], parsed["level"]) == ("got 3", "INFO")
    assert parsed["context"] == {"component": "split", "txid": "2"}
    assert (parsed["exception"]["class"], parsed["exception"]["msg"]) == (
        "ValueError",
        "two\nlines",
    )
    assert [set(frame) for frame in parsed["exception"]["stacktrace"]] == [
        {"class", "method", "file", "line"}
    ]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which nothing has configured logging."""
    monkeypatch.setattr(log_lines, "_shown", None)
    monkeypatch.setattr(log.TASKS, "handlers", [])
    level = log.TASKS.level
    yield
    log.TASKS.setLevel(level)


def test_a_worker_writes_lines_from_the_level_on_once(
    worker: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    for level in ("info", "info", "warning", "info"):
        log_lines.show(level, "json")
    assert len(log.TASKS.handlers) == 1
    context = CoordinatorContext("words", "first", "lines", dict)
    context.log.debug("hidden")
    context.log.info("shown")
    log_lines.show("warning", "text")
    context.log.info("hidden")
    context.log.warning("shown, too")
    first, second = capsys.readouterr().err.splitlines()
    assert json.loads(first)["msg"] == "shown"
    assert second.endswith(" WARNING topology=words component=lines: shown, too")


def test_a_worker_leaves_lines_to_a_handler_of_the_user(
    worker: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_lines.show("info", "text")
    stream = io.StringIO()
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler(stream)])
    CoordinatorContext("words", "first", "lines", dict).log.warning("told")
    assert (capsys.readouterr().err, stream.getvalue()) == ("", "told\n")


def test_importing_the_package_adds_no_handler() -> None:
    code = (
        "import logging, txtopo, txtopo.spark.log_lines, txtopo.spark.task, txtopo.command.main\n"
        "loggers = [logging.root, *(logging.getLogger(n) for n in logging.root.manager.loggerDict if n.startswith('txtopo'))]\n"
        "print([h for each in loggers for h in each.handlers if not isinstance(h, logging.NullHandler)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def parsed_options(*arguments: str) -> argparse.Namespace:
    parser = options.Parser()
    options.add_run_options(parser)
    return parser.parse_args(list(arguments))


def test_every_line_of_a_command_in_json_parses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NotNowError(Exception):
        exit_code = 6

    def not_now(*arguments: object, **more: object) -> None:
        log.TASKS.info("told by a coordinator")
        play(lines())
        raise NotNowError("two\nlines")

    monkeypatch.setattr(cluster, "Submission", not_now)
    monkeypatch.setattr(logged.LOGGER, "propagate", False)
    asked = parsed_options("--log-format", "json")
    conf = options.resolved(asked, Config(), topology()).config
    assert main.run(topology(), conf, asked) == 6
    parsed = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(set(line) >= SCHEMA for line in parsed)
    assert [(line["logger"], line["level"]) for line in parsed] == [
        ("txtopo.run", "INFO"),
        ("txtopo.tasks", "INFO"),
        ("txtopo", "INFO"),
        ("txtopo", "WARNING"),
        ("txtopo", "INFO"),
        ("txtopo", "WARNING"),
        ("txtopo.run", "ERROR"),
    ]
    attempt = {"topology": "words", "epoch": "2", "txid": "1", "attempt": "0"}
    assert parsed[2]["context"] == {"topology": "words", "epoch": "2"}
    assert parsed[3]["context"] == {**attempt, "component": "a", "task": "3"}
    assert parsed[4]["context"] == attempt
    assert (parsed[-1]["msg"], parsed[-1]["exception"]["class"]) == ("two\nlines", "NotNowError")
    assert (logged.LOGGER.handlers, logged.LOGGER.level) == ([], logging.NOTSET)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--log-format", "xml"], UsageError),
        (["--set", "log_format=xml"], ConfigError),
        (["--set", "log_level=loud"], ConfigError),
    ],
)
def test_an_unknown_format_or_level_is_refused(arguments: list[str], error: Any) -> None:
    with pytest.raises(error) as caught:
        options.resolved(parsed_options(*arguments), Config(), topology())
    assert caught.value.exit_code == 2
