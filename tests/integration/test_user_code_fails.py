"""Mistakes of user code, on real Spark: every hook, every kind of exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import fast, run_to_idle
from tests.wrong.failing_hooks import FaultyCount
from tests.wrong.failing_stores import FailingSqliteStore, Place, Swallowing
from txtopo import (
    LocalCluster,
    PoisonBatchError,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    UserCodeError,
    WorkerCrashError,
)
from txtopo.coordinator.transitions import Status
from txtopo.engine.deadlines import Deadlines
from txtopo.testing import MemoryTransactionalSpout

HOOKS = [
    "split.prepare",
    "split.execute",
    "split.finish_batch",
    "count.prepare",
    "count.execute",
    "count.finish_batch before write",
    "count.finish_batch after write",
    "tag.execute",
    "after.finish_batch",
]


@pytest.mark.in_gate("count.finish_batch after write-3")
@pytest.mark.rule(6, 7, 28)
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("hook", HOOKS)
def test_failed_exception_in_any_hook_replays_the_batch_and_everything_counts_once(
    cluster: LocalCluster, tmp_path: Path, hook: str, pending: int
) -> None:
    faulty = FaultyCount(f"failed-{HOOKS.index(hook)}-{pending}", tmp_path, [(hook, "failed")])
    run = run_to_idle(cluster, faulty.topology, max_spout_pending=pending)
    assert faulty.fault_count(hook) == 1
    assert faulty.counts == faulty.expected
    assert run.status().committed == 3
    assert run.status().replays >= 1
    assert "told to fail" in (run.status().last_error or "")
    assert all(len(faulty.seen_after(txid)) == 1 for txid in (1, 2, 3)), (
        "a replay showed downstream something else than the first attempt"
    )


@pytest.mark.rule(39)
@pytest.mark.parametrize("place", ["opening", "committing"])
def test_a_failure_of_a_store_that_a_committer_swallows_is_replayed(
    cluster: LocalCluster, tmp_path: Path, place: Place
) -> None:
    store = FailingSqliteStore(tmp_path / "sum.db", "sums").told_to(place, tmp_path / "failed")
    builder = TransactionalTopologyBuilder(
        f"swallows-{place}", "spout", MemoryTransactionalSpout({0: [(1,), (2,), (3,)]}, ["n"], 1)
    )
    builder.set_bolt("sum", Swallowing(store)).global_grouping("spout")
    run = run_to_idle(cluster, builder.build_topology())
    assert (tmp_path / "failed").exists(), "the fault was hit"
    assert (store.get("sum"), run.status().committed) == (6, 3)
    assert run.status().replays >= 1
    assert f"no luck in {place}" in (run.status().last_error or "")


@pytest.mark.thorough
@pytest.mark.rule(7)
@pytest.mark.parametrize(
    "kind",
    ["error", "SystemExit", "KeyboardInterrupt", "RecursionError", "MemoryError", "unpicklable"],
)
def test_any_other_exception_stops_the_topology_and_says_where(
    cluster: LocalCluster, tmp_path: Path, kind: str
) -> None:
    faulty = FaultyCount(f"stops-{kind}", tmp_path, [("split.execute", kind)])
    run = cluster.submit_topology("stops", fast(max_spout_pending=2), faulty.topology)
    with pytest.raises(UserCodeError) as caught:
        run.join(PATIENCE_S)
    error = caught.value
    assert error.exit_code == 1
    assert (error.component, error.hook, error.phase) == ("split", "execute", "processing")
    assert error.attempt.startswith("2:")
    assert "failing_hooks.py" in error.traceback
    assert "dataplane" not in error.traceback
    run_to_idle(cluster, faulty.topology)
    assert faulty.counts == faulty.expected, "the state was not intact"


@pytest.mark.thorough
@pytest.mark.rule(7)
def test_an_exception_in_the_commit_phase_stops_the_topology_too(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    faulty = FaultyCount("stops-commit", tmp_path, [("count.finish_batch after write", "error")])
    run = cluster.submit_topology("stops", fast(), faulty.topology)
    with pytest.raises(UserCodeError, match="told to err") as caught:
        run.wait_until_idle(PATIENCE_S)
    assert (caught.value.phase, caught.value.hook) == ("commit", "finish_batch")
    run_to_idle(cluster, faulty.topology)
    assert faulty.counts == faulty.expected


@pytest.mark.thorough
@pytest.mark.rule(7)
def test_on_error_replay_treats_any_exception_as_a_failure(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    faulty = FaultyCount(
        "replays-errors",
        tmp_path,
        [("count.finish_batch after write", "error"), ("split.finish_batch", "SystemExit")],
    )
    run_to_idle(cluster, faulty.topology, on_error="replay", max_spout_pending=3)
    assert faulty.fault_count("count.finish_batch after write") == 1
    assert faulty.fault_count("split.finish_batch") == 1
    assert faulty.counts == faulty.expected


@pytest.mark.in_gate("count.finish_batch after write")
@pytest.mark.rule(7)
@pytest.mark.parametrize(
    "hook", ["split.execute", "count.finish_batch before write", "count.finish_batch after write"]
)
def test_a_dying_worker_replays_the_batch(cluster: LocalCluster, tmp_path: Path, hook: str) -> None:
    faulty = FaultyCount(f"dies-{HOOKS.index(hook)}", tmp_path, [(hook, "os._exit")])
    run_to_idle(cluster, faulty.topology, max_spout_pending=2)
    assert faulty.fault_count(hook) == 1
    assert faulty.counts == faulty.expected


@pytest.mark.rule(7)
def test_workers_that_keep_dying_end_in_a_stop_with_sparks_message(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    faulty = FaultyCount("keeps-dying", tmp_path, [("split.execute", "os._exit")], times=100)
    run = cluster.submit_topology("keeps-dying", fast(max_crashes=2), faulty.topology)
    with pytest.raises(WorkerCrashError, match=r"transaction 2: workers died 2 times") as caught:
        run.join(PATIENCE_S)
    assert any(
        words in str(caught.value) for words in ("Python worker", "Broken pipe", "Connection reset")
    )
    assert run.status().current == 2


@pytest.mark.thorough
@pytest.mark.rule(7)
def test_a_poison_batch_stops_with_exit_code_3_and_its_last_error(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    faulty = FaultyCount("poison", tmp_path, [("split.finish_batch", "failed")], times=100)
    run = cluster.submit_topology(
        "poison", fast(max_attempts=3, max_spout_pending=3), faulty.topology
    )
    with pytest.raises(PoisonBatchError, match=r"transaction 2 failed 3 times") as caught:
        run.join(PATIENCE_S)
    assert caught.value.exit_code == 3
    assert "told to fail in split.finish_batch" in str(caught.value)
    assert run.status().current == 2


@pytest.mark.in_gate("split.execute")
@pytest.mark.rule(8)
@pytest.mark.parametrize("hook", ["split.execute", "count.finish_batch before write"])
def test_a_phase_that_takes_too_long_fails_the_attempt(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    faulty = FaultyCount(f"hangs-{HOOKS.index(hook)}", tmp_path, [(hook, "hang")])
    component, called = hook.split()[0].split(".")
    time_out = Deadlines._time_out

    def time_out_if_it_hangs(self: Deadlines, attempt: TransactionAttempt, status: Status) -> None:
        """Time out the hanging attempt only: a machine may be slow."""
        if attempt != TransactionAttempt(2, 0) or attempt not in self._attempts:
            return
        places = self._jobs.places(list(self._attempts[attempt].groups)[-1])
        if "time.sleep(60)" in places:
            monkeypatch.setattr(self._jobs, "places", lambda group: places)  # told only once
            time_out(self, attempt, status)
        else:
            self._loop.surroundings.after(0.05, lambda: time_out_if_it_hangs(self, attempt, status))

    monkeypatch.setattr(Deadlines, "_time_out", time_out_if_it_hangs)
    run = run_to_idle(cluster, faulty.topology, message_timeout_s=0.2, max_spout_pending=2)
    assert faulty.fault_count(hook) == 1
    first, *stack = (run.status().last_error or "").splitlines()
    assert "for longer than message_timeout_s = 0.2: " in first
    assert f"component '{component}', task " in first
    assert f", {called}" in first
    assert "time.sleep(60)" in "".join(stack), "the line that hangs"
    assert faulty.counts == faulty.expected
    jobs = cluster.context._jsc.sc().statusStore().jobsList(None)
    names = {jobs.apply(index).name() for index in range(jobs.size())}
    assert f"{run.topology_id} txid 2 attempt 0 processing" in names
