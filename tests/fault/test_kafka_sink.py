"""Brokers and workers die or stop while a Kafka sink writes: each transaction is there once, in
order, and readers of committed records are not held up."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.processes import kafka_tasks
from tests.servers.kafka import OPEN_S, TIME_OUTS, KafkaServer
from tests.topologies.kafka_sinks import Sales
from tests.topologies.stepped_tasks import Task, set_points
from txtopo.connectors.kafka import producing
from txtopo.errors import FailedException
from txtopo.testing.contracts.worker_process import WorkerProcess

TEXTS = {1: ["a"], 2: ["b1", "b2"], 3: ["c"]}
ALL = ["a", "b1", "b2", "c"]
PHASES = ("begin", "read", "produce", "commit")
"""Before which of its steps a task stands while something happens to the broker."""


@pytest.fixture
def sales(kafka: KafkaServer) -> Iterator[Sales]:
    yield Sales(kafka)
    kafka.resume()
    kafka.start()


@pytest.fixture
def other() -> Iterator[WorkerProcess]:
    worker = WorkerProcess()
    yield worker
    worker.close()


def complete(sales: Sales, worker: WorkerProcess, attempt: int) -> None:
    """The replays of transaction 2, one of which succeeds, and transaction 3."""

    def succeeds() -> bool:
        nonlocal attempt
        try:
            assert sales.write(worker, 2, attempt, TEXTS[2], tasks=1) == 2
        except FailedException:
            worker.close()
            attempt += 1
            return False
        return True

    wait_until(succeeds, "a replay that succeeds")
    sales.write(worker, 3, 0, TEXTS[3], tasks=1, known_stores=sales.known(2, attempt, 1))
    assert sales.values == ALL


def write_first(sales: Sales, worker: WorkerProcess) -> None:
    """Transaction 1, with the markers of its commit: a broker that is killed before it has written
    them all may forget them (see docs/kafka.md)."""
    sales.write(worker, 1, 0, TEXTS[1], tasks=1)
    for topic in (sales.topic, sales.auxiliary_topic):
        sales.kafka.wait_until_settled(topic)


class LateAnswer:
    """A producer whose first commit is not answered in time."""

    def __init__(self, producer: Any, kafka: KafkaServer) -> None:
        self.producer, self.kafka, self.times = producer, kafka, 0

    def commit_transaction(self, timeout: float) -> None:
        self.times += 1
        if self.times > 1:
            self.producer.commit_transaction(timeout)
            return
        self.producer.flush(PATIENCE_S)
        self.kafka.pause()
        try:
            self.producer.commit_transaction(0.1)
        finally:
            self.kafka.resume()


class TestBrokers:
    @pytest.mark.in_gate("commit")
    @pytest.mark.rule(28)
    @pytest.mark.parametrize("phase", PHASES)
    def test_a_broker_that_was_killed_and_came_back(
        self,
        sales: Sales,
        process: WorkerProcess,
        other: WorkerProcess,
        monkeypatch: pytest.MonkeyPatch,
        phase: str,
    ) -> None:
        set_points(monkeypatch)
        write_first(sales, process)
        process.close()
        task = Task(lambda: sales.write(process, 2, 0, TEXTS[2], tasks=1))
        for _ in range(PHASES.index(phase)):
            task.step()
        sales.kafka.kill()
        sales.kafka.start()
        task.finish()
        assert task.outcome == 2 or isinstance(task.outcome, FailedException), task.outcome
        complete(sales, other, 1)

    @pytest.mark.thorough
    @pytest.mark.rule(28)
    @pytest.mark.parametrize("phase", PHASES)
    def test_a_broker_that_stays_away_fails_the_attempt(
        self,
        sales: Sales,
        process: WorkerProcess,
        other: WorkerProcess,
        monkeypatch: pytest.MonkeyPatch,
        phase: str,
    ) -> None:
        set_points(monkeypatch)
        write_first(sales, process)
        process.close()
        sink = sales.sink(transaction_timeout_s=2)
        task = Task(lambda: sales.write(process, 2, 0, TEXTS[2], tasks=1, sink=sink))
        for _ in range(PHASES.index(phase)):
            task.step()
        sales.kafka.pause()
        with monkeypatch.context() as patch:
            for module, name in TIME_OUTS:
                patch.setattr(module, name, 1.0)
            task.finish()
        assert isinstance(task.outcome, FailedException), task.outcome
        sales.kafka.resume()
        complete(sales, other, 1)

    @pytest.mark.thorough
    @pytest.mark.rule(28)
    def test_a_late_answer_to_a_commit_is_waited_for(
        self, sales: Sales, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_first(sales, process)
        late: list[LateAnswer] = []
        original = producing.TaskProducer._commit

        def commit(self: producing.TaskProducer, deadline: float) -> None:
            late.append(LateAnswer(self._producer, sales.kafka))
            with mock.patch.object(self, "_producer", late[-1]):
                original(self, deadline)

        with monkeypatch.context() as patch:
            patch.setattr(producing.TaskProducer, "_commit", commit)
            assert sales.write(process, 2, 0, TEXTS[2], tasks=1) == 2
        assert [answer.times for answer in late] == [2]
        complete(sales, process, 0)

    @pytest.mark.rule(28, 40)
    def test_a_commit_whose_outcome_is_not_known_is_settled_by_the_replay(
        self,
        sales: Sales,
        process: WorkerProcess,
        other: WorkerProcess,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        commits: list[str] = []
        original = producing.TaskProducer._commit

        def losing(self: producing.TaskProducer, deadline: float) -> None:
            original(self, deadline)
            commits.append("committed")
            raise FailedException("the answer is lost")

        write_first(sales, process)
        with monkeypatch.context() as patch:
            patch.setattr(producing.TaskProducer, "_commit", losing)
            with pytest.raises(FailedException):
                sales.write(process, 2, 0, TEXTS[2], tasks=1)
        assert commits == ["committed"]
        complete(sales, other, 1)

    @pytest.mark.thorough
    @pytest.mark.rule(28)
    def test_a_transaction_that_is_open_too_long_is_replayed(
        self, sales: Sales, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_points(monkeypatch)
        write_first(sales, process)
        process.close()
        sink = sales.sink(transaction_timeout_s=1)
        task = Task(lambda: sales.write(process, 2, 0, TEXTS[2], tasks=1, sink=sink))
        for _ in range(3):
            task.step()
        sales.kafka.wait_until_settled(sales.topic)
        task.finish()
        assert isinstance(task.outcome, FailedException), task.outcome
        complete(sales, process, 1)


class TestWorkers:
    @pytest.mark.rule(28, 40)
    @pytest.mark.parametrize("point", kafka_tasks.POINTS)
    def test_a_worker_that_dies_leaves_all_rows_or_none_and_holds_up_no_reader(
        self, sales: Sales, process: WorkerProcess, point: str
    ) -> None:
        write_first(sales, process)
        order = kafka_tasks.Order(
            sales.kafka.servers, sales.topic, sales.topology_id, 2, 0, TEXTS[2], point, OPEN_S
        )
        assert kafka_tasks.run(order) == -signal.SIGKILL
        is_committed = point in ("_commit.after", "write.after")
        if is_committed:
            sales.kafka.wait_until_settled(sales.topic)
        assert [record.value for record in sales.kafka.read(sales.topic)] == (
            [b"a", b"b1", b"b2"] if is_committed else [b"a"]
        )
        process.close()
        complete(sales, process, 1)
        assert len([record for record in sales.records if record.txid == 2]) == 1 + is_committed

    @pytest.mark.thorough
    @pytest.mark.rule(28, 29, 40)
    @pytest.mark.parametrize("point", kafka_tasks.POINTS)
    def test_a_worker_that_was_paused_writes_nothing_beside_its_successor(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess, point: str
    ) -> None:
        write_first(sales, process)
        order = kafka_tasks.Order(
            sales.kafka.servers,
            sales.topic,
            sales.topology_id,
            2,
            0,
            TEXTS[2],
            point,
            by=signal.SIGSTOP,
        )
        paused = subprocess.Popen(kafka_tasks.command(order))
        try:
            assert os.WIFSTOPPED(os.waitpid(paused.pid, os.WUNTRACED)[1])
            complete(sales, other, 1)
        finally:
            paused.send_signal(signal.SIGCONT)
        assert (paused.wait(PATIENCE_S) == 0) is (point in ("_commit.after", "write.after"))
        attempts = itertools.count()

        def goes_on() -> bool:
            try:
                sales.write(other, 4, next(attempts), ["d"], tasks=1)
            except FailedException:  # the paused task has fenced the kept producer
                other.close()
                return False
            return True

        wait_until(goes_on, "the next transaction")
        assert sales.values == [*ALL, "d"]

    def test_an_attempt_that_fails_leaves_no_open_transaction(
        self, sales: Sales, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(self: producing.TaskProducer, deadline: float) -> None:
            self._producer.flush(PATIENCE_S)
            raise KeyboardInterrupt

        write_first(sales, process)
        with monkeypatch.context() as patch:
            patch.setattr(producing.TaskProducer, "_commit", failing)
            with pytest.raises(KeyboardInterrupt):
                sales.write(process, 2, 0, TEXTS[2], tasks=1)
        sales.kafka.wait_until_settled(sales.topic)
        complete(sales, process, 1)
