"""The store stays, and the state goes with its cluster: the second run names the cure, and the
typed command works."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes.drivers import ROOT
from tests.servers.clusters import Journal, fast
from tests.topologies.spouts import Keep, batches, keeping_topology
from txtopo import Fields, LocalCluster, StateMismatchError
from txtopo.command import cli
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout


def run_once(store: SqliteStore, place: Path, data_dir: Path | None = None) -> None:
    spout = MemoryTransactionalSpout({0: [(n,) for n in range(3)]}, Fields("n"), 1)
    topology = keeping_topology("bank", spout, Keep(store, Journal(place / "journal")))
    with LocalCluster(data_dir=data_dir) as cluster:
        cluster.submit_topology("bank", fast(until="exhausted"), topology).join(PATIENCE_S)


@pytest.mark.thorough
@pytest.mark.rule(27)
def test_a_second_run_over_a_store_whose_state_is_gone_names_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore(tmp_path / "bank.db", "kept")
    run_once(store, tmp_path)
    with pytest.raises(StateMismatchError) as caught:
        run_once(store, tmp_path)
    said = str(caught.value)
    assert "belongs to generation" in said.splitlines()[0]
    assert "LocalCluster(data_dir=PATH)" in said
    for useless in ("state show", "adopt", "state reset"):
        assert useless not in said
    command, everything = [part for part in said.split("`") if part.startswith("txtopo ")]
    assert everything == "txtopo reset TARGET --execute"
    assert cli.main(shlex.split(command)[1:]) == 0
    assert "removed from" in capsys.readouterr().out
    for _ in range(2):
        run_once(store, tmp_path, tmp_path / "state")
    assert batches(store) == {txid: [txid - 1] for txid in range(1, 4)}


@pytest.mark.thorough
@pytest.mark.rule(27)
def test_where_the_state_stays_the_commands_that_repair_it_are_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "bank.db", "kept")
    run_once(store, tmp_path, tmp_path / "state")
    with pytest.raises(StateMismatchError, match="store adopt"):
        run_once(store, tmp_path, tmp_path / "another")


LEFT_RUNNING = """
from tests.patience import PATIENCE_S
from tests.topologies.spouts import Keep, keeping_topology
from tests.servers.clusters import Journal
from txtopo import Config, Fields, LocalCluster
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout
import pathlib, sys

place = pathlib.Path(sys.argv[1])
cluster = LocalCluster(progress=False)
spout = MemoryTransactionalSpout({0: [(n,) for n in range(3)]}, Fields("n"), 1)
topology = keeping_topology("bank", spout, Keep(SqliteStore(place / "bank.db", "kept"), Journal(place / "journal")))
run = cluster.submit_topology("bank", Config(poll_interval_s=0.01), topology)
run.wait_until_idle(PATIENCE_S)
"""
"""A program that ends without ending its cluster."""


@pytest.mark.thorough
def test_a_program_that_does_not_end_its_cluster_ends_quietly_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    command = [sys.executable, "-W", "ignore", "-c", LEFT_RUNNING, str(tmp_path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, "ended with an error" in done.stderr) == (0, False), done.stderr
    assert [file.name for file in temporary.iterdir() if file.name.startswith("txtopo-")] == []
    assert batches(SqliteStore(tmp_path / "bank.db", "kept")) == {
        txid: [txid - 1] for txid in range(1, 4)
    }
    shutil.rmtree(temporary)
