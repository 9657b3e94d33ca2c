"""Messages for mistakes at the command line suggest the name meant; messages for a topology's
mistakes quote the user's own line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from txtopo.command import cli

TWO_WRITERS = """
from txtopo import BaseTransactionalBolt, Fields, ICommitter, TransactionalTopologyBuilder
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout


class Add(BaseTransactionalBolt, ICommitter):
    has_own_keys = True

    def __init__(self, store):
        self.store = store

    def prepare(self, conf, context, collector, attempt):
        self.context, self.attempt, self.words = context, attempt, {}

    def execute(self, tup):
        self.words[tup[1]] = self.words.get(tup[1], 0) + 1

    def finish_batch(self):
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(self.words, lambda old, more: (old or 0) + more)


spout = MemoryTransactionalSpout({0: [("a",), ("a",)], 1: [("a",), ("a",)]}, Fields("word"), 2)
builder = TransactionalTopologyBuilder("words", "lines", spout, 2)
builder.set_bolt("count", Add(SqliteStore("words.db", "words")), 2).shuffle_grouping("lines")
topology = builder.build_topology()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    ("typed", "cure"),
    [
        (
            ["rnu", "words.py"],
            "there is no command `txtopo rnu`\n  Did you mean `txtopo run`? `txtopo --help` describes the commands.\n",
        ),
        (
            ["state", "rest", "words"],
            "there is no command `txtopo state rest`\n  Did you mean `txtopo state reset`? ",
        ),
        (["store", "xyz"], "there is no command `txtopo store xyz`\n  There are get, "),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest_one(
    typed: list[str], cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(typed) == 2
    assert capsys.readouterr().err.startswith(f"txtopo: error: {cure}")


def test_a_mistake_with_a_store_that_a_test_finds_shows_the_users_line_and_none_of_the_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two_writers.py").write_text(TWO_WRITERS)
    assert cli.main(["test", "two_writers.py", "--seeds", "1"]) == 2
    said = capsys.readouterr().err
    assert (
        f'File "{tmp_path}/two_writers.py", line {TWO_WRITERS[: TWO_WRITERS.index("transaction.update_many")].count(chr(10)) + 1}'
        in said
    )
    assert "transaction.update_many(self.words, lambda" in said
    assert "/txtopo/stores/" not in said
    assert said.count("A key has one writer per transaction.") == 1
    assert "must not use hash()" in said
    assert len(said.splitlines()) <= 10


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ["explain", "sales.topology"],
            "Python finds no 'sales.topology' from here\n  Did you mean sales:topology?",
        ),
        (["explain", "nothing_like_it"], "from here\n  The current directory is "),
        (
            ["config", "show", "seven.py"],
            "seven.py:conf is of type int, and would be the code's configuration\n  Make conf a Config or a dict",
        ),
        (
            ["config", "show", "--set", "max_spout_pending"],
            "--set takes key=value, not 'max_spout_pending'\n  `txtopo config show` lists the keys.",
        ),
        (
            ["test", "sales.py", "--seed", "-1"],
            "argument --seed: '-1' is not a whole number of at least 0",
        ),
    ],
)
def test_a_mistaken_target_or_option_is_told_with_a_cure(
    typed: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sales.py").write_text(TWO_WRITERS)
    (tmp_path / "seven.py").write_text(f"{TWO_WRITERS}\nconf = 7\n")
    assert cli.main(typed) == 2
    assert said in capsys.readouterr().err


def test_a_standard_output_that_is_closed_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-c", '"$0" -m txtopo config show >&-', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
