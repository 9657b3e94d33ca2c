"""The shortest starter on real Spark and ZooKeeper: aggregates equal plain counts, and go on from
their last commit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from starter import word_count
from tests.servers.clusters import run_to_idle
from txtopo import Count, Fields, LocalCluster, TransactionalTopologyBuilder
from txtopo.testing import MemoryTransactionalSpout

WORDS = Counter(word_count.LINES.read_text(encoding="utf-8").split())


@pytest.mark.rule(17, 28)
def test_the_word_count_is_a_plain_count_and_stays_one_when_it_is_run_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = word_count.open_store(tmp_path / "store.db")
    for _ in range(2):
        run_to_idle(cluster, word_count.make_topology(tmp_path / "store.db"), max_spout_pending=3)
        assert dict(store.items()) == dict(WORDS)


@pytest.mark.rule(23, 28)
def test_counts_are_the_same_with_other_numbers_of_tasks_after_a_restart(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store, lines = (
        word_count.open_store(tmp_path / "store.db"),
        word_count.LINES.read_text(encoding="utf-8").splitlines(),
    )
    rows = MemoryTransactionalSpout(
        {0: [(line,) for line in lines]}, Fields("line"), take_per_partition=1
    )
    for tasks in (1, 3):
        builder = TransactionalTopologyBuilder("word count, other tasks", "lines", rows, tasks)
        builder.set_bolt("split", word_count.Split(), tasks).none_grouping("lines")
        builder.set_aggregate("count", Count(), store, tasks).group_by("split", Fields("word"))
        run_to_idle(cluster, builder.build_topology(), max_spout_pending=2)
        rows.append(0, [("the end",)])
    assert dict(store.items()) == dict(WORDS + Counter(["the", "end"]))
