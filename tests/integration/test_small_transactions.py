"""Small transactions on real Spark: each is one task, and nothing else is different; what is not small, or has failed, runs apart again."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import fast, run_to_idle
from tests.small_topologies import Small, Trouble
from txtopo import LocalCluster, UserCodeError
from txtopo.runtime import engine

SMALL = {"small_transaction_s": 60.0}
"""Everything is small, however slow the machine."""
OFF = {"small_transaction_s": 0.0}
LAST = 9
"""A transaction of every run; the tenth may be cut short by the end of the input."""


@pytest.fixture(autouse=True)
def _nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has much else to do is no reason to run apart: that is a matter of two tests only."""
    monkeypatch.setattr(engine, "_LATE_S", 60.0)


def one_task(topology: Small, txid: int) -> list[bool]:
    """Of each attempt of ``txid``, whether it was one Spark task; if not, it was processed in others than it was committed in."""
    ran = topology.ran(txid)
    assert all(attempt.is_one_task or attempt.is_apart for attempt in ran.values()), ran
    return [attempt.is_one_task for attempt in ran.values()]


@pytest.mark.rule(3, 23)
@pytest.mark.parametrize(("pending", "certainly_from"), [(1, 4), (3, 7)])
def test_after_a_few_small_transactions_processing_and_commit_are_one_spark_task(
    cluster: LocalCluster, tmp_path: Path, pending: int, certainly_from: int
) -> None:
    topology = Small(f"small-{pending}", tmp_path)
    run_to_idle(cluster, topology.make(), max_spout_pending=pending, **SMALL)
    assert [one_task(topology, txid) for txid in (1, 2, 3)] == [[False]] * 3
    assert [one_task(topology, txid) for txid in range(certainly_from, LAST + 1)] == [[True]] * (LAST + 1 - certainly_from)


VARIANTS: dict[str, dict[str, Any]] = {
    "committer": {},
    "emits while executing": {"eager": True},
    "opaque and planned": {"kind": "opaque-planned"},
    "committer spout": {"kind": "committer"},
    "learns by emitting": {"kind": "storm"},
    "no committer": {"has_committer": False},
}


@pytest.mark.rule(4, 12, 13, 16, 17, 22, 28)
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_comes_of_it_is_the_same_in_one_task_and_in_several(cluster: LocalCluster, tmp_path: Path, variant: str) -> None:
    """Two committers by key, and one bolt downstream of them: what each task was given, and what all stores hold."""
    number, size = list(VARIANTS).index(variant), 48 if VARIANTS[variant].get("kind") != "storm" else 24
    alike = [Small(f"same-{number}-{name}", tmp_path, **VARIANTS[variant], size=size) for name in ("small", "off")]
    runs = [run_to_idle(cluster, topology.make(), max_spout_pending=3, **how) for topology, how in zip(alike, (SMALL, OFF), strict=True)]
    committed = [run.status().current - 1 for run in runs]
    assert committed[0] == committed[1] >= (LAST if size == 48 else 5)
    small, off = (topology.results(committed[0]) for topology in alike)
    assert small == off
    parts = [{line.values[0] for line in topology.history.lines if line.what == "finished" and line.txid >= 7} for topology in alike]
    of_commit = "processing" if variant == "no committer" else "commit"
    assert parts == [set() if variant == "learns by emitting" else {"straight"}, set() if variant == "learns by emitting" else {of_commit}]


@pytest.mark.rule(3)
def test_a_commit_that_waits_for_later_transactions_to_be_processed_gets_there(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processing phases run side by side, whatever the commit before them does: left for later they would wait for it, and it for them."""
    monkeypatch.setattr(engine, "_LATE_S", 2.0)
    topology = Small("waits", tmp_path, trouble=functools.partial(Trouble, hook="finish_batch", txid=8, kind="wait for the next two"))
    run = run_to_idle(cluster, topology.make(), max_spout_pending=3, message_timeout_s=60.0, **SMALL)
    assert run.status().replays == 0
    assert [one_task(topology, txid) for txid in (8, 9, 10)] == [[True], [False], [False]]


@pytest.mark.rule(6, 7, 28)
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("hook", ["execute", "finish_batch"])
def test_a_small_transaction_that_fails_is_processed_by_itself_and_counts_once(
    cluster: LocalCluster, tmp_path: Path, hook: Any, pending: int
) -> None:
    topology = Small(f"fails-{hook}-{pending}", tmp_path, trouble=functools.partial(Trouble, hook=hook, txid=8, kind="failed"))
    run = run_to_idle(cluster, topology.make(), max_spout_pending=pending, **SMALL)
    assert run.status().replays == 1
    first, second = topology.ran(8).values()
    assert (first.is_one_task, second.is_apart) == (True, True)
    undisturbed = Small(f"fails-not-{hook}-{pending}", tmp_path)
    run_to_idle(cluster, undisturbed.make(), max_spout_pending=3, **OFF)
    assert topology.results(0)[0] == undisturbed.results(0)[0]


@pytest.mark.rule(3)
def test_a_batch_that_is_suddenly_large_is_exact_and_the_next_ones_use_all_cores_again(cluster: LocalCluster, tmp_path: Path) -> None:
    topology = Small("grows", tmp_path, size=60, trouble=functools.partial(Trouble, hook="execute", txid=6, kind="work"))
    run = run_to_idle(cluster, topology.make(), max_spout_pending=1, small_transaction_s=0.4)
    assert run.status().replays == 0
    assert [one_task(topology, txid) for txid in (6, 7, 8, 9, 10)] == [[True], [False], [False], [False], [True]]
    assert [len(topology.ran(txid)[0].tasks["prepared"]) for txid in (6, 7, 8, 9, 10)] == [1, 2, 2, 2, 1], "Spark tasks side by side"
    undisturbed = Small("grows-not", tmp_path, size=60)
    run_to_idle(cluster, undisturbed.make(), max_spout_pending=3, **OFF)
    assert topology.results(0)[0] == undisturbed.results(0)[0]


@pytest.mark.rule(7)
@pytest.mark.parametrize(("hook", "phase"), [("execute", "processing"), ("finish_batch", "commit")])
def test_an_error_in_one_task_is_said_to_be_of_the_phase_it_was_in(cluster: LocalCluster, tmp_path: Path, hook: Any, phase: str) -> None:
    topology = Small(f"errs-{hook}", tmp_path, trouble=functools.partial(Trouble, hook=hook, txid=6, kind="error"))
    run = cluster.submit_topology(topology.id, fast(max_spout_pending=1, on_error="stop", **SMALL), topology.make())
    with pytest.raises(UserCodeError, match=f"told to err in {hook}") as caught:
        run.join(60)
    assert (caught.value.component, caught.value.hook, caught.value.phase, caught.value.attempt) == ("keep", hook, phase, "6:0")
    assert [attempt.is_one_task for attempt in topology.ran(6).values()] == [True]
    assert run.status().current == 6, "the state is intact"
