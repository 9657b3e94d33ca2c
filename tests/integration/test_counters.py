"""Counters of user code on real Spark, and the check of a run: exact after replays, in metrics and
on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.clusters import Journal, fast
from tests.topologies.spouts import Ranges
from tests.unit.test_counters import Counting
from txtopo import LocalCluster, TransactionalTopologyBuilder
from txtopo.command import cli
from txtopo.journal import live, recording
from txtopo.page import metrics
from txtopo.stores import SqliteStore

END = 40


@pytest.mark.thorough
@pytest.mark.parametrize(
    "small_transaction_s", [0.0, PATIENCE_S], ids=["in_several_jobs", "in_one_task"]
)
def test_a_run_counts_each_row_once_and_can_be_checked(
    cluster: LocalCluster,
    tmp_path: Path,
    small_transaction_s: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    id = f"counted-{small_transaction_s:g}"
    journal, store = Journal(tmp_path / "journal"), SqliteStore(tmp_path / "kept.db", "kept")
    topology = TransactionalTopologyBuilder(id, "numbers", Ranges(journal, END, 4), 2)
    fails = ((2, "counted"), (3, "execute"), (8, "counted"))
    topology.set_bolt("keep", Counting(store, journal, fails), 1).shuffle_grouping("numbers")
    conf = fast(small_transaction_s=small_transaction_s)
    run = cluster.submit_topology(id, conf, topology.build_topology())
    run.wait_until_idle(PATIENCE_S)
    data_dir = Path(str(cluster._data_dir))
    place = recording.place(data_dir, id)
    wait_until(lambda: (live.read(place) or {}).get("status", {}).get("idle"))
    now = live.read(place)
    assert now is not None
    assert now["totals"]["user"] == {"keep": {"numbers": END, "commits": END // 4}}
    assert f'txtopo_user_total{{component="keep",name="numbers",topology="{id}"}} {END}.0' in (
        metrics.metrics(now)
    )
    command = ["status", id, "--data-dir", str(data_dir), "--check"]
    assert cli.main([*command, "age<1 attempts<1 failed=3 running=1"]) == 0
    run.stop(PATIENCE_S)
    assert cli.main([*command, "running=1 failed<3"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{id}: age 0, attempts 0, failed 3, running 1",
        f"{id}: running is 0, not =1, failed is 3, not <3",
    ]
