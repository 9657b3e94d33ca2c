"""``txtopo export show|retry|skip``: a person looks after a queue."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.test_export_queue import Target, Topology
from txtopo.command import cli, export_commands
from txtopo.errors import FailedException
from txtopo.exports import ExportQueue, SequencedExport, leases, upkeep
from txtopo.exports.exporting import Exporting
from txtopo.stores import SqliteStore

MODULE = """
from txtopo.exports import ExportQueue, HttpExporter
from txtopo.stores import SqliteStore

queue = ExportQueue("words", SqliteStore({path!r}, "counts"), 1)
"""


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topology]:
    """A queue with one bucket, which has stopped at its first entry."""
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "counts.db")
    Path("shop.py").write_text(MODULE.format(path=path))
    topology, target = Topology(SqliteStore(path, "counts"), buckets=1), Target()

    def refuse(told: list[SequencedExport]) -> None:
        raise ValueError("tea is refused")

    target.meanwhile = refuse
    topology.commit("tea", "milk")
    exporter = topology.exporter(target, max_attempts=1)
    topology.clock += leases.BEAT_S
    for _ in range(2):  # the second time the entries are told singly
        exporter.step()
    exporter.close()
    yield topology
    topology.process.close()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(["export", *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.usefixtures("stopped")
def test_a_stopped_bucket_is_shown_tried_again_and_passed_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text = run(capsys, "show", "shop.py:queue")
    assert code == 0
    assert "2 entries wait, the oldest since 2000-01-01" in text
    assert "after 1 attempts: ValueError: tea is refused" in text
    code, text = run(capsys, "skip", "shop.py:queue", "--bucket", "0")
    assert (code, text.count("which is kept as skipped")) == (0, 1)
    shown = json.loads(run(capsys, "show", "shop.py:queue", "--json")[1])
    assert (shown["entries"], len(shown["skipped"])) == (1, 1)
    assert shown["buckets"][0]["stopped"] is None
    assert run(capsys, "retry", "shop.py:queue") == (0, "let 0 buckets go on: none had stopped\n")


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_exporter_outlives_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_stopped: bool
) -> None:
    real, asked = upkeep.topology_of, list[ExportQueue]()

    def topology_of(queue: ExportQueue) -> str | None:
        asked.append(queue)
        if len(asked) < 3:
            raise FailedException("the store is away")
        if is_stopped:
            signal.raise_signal(signal.SIGTERM)
            raise FailedException("the store is away again")
        return real(queue)

    def away(*arguments: object) -> None:
        raise FailedException("the store is away at the end")

    monkeypatch.setattr(upkeep, "topology_of", topology_of)
    monkeypatch.setattr(upkeep, "status", away)
    monkeypatch.setattr(Exporting, "run", lambda *arguments: None)
    monkeypatch.setattr(export_commands, "_WAIT_S", 0.0)
    with Path("shop.py").open("a") as file:
        file.write("exporter = HttpExporter('http://shop.example/{key}')\n")
    code, text = run(capsys, "run", "shop.py:queue", "shop.py:exporter")
    assert (code, text.count("the store is away\n")) == (0, 1)
    assert ("exporting queue 'words'" in text) is not is_stopped


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("arguments", [["run", "--until-empty"], ["show"], ["retry"]])
def test_a_store_that_is_away_ends_a_command_that_would_end_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    answers = [FailedException("the store is away")]

    def away(*arguments: object) -> None:
        raise answers.pop()  # it is asked once

    monkeypatch.setattr(SqliteStore, "direct", away)
    with Path("shop.py").open("a") as file:
        file.write("queue.exporter = HttpExporter('http://shop.example/{key}')\n")
    code, text = run(capsys, *arguments, "shop.py:queue")
    assert code == 1
    assert text.startswith("txtopo: error: the store is away\n  Start ")


@pytest.mark.usefixtures("stopped")
def test_a_queue_to_which_nothing_was_ever_added_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Path("shop.py").open("a") as file:
        file.write("queue = ExportQueue('other', queue.store, 1)\n")
        file.write("queue.exporter = HttpExporter('http://shop.example/{key}')\n")
    code, text = run(capsys, "run", "--until-empty", "shop.py:queue")
    assert code == 0
    assert "nothing was ever added to export queue 'other' in " in text


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shop.py:stock"], "stock"),
        (["run", "shop.py:queue"], "has no exporter"),
        (["show", "shop.py:SqliteStore"], "not an ExportQueue"),
        (["shop.py:queue", "shop.py:queue"], "not an Exporter"),
        (["skip", "shop.py:queue", "--bucket", "7"], "has not stopped"),
    ],
)
def test_mistakes_name_their_cure(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(capsys, *arguments)
    assert code == 2
    assert message in text
