"""storm-starter's two transactional topologies, with its data, shapes and parallelism, on real
Spark and ZooKeeper.

Each with one and three transactions in flight, and with committers that fail once before and once
after their write, at every txid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from starter import transactional_global_count as global_count
from starter import transactional_words as words
from tests.servers.clusters import Journal, run_to_idle
from txtopo import (
    BaseBatchBolt,
    BatchOutputCollector,
    FailedException,
    Fields,
    LocalCluster,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.testing import MemoryTransactionalSpout

TXIDS = (1, 2, 3)
FAULTS = [(), *((when, txid) for when in ("before", "after") for txid in TXIDS)]
FAULT_IDS = ["no fault", *(f"{when} the write of {txid}" for when, txid in FAULTS[1:])]


class FailsOnce:
    """Mixed into a committer: fails ``when`` its write of ``txid``, once over all processes."""

    def __init__(self, store: Any, journal: Journal, fault: tuple[Any, ...]) -> None:
        self.store, self.journal, self.fault = store, journal, fault

    def finish_batch(self) -> None:
        self.fail_if("before")
        super().finish_batch()  # type: ignore[misc]
        self.fail_if("after")

    def fail_if(self, when: str) -> None:
        txid = self.attempt.txid  # type: ignore[attr-defined]
        if (when, txid) == self.fault and self.journal.claim("failed"):
            raise FailedException(f"told to fail {when} the write of {txid}")


class FailingGlobalCount(FailsOnce, global_count.UpdateGlobalCount):
    """The starter's committer."""


class FailingWordCount(FailsOnce, words.KeyedCountUpdater):
    """The starter's committer."""


class FailingBucketCount(FailsOnce, words.BucketCountUpdater):
    """The starter's second committer, which is one because it is downstream of the first."""


class Capture(BaseBatchBolt):
    """Writes down all its tuples, per attempt."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.attempt = attempt
        self.rows: list[tuple[Any, ...]] = []

    def execute(self, tup: Tuple) -> None:
        self.rows.append(tup.values[1:])

    def finish_batch(self) -> None:
        self.journal.write(f"{self.attempt.txid}: {sorted(self.rows)}")


@pytest.mark.thorough
@pytest.mark.rule(3, 6, 7, 28)
@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_IDS)
@pytest.mark.parametrize("pending", [1, 3])
def test_global_count_emits_9_16_19(
    cluster: LocalCluster, tmp_path: Path, pending: int, fault: tuple[Any, ...]
) -> None:
    journal, captured = Journal(tmp_path / "journal"), Journal(tmp_path / "captured")
    store = global_count.open_store(tmp_path / "store.db")
    spout = MemoryTransactionalSpout(
        global_count.DATA, Fields("word"), global_count.PARTITION_TAKE_PER_BATCH
    )
    builder = TransactionalTopologyBuilder(
        f"global-count {FAULTS.index(fault)} {pending}", "spout", spout, 3
    )
    builder.set_bolt("partial-count", global_count.BatchCount(), 5).none_grouping("spout")
    builder.set_bolt("sum", FailingGlobalCount(store, journal, fault)).global_grouping(
        "partial-count"
    )
    builder.set_bolt("capture", Capture(captured)).global_grouping("sum")
    run = run_to_idle(cluster, builder.build_topology(), max_spout_pending=pending)
    assert captured.lines() == ["1: [(9,)]", "2: [(16,)]", "3: [(19,)]"]
    assert store.get(global_count.GLOBAL_COUNT_KEY) == 19
    assert run.status().committed == 3
    assert journal.count("failed") == (1 if fault else 0)


@pytest.mark.thorough
@pytest.mark.rule(3, 6, 7, 12, 15, 28)
@pytest.mark.parametrize("failing", ["count", "buckets"])
@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_IDS)
@pytest.mark.parametrize("pending", [1, 3])
def test_words_end_in_storm_starters_numbers(
    cluster: LocalCluster, tmp_path: Path, pending: int, fault: tuple[Any, ...], failing: str
) -> None:
    journal = Journal(tmp_path / "journal")
    counts, buckets = words.open_stores(tmp_path / "store.db")
    spout = MemoryTransactionalSpout(words.DATA, Fields("word"), words.PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder(
        f"words {FAULTS.index(fault)} {pending} {failing}", "spout", spout, 2
    )
    count = FailingWordCount(counts, journal, fault if failing == "count" else ())
    builder.set_bolt("count", count, 5).fields_grouping("spout", Fields("word"))
    builder.set_bolt("bucketize", words.Bucketize()).none_grouping("count")
    bucket_count = FailingBucketCount(buckets, journal, fault if failing == "buckets" else ())
    builder.set_bolt("buckets", bucket_count, 5).fields_grouping("bucketize", Fields("bucket"))
    run_to_idle(cluster, builder.build_topology(), max_spout_pending=pending)
    assert dict(counts.items()) == {"cat": 8, "dog": 7, "apple": 2, "banana": 1, "chicken": 1}
    stamps = {word: counts.inspect(word) for word in ("cat", "dog", "chicken", "apple", "banana")}
    assert {word: (s.curr, s.prev, s.txid) for word, s in stamps.items() if s is not None} == {
        "cat": (8, 5, 2),
        "dog": (7, 4, 3),
        "chicken": (1, None, 1),
        "apple": (2, 1, 2),
        "banana": (1, None, 2),
    }
    assert dict(buckets.items()) == {0: 5}
    bucket = buckets.inspect(0)
    assert bucket is not None
    assert bucket.txid == 2, "a bucket that did not change was written"
    assert journal.count("failed") == (1 if fault else 0)


@pytest.mark.rule(23)
def test_the_starters_as_they_are_shipped(cluster: LocalCluster, tmp_path: Path) -> None:
    run_to_idle(cluster, global_count.make_topology(tmp_path / "a.db"), max_spout_pending=3)
    assert global_count.open_store(tmp_path / "a.db").get(global_count.GLOBAL_COUNT_KEY) == 19
    run_to_idle(cluster, words.make_topology(tmp_path / "b.db"), max_spout_pending=3)
    assert dict(words.open_stores(tmp_path / "b.db")[1].items()) == {0: 5}
