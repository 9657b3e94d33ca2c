"""The opaque starters on real Spark and ZooKeeper: a partition is lost in the middle of a commit,
and every word counts once."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest

from starter import opaque_global_count as global_count
from starter import opaque_keyed_count as keyed_count
from tests.patience import PATIENCE_S
from tests.servers.clusters import fast, run_to_idle
from txtopo import Count, Fields, LocalCluster, TransactionalTopologyBuilder
from txtopo.testing import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txtopo.topology.aggregate import CombiningCommitter, KeyOf, PartialAggregate

WORDS = collections.Counter(word for rows in keyed_count.DATA.values() for (word,) in rows)


def counting_all(id: str, spout: Any, committer: Any) -> Any:
    """The topology of the global count, under an id of its own."""
    builder = TransactionalTopologyBuilder(id, "spout", spout, 3)
    builder.set_bolt("partial-count", global_count.BatchCount(), 5).none_grouping("spout")
    builder.set_bolt("sum", committer).global_grouping("partial-count")
    return builder.build_topology()


def counting_words(id: str, spout: Any, store: Any, committer: Any = None) -> Any:
    """The topology of the keyed count, under an id of its own; with a ``committer`` in the place of
    the aggregate's."""
    builder = TransactionalTopologyBuilder(id, "spout", spout, 2)
    if committer is None:
        builder.set_aggregate("count", Count(), store, 5).group_by("spout", Fields("word"))
    else:
        builder.set_bolt(
            "count-of-spout", PartialAggregate(Count(), KeyOf(("word",)), ("word",)), 2
        ).none_grouping("spout")
        builder.set_bolt("count", committer, 5).fields_grouping("count-of-spout", Fields("word"))
    builder.set_bolt("accident", keyed_count.LosesPartition(spout), 5).fields_grouping(
        "count", Fields("word")
    )
    return builder.build_topology()


def first_two(cluster: LocalCluster, topology: Any, pending: int) -> int:
    """Run until transaction 2 has committed; how many attempts failed."""
    run = cluster.submit_topology(
        topology.id, fast(max_spout_pending=pending, max_transactions=2), topology
    )
    run.join(PATIENCE_S)
    assert run.status().committed == 2
    return run.status().replays


@pytest.mark.thorough
@pytest.mark.rule(4, 18, 20, 21, 30)
@pytest.mark.parametrize("pending", [1, 3])
def test_the_opaque_global_count_is_that_of_all_words(
    cluster: LocalCluster, tmp_path: Path, pending: int
) -> None:
    store = global_count.open_store(tmp_path / "store.db")
    spout = OpaqueMemoryTransactionalSpout(
        global_count.DATA, Fields("word"), global_count.PARTITION_TAKE_PER_BATCH
    )
    topology = counting_all(
        f"opaque global {pending}", spout, global_count.LosesPartition(store, spout)
    )
    assert global_count.stored_count(store) == (0, 0, None)
    assert first_two(cluster, topology, pending) > 0, "the partition was not lost"
    assert global_count.stored_count(store) == (15, 2, 9), "with the lost partition it was 18"
    run_to_idle(cluster, topology, max_spout_pending=pending)
    assert store.get(global_count.GLOBAL_COUNT_KEY) == 27


@pytest.mark.thorough
@pytest.mark.rule(18, 20, 21, 30, 31)
@pytest.mark.parametrize("pending", [1, 3])
def test_a_word_that_only_the_failed_attempt_has_seen_counts_once(
    cluster: LocalCluster, tmp_path: Path, pending: int
) -> None:
    store = keyed_count.open_store(tmp_path / "store.db")
    spout = OpaqueMemoryTransactionalSpout(
        keyed_count.DATA, Fields("word"), keyed_count.PARTITION_TAKE_PER_BATCH
    )
    topology = counting_words(f"opaque keyed {pending}", spout, store)
    assert first_two(cluster, topology, pending) > 0, "the partition was not lost"
    assert store.get(keyed_count.LOST_WORD) is None
    run_to_idle(cluster, topology, max_spout_pending=pending)
    assert dict(store.items()) == dict(WORDS)
    assert WORDS[keyed_count.LOST_WORD] == 1


class OpensOnlyWithWords(CombiningCommitter):
    """A feature that aggregates lack, and against which the starter warns."""

    def finish_batch(self) -> None:
        if self.deltas:
            super().finish_batch()


@pytest.mark.thorough
@pytest.mark.rule(31)
def test_it_counts_once_also_if_the_committer_opens_its_store_only_when_it_has_words(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = keyed_count.open_store(tmp_path / "store.db")
    spout = OpaqueMemoryTransactionalSpout(
        keyed_count.DATA, Fields("word"), keyed_count.PARTITION_TAKE_PER_BATCH
    )
    committer = OpensOnlyWithWords(Count(), store)
    committer.names = ("word",)
    run = run_to_idle(
        cluster,
        counting_words("opens only with words", spout, store, committer),
        max_spout_pending=3,
    )
    assert run.status().replays > 0, "the partition was not lost"
    assert dict(store.items()) == dict(WORDS)


@pytest.mark.rule(30)
def test_an_opaque_store_serves_a_transactional_spout_too(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = global_count.open_store(tmp_path / "store.db")
    spout = MemoryTransactionalSpout(
        global_count.DATA, Fields("word"), global_count.PARTITION_TAKE_PER_BATCH
    )
    run_to_idle(
        cluster,
        counting_all("opaque store only", spout, global_count.UpdateOpaqueGlobalCount(store)),
        max_spout_pending=3,
    )
    assert global_count.stored_count(store) == (27, 4, 24)


def test_the_opaque_starters_as_they_are_shipped(cluster: LocalCluster, tmp_path: Path) -> None:
    run = run_to_idle(cluster, global_count.make_topology(tmp_path / "a.db"), max_spout_pending=3)
    assert run.status().replays > 0
    assert global_count.stored_count(global_count.open_store(tmp_path / "a.db"))[0] == 27
    run = run_to_idle(cluster, keyed_count.make_topology(tmp_path / "b.db"), max_spout_pending=3)
    assert run.status().replays > 0
    assert dict(keyed_count.open_store(tmp_path / "b.db").items()) == dict(WORDS)
