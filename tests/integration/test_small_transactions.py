"""Small transactions on real Spark: each is one task, with equal results; a transaction that is
not small, or has failed, runs apart again."""

from __future__ import annotations

import functools
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import fast, run_to_idle
from tests.topologies.small import WORK_S, Small, Trouble
from txtopo import LocalCluster, TransactionAttempt, UserCodeError
from txtopo.coordinator.transitions import Status
from txtopo.engine.attempts import Attempt
from txtopo.engine.deadlines import Deadlines
from txtopo.engine.engine import Engine
from txtopo.spark import resident_task

SMALL = {"small_transaction_s": PATIENCE_S}
"""Everything is small, however slow the machine."""
OFF = {"small_transaction_s": 0.0}
LAST = 9
"""A transaction of every run; the tenth may be cut short by the end of the input."""


late = Deadlines._late


@pytest.fixture(autouse=True)
def _nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason to run phases apart. Only one test is about late jobs."""
    monkeypatch.setattr(Deadlines, "_late", lambda self, attempt, status: None)


@pytest.fixture(scope="module")
def undisturbed(shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The content of all stores after a run without any trouble, none of whose transactions is one
    task."""
    topology = Small("undisturbed", tmp_path_factory.mktemp("undisturbed"))
    run_to_idle(shared_cluster, topology.make(), max_spout_pending=3, **OFF)
    return topology.results(0)[0]


def one_task(topology: Small, txid: int) -> list[bool]:
    """For each attempt of ``txid``, whether one Spark task did all of it; otherwise its processing
    and its commit had different tasks."""
    ran = topology.ran(txid)
    assert all(attempt.is_one_task or attempt.is_apart for attempt in ran.values()), ran
    return [attempt.is_one_task for attempt in ran.values()]


@pytest.mark.in_gate("3-7")
@pytest.mark.rule(3, 23)
@pytest.mark.parametrize(("pending", "certainly_from"), [(1, 4), (3, 7)])
def test_after_a_few_small_transactions_processing_and_commit_are_one_spark_task(
    cluster: LocalCluster, tmp_path: Path, pending: int, certainly_from: int
) -> None:
    topology = Small(f"small-{pending}", tmp_path)
    run_to_idle(cluster, topology.make(), max_spout_pending=pending, **SMALL)
    assert [one_task(topology, txid) for txid in (1, 2, 3)] == [[False]] * 3
    assert [one_task(topology, txid) for txid in range(certainly_from, LAST + 1)] == [[True]] * (
        LAST + 1 - certainly_from
    )


def shared_tasks(topology: Small, txids: range) -> list[set[int]]:
    """The Spark tasks that ran ``txids``, each with the transactions it ran."""
    by_task: defaultdict[int, set[int]] = defaultdict(set)
    for txid in txids:
        for attempt in topology.ran(txid).values():
            for task in set().union(*attempt.tasks.values()):
                by_task[task].add(txid)
    return list(by_task.values())


@pytest.mark.rule(3, 23)
def test_a_spark_task_stays_for_the_transactions_that_follow(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_task, "_LIFE_S", PATIENCE_S)
    monkeypatch.setattr(resident_task, "_IDLE_S", PATIENCE_S)
    topology = Small("stays", tmp_path)
    run_to_idle(cluster, topology.make(), max_spout_pending=1, **SMALL)
    assert shared_tasks(topology, range(4, LAST + 1)) == [set(range(4, LAST + 1))]


@pytest.mark.rule(3, 23)
def test_without_a_task_that_stays_each_transaction_has_a_spark_job_of_its_own(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster, whose executors may not reach the driver."""
    monkeypatch.setattr(resident_task.ResidentTasks, "ask", lambda self, group, request: None)
    topology = Small("stays-not", tmp_path)
    run_to_idle(cluster, topology.make(), max_spout_pending=1, **SMALL)
    assert shared_tasks(topology, range(4, LAST + 1)) == [{txid} for txid in range(4, LAST + 1)]


@pytest.mark.thorough
@pytest.mark.rule(3)
def test_topologies_side_by_side_do_not_wait_for_a_task_that_stays(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Two of small transactions, one whose transactions are not, on two slots."""
    together = [
        Small("beside-a", tmp_path, size=400),
        Small("beside-b", tmp_path, size=400),
        Small("beside-large", tmp_path),
    ]
    settings: list[dict[str, Any]] = [SMALL, SMALL, OFF]
    runs = [
        cluster.submit_topology(topology.id, fast(max_spout_pending=2, **how), topology.make())
        for topology, how in zip(together, settings, strict=True)
    ]
    for run in runs:
        run.wait_until_idle(PATIENCE_S)
        run.stop(PATIENCE_S)
    assert [run.status().replays for run in runs] == [0, 0, 0]
    assert [len(topology.ran(LAST)[0].parts["finished"]) for topology in together] == [1, 1, 1]


VARIANTS: dict[str, dict[str, Any]] = {
    "committer": {},
    "emits while executing": {"eager": True},
    "opaque and planned": {"kind": "opaque-planned"},
    "committer spout": {"kind": "committer"},
    "learns by emitting": {"kind": "storm"},
    "no committer": {"has_committer": False},
}


@pytest.mark.thorough
@pytest.mark.rule(4, 12, 13, 16, 17, 22, 28)
@pytest.mark.parametrize("variant", VARIANTS)
def test_results_in_one_task_equal_those_in_several(
    cluster: LocalCluster, tmp_path: Path, variant: str
) -> None:
    """Two committers by key, and a bolt downstream of them: the tuples of each task, and the
    content of all stores. With 0, no transaction is one task."""
    number = list(VARIANTS).index(variant)
    alike = [
        Small(f"same-{number}-{name}", tmp_path, **VARIANTS[variant]) for name in ("small", "off")
    ]
    runs = [
        run_to_idle(cluster, topology.make(), max_spout_pending=3, **how)
        for topology, how in zip(alike, (SMALL, OFF), strict=True)
    ]
    committed = [run.status().current - 1 for run in runs]
    assert committed[0] == committed[1] >= LAST
    small, off = (topology.results(committed[0]) for topology in alike)
    assert small == off
    small_parts, off_parts = (topology.parts("finished") for topology in alike)
    apart = {"processing" if variant == "no committer" else "commit"}
    assert set().union(*off_parts.values()) == apart
    assert set().union(*(small_parts[txid] for txid in range(7, LAST + 1))) == (
        apart if variant == "learns by emitting" else {"whole"}
    )


@pytest.mark.thorough
@pytest.mark.rule(3)
def test_a_commit_that_waits_for_later_transactions_to_be_processed_gets_there(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processing phases run side by side, also during a slow commit: deferred phases would wait for
    the commit, and the commit for them."""
    slow = TransactionAttempt(8, 0)
    monkeypatch.setattr(
        Deadlines,
        "_late",
        lambda self, attempt, status: late(self, attempt, status) if attempt == slow else None,
    )
    topology = Small(
        "waits",
        tmp_path,
        trouble=functools.partial(
            Trouble, hook="finish_batch", txid=8, kind="wait for the next two"
        ),
    )
    run = run_to_idle(cluster, topology.make(), max_spout_pending=3, **SMALL)
    assert run.status().replays == 0
    assert [one_task(topology, txid) for txid in (8, 9, 10)] == [[True], [False], [False]]


@pytest.mark.thorough
@pytest.mark.rule(6, 7, 28)
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("hook", ["execute", "finish_batch"])
def test_a_small_transaction_that_fails_is_processed_by_itself_and_counts_once(
    cluster: LocalCluster, tmp_path: Path, undisturbed: Any, hook: Any, pending: int
) -> None:
    topology = Small(
        f"fails-{hook}-{pending}",
        tmp_path,
        trouble=functools.partial(Trouble, hook=hook, txid=8, kind="failed"),
    )
    run = run_to_idle(cluster, topology.make(), max_spout_pending=pending, **SMALL)
    assert run.status().replays == 1
    first, second = topology.ran(8).values()
    assert (first.is_one_task, second.is_apart) == (True, True)
    assert topology.results(0)[0] == undisturbed


@pytest.mark.thorough
@pytest.mark.rule(8, 28, 29, 33)
def test_a_small_transaction_that_hangs_is_timed_out_and_its_task_changes_nothing_later(
    cluster: LocalCluster, tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task goes on after the next transaction has begun, or is gone by then: a late write is
    refused."""
    topology = Small(
        "hangs",
        tmp_path,
        trouble=functools.partial(
            Trouble, hook="finish_batch", txid=8, kind="wait for the next two"
        ),
    )
    time_out, hanging = Deadlines._time_out, TransactionAttempt(8, 0)

    def time_out_if_it_hangs(self: Deadlines, attempt: TransactionAttempt, status: Status) -> None:
        """Time out the hanging attempt only."""
        if attempt == hanging and 8 not in topology.parts("finished"):
            self._loop.surroundings.after(0.05, lambda: time_out_if_it_hangs(self, attempt, status))
        elif attempt == hanging:
            time_out(self, attempt, status)

    monkeypatch.setattr(Deadlines, "_time_out", time_out_if_it_hangs)
    run = run_to_idle(
        cluster,
        topology.make(),
        max_spout_pending=1,
        message_timeout_s=0.5,
        zombie_wait_s=1.0,
        **SMALL,
    )
    assert run.status().replays == 1
    first, second = topology.ran(8).values()
    assert (first.parts["executed"], second.is_apart) == ({"whole"}, True)
    assert topology.results(0)[0] == undisturbed


@pytest.mark.thorough
@pytest.mark.rule(3)
def test_a_suddenly_large_batch_is_exact_and_later_batches_use_all_cores_again(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time at work of the other batches is taken as 0: a slow machine would make it large."""
    topology = Small(
        "grows",
        tmp_path,
        size=60,
        trouble=functools.partial(Trouble, hook="execute", txid=6, kind="work"),
    )
    forget = Engine._forget

    def forget_measured(self: Engine, work: Attempt) -> None:
        if work.attempt.txid != 6:
            work.busy_s = dict.fromkeys(work.busy_s, 0.0)
        forget(self, work)

    monkeypatch.setattr(Engine, "_forget", forget_measured)
    run = run_to_idle(
        cluster, topology.make(), max_spout_pending=1, small_transaction_s=0.4 * WORK_S
    )
    assert run.status().replays == 0
    assert [one_task(topology, txid) for txid in (6, 7, 8, 9, 10)] == [
        [True],
        [False],
        [False],
        [False],
        [True],
    ]
    assert [len(topology.ran(txid)[0].tasks["prepared"]) for txid in (6, 7, 8, 9, 10)] == [
        1,
        2,
        2,
        2,
        1,
    ], "Spark tasks side by side"
    undisturbed = Small("grows-not", tmp_path, size=60)
    run_to_idle(cluster, undisturbed.make(), max_spout_pending=3, **OFF)
    assert topology.results(0)[0] == undisturbed.results(0)[0]


@pytest.mark.in_gate("finish_batch-commit")
@pytest.mark.rule(7)
@pytest.mark.parametrize(("hook", "phase"), [("execute", "processing"), ("finish_batch", "commit")])
def test_an_error_in_one_task_names_its_phase(
    cluster: LocalCluster, tmp_path: Path, hook: Any, phase: str
) -> None:
    topology = Small(
        f"errs-{hook}",
        tmp_path,
        trouble=functools.partial(Trouble, hook=hook, txid=6, kind="error"),
    )
    run = cluster.submit_topology(
        topology.id, fast(max_spout_pending=1, on_error="stop", **SMALL), topology.make()
    )
    with pytest.raises(UserCodeError, match=f"told to err in {hook}") as caught:
        run.join(PATIENCE_S)
    assert (
        caught.value.component,
        caught.value.hook,
        caught.value.phase,
        caught.value.attempt,
    ) == ("keep", hook, phase, "6:0")
    assert [attempt.is_one_task for attempt in topology.ran(6).values()] == [True]
    assert run.status().current == 6, "the state is intact"
