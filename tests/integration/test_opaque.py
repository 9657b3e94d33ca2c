"""Opaque spouts, planned and not, on real Spark: batches may change from attempt to attempt, and
every tuple still takes effect once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.clusters import Journal, fast, run_to_idle
from tests.topologies.spouts import Keep, batches, keeping_topology
from txtopo import (
    BaseOpaquePartitionedTransactionalSpout,
    BaseTransactionalBolt,
    BatchOutputCollector,
    CoordinatorContext,
    FailedException,
    Fields,
    ICommitter,
    LocalCluster,
    MetadataError,
    OpaquePartitionedSpoutCoordinator,
    OpaquePartitionedSpoutEmitter,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
    UserCodeError,
)
from txtopo.state import administration
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.stores import SqliteStore
from txtopo.testing import OpaqueMemoryTransactionalSpout

A = TransactionAttempt


class Shards(BaseOpaquePartitionedTransactionalSpout):
    """Not planned: shard p holds the numbers p * 1000 + 0, 1, 2 …; how many shards there are and
    how long each is stands in a file.

    ``amounts`` says how many numbers of each shard an attempt takes, otherwise ``take``. Emitted
    numbers are written into the journal.
    """

    def __init__(
        self,
        place: Path,
        sizes: Iterable[int],
        take: int,
        amounts: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        self.file, self.journal, self.take, self.amounts = (
            place / "shards.json",
            Journal(place / "emitted"),
            take,
            amounts or {},
        )
        self.resize(*sizes)

    def resize(self, *sizes: int) -> None:
        """From now on there are these shards."""
        written = self.file.with_suffix(".new")
        written.write_text(json.dumps(sizes))
        written.replace(self.file)

    def sizes(self) -> list[int]:
        """What is there now."""
        sizes: list[int] = json.loads(self.file.read_text())
        return sizes

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        return _ShardsCoordinator(self, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> OpaquePartitionedSpoutEmitter:
        return _ShardsEmitter(self)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))


class _ShardsCoordinator(OpaquePartitionedSpoutCoordinator):
    def __init__(self, spout: Shards, context: CoordinatorContext) -> None:
        self.spout, self.context = spout, context

    def is_ready(self) -> bool:
        last = self.context.last_metadata
        return any(
            size > (last[p]["to"] if p in last else 0) for p, size in enumerate(self.spout.sizes())
        )


class _ShardsEmitter(OpaquePartitionedSpoutEmitter):
    def __init__(self, spout: Shards) -> None:
        self.spout = spout

    def num_partitions(self) -> int:
        return len(self.spout.sizes())

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        begin = 0 if last_metadata is None else last_metadata["to"]
        amount = self.spout.amounts.get((attempt.txid, attempt.attempt_id), self.spout.take)
        end = min(begin + amount, self.spout.sizes()[partition])
        self.spout.journal.write(f"{attempt} shard {partition} {begin}-{end}")
        if end <= begin:
            return None
        for n in range(begin, end):
            collector.emit([attempt, partition * 1000 + n])
        return {"to": end}


class FailsWhenFollowed(Keep):
    """Fails the first attempt at transaction 1 before its write, but not before ``awaited`` is in
    the journal of the spout."""

    def __init__(
        self, store: SqliteStore, journal: Journal, emitted: Journal, awaited: str
    ) -> None:
        super().__init__(store, journal)
        self.emitted, self.awaited = emitted, awaited

    def finish_batch(self) -> None:
        if self.attempt == A(1, 0):
            wait_until(lambda: self.emitted.count(self.awaited) > 0, "the next batch to be emitted")
            raise FailedException("told to fail when the next batch is emitted")
        super().finish_batch()


def opaque_store(place: Path) -> SqliteStore:
    return SqliteStore(place / "kept.db", "kept", opaque=True)


def kept_numbers(store: SqliteStore) -> list[int]:
    """The numbers of all stored batches, which must also have the stored sum."""
    numbers = sorted(n for batch in batches(store).values() for n in batch)
    assert store.get("total") == sum(numbers)
    return numbers


# -- spouts that learn by emitting ---------------------------------------------------------------


@pytest.mark.rule(4, 6, 18, 20)
def test_after_a_is_replayed_with_less_b_begins_where_a_now_ends(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A is 0 to 49 and B 50 to 99. When B is emitted, A fails and is replayed as 0 to 39: B is then
    40 to 89, and nothing is skipped."""
    spout = Shards(tmp_path, [140], 50, {(1, 1): 40})
    keep = FailsWhenFollowed(
        opaque_store(tmp_path), Journal(tmp_path / "journal"), spout.journal, "2:0 shard 0 50-100"
    )
    run_to_idle(cluster, keeping_topology("a-b-c", spout, keep), max_spout_pending=2)
    expected = {1: range(40), 2: range(40, 90), 3: range(90, 140)}
    assert batches(keep.store) == {txid: list(numbers) for txid, numbers in expected.items()}


@pytest.mark.rule(4, 19, 21)
def test_partitions_appear_vanish_and_return_and_none_keeps_the_position(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    spout, store = Shards(tmp_path, [4], 2), opaque_store(tmp_path)
    run = cluster.submit_topology(
        "comes-and-goes",
        fast(),
        keeping_topology("comes-and-goes", spout, Keep(store, Journal(tmp_path / "journal"))),
    )
    run.wait_until_idle(PATIENCE_S)
    stored = {1: [0, 1], 2: [2, 3]}
    assert batches(store) == stored
    for sizes, more in [
        ((4, 3), {3: [1000, 1001], 4: [1002]}),
        ((6,), {5: [4, 5]}),
        ((), {}),
        ((6, 5, 1), {6: [1003, 1004, 2000]}),
    ]:
        spout.resize(*sizes)
        run.wait_until_idle(PATIENCE_S)
        stored |= more
        assert batches(store) == stored, f"after there were {len(sizes)} shards"
    run.stop()
    assert spout.journal.count("3:0 shard 0 4-4") == 1, "shard 0 was to answer None"


class ShrinksAfterWrite(Keep):
    """The first attempt at transaction 2 writes, loses a part of shard 0, and fails; with
    transaction 3 the part is back."""

    def __init__(self, store: SqliteStore, journal: Journal, spout: Shards) -> None:
        super().__init__(store, journal)
        self.spout = spout

    def finish_batch(self) -> None:
        super().finish_batch()
        if self.attempt == A(2, 0):
            self.spout.resize(5, 20)
            raise FailedException("told to fail after the write")
        if self.attempt.txid == 3:
            self.spout.resize(9, 20)


@pytest.mark.thorough
@pytest.mark.rule(4, 18, 30)
@pytest.mark.parametrize("pending", [1, 3])
def test_a_batch_that_changes_after_its_seal_counts_as_it_is_in_the_end(
    cluster: LocalCluster, tmp_path: Path, pending: int
) -> None:
    spout, store = Shards(tmp_path, [9, 20], 3), opaque_store(tmp_path)
    keep = ShrinksAfterWrite(store, Journal(tmp_path / "journal"), spout)
    run = run_to_idle(
        cluster, keeping_topology(f"shrinks-{pending}", spout, keep), max_spout_pending=pending
    )
    assert run.status().replays >= 1
    assert spout.journal.count("2:0 shard 0 3-6") == 1
    assert batches(store)[2] == [3, 4, 1003, 1004, 1005]
    assert kept_numbers(store) == [*range(9), *range(1000, 1020)]


class Disagreeing(Shards):
    """Task 1 sees one shard more than there is, the first time it is asked."""

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        emitter: Any = super().get_emitter(conf, context)
        if context.task_index == 1 and not self.journal.count("disagreed"):
            self.journal.write("disagreed")
            emitter.num_partitions = lambda: len(self.sizes()) + 1
        return emitter


@pytest.mark.rule(4, 19)
def test_an_attempt_whose_tasks_disagree_about_the_number_of_partitions_is_replayed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    spout, store = Disagreeing(tmp_path, [2, 2], 2), opaque_store(tmp_path)
    run = run_to_idle(
        cluster, keeping_topology("disagree", spout, Keep(store, Journal(tmp_path / "journal")))
    )
    assert "the tasks of spout 'numbers' saw different numbers of partitions: [2, 3]" in (
        run.status().last_error or ""
    )
    assert run.status().replays == 1
    assert batches(store) == {1: [0, 1, 1000, 1001]}


class Forgetful(Shards):
    """Emits, and reports an empty batch."""

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        emitter: Any = super().get_emitter(conf, context)
        emit = emitter.emit_partition_batch
        emitter.emit_partition_batch = lambda *args: emit(*args) and None
        return emitter


@pytest.mark.rule(21)
def test_none_for_a_batch_that_has_tuples_is_refused_naming_component_and_partition(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    spout = Forgetful(tmp_path, [0, 2], 2)
    topology = keeping_topology(
        "forgetful", spout, Keep(opaque_store(tmp_path), Journal(tmp_path / "journal"))
    )
    run = cluster.submit_topology("forgetful", fast(), topology)
    with pytest.raises(
        MetadataError, match="partition 1 emitted 2 tuples but returned None"
    ) as caught:
        run.join(PATIENCE_S)
    assert caught.value.component == "numbers"


# -- planned spouts ------------------------------------------------------------------------------


def numbers_of(*sizes: int) -> dict[int, list[tuple[int]]]:
    """As the shards above."""
    return {p: [(p * 1000 + n,) for n in range(size)] for p, size in enumerate(sizes)}


@pytest.mark.thorough
@pytest.mark.rule(18, 19, 20, 21)
def test_a_partition_is_disabled_and_enabled_while_the_topology_runs(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    spout, store = (
        OpaqueMemoryTransactionalSpout(numbers_of(3, 3), ["n"], 2),
        opaque_store(tmp_path),
    )
    run = cluster.submit_topology(
        "switched",
        fast(),
        keeping_topology("switched", spout, Keep(store, Journal(tmp_path / "journal"))),
    )
    run.wait_until_idle(PATIENCE_S)
    spout.set_disabled(1, True)
    spout.append(1, [(1003,)])
    spout.append(0, [(3,)])
    spout.append(2, [(2000,)])
    run.wait_until_idle(PATIENCE_S)
    stored = {1: [0, 1, 1000, 1001], 2: [2, 1002], 3: [3, 2000]}
    assert batches(store) == stored
    spout.set_disabled(1, False)
    run.wait_until_idle(PATIENCE_S)
    assert run.stop().replays == 0
    assert batches(store) == {**stored, 4: [1003]}


class LostAfterPlan(OpaqueMemoryTransactionalSpout):
    """Partition 1 is lost between the first plan of transaction 2 and its emission."""

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> Any:
        coordinator: Any = super().get_coordinator(conf, context)
        plan, planned = coordinator.plan_partition_batch, []

        def lose(txid: int, partition: int, last_metadata: Any) -> Any:
            batch = plan(txid, partition, last_metadata)
            planned.append((txid, partition))
            if planned.count((2, 1)) == 1 and (txid, partition) == (2, 1):
                self.set_disabled(1, True)
            return batch

        coordinator.plan_partition_batch = lose
        return coordinator


@pytest.mark.thorough
@pytest.mark.rule(4, 7, 18, 21)
def test_a_plan_that_cannot_be_emitted_is_made_anew(cluster: LocalCluster, tmp_path: Path) -> None:
    spout, store = LostAfterPlan(numbers_of(6, 6), ["n"], 2), opaque_store(tmp_path)
    run = cluster.submit_topology(
        "lost-after-plan",
        fast(),
        keeping_topology("lost-after-plan", spout, Keep(store, Journal(tmp_path / "journal"))),
    )
    run.wait_until_idle(PATIENCE_S)
    assert batches(store) == {1: [0, 1, 1000, 1001], 2: [2, 3], 3: [4, 5]}
    assert "partition 1 was disabled after transaction 2 was planned" in (
        run.status().last_error or ""
    )
    spout.set_disabled(1, False)
    run.wait_until_idle(PATIENCE_S)
    assert run.stop().replays == 1
    assert kept_numbers(store) == [*range(6), *range(1000, 1006)]


class EndsAfterWrite(Keep):
    """The run ends in transaction 2, after its write."""

    def finish_batch(self) -> None:
        super().finish_batch()
        if self.attempt == A(2, 0):
            raise RuntimeError("ended inside the commit")


@pytest.mark.thorough
@pytest.mark.rule(4, 5, 23, 30)
def test_after_a_restart_a_sealed_batch_may_be_another(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    spout, store = (
        OpaqueMemoryTransactionalSpout(numbers_of(6, 6), ["n"], 2),
        opaque_store(tmp_path),
    )
    topology = keeping_topology(
        "sealed-opaque", spout, EndsAfterWrite(store, Journal(tmp_path / "journal"))
    )
    run = cluster.submit_topology(topology.id, fast(max_spout_pending=3), topology)
    with pytest.raises(UserCodeError, match="ended inside"):
        run.join(PATIENCE_S)
    assert batches(store)[2] == [2, 3, 1002, 1003], "nothing had been applied"
    spout.set_disabled(0, True)
    spout.set_disabled(1, True)
    cluster.submit_topology(topology.id, fast(max_transactions=1), topology).join(PATIENCE_S)
    assert batches(store)[2] == [], (
        "a sealed transaction is replayed first, whether or not the spout is ready"
    )
    spout.set_disabled(0, False)
    spout.set_disabled(1, False)
    run_to_idle(cluster, topology, max_spout_pending=3)
    assert batches(store)[3] == [2, 3, 1002, 1003]
    assert kept_numbers(store) == [*range(6), *range(1000, 1006)]


# -- what only a failed attempt has written ------------------------------------------------------


class CountsIfAny(BaseTransactionalBolt, ICommitter):
    """Counts numbers, and does not open its store without any. The first attempt at transaction 2
    fails after its write, its source gone."""

    def __init__(self, store: SqliteStore, spout: OpaqueMemoryTransactionalSpout) -> None:
        self.store, self.spout = store, spout

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.counts: dict[int, int] = {}

    def execute(self, tup: Tuple) -> None:
        self.counts[tup["n"]] = self.counts.get(tup["n"], 0) + 1

    def finish_batch(self) -> None:
        if not self.counts:
            return
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(self.counts, lambda old, more: (old or 0) + more)
        if self.attempt == A(2, 0):
            self.spout.set_disabled(0, True)
            raise FailedException("told to fail after the write")


@pytest.mark.rule(18, 31)
def test_writes_of_a_failed_attempt_do_not_count_even_if_its_replay_opens_no_store(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    spout, store = (
        OpaqueMemoryTransactionalSpout({0: [(7,), (7,), (8,)]}, ["n"], 1),
        opaque_store(tmp_path),
    )
    builder = TransactionalTopologyBuilder("void", "numbers", spout)
    builder.set_bolt("count", CountsIfAny(store, spout), 2).fields_grouping("numbers", Fields("n"))
    run = cluster.submit_topology("void", fast(), builder.build_topology())
    run.wait_for_txid(2, PATIENCE_S)
    run.wait_until_idle(PATIENCE_S)
    assert recorded(cluster, "void") == {"count/kept": "1:0"}, (
        "the replay of transaction 2 was to have nothing to write"
    )
    spout.set_disabled(0, False)
    run.wait_until_idle(PATIENCE_S)
    assert run.stop().replays == 1
    assert dict(store.items()) == {7: 2, 8: 1}
    assert recorded(cluster, "void") == {"count/kept": "4:0"}


def recorded(cluster: LocalCluster, topology_id: str) -> Any:
    """The stores of a topology, as ZooKeeper lists them."""
    assert cluster.zookeeper is not None
    with contextlib.closing(ZooKeeperStateStore(cluster.zookeeper, "/txtopo")) as store:
        return administration.show(store, topology_id)["recorded"]
