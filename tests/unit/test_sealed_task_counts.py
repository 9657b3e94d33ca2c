"""After a restart a sealed transaction runs under the task counts it was sealed with, the next ones
under those of the topology (R23)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.servers.clusters import Journal
from tests.topologies.spouts import Keep, Ranges, keeping_topology
from txtopo import Config, TransactionAttempt
from txtopo.dataplane.job import Job, Run
from txtopo.dataplane.outcome import Tally
from txtopo.engine import continuity
from txtopo.engine.engine import Engine
from txtopo.engine.jobs import JobResult
from txtopo.engine.status import RunStatus, StatusBoard
from txtopo.spark.machine import Machine
from txtopo.state.memory import MemoryStateStore
from txtopo.state.topology import Holder, TopologyState
from txtopo.stores import SqliteStore


class Jobs:
    """Notes the arguments of each job, and lets the job succeed."""

    def __init__(self) -> None:
        self.told: list[Job] = []

    def run(self, job: Job, plan: Any, source: Any = (), description: str = "") -> JobResult:
        self.told.append(job)
        return JobResult(Tally())

    def group(self, job: Job) -> str:
        return job.name

    def cancel(self, group: str) -> None:
        pass

    def is_running(self, group: str) -> bool:
        return False

    def places(self, group: str) -> str:
        return ""


@pytest.mark.rule(23)
def test_every_job_of_a_sealed_transaction_has_the_task_counts_of_its_seal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    graph = keeping_topology(
        "topology",
        Ranges(journal, 4, 2),
        Keep(SqliteStore(tmp_path / "kept.db", "kept"), journal),
        3,
        3,
    )
    sealed = {"numbers": 2, "pass": 1, "keep": 1}
    zookeeper = MemoryStateStore()
    before = TopologyState.open(zookeeper, "topology", Holder("host", 1, "then"))
    continuity.resume(graph, before)
    before.seal(TransactionAttempt(1, 0), sealed, {"begin": 0, "end": 2})
    before.close()

    state = TopologyState.open(zookeeper, "topology", Holder("host", 2, "now"))
    jobs = Jobs()
    board = StatusBoard(
        RunStatus(
            "topology", "run", generation=state.generation, epoch=state.epoch, current=state.current
        )
    )
    conf = Config(max_transactions=2, max_spout_pending=1)
    Engine(
        Run("run", graph, 2, conf.as_mapping(), state.generation),
        conf,
        jobs,
        state,
        [board],
        random.Random(1),
        lambda: None,
        Machine(graph.id),
    ).run()
    state.close()

    assert {(job.attempt.txid, job.part) for job in jobs.told} == {
        (txid, part) for txid in (1, 2) for part in ("processing", "commit")
    }
    assert {tuple(job.task_counts.items()) for job in jobs.told if job.attempt.txid == 1} == {
        tuple(sealed.items())
    }
    assert [dict(job.task_counts) for job in jobs.told if job.attempt.txid == 2] == [
        {"numbers": 3, "pass": 3, "keep": 1}
    ] * 2
    assert board.snapshot().replays == 1, "the sealed transaction was processed again"
