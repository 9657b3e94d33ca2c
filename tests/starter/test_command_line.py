"""The command line as a newcomer types it: real processes, one at a time, in an empty directory."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from starter import transactional_global_count, transactional_words
from tests.patience import PATIENCE_S
from tests.starter.commands import BIN, ROOT, STARTERS, Command, done
from txtopo.state import java
from txtopo.stores import SqliteStore

ENDLESS = Path(__file__).parent / "endless.py"
GENERATION = re.compile(r"generation ([0-9a-f]{8})")


def total(place: Path) -> int:
    stored: int = transactional_global_count.open_store(
        place / transactional_global_count.STORE_PATH
    ).get("GLOBAL-COUNT")
    return stored


TEA = """
from txtopo import BaseBatchBolt, TransactionalTopologyBuilder
from txtopo.testing import MemoryTransactionalSpout


class Cups(BaseBatchBolt):
    def execute(self, tuple):
        int("tea")

builder = TransactionalTopologyBuilder("cups", "spout", MemoryTransactionalSpout({0: [(1,)]}, ["n"], 1))
builder.set_bolt("count", Cups()).shuffle_grouping("spout")
topology = builder.build_topology()
"""


@pytest.mark.thorough
def test_a_mistake_in_a_bolt_is_shown_with_file_line_and_source(tmp_path: Path) -> None:
    (tmp_path / "tea.py").write_text(TEA)
    said = done(["txtopo", "run", "tea.py", "--master", "local[2]"], tmp_path, exit_code=1)
    assert f'File "{tmp_path}/tea.py", line 8, in execute\n' in said
    assert '    int("tea")\n' in said
    assert "component 'count'" in said


@pytest.mark.thorough
def test_a_starter_run_by_python_resumes_where_it_stopped_and_its_state_can_be_shown_and_reset(
    tmp_path: Path,
) -> None:
    run: list[str | Path] = [
        "python",
        STARTERS / "transactional_global_count.py",
        "--master",
        "local[2]",
    ]
    first = done(run, tmp_path)
    assert "txtopo: global-count begins at txid 1 (generation " in first
    assert "epoch 1)\ntxtopo: ZooKeeper 127.0.0.1:" in first
    assert "(our own, in .txtopo); Spark local[2]\n" in first
    assert (
        "txtopo: global-count done: 3 transactions committed, 19 tuples, 0 replays; the next run begins at txid 4\n"
        in first
    )
    assert total(tmp_path) == 19

    second = done(run, tmp_path)
    assert "txtopo: global-count resumes at txid 4 (generation " in second
    assert GENERATION.findall(second) == GENERATION.findall(first)
    assert (
        "txtopo: global-count done: 0 transactions committed, 0 tuples, 0 replays; the next run begins at txid 4\n"
        in second
    )
    assert total(tmp_path) == 19

    status = json.loads(done(["txtopo", "status", "--json"], tmp_path))
    (standing,) = status["topologies"]
    assert (
        standing["topology_id"],
        standing["committed"],
        standing["running"],
        standing["epoch"],
    ) == ("global-count", 3, False, 2)
    shown = json.loads(done(["txtopo", "state", "show", "global-count", "--json"], tmp_path))
    assert (shown["current"], shown["lease"], shown["stores"]) == (4, None, ["sum/global_count"])
    told = done(["txtopo", "state", "reset", "global-count"], tmp_path)
    assert "would remove from .txtopo, of topology 'global-count':" in told
    assert "txtopo store clear ADDRESS global_count --topology global-count" in told
    done(["txtopo", "state", "reset", "global-count", "--execute"], tmp_path)
    assert "no topology has state in .txtopo" in done(["txtopo", "status"], tmp_path)

    refused = done(run, tmp_path, exit_code=6)
    assert (
        f"txtopo: error: store {tmp_path}/.txtopo/global-count.db#global_count belongs to generation {GENERATION.findall(first)[0]}"
        in refused
    )
    assert (
        "txtopo/runtime" not in refused
    )  # No traceback of ours; a worker may print a traceback when it is ended.
    done(
        [
            "txtopo",
            "store",
            "clear",
            ".txtopo/global-count.db",
            "global_count",
            "--topology",
            "global-count",
            "--execute",
        ],
        tmp_path,
    )
    assert "3 transactions committed, 19 tuples" in done(run, tmp_path)
    assert total(tmp_path) == 19


@pytest.mark.thorough
def test_a_starter_run_by_txtopo_resumes_where_it_stopped_with_its_bolts_carried_to_the_workers(
    tmp_path: Path,
) -> None:
    run: list[str | Path] = [
        "txtopo",
        "run",
        STARTERS / "transactional_words.py",
        "--master",
        "local[2]",
        "--name",
        "words-of-today",
    ]
    first = done([*run, "--max-transactions", "2"], tmp_path)
    assert "txtopo: top-n-words done: 2 transactions committed, " in first
    second = done(run, tmp_path)
    assert "txtopo: top-n-words resumes at txid 3 (" in second
    assert "txtopo: top-n-words done: 1 transaction committed, " in second
    counts, buckets = transactional_words.open_stores(tmp_path / transactional_words.STORE_PATH)
    assert dict(counts.items()) == {"cat": 8, "dog": 7, "apple": 2, "banana": 1, "chicken": 1}
    assert {bucket: words for bucket, words in buckets.items() if words} == {0: 5}


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    gate = tmp_path / "gate"
    gate.mkdir()
    return gate


@pytest.mark.thorough
def test_signals_stop_a_run_without_losing_or_repeating_anything_and_status_sees_it_live(
    tmp_path: Path, gate: Path
) -> None:
    target = f"{ENDLESS.relative_to(ROOT)}:make({str(tmp_path / 'numbers.db')!r}, {str(gate)!r})"
    # From another directory than the file's, by a path relative to it.
    run: list[str | Path] = [
        "txtopo",
        "run",
        target,
        "--master",
        "local[2]",
        "--set",
        "drain_timeout_s=3600",
        "--data-dir",
        tmp_path / "data",
    ]
    where: list[str | Path] = ["--data-dir", tmp_path / "data"]
    store = SqliteStore(tmp_path / "numbers.db", "numbers")

    def committed_so_far(said: str) -> int:
        ends = re.search(r"the next run begins at txid (\d+)\n", said)
        assert ends is not None, said
        return int(ends[1]) - 1

    with Command(run, ROOT) as command:
        command.wait_until_it_says(" committed, ")
        live = done(["txtopo", "status", "endless", *where], tmp_path)
        assert re.search(rf"coordinator   pid {command.pid} on \S+ since \S+, run 'endless'", live)
        refused = done(["txtopo", "run", f"{ROOT}/{target}", *run[3:]], tmp_path, exit_code=4)
        assert f"is in use by process {command.pid} on host" in refused
        assert "is running: pid" in done(
            ["txtopo", "state", "reset", "endless", "--execute", *where], tmp_path, exit_code=4
        )
        assert "is running: pid" in done(
            [
                "txtopo",
                "store",
                "clear",
                tmp_path / "numbers.db",
                "numbers",
                "--topology",
                "endless",
                "--execute",
                *where,
            ],
            tmp_path,
            exit_code=4,
        )
        command.signal(signal.SIGINT)
        assert command.wait() == 0
        assert "txtopo: stopping: finishing commits in flight (again to stop now)\n" in command.said
        drained = committed_so_far(command.said)
        assert "txtopo: endless stopped: " in command.said
    assert drained > 0
    assert store.get("count") == 10 * drained

    (gate / "shut").touch()
    with Command(run, ROOT) as command:
        command.wait_until_it_says(f"resumes at txid {drained + 1} ")
        command.wait_until((gate / "waiting").exists)
        command.signal(signal.SIGINT)
        command.wait_until_it_says("again to stop now")
        command.signal(signal.SIGINT)
        assert command.wait() == 130
        assert "txtopo: endless aborted: 0 transactions committed" in command.said
        assert "txtopo/runtime" not in command.said
    assert store.get("count") == 10 * drained

    (gate / "shut").unlink()
    with Command(run, ROOT) as command:
        command.wait_until_it_says(" committed, ")
        command.signal(signal.SIGTERM)
        assert command.wait() == 0
        assert f"resumes at txid {drained + 1} " in command.said
        assert store.get("count") == 10 * committed_so_far(command.said)


HELD_JAVA = """#!/bin/sh
while [ ! -e "{0}/goes on" ]; do sleep 0.05; done
exec "{1}" "$@"
"""
"""Begins when there is a file."""


@pytest.mark.thorough
def test_a_run_that_is_interrupted_while_it_starts_ends_with_one_clear_message(
    tmp_path: Path,
) -> None:
    held_java = tmp_path / "bin" / "java"
    held_java.parent.mkdir()
    held_java.write_text(HELD_JAVA.format(tmp_path, java.require_java().executable))
    held_java.chmod(0o755)
    run: list[str | Path] = [
        "txtopo",
        "run",
        STARTERS / "transactional_words.py",
        "--master",
        "local[2]",
    ]
    with Command(run, tmp_path, JAVA_HOME=str(tmp_path)) as command:
        command.wait_until_it_says("txtopo: starting Spark …\n")
        command.signal(signal.SIGTERM)
        command.wait_until_it_says(
            "txtopo: stopping: as soon as Spark has started (again to stop now)\n"
        )
        (tmp_path / "goes on").touch()
        assert command.wait() == 143
        assert "txtopo: interrupted before the run began\n" in command.said


def test_output_without_a_reader_to_its_end_is_no_error(tmp_path: Path) -> None:
    explain = subprocess.Popen(
        [BIN / "txtopo", "explain", STARTERS / "transactional_words.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert explain.stdout is not None
    assert explain.stderr is not None
    explain.stdout.close()
    with explain.stderr:
        assert explain.stderr.read() == ""
    explain.wait(PATIENCE_S)
