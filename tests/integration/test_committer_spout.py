"""A spout whose emitters commit, on real Spark: ``commit`` reaches the emission that is used, in
the order of txids, and then it is closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import Journal, fast, run_to_idle
from tests.topologies.spouts import Keep, batches, keeping_topology
from txtopo import (
    BaseCommitterTransactionalSpout,
    BatchOutputCollector,
    CommitterSpoutEmitter,
    CoordinatorContext,
    FailedException,
    Fields,
    LocalCluster,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalSpoutCoordinator,
    TransactionAttempt,
    UserCodeError,
)
from txtopo.stores import SqliteStore

SIZE, TAKE = 20, 5
BATCHES = {
    txid: list(range(TAKE * txid - TAKE, TAKE * txid)) for txid in range(1, SIZE // TAKE + 1)
}


class Acknowledged(BaseCommitterTransactionalSpout):
    """Numbers with an acknowledgement after the commit. Writes down ``hook attempt task numbers``
    for each hook of an emitter.

    ``commit`` fails the first time it is called for ``fails_in``.
    """

    def __init__(self, journal: Journal, fails_in: int = 0) -> None:
        self.journal, self.fails_in = journal, fails_in

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return _Coordinator(context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> CommitterSpoutEmitter:
        return _Emitter(self, context)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))


class _Coordinator(TransactionalSpoutCoordinator):
    def __init__(self, context: CoordinatorContext) -> None:
        self.context = context

    def is_ready(self) -> bool:
        return bool((self.context.last_metadata or 0) < SIZE)

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        return (prev_metadata or 0) + TAKE


class _Emitter(CommitterSpoutEmitter):
    def __init__(self, spout: Acknowledged, context: TopologyContext) -> None:
        self.spout, self.context = spout, context
        self.numbers: list[int] = []
        self.attempt: TransactionAttempt | None = None

    def note(self, hook: str) -> None:
        numbers = ",".join(map(str, self.numbers))
        self.spout.journal.write(f"{hook} {self.attempt} {self.context.task_index} {numbers}")

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        assert self.context.phase == "processing"
        self.attempt = attempt
        self.numbers = [
            n
            for n in range(metadata - TAKE, metadata)
            if n % self.context.num_tasks == self.context.task_index
        ]
        for n in self.numbers:
            collector.emit([attempt, n])
        self.note("emitted")

    def commit(self, attempt: TransactionAttempt) -> None:
        assert (self.context.phase, self.attempt) == ("commit", attempt)
        if attempt.txid == self.spout.fails_in and not self.spout.journal.count("failed in commit"):
            self.spout.journal.write("failed in commit")
            raise FailedException("told to fail in commit")
        self.note("committed")

    def cleanup_before(self, txid: int) -> None:
        self.note(f"cleanup-before-{txid}")

    def close(self) -> None:
        self.note("closed")


class History:
    """What the emitters wrote down."""

    def __init__(self, journal: Journal) -> None:
        self.lines = [line.split() for line in journal.lines() if not line.startswith("failed")]

    def attempts(self, hook: str) -> list[str]:
        """Attempts for which ``hook`` was called, in order, once per task."""
        return [line[1] for line in self.lines if line[0] == hook]

    def numbers(self, hook: str, attempt: str) -> list[int]:
        """The tuples that the tasks had emitted when ``hook`` was called."""
        return sorted(
            int(n) for line in self.lines if line[:2] == [hook, attempt] for n in line[3].split(",")
        )

    def hooks(self, attempt: str, task: int) -> list[str]:
        """Calls of one emitter, in order, but for the clean-up."""
        return [
            line[0]
            for line in self.lines
            if line[1:3] == [attempt, str(task)] and not line[0].startswith("cleanup")
        ]


def used(history: History) -> dict[int, str]:
    """By txid, the last attempt that was committed."""
    return {int(attempt.split(":")[0]): attempt for attempt in history.attempts("committed")}


@pytest.mark.in_gate("3")
@pytest.mark.rule(3, 12, 22)
@pytest.mark.parametrize("pending", [1, 3])
def test_commit_reaches_only_the_emission_that_is_used(
    cluster: LocalCluster, tmp_path: Path, pending: int
) -> None:
    journal, emitted = Journal(tmp_path / "journal"), Journal(tmp_path / "emitted")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    keep = Keep(store, journal, ((1, "execute"), (2, "execute"), (3, "execute")))
    run = run_to_idle(
        cluster,
        keeping_topology(f"acknowledges-{pending}", Acknowledged(emitted), keep),
        max_spout_pending=pending,
    )
    assert run.status().replays >= 3
    assert batches(store) == BATCHES
    history = History(emitted)
    assert history.attempts("committed") == [
        attempt for txid in BATCHES for attempt in [used(history)[txid]] * 2
    ], "once per task, in order"
    assert {
        txid: history.numbers("committed", attempt) for txid, attempt in used(history).items()
    } == BATCHES, "what it emitted was lost on the way"
    dropped = set(history.attempts("emitted")) - set(history.attempts("committed"))
    assert len(dropped) >= 3, "three attempts had emitted when they failed"
    for attempt in used(history).values():
        assert [history.hooks(attempt, task) for task in (0, 1)] == [
            ["emitted", "committed", "closed"]
        ] * 2
    assert all(
        "committed" not in history.hooks(attempt, task) for attempt in dropped for task in (0, 1)
    )


@pytest.mark.thorough
@pytest.mark.rule(6, 22)
@pytest.mark.parametrize("fails", ["the spout", "another committer"])
def test_a_commit_that_failed_is_made_again_by_the_emission_of_the_next_attempt(
    cluster: LocalCluster, tmp_path: Path, fails: str
) -> None:
    journal, emitted = Journal(tmp_path / "journal"), Journal(tmp_path / "emitted")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = Acknowledged(emitted, fails_in=2 if fails == "the spout" else 0)
    keep = Keep(store, journal, () if fails == "the spout" else ((2, "after"),))
    run = run_to_idle(
        cluster,
        keeping_topology(f"acknowledges-again-{len(fails)}", spout, keep),
        max_spout_pending=2,
    )
    assert run.status().replays >= 1
    assert batches(store) == BATCHES
    history = History(emitted)
    assert used(history)[2] == "2:1"
    assert history.numbers("committed", "2:1") == BATCHES[2]
    assert [attempt for attempt in history.attempts("committed") if attempt != "2:0"] == [
        used(history)[txid] for txid in BATCHES for _ in "01"
    ]


@pytest.mark.thorough
@pytest.mark.rule(22)
def test_cleanup_never_covers_the_transaction_the_next_batch_starts_from(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    emitted = Journal(tmp_path / "emitted")
    keep = Keep(SqliteStore(tmp_path / "kept.db", "kept"), Journal(tmp_path / "journal"))
    run_to_idle(
        cluster,
        keeping_topology("acknowledges-cleanly", Acknowledged(emitted), keep),
        max_spout_pending=1,
    )
    cleaned = [
        (int(line[0].rpartition("-")[2]), int(line[1].split(":")[0]))
        for line in History(emitted).lines
        if line[0].startswith("cleanup")
    ]
    assert sorted(set(cleaned)) == [(1, 2), (2, 3), (3, 4)], (
        "before what was committed last, and never before the first commit"
    )


class EndsAfterWrite(Keep):
    """The run ends in transaction 2, after its write."""

    def finish_batch(self) -> None:
        super().finish_batch()
        if self.attempt == TransactionAttempt(2, 0):
            raise RuntimeError("ended inside the commit")


@pytest.mark.thorough
@pytest.mark.rule(22, 23)
def test_after_a_restart_the_sealed_transaction_is_emitted_and_committed_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal, emitted = Journal(tmp_path / "journal"), Journal(tmp_path / "emitted")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    topology = keeping_topology(
        "acknowledges-restarted", Acknowledged(emitted), EndsAfterWrite(store, journal)
    )
    run = cluster.submit_topology(topology.id, fast(max_spout_pending=2), topology)
    with pytest.raises(UserCodeError, match="ended inside"):
        run.join(PATIENCE_S)
    run_to_idle(cluster, topology, max_spout_pending=2)
    assert batches(store) == BATCHES
    history = History(emitted)
    assert used(history) == {1: "1:0", 2: "2:1000000", 3: "3:1000000", 4: "4:1000000"}
    assert history.numbers("committed", "2:1000000") == BATCHES[2]
