"""Every hook of every kind of spout fails once, and a batch's replay follows the rules."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.clusters import Journal, fast, run_to_idle
from tests.topologies.spouts import Keep, Partitioned, Ranges, batches, keeping_topology
from txtopo import (
    CoordinatorContext,
    FailedException,
    Fields,
    LocalCluster,
    TopologyConf,
    TopologyContext,
    Tuple,
    UserCodeError,
)
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout


class FailsOnce:
    """Wraps a spout's coordinator and emitter: ``hook`` raises ``error`` the second time it is
    called, over all processes."""

    def __init__(self, journal: Journal, hook: str, error: type[BaseException]) -> None:
        self.journal, self.hook, self.error = journal, hook, error

    def wrap(self, part: Any) -> Any:
        original = getattr(part, self.hook, None)
        if original is not None:
            setattr(part, self.hook, functools.partial(self.call, original))
        return part

    def call(self, original: Any, *args: Any) -> Any:
        self.journal.write(f"called {self.hook}")
        if self.journal.count(f"called {self.hook}") == 2:
            raise self.error(f"told to fail in {self.hook}")
        return original(*args)


class FailingRanges(Ranges):
    """A plain spout."""

    def __init__(self, journal: Journal, failing: FailsOnce) -> None:
        super().__init__(journal, end=12, take=4)
        self.failing = failing

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> Any:
        return self.failing.wrap(super().get_coordinator(conf, context))

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        return self.failing.wrap(super().get_emitter(conf, context))


class FailingPartitioned(Partitioned):
    """A partitioned spout, planned or not."""

    def __init__(self, journal: Journal, failing: FailsOnce, planned: bool) -> None:
        super().__init__(journal, partitions=2, size=6, take=2, planned=planned)
        self.failing = failing

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> Any:
        return self.failing.wrap(super().get_coordinator(conf, context))

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        return self.failing.wrap(super().get_emitter(conf, context))


HOOKS = {
    "plain": ["is_ready", "initialize_transaction", "emit_batch", "cleanup_before", "close"],
    "planned": ["is_ready", "num_partitions", "plan_partition_batch", "emit_partition_batch"],
    "storm-style": ["is_ready", "num_partitions", "emit_partition_batch_new"],
}
CASES = [(kind, hook) for kind, hooks in HOOKS.items() for hook in hooks]
ON_DRIVER = ("is_ready", "initialize_transaction", "num_partitions", "plan_partition_batch")


def make(kind: str, journal: Journal, failing: FailsOnce) -> Any:
    return (
        FailingRanges(journal, failing)
        if kind == "plain"
        else FailingPartitioned(journal, failing, kind == "planned")
    )


def expected(kind: str) -> dict[int, list[int]]:
    if kind == "plain":
        return {txid: list(range(4 * txid - 4, 4 * txid)) for txid in (1, 2, 3)}
    return {
        txid: [2 * txid - 2, 2 * txid - 1, 1000 + 2 * txid - 2, 1000 + 2 * txid - 1]
        for txid in (1, 2, 3)
    }


@pytest.mark.in_gate("planned-plan_partition_batch")
@pytest.mark.rule(5, 7)
@pytest.mark.parametrize(("kind", "hook"), CASES)
def test_failed_exception_in_a_spouts_hook_is_tried_again(
    cluster: LocalCluster, tmp_path: Path, kind: str, hook: str
) -> None:
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    failing = FailsOnce(Journal(tmp_path / "calls"), hook, FailedException)
    topology = keeping_topology(
        f"spout fails {kind} {hook}", make(kind, journal, failing), Keep(store, journal)
    )
    run = run_to_idle(cluster, topology, max_spout_pending=2)
    assert failing.journal.count(f"called {hook}") >= 2, "the fault was not hit"
    assert batches(store) == expected(kind)
    if hook in ON_DRIVER and (kind, hook) != ("storm-style", "num_partitions"):
        assert run.status().replays == 0, "opening a transaction is not an attempt at it"
    assert f"told to fail in {hook}" in (run.status().last_error or "")


@pytest.mark.thorough
@pytest.mark.rule(7)
@pytest.mark.parametrize("on_error", ["stop", "replay"])
@pytest.mark.parametrize(
    ("kind", "hook"), [("plain", "initialize_transaction"), ("planned", "emit_partition_batch")]
)
def test_another_exception_in_a_spouts_hook_follows_on_error(
    cluster: LocalCluster, tmp_path: Path, kind: str, hook: str, on_error: str
) -> None:
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    failing = FailsOnce(Journal(tmp_path / "calls"), hook, OSError)
    topology = keeping_topology(
        f"spout errs {hook} {on_error}", make(kind, journal, failing), Keep(store, journal)
    )
    if on_error == "stop":
        run = cluster.submit_topology("errs", fast(), topology)
        with pytest.raises(UserCodeError, match="told to fail") as caught:
            run.join(PATIENCE_S)
        assert caught.value.component == "numbers"
        assert hook.replace("emit_", "emit_planned_") in caught.value.hook
    run_to_idle(cluster, topology, on_error=on_error)
    assert batches(store) == expected(kind)


class StaysEmpty(Keep):
    """Raises, once, after its write of transaction 1, which is empty."""

    def fail_once(self, hook: str) -> None:
        if hook == "after" and self.attempt.txid == 1 and self.journal.claim("ended"):
            raise RuntimeError("ended")


class WaitsForTheWindow(StaysEmpty):
    """Processes transaction 1 no earlier than five are opened."""

    def execute(self, tup: Tuple) -> None:
        if self.attempt.txid == 1:
            wait_until(lambda: self.journal.count("initialize 5"), "the window to be opened")
        super().execute(tup)


@pytest.mark.rule(9, 21, 23)
def test_the_replay_of_an_empty_batch_stays_empty_although_data_has_come_since(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: []}, Fields("n"), 5, always_ready=True)
    keep = StaysEmpty(store, Journal(tmp_path / "journal"))
    run = cluster.submit_topology(
        "stays-empty", fast(), keeping_topology("stays-empty", spout, keep)
    )
    with pytest.raises(UserCodeError, match="ended"):
        run.join(PATIENCE_S)
    spout.append(0, [(1,), (2,)])
    again = cluster.submit_topology(
        "stays-empty", fast(max_transactions=2), keeping_topology("stays-empty", spout, keep)
    )
    again.join(PATIENCE_S)
    assert batches(store) == {1: [], 2: [1, 2]}


@pytest.mark.thorough
@pytest.mark.rule(2, 23)
def test_metadata_made_beyond_a_window_that_has_shrunk_is_used_when_its_turn_comes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Five transactions are opened, and their metadata is written with the seal of the first; the
    next run has a window of one, and the source has changed: the planned tuples are emitted.
    """
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    first = cluster.submit_topology(
        "window-shrinks",
        fast(max_spout_pending=5),
        keeping_topology(
            "window-shrinks", Ranges(journal, 20, 4), WaitsForTheWindow(store, journal)
        ),
    )
    with pytest.raises(UserCodeError, match="ended"):
        first.join(PATIENCE_S)
    initialized = [line for line in journal.lines() if line.startswith("initialize")]
    assert len(initialized) == 5, "no metadata was made beyond the first transaction"
    run_to_idle(
        cluster,
        keeping_topology(
            "window-shrinks", Ranges(journal, 20, 10), WaitsForTheWindow(store, journal)
        ),
        max_spout_pending=1,
    )
    kept = batches(store)
    assert sorted(n for batch in kept.values() for n in batch) == list(range(20))
    assert kept[1] == [0, 1, 2, 3]
    assert kept[2] == [4, 5, 6, 7], "txid 2 had been planned with four numbers"
