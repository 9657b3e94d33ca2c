"""Two stores in one transaction, a reader outside, and a driver that is killed between the commits
of the two."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.processes.drivers import ROOT
from tests.quick_java import QUICK_JAVA
from tests.topologies import transfers
from txtopo import OutrunError, Visibility, VisibleTxid, visible_txid, wait_until_visible

HELD = 7
"""The transaction in which the first driver stops: one task has committed to the first store, and
nothing to the second."""


FREE = ("-m", "tests.topologies.transfers")
PACED = """
import pathlib, sys
from tests.patience import wait_until
from tests.topologies import transfers
from txtopo.spark.machine import Machine

directory = pathlib.Path(sys.argv[1])
seen, reach = directory / "seen", Machine.reach

def reach_in_step(machine, point, txid):
    if point == "apply.before":
        wait_until(lambda: int(seen.read_text()) >= txid - 3, f"a look at transaction {txid - 3}")
    reach(machine, point, txid)

Machine.reach = reach_in_step
transfers.main(directory)
"""
"""A driver that runs no more than three transactions ahead of a reader, so that the reader meets it
at work."""


@contextmanager
def driver(directory: Path, *program: str, fault: str = "") -> Iterator[subprocess.Popen[str]]:
    """A driver process of the topology, killed at the end if it still runs."""
    faults = directory / "faults"
    faults.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
        "TXTOPO_FAULT": fault,
        "TXTOPO_FAULT_DIR": str(faults),
    }
    command, pipe = [sys.executable, *program, str(directory)], subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def look(directory: Path, visible: VisibleTxid) -> VisibleTxid:
    """Read both stores as of ``visible``; they must hold just that. A driver may wait for it."""
    debits, credits = transfers.stores(directory)
    readings = debits.items(as_of=visible), credits.items(as_of=visible)
    seen = dict(readings[0]), dict(readings[1])
    assert seen == transfers.expected(visible), f"a mixture is seen as of {visible!r}"
    (directory / "next").write_text(str(int(visible)))
    (directory / "next").replace(directory / "seen")
    return visible


@pytest.mark.thorough
@pytest.mark.rule(3, 28, 31, 37)
def test_a_reader_of_two_stores_sees_whole_transactions_while_the_topology_runs_dies_and_runs_again(
    tmp_path: Path,
) -> None:
    state, fault = tmp_path / "state", f"apply.inside@{HELD}=hold"
    debits, credits = transfers.stores(tmp_path)
    with driver(tmp_path, *FREE, fault=fault) as first:
        assert wait_until_visible(transfers.ID, HELD - 1, PATIENCE_S, data_dir=state) >= HELD - 1
        wait_until((tmp_path / "faults" / fault).exists, fault)
        with Visibility(transfers.ID, data_dir=state) as visibility:
            held = visibility.read(lambda visible: look(tmp_path, visible))
            late = rf"transaction {HELD} of topology 'transfers' is not visible after 0.1 s: transaction {HELD - 1} is"
            with pytest.raises(TimeoutError, match=late):
                visibility.wait(HELD, 0.1)
        assert held == HELD - 1, "nothing moves on while the commit is held"
        mixture = dict(debits.items()), dict(credits.items())
        assert mixture[0] != transfers.expected(HELD - 1)[0], (
            "without as_of the transaction that is under way is seen, in one store"
        )
        assert mixture[1] == transfers.expected(HELD - 1)[1], "and not in the other"
        first.kill()
        first.communicate()
    assert look(tmp_path, visible_txid(transfers.ID, data_dir=state)) == HELD - 1, (
        "while no driver runs, what was recorded is visible"
    )
    seen: list[int] = []
    outrun = 0
    with (
        driver(tmp_path, "-c", PACED) as second,
        Visibility(transfers.ID, data_dir=state) as visibility,
    ):
        assert visibility.wait(HELD, PATIENCE_S) >= HELD
        # The driver ends, and its ZooKeeper with it, while the reader goes on: no look fails for
        # that.
        while not seen or seen[-1] < transfers.TRANSACTIONS or second.poll() is None:
            try:
                visible = visibility.txid()
                seen.append(int(look(tmp_path, visible)))
            except OutrunError:
                outrun += 1
        out, error = second.communicate(timeout=PATIENCE_S)
    assert out.strip() == str(transfers.TRANSACTIONS + 1), error
    assert seen == sorted(seen), "what was visible is never taken back"
    assert len(set(seen)) > 2, (
        f"the reader met the topology at work only at {set(seen)}, and was outrun {outrun} times"
    )
    assert look(tmp_path, visible_txid(transfers.ID, data_dir=state)) == transfers.TRANSACTIONS


def test_a_reader_needs_no_spark(tmp_path: Path) -> None:
    code = f"import sys, txtopo; txtopo.Visibility('x', data_dir={str(tmp_path)!r}); sys.exit('pyspark' in sys.modules)"
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, timeout=PATIENCE_S, check=False
        ).returncode
        == 0
    )
