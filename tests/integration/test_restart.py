"""A run ends, the next begins: commits stay, begun transactions are replayed, sealed transactions
are replayed as sealed."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.clusters import Journal, fast, run_to_idle
from tests.topologies.spouts import Keep, Partitioned, Ranges, batches, keeping_topology
from txtopo import (
    BatchOutputCollector,
    FencedError,
    Fields,
    LocalCluster,
    StateMismatchError,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
    UserCodeError,
    ZooKeeperUnavailableError,
)
from txtopo.command import cli
from txtopo.engine import engine
from txtopo.journal import live, recording
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout


class EndsInside(Keep):
    """Raises, once, after its write of ``txid``: the transaction is sealed and applied, but not
    recorded."""

    txid = 2

    def fail_once(self, hook: str) -> None:
        if (self.attempt.txid, hook) == (self.txid, "after") and self.journal.claim("ended"):
            raise RuntimeError("ended inside the commit")


@pytest.mark.thorough
@pytest.mark.rule(1, 23)
@pytest.mark.parametrize("kind", ["plain", "planned", "storm-style"])
def test_a_sealed_transaction_is_replayed_first_under_its_own_task_counts(
    cluster: LocalCluster, tmp_path: Path, kind: str
) -> None:
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")

    def spout(size: int) -> Any:
        return (
            Ranges(journal, size, 5)
            if kind == "plain"
            else Partitioned(journal, 2, size, 2, kind == "planned")
        )

    id = f"sealed-{kind}"
    run = cluster.submit_topology(
        id, fast(max_spout_pending=3), keeping_topology(id, spout(20), EndsInside(store, journal))
    )
    with pytest.raises(UserCodeError, match="ended inside"):
        run.join(PATIENCE_S)
    assert run.status().current == 2
    before = batches(store)
    run_to_idle(
        cluster,
        keeping_topology(id, spout(20), EndsInside(store, journal), spout_tasks=1, pass_tasks=3),
        max_spout_pending=2,
    )
    after = batches(store)
    assert {txid: after[txid] for txid in before} == before
    assert (
        sorted(n for batch in after.values() for n in batch) == list(range(20))
        if kind == "plain"
        else sorted([*range(20), *range(1000, 1020)])
    )
    tasks = {
        line.split()[1]: line.split()[2:] for line in journal.lines() if line.startswith("tasks")
    }
    assert tasks["2:1000000"] == ["1", "2"], (
        "txid 2 was sealed with two tasks of 'pass', and a new epoch has begun"
    )
    assert tasks["3:1000000"] == ["1", "3"], (
        "new parallelism applies from the first unsealed transaction"
    )


class TellsTheTime(EndsInside):
    """Writes down ``context.opened_at``, in both phases."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        super().prepare(conf, context, collector, attempt)
        journal_time(self.journal, context, attempt)

    def finish_batch(self) -> None:
        journal_time(self.journal, self.context, self.attempt)
        super().finish_batch()


def journal_time(journal: Journal, context: TopologyContext, attempt: TransactionAttempt) -> None:
    journal.write(
        f"opened {attempt.txid} {attempt.attempt_id} {context.phase} {context.opened_at.isoformat()}"
    )


@pytest.mark.thorough
@pytest.mark.rule(36)
@pytest.mark.parametrize("kind", ["planned", "storm-style"])
def test_a_restart_does_not_change_the_opening_time_of_a_transaction(
    cluster: LocalCluster, tmp_path: Path, kind: str
) -> None:
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    id = f"opened-{kind}"
    before = datetime.datetime.now(datetime.UTC)
    topology = keeping_topology(
        id, Partitioned(journal, 2, 20, 2, kind == "planned"), TellsTheTime(store, journal)
    )
    run = cluster.submit_topology(id, fast(max_spout_pending=2), topology)
    with pytest.raises(UserCodeError, match="ended inside"):
        run.join(PATIENCE_S)
    restarted = datetime.datetime.now(datetime.UTC)
    run_to_idle(cluster, topology)
    told = [line.split()[1:] for line in journal.lines() if line.startswith("opened")]
    assert {(txid, attempt, phase) for txid, attempt, phase, _ in told} >= {
        ("2", a, p) for a in ("0", "1000000") for p in ("processing", "commit")
    }
    times = {
        txid: {datetime.datetime.fromisoformat(time) for of, _, _, time in told if of == txid}
        for txid, _, _, _ in told
    }
    assert [len(moments) for moments in times.values()] == [1] * 10
    first, second, last = (min(times[txid]) for txid in ("1", "2", "10"))
    assert before < first < second < restarted < last


@pytest.mark.rule(35)
def test_a_changed_topology_is_refused_with_the_command_that_accepts_it(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path / "journal")

    def topology(size: int, store: str, partitioned: bool = False) -> Any:
        spout = (
            Partitioned(journal, 2, size, 5, planned=True)
            if partitioned
            else Ranges(journal, size, 5)
        )
        return keeping_topology(
            "changes", spout, Keep(SqliteStore(tmp_path / "kept.db", store), journal)
        )

    run_to_idle(cluster, topology(10, "kept"))
    run = cluster.submit_topology("changes", fast(), topology(20, "renamed"))
    with pytest.raises(
        StateMismatchError, match=r"txtopo state accept changes --store keep/renamed`"
    ):
        run.join(PATIENCE_S)
    assert (
        cli.main(
            [
                "state",
                "accept",
                "changes",
                "--store",
                "keep/renamed",
                "--zookeeper",
                str(cluster.zookeeper),
                "--execute",
            ]
        )
        == 0
    )
    assert "component 'keep' may begin renamed empty" in capsys.readouterr().out
    run_to_idle(cluster, topology(20, "renamed"))
    assert SqliteStore(tmp_path / "kept.db", "renamed").get("total") == sum(range(10, 20))
    with pytest.raises(
        StateMismatchError,
        match="'numbers' \\(a whole batch\\), but it now has 'numbers' \\(partitions\\)",
    ):
        cluster.submit_topology("changes", fast(), topology(20, "renamed", partitioned=True))
    assert run_to_idle(cluster, topology(25, "renamed")).status().current == 6


@pytest.mark.rule(23)
def test_a_second_run_continues_where_the_first_stopped_and_counts_nothing_twice(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(n,) for n in range(6)]}, Fields("n"), 2)
    topology = keeping_topology("continues", spout, Keep(store, journal))
    assert run_to_idle(cluster, topology).status().current == 4
    assert run_to_idle(cluster, topology).status().committed == 0
    spout.append(0, [(100,), (101,), (102,)])
    spout.append(1, [(200,)])
    run = run_to_idle(cluster, topology)
    assert (run.status().current, run.status().committed) == (6, 2)
    assert store.get("total") == sum(range(6)) + 100 + 101 + 102 + 200


@pytest.mark.rule(9)
def test_appended_rows_are_read_while_the_topology_runs_and_idleness_is_asked_afresh(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(1,)]}, Fields("n"), 10)
    run = cluster.submit_topology(
        "appends",
        fast(),
        keeping_topology("appends", spout, Keep(store, Journal(tmp_path / "journal"))),
    )
    run.wait_until_idle(PATIENCE_S)
    for n in (10, 100, 1000):
        spout.append(0, [(n,)])
        run.wait_until_idle(PATIENCE_S)
    assert store.get("total") == 1111
    assert run.stop().committed == 4, "an idle topology made empty transactions"


@pytest.mark.rule(26)
def test_a_second_coordinator_of_the_same_topology_is_refused_and_the_first_goes_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(1,)]}, Fields("n"), 1)
    topology = keeping_topology("one-only", spout, Keep(store, Journal(tmp_path / "journal")))
    run = cluster.submit_topology("first", fast(), topology)
    with pytest.raises(FencedError, match="pid") as caught:
        cluster.submit_topology("second", fast(), topology)
    assert caught.value.exit_code == 4
    spout.append(0, [(2,)])
    run.wait_until_idle(PATIENCE_S)
    assert store.get("total") == 3


@pytest.mark.rule(26)
def test_of_two_standbys_one_takes_over_and_the_other_can_be_stopped_while_waiting(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(1,)]}, Fields("n"), 1)
    topology = keeping_topology("stood-by-for", spout, Keep(store, Journal(tmp_path / "journal")))
    first = cluster.submit_topology("first", fast(), topology)
    waiting = [
        cluster.submit_topology(name, fast(on_held="wait"), topology)
        for name in ("second", "third", "fourth")
    ]
    first.wait_until_idle(PATIENCE_S)
    assert [(run.status().state, run.began) for run in waiting] == [("standby", None)] * 3
    assert "'stood-by-for' is held by another coordinator: 'first'" in (
        waiting[0].status().last_error or ""
    )
    journal = recording.place(Path(str(cluster._data_dir)), topology.id)
    wait_until(lambda: (live.read(journal) or {}).get("standbys") == 3, "three standbys are shown")
    assert waiting.pop().stop(PATIENCE_S).state == "stopped"
    waiting.pop().kill()
    first.stop()
    spout.append(0, [(10,)])
    run = waiting.pop()
    assert run.wait_for_txid(2, PATIENCE_S).epoch == 2
    assert run.began is not None
    assert run.began.current == 2
    assert store.get("total") == 11


@pytest.mark.rule(26)
def test_a_takeover_within_one_program_ends_the_first_run_with_exit_code_4(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(1,)]}, Fields("n"), 1)
    topology = keeping_topology("taken-over", spout, Keep(store, Journal(tmp_path / "journal")))
    first = cluster.submit_topology("first", fast(), topology)
    first.wait_until_idle(PATIENCE_S)
    second = cluster.submit_topology("second", fast(on_held="take"), topology)
    with pytest.raises(
        FencedError, match=r"another coordinator took the topology in epoch 2, now held by 'second'"
    ) as caught:
        first.join(PATIENCE_S)
    assert caught.value.exit_code == 4
    spout.append(0, [(10,)])
    second.wait_until_idle(PATIENCE_S)
    assert store.get("total") == 11


@pytest.mark.rule(26)
def test_a_run_that_cannot_renew_its_lease_ends_with_the_cause(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def revive() -> None:
        # The first call is that of submit_topology itself.
        if next(calls):
            raise OSError("no room for a new server")

    monkeypatch.setattr(cluster, "_revive", revive)
    monkeypatch.setattr(engine, "_RENEW_INTERVAL_S", 0.05)
    spout = MemoryTransactionalSpout({0: [(1,)]}, Fields("n"), 1)
    topology = keeping_topology(
        "unrevived",
        spout,
        Keep(SqliteStore(tmp_path / "kept.db", "kept"), Journal(tmp_path / "journal")),
    )
    run = cluster.submit_topology("unrevived", fast(), topology)
    with pytest.raises(OSError, match="no room for a new server"):
        run.join(PATIENCE_S)


@pytest.mark.rule(27)
def test_a_store_that_was_emptied_under_old_state_is_refused(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(1,)]}, Fields("n"), 1)
    topology = keeping_topology("emptied", spout, Keep(store, Journal(tmp_path / "journal")))
    run_to_idle(cluster, topology)
    for file in tmp_path.glob("kept.db*"):
        file.unlink()
    spout.append(0, [(2,)])
    run = cluster.submit_topology("emptied", fast(), topology)
    with pytest.raises(StateMismatchError, match=r"txtopo store adopt") as caught:
        run.join(PATIENCE_S)
    assert caught.value.exit_code == 6


@pytest.mark.thorough
@pytest.mark.rule(27)
def test_a_store_of_another_generation_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(1,)]}, Fields("n"), 1)
    topology = keeping_topology("generations", spout, Keep(store, Journal(tmp_path / "journal")))
    with LocalCluster(master="local[2]") as other:
        run_to_idle(other, topology)
    run = cluster.submit_topology("generations", fast(), topology)
    with pytest.raises(StateMismatchError, match="generation"):
        run.join(PATIENCE_S)
    assert store.get("total") == 1, "the store was changed"


def test_a_zookeeper_that_is_not_there_is_exit_code_5(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(1,)]}, Fields("n"), 1)
    topology = keeping_topology("nowhere", spout, Keep(store, Journal(tmp_path / "journal")))
    with LocalCluster(zookeeper="127.0.0.1:1", master="local[2]") as cluster:
        with pytest.raises(ZooKeeperUnavailableError, match=r"127\.0\.0\.1:1") as caught:
            cluster.submit_topology("nowhere", fast(zookeeper_connect_timeout_s=0.1), topology)
    assert caught.value.exit_code == 5
