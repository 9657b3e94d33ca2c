"""Every command with ``--json``: it prints one document, with the fields that its table names."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.canned_run import of_a_while
from tests.topologies.file_sinks import ROWS, Writing
from tests.unit.test_cli_export import MODULE
from tests.unit.test_cli_upkeep import ALICE, Stored
from txtopo import Config, TransactionAttempt
from txtopo.command import cli, doctor, request_commands
from txtopo.connectors.files import FileSink
from txtopo.connectors.kafka import upkeep as topics
from txtopo.dataplane.outcome import Failure
from txtopo.engine.attempts import AttemptFailedError
from txtopo.engine.observer import EndedAttempt
from txtopo.journal import fold, records
from txtopo.state import acceptance, administration, layout, opening, requests
from txtopo.state.topology import End
from txtopo.topology.graph import TopologyGraph

DOCS = Path(__file__).parents[2] / "docs"

TOPOLOGY = """
from txtopo import BaseTransactionalBolt, Fields, ICommitter, TransactionalTopologyBuilder
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout


class Count(BaseTransactionalBolt, ICommitter):
    store = SqliteStore("words.db", "counts")

    def execute(self, tup): ...


builder = TransactionalTopologyBuilder("words", "spout", MemoryTransactionalSpout({0: [("a",)]}, Fields("word"), 1))
builder.set_bolt("count", Count()).fields_grouping("spout", Fields("word"))
topology = builder.build_topology()
"""

LINES = {
    "txtopo doctor": "",
    "txtopo explain": "words.py",
    "txtopo validate": "words.py",
    "txtopo test": "words.py --seeds 1",
    "txtopo config show": "words.py",
    "txtopo status": "words",
    "txtopo pause": "words",
    "txtopo resume": "words",
    "txtopo drain": "words",
    "txtopo handover": "words",
    "txtopo top": "words --data-dir data",
    "txtopo history": "words --data-dir data",
    "txtopo why": "words 5 --data-dir data",
    "txtopo reset": "words.py",
    "txtopo state show": "words",
    "txtopo state reset": "words",
    "txtopo state accept": "words --store count/day",
    "txtopo state restored": "words",
    "txtopo store count": "words.db counts",
    "txtopo store clear": "words.db counts --topology words",
    "txtopo store adopt": "words.db counts --topology words",
    "txtopo kafka abort": "kafka://broker:9092 --topology words",
    "txtopo files list": "files",
    "txtopo files verify": "files",
    "txtopo files vacuum": "files",
    "txtopo export show": "shop.py:queue",
}
"""Each command, with arguments."""

RUNNING = ("txtopo pause", "txtopo resume", "txtopo drain", "txtopo handover", "txtopo top")


def with_json(parser: argparse.ArgumentParser, name: str = "txtopo") -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from with_json(below, f"{name} {word}")
        elif "--json" in action.option_strings:
            yield name


def documented() -> dict[str, set[str]]:
    """By command, the fields of its document. A field ``a.b`` is in each value, or item, of a."""
    commands, testing, watching = (
        (DOCS / f"{name}.md").read_text() for name in ("command-line", "testing", "watching")
    )
    text = commands.partition("\n## As JSON\n")[2].partition("\n## ")[0]
    text += (
        testing.partition("\n### The verdict as JSON\n")[2]
        .partition("\n### ")[0]
        .join(["\n### `txtopo test`\n", ""])
    )
    text += (
        watching.partition("\n### The view\n")[2]
        .partition("\n## ")[0]
        .join(["\n### `txtopo top`\n", ""])
    )
    tables = {}
    for heading, _, table in (part.partition("\n") for part in text.split("\n### ")[1:]):
        cells = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
        fields = {name for cell in cells for name in re.findall("`([^`]*)`", cell)}
        for command in re.findall("`(txtopo [^`]*)`", heading):
            tables[command] = fields - {"schema_version"}
    return tables


def fields_of(document: Any, nested: set[str], before: str = "") -> Iterator[str]:
    """The document's fields, those of fields in ``nested`` included."""
    for name, value in document.items():
        yield before + name
        if before + name in nested:
            for item in value if isinstance(value, list) else [value]:
                yield from fields_of(item, nested, f"{before}{name}.")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    """A directory with a topology, its state, store, journal, files and export queue."""
    monkeypatch.chdir(tmp_path)
    Path("words.py").write_text(TOPOLOGY)
    Path("shop.py").write_text(MODULE.format(path="words.db"))
    Writing(FileSink("files")).write(1, 0, ROWS)
    of_a_while(tmp_path / "data", 8).end()
    stored = Stored(tmp_path)
    stored.commit(1)
    requests.Standby.of(stored.opened().store, layout.Layout("words"), ALICE).keep()

    @contextlib.contextmanager
    def opened(*_: Any) -> Iterator[opening.Opened]:
        yield stored.opened()

    monkeypatch.setattr(acceptance, "accept", lambda *_: ["a store may begin"])
    monkeypatch.setattr(administration, "position", lambda *_: (None, None))
    monkeypatch.setattr(opening, "opened", opened)
    monkeypatch.setattr(opening, "owned", opened)
    monkeypatch.setattr(request_commands, "_wait", lambda *_: None)
    monkeypatch.setattr(doctor, "checks", lambda *_: [doctor.Check("Java", "missing", "none")])
    aborted = SimpleNamespace(abort=lambda dry_run: ["words.1"])
    monkeypatch.setattr(topics, "open_topics", lambda *_: aborted)
    yield stored
    stored.close()


def test_every_command_that_shows_something_has_a_table_and_a_line_here() -> None:
    assert sorted(documented()) == sorted(with_json(cli._parser())) == sorted(LINES)


@pytest.mark.parametrize("command", LINES)
def test_a_document_has_the_fields_of_its_table(
    command: str, place: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    if command not in RUNNING:
        place.state.close(End("2026-11-28T10:00:00+00:00", 0))
    fields = documented()[command]
    nested = {name.rpartition(".")[0] for name in fields} - {""}
    capsys.readouterr()
    cli.main([*command.split()[1:], *LINES[command].split(), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema_version"] == 1
    assert {*fields_of(printed, nested)} == {"schema_version", *fields}


def test_records_have_the_fields_of_their_tables() -> None:
    def names(text: str) -> set[str]:
        return {*re.findall("`([^`]*)`", text)}

    text = (DOCS / "watching.md").read_text()
    _, _, table = text.partition("\n| field of `attempt` | value |\n")
    rows = table.partition("\n\n")[0].splitlines()
    failure = Failure("failed", "a", 0, TransactionAttempt(2, 1), "commit", "execute", "x", "y")
    ended = EndedAttempt(
        TransactionAttempt(2, 1),
        "failed",
        AttemptFailedError("failed", "x", failure=failure),
        because_of=TransactionAttempt(1, 0),
        opened_at=datetime.datetime.now(datetime.UTC),
        metadata={"begin": 1},
        widest={"a": (1, 0)},
        stores={"a/b": 1},
        counters={"a": {"late": 1}},
        busy_s={"commit": 0.1},
        work_s={"a": 0.1},
    )
    record = records.attempt(ended, 0.0, "full")
    assert {"kind"}.union(*(names(row.split(" | ")[0]) for row in rows)) == record.keys()
    assert record["cause"].keys() < names(next(row for row in rows if row.startswith("| `cause`")))

    _, _, sentence = text.partition("\nA record `began` has ")
    facts = records.facts(TopologyGraph("words", {}), "words", Config(), "local", "4.3.0")
    began = records.run_began(facts, 0.0, "first", 1, 1, False)
    fields = names(sentence.partition("`plan`:")[0]) | {"plan"}
    assert {"kind", *fields} == began.keys() | {"continued"}

    (row,) = re.findall(r"^\| `runs` \| (.*)", (DOCS / "command-line.md").read_text(), re.MULTILINE)
    (run,) = fold.fold([began]).runs
    assert names(row) - {"began", "lease"} == run.keys() - began.keys()
    (row,) = re.findall(r"^\| `ended` \| (.*)", text, re.MULTILINE)
    assert {"kind", *names(row)} == records.run_ended(None, 0.0, "full").keys()


def test_a_request_to_no_run_names_the_last_one(
    place: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    place.state.close(End("2026-11-28T10:00:00+00:00", 3))
    assert cli.main(["pause", "words"]) == 4
    last = "run 'words-run', pid 11 on alpha.example, ended with exit code 3 at 2026-11-28T10:00:00"
    assert f"has no run that could be asked: not running: {last}" in capsys.readouterr().err
