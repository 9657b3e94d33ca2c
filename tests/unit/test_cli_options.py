"""Options: the command line wins over the code, and an impossible value is refused with the cure."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from txtopo import Config, ConfigError, UsageError
from txtopo.command import cli, options


def parsed(*arguments: str) -> argparse.Namespace:
    parser = options.Parser(prog="txtopo run")
    options.add_run_options(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([], None, {}),
        ([], Config(max_spout_pending=3), {"max_spout_pending": 3}),
        ([], {"topology.max.spout.pending": 3}, {"max_spout_pending": 3}),
        (
            ["--set", "max_spout_pending=5"],
            Config(max_spout_pending=3, max_attempts=2),
            {"max_spout_pending": 5, "max_attempts": 2},
        ),
        (
            ["--set", "topology.max.spout.pending=5"],
            Config(max_spout_pending=3),
            {"max_spout_pending": 5},
        ),
        (["--set", "until=null"], Config(until="exhausted"), {"until": None}),
        (
            ["--set", "on_error=replay", "--set", "max_attempts=4"],
            None,
            {"on_error": "replay", "max_attempts": 4},
        ),
        (["--set", 'user={"words": ["a=b"]}'], None, {"user": {"words": ["a=b"]}}),
        (
            ["--set", "max_transactions=5", "--max-transactions", "2"],
            Config(max_transactions=9),
            {"max_transactions": 2},
        ),
        (["--until-exhausted"], None, {"until": "exhausted"}),
        (
            ["--zookeeper", "zk:2181/a", "--data-dir", "d"],
            Config(zookeeper="other:1"),
            {"zookeeper": "zk:2181/a", "data_dir": Path("d")},
        ),
    ],
)
def test_the_command_line_wins_over_the_code(
    arguments: list[str], code: Any, expected: dict[str, Any]
) -> None:
    assert options.resolved(parsed(*arguments), code).config == Config(**expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "max_spout_pending"], "--set takes key=value"),
        (["--set", "max_spout_pendign=5"], "did you mean 'max_spout_pending'"),
        (["--set", "max_spout_pending=many"], "max_spout_pending"),
    ],
)
def test_an_impossible_setting_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options.resolved(parsed(*arguments), None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-transactions", "0"], "'0' is not a whole number of at least 1"),
        (["--max-transactions", "x"], "'x' is not a whole number of at least 1"),
        (["--until"], "unrecognized arguments: --until"),
        (["--nonsense"], r"unrecognized arguments: --nonsense\n  `txtopo run --help`"),
    ],
)
def test_an_unknown_or_impossible_option_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(*arguments)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "run",
        "test",
        "explain",
        "status",
        "state",
        "state show",
        "state reset",
        "store",
        "store clear",
        "store adopt",
    ],
)
def test_every_command_says_how_it_is_used(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = words.split()
    with pytest.raises(SystemExit) as end:
        cli.main([*command, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(" ".join(["usage: txtopo", *command]))
    assert max(map(len, out.splitlines())) <= 130


def test_the_help_of_test_lists_the_exit_codes_of_a_simulation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["test", "--help"])
    codes = capsys.readouterr().out.partition("exit codes:\n")[2].splitlines()
    assert [int(line.split()[0]) for line in codes] == [0, 1, 2, 7, 130]


@pytest.mark.parametrize("command", [[], ["state"], ["store"]])
def test_a_command_that_lacks_its_command_prints_its_help(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command) == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: txtopo", *command]))


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == "txtopo 0.1.0\n"
