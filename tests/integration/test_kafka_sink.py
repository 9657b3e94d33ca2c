"""The protocol of the Kafka sink on a real broker: each transaction once, in order, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.kafka import MEMORY_AND_BROKER, KafkaServer
from tests.topologies.kafka_sinks import Sales
from txtopo.connectors.kafka import auxiliary, log
from txtopo.errors import (
    FailedException,
    SetupError,
    StaleAttemptError,
    StateMismatchError,
    TxtopoError,
)
from txtopo.testing.contracts.worker_process import WorkerProcess

pytestmark = MEMORY_AND_BROKER


@pytest.fixture
def sales(kafka: KafkaServer) -> Sales:
    return Sales(kafka)


@pytest.fixture
def other() -> Iterator[WorkerProcess]:
    worker = WorkerProcess()
    yield worker
    worker.close()


class TestReplays:
    @pytest.mark.rule(28, 40)
    def test_rows_of_a_transaction_that_is_replayed_are_there_once(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        for attempt in range(3):
            assert sales.write(process, 1, attempt, ["a", "b"]) == 2
            assert sales.write(process, 1, attempt, ["c"], task=1) == 1
        assert sorted(sales.values) == ["a", "b", "c"]

    @pytest.mark.rule(28, 40)
    def test_another_process_finds_what_was_written(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a", "b"])
        assert sales.write(other, 1, 1, ["a", "b"]) == 2
        assert sales.values == ["a", "b"]

    @pytest.mark.rule(28, 40)
    def test_a_transaction_of_which_one_task_was_written_is_completed_by_the_others(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a"])
        sales.write(other, 1, 1, ["a"])
        sales.write(other, 1, 1, ["b"], task=1)
        assert sorted(sales.values) == ["a", "b"]

    def test_rows_come_in_the_order_of_transactions_in_every_partition(
        self, kafka: KafkaServer, process: WorkerProcess
    ) -> None:
        sales = Sales(kafka, partitions=3)
        sink = sales.sink(partition="key", format="text", key=None)
        assert sink.shape.partition == "key"
        for txid in range(1, 6):
            for task in (0, 1):
                sales.write(process, txid, 0, [f"{txid}"] * 4, task=task)
        kafka.wait_until_settled(sales.topic)
        for partition in range(3):
            values = [
                record.value for record in kafka.read(sales.topic) if record.partition == partition
            ]
            assert values == sorted(values, key=lambda value: value or b"")

    @pytest.mark.in_gate("*memory", "between1-broker")
    @pytest.mark.parametrize("between", [(2, 0), (1, 1)])
    def test_a_task_that_ran_in_another_process_in_between_goes_on(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess, between: tuple[int, int]
    ) -> None:
        """The first process has kept its producer, and a record that is no longer the last one."""
        sales.write(process, 1, 0, ["1"], tasks=1)
        sales.write(other, *between, [f"{between[0]}"], tasks=1)
        sales.write(
            process, between[0] + 1, 0, ["next"], tasks=1, known_stores=sales.known(*between, 1)
        )
        assert sales.values == [*(["1", "2"] if between[0] == 2 else ["1"]), "next"]

    def test_a_task_without_rows_writes_its_record(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        assert sales.write(process, 1, 0, task=1) == 0
        assert [(record.task, record.txid, record.rows) for record in sales.records] == [(1, 1, 0)]

    @pytest.mark.rule(28, 40)
    def test_a_batch_that_changes_on_replay_is_refused(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a", "b"])
        for worker in (process, other):
            with pytest.raises(
                TxtopoError,
                match=r"wrote 2 rows of component 'write', task 0, for transaction 1, whose replay now has 1\n.*Mend",
            ):
                sales.write(worker, 1, 1, ["a"])
        assert sales.values == ["a", "b"]

    @pytest.mark.in_gate("*memory")
    @pytest.mark.rule(28, 30)
    def test_a_replay_that_finds_its_rows_raises_the_record_to_its_attempt(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a"], tasks=1)
        sales.write(other, 1, 4, ["a"], tasks=1)
        assert sales.records[-1].attempt == 4
        sales.write(other, 2, 0, ["b"], known_stores=sales.known(1, 4, 1), tasks=1)
        assert sales.values == ["a", "b"]


class EndsEarly:
    """A consumer that is told of an end of partition 0 before any record."""

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._is_told = consumer, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def poll(self, timeout: float) -> Any:
        if self._is_told:
            return self._consumer.poll(timeout)
        self._is_told = True
        error = SimpleNamespace(name=lambda: "_PARTITION_EOF")
        return SimpleNamespace(partition=lambda: 0, offset=lambda: 0, error=lambda: error)


class TestReading:
    def test_a_task_that_goes_on_reads_nothing_of_the_auxiliary_topic(
        self, sales: Sales, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sales.write(process, 1, 0, ["a"])

        def refuse(*arguments: object) -> None:
            raise AssertionError("the auxiliary topic was read")

        for method in ("partitions", "make", "check_is_kept", "wait_until_decided", "last_records"):
            monkeypatch.setattr(auxiliary.AuxiliaryTopic, method, refuse)
        for txid in range(2, 6):
            sales.write(process, txid, 0, ["a"])
        assert sales.values == ["a"] * 5

    @pytest.mark.in_gate("*memory")
    def test_the_last_record_is_seen_behind_many_aborted_ones(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a"])
        process.close()
        producer = sales.kafka.producer(transactional_id=f"{sales.auxiliary_topic}.0")
        for _ in range(30):
            producer.begin_transaction()
            producer.produce(sales.auxiliary_topic, b"never committed", b"k", partition=0)
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        with pytest.raises(StaleAttemptError):
            sales.write(other, 0, 0, ["z"])
        sales.write(other, 1, 1, ["a"])
        assert sales.values == ["a"]

    @pytest.mark.rule(28)
    def test_the_last_record_is_seen_behind_an_end_that_is_none(
        self,
        sales: Sales,
        process: WorkerProcess,
        other: WorkerProcess,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As a replica says that lags behind the one that was asked where the partition ends."""
        for txid in (1, 2):
            sales.write(process, txid, 0, [f"{txid}"])
        original = log.Log.consumer
        with monkeypatch.context() as patch:
            patch.setattr(log.Log, "consumer", lambda self, ours: EndsEarly(original(self, ours)))
            sales.write(other, 2, 1, ["2"])
        assert sales.values == ["1", "2"]

    @pytest.mark.rule(28)
    def test_a_record_that_is_not_where_the_partition_ended_is_not_committed(
        self,
        sales: Sales,
        process: WorkerProcess,
        other: WorkerProcess,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As where a broker that leads no more has said where the partition ends."""
        for txid in (1, 2):
            sales.write(process, txid, 0, [f"{txid}"])
        ends = auxiliary.AuxiliaryTopic.ends
        with monkeypatch.context() as patch:
            patch.setattr(
                auxiliary.AuxiliaryTopic,
                "ends",
                lambda *asked: {task: min(end, 2) for task, end in ends(*asked).items()},
            )
            with pytest.raises(
                FailedException,
                match=r"the record is at offset 4 in topic txtopo.*, which had ended at 2",
            ):
                sales.write(other, 2, 1, ["2"])
        sales.write(other, 2, 2, ["2"])
        assert sales.values == ["1", "2"]

    @pytest.mark.in_gate("*memory")
    def test_nothing_is_written_while_another_transaction_is_open_in_the_partition(
        self,
        sales: Sales,
        process: WorkerProcess,
        other: WorkerProcess,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        sales.write(process, 1, 0, ["a"])
        stranger = sales.kafka.producer(transactional_id=f"stranger-{sales.topology_id}")
        stranger.begin_transaction()
        stranger.produce(sales.auxiliary_topic, b"perhaps the newest record", b"k", partition=0)
        stranger.flush(PATIENCE_S)
        with monkeypatch.context() as patch:
            patch.setattr(auxiliary, "DECIDED_S", 0.2)
            with pytest.raises(
                FailedException,
                match=r"open transaction there\n.* `txtopo kafka abort '?kafka://\S+ --topology ID",
            ):
                sales.write(other, 2, 0, ["b"])
        stranger.abort_transaction(PATIENCE_S)
        other.close()
        sales.write(other, 2, 1, ["b"])
        assert sales.values == ["a", "b"]

    @pytest.mark.in_gate("*memory")
    def test_a_record_is_seen_right_after_its_commit(self, sales: Sales) -> None:
        for txid in range(1, 16):
            worker = WorkerProcess()
            sales.write(worker, txid, 0, [f"{txid}"])
            again = WorkerProcess()
            sales.write(again, txid, 1, [f"{txid}"])
            worker.close()
            again.close()
        assert sales.values == [f"{txid}" for txid in range(1, 16)]


class TestLateTasks:
    @pytest.mark.in_gate("*memory", "0-late0-broker", "1-late2-broker")
    @pytest.mark.rule(29, 40)
    @pytest.mark.parametrize("late", [(2, 0), (1, 5), (1, 9)])
    @pytest.mark.parametrize("task", [0, 1])
    def test_a_late_task_fails_and_changes_nothing(
        self,
        sales: Sales,
        process: WorkerProcess,
        other: WorkerProcess,
        late: tuple[int, int],
        task: int,
    ) -> None:
        sales.write(process, 1, 5, ["a"])
        sales.write(process, 2, 1, ["b"])
        sales.wait_until_settled()
        with pytest.raises(StaleAttemptError):
            sales.write(other, *late, ["z"], task=task)
        assert sales.values == ["a", "b"]

    @pytest.mark.rule(29)
    def test_a_late_task_costs_the_live_one_no_more_than_a_replay(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a"])
        sales.write(process, 2, 1, ["b"])
        with pytest.raises(StaleAttemptError):
            sales.write(other, 2, 0, ["z"])
        with pytest.raises(FailedException, match="fenced"):
            sales.write(process, 3, 0, ["c"])
        sales.write(process, 3, 1, ["c"])
        assert sales.values == ["a", "b", "c"]


class TestOtherNumbersOfTasks:
    """A transaction that was begun is replayed with its number of tasks (R23). The number may
    change with the next transaction."""

    @pytest.mark.in_gate("*memory", "1-2-1-broker")
    @pytest.mark.rule(23, 27)
    @pytest.mark.parametrize(
        "numbers", [(1, 2, 1), (2, 4, 1, 1, 3, 4)], ids=lambda numbers: "-".join(map(str, numbers))
    )
    def test_more_tasks_and_fewer_and_more_again(
        self, sales: Sales, numbers: tuple[int, ...]
    ) -> None:
        written, tasks_before = [], 0
        for txid, tasks in enumerate(numbers, start=1):
            known = sales.known(txid - 1, 1, tasks_before) if tasks_before else {}
            for attempt in (0, 1):
                worker = WorkerProcess()
                for task in range(tasks):
                    sales.write(
                        worker,
                        txid,
                        attempt,
                        [f"{txid}.{task}"],
                        task=task,
                        tasks=tasks,
                        known_stores=known,
                    )
                worker.close()
            written += [f"{txid}.{task}" for task in range(tasks)]
            tasks_before = tasks
        assert sorted(sales.values) == sorted(written)

    @pytest.mark.rule(23, 27)
    def test_a_worker_that_goes_on_takes_another_number_of_tasks(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        for txid, tasks in enumerate((1, 3, 2), start=1):
            known = sales.known(txid - 1, 0, txid) if txid > 1 else {}
            for task in range(tasks):
                sales.write(
                    process, txid, 0, [f"{txid}.{task}"], task=task, tasks=tasks, known_stores=known
                )
        assert len(sales.values) == 6

    @pytest.mark.rule(23, 28)
    def test_a_worker_that_goes_on_replays_the_first_transaction_with_fewer_tasks(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        for task in range(3):
            sales.write(process, 1, 0, ["a"], task=task, tasks=3)
        process.close()
        for attempt in (0, 1):
            sales.write(process, 2, attempt, ["b"], tasks=1, known_stores=sales.known(1, 0, 3))
        assert sales.values == ["a", "a", "a", "b"]

    def test_what_a_task_that_is_no_more_left_open_is_aborted(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        for task in range(3):
            sales.write(process, 1, 0, ["a"], task=task, tasks=3)
        late = sales.kafka.producer(transactional_id=f"{sales.auxiliary_topic}.2")
        late.begin_transaction()
        late.produce(sales.topic, b"left open")
        late.produce(sales.auxiliary_topic, b"left open, too", b"k", partition=2)
        late.flush(PATIENCE_S)
        for task in range(2):
            sales.write(other, 2, 0, ["b"], task=task, tasks=2, known_stores=sales.known(1, 0, 3))
        sales.kafka.wait_until_settled(sales.topic)
        assert sales.values == ["a", "a", "a", "b", "b"]

    @pytest.mark.in_gate("memory")
    @pytest.mark.rule(29, 40)
    def test_a_removed_task_writes_no_more(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        """As in a query of Structured Streaming, whose partitions may be fewer when it is begun
        again: the removed task has a producer, and knows its record."""
        for task in range(3):
            sales.write(process, 1, 0, ["a"], task=task, tasks=3)
        sales.wait_until_settled()
        for task in range(2):
            sales.write(other, 2, 0, ["b"], task=task, tasks=2, known_stores=sales.known(1, 0, 3))
        with pytest.raises(FailedException, match="fenced"):
            sales.write(process, 2, 0, ["z"], task=2, tasks=3)
        assert sorted(sales.values) == ["a", "a", "a", "b", "b"]

    @pytest.mark.in_gate("*memory", "2-broker")
    @pytest.mark.rule(27, 34)
    @pytest.mark.parametrize("lost", [1, 2])
    def test_the_record_of_any_task_is_missed_also_if_the_task_is_no_more(
        self, sales: Sales, process: WorkerProcess, lost: int
    ) -> None:
        for task in range(3):
            if task != lost:
                sales.write(process, 1, 0, ["a"], task=task, tasks=3)
        process.close()
        with pytest.raises(StateMismatchError, match="holds nothing of component 'write'"):
            sales.write(process, 2, 0, ["b"], task=1, tasks=2, known_stores=sales.known(1, 0, 3))


class TestOtherStates:
    """Auxiliary topic and state that do not belong together (R27): exit code 6, nothing written."""

    @pytest.mark.usefixtures("sole_broker")
    @pytest.mark.rule(27)
    @pytest.mark.parametrize(
        ("known", "own", "changed", "message"),
        [
            ((2, 0), (3, 0), {}, "is behind"),
            ((1, 0), (2, 0), {"generation": "second"}, "belongs to generation first"),
            ((1, 0), (2, 0), {}, "is ahead: .* has recorded 1:0"),
            (None, (1, 5), {"first_attempt": 5}, "which ZooKeeper never sealed"),
            (None, (2, 0), {"known_stores": {}}, "was replayed without the sink"),
            ((1, 1), (2, 0), {"topology_id": "emptied"}, "holds nothing of component 'write'"),
            (
                None,
                (2, 0),
                {"topology_id": "renamed", "known_stores": {}, "expected_stores": []},
                "is new to component 'write'",
            ),
        ],
        ids=[
            "an older copy",
            "another generation",
            "an older state",
            "never sealed",
            "void",
            "emptied",
            "an unexpected name",
        ],
    )
    def test_it_is_refused(
        self,
        sales: Sales,
        process: WorkerProcess,
        known: tuple[int, int] | None,
        own: tuple[int, int],
        changed: dict[str, Any],
        message: str,
    ) -> None:
        sales.write(process, 1, 1, ["a"], tasks=1)
        other = WorkerProcess()
        stores = {} if known is None else {"known_stores": sales.known(*known, 1)}
        failures: list[BaseException] = []
        with pytest.raises(StateMismatchError, match=message) as refused:
            sales.write(
                other, *own, ["b"], tasks=1, on_failure=failures.append, **{**stores, **changed}
            )
        assert refused.value.exit_code == 6
        assert failures == [refused.value]
        assert sales.values == ["a"]
        other.close()

    @pytest.mark.rule(23, 27)
    def test_a_transaction_that_was_written_by_another_number_of_tasks_is_refused(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        """The state is restored to before the transaction was sealed, and the component has other
        tasks now."""
        for task in range(3):
            sales.write(process, 1, 0, ["a"], task=task, tasks=3)
        with pytest.raises(
            StateMismatchError,
            match=r"written by 3 tasks, and the transaction now has 2\n  .*Restore the newer state",
        ) as refused:
            sales.write(other, 1, 1, ["a"], task=0, tasks=2)
        assert refused.value.exit_code == 6
        assert sales.values == ["a", "a", "a"]

    @pytest.mark.rule(27)
    def test_a_task_that_is_new_in_a_new_generation_is_refused_as_well(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        sales.write(process, 3, 0, ["a"], tasks=1)
        process.close()
        sales.wait_until_settled()
        with pytest.raises(StateMismatchError, match="belongs to generation first"):
            sales.write(process, 1, 0, ["b"], task=1, tasks=2, generation="second", known_stores={})
        assert sales.values == ["a"]

    @pytest.mark.usefixtures("sole_broker")
    @pytest.mark.rule(27)
    def test_an_emptied_auxiliary_topic_is_not_made_anew(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a"], tasks=1)
        process.close()
        sales.kafka.delete_topic(sales.auxiliary_topic)
        with pytest.raises(StateMismatchError, match="holds nothing of component 'write'"):
            sales.write(process, 2, 0, ["b"], tasks=1, known_stores=sales.known(1, 0, 1))
        assert sales.auxiliary_topic not in sales.kafka.topics

    @pytest.mark.usefixtures("sole_broker")
    @pytest.mark.in_gate("*memory")
    @pytest.mark.rule(27)
    def test_an_auxiliary_topic_whose_records_were_deleted_is_refused(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a"], tasks=1)
        process.close()
        sales.kafka.wait_until_settled(sales.auxiliary_topic)
        # Kafka deletes no records of a compacted topic.
        sales.kafka.set_policy(sales.auxiliary_topic, "delete")
        sales.kafka.forget_before(sales.auxiliary_topic, 2)
        sales.kafka.set_policy(sales.auxiliary_topic, "compact")
        with pytest.raises(StateMismatchError, match="holds nothing of component 'write'"):
            sales.write(process, 2, 0, ["b"], tasks=1, known_stores=sales.known(1, 0, 1))
        assert sales.values == ["a"]

    def test_a_broker_that_has_not_heard_of_a_change_to_the_auxiliary_topic_fails_the_attempt_at_most(
        self, sales: Sales, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unknown(*_: object) -> None:
            raise log.UnknownTopicError("no such topic")

        with monkeypatch.context() as patch:
            patch.setattr(auxiliary.AuxiliaryTopic, "undecided", unknown)
            with pytest.raises(FailedException, match="no such topic"):
                sales.write(process, 1, 0, ["a"], tasks=1)
        sales.write(process, 1, 1, ["a"], tasks=1)
        process.close()
        partitions = auxiliary.AuxiliaryTopic.partitions
        monkeypatch.setattr(
            auxiliary.AuxiliaryTopic,
            "partitions",
            lambda self, **asks: partitions(self, **asks) if asks else 0,
        )
        sales.write(process, 2, 0, ["b"], tasks=1)
        assert sales.values == ["a", "b"]

    def test_a_topic_shared_by_two_components_is_refused(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a"], sink=sales.sink(transactions_topic=f"{sales.topic}-tx"))
        sales.kafka.wait_until_settled(f"{sales.topic}-tx")
        rival = Sales(sales.kafka)
        with pytest.raises(
            SetupError,
            match=f"belongs to component 'write' in topology '{sales.topology_id}'.*\n.*its own transactions_topic",
        ):
            rival.write(
                process,
                1,
                0,
                ["b"],
                task=1,
                sink=rival.sink(transactions_topic=f"{sales.topic}-tx"),
            )

    def test_a_record_of_another_program_in_the_auxiliary_topic_is_refused(
        self, sales: Sales, process: WorkerProcess, other: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a"])
        sales.kafka.produce(sales.auxiliary_topic, ["who am I?"], key=b"k")
        with pytest.raises(
            StateMismatchError, match=r"cannot be read: it is no sink's record, but b'who am I"
        ):
            sales.write(other, 2, 0, ["b"])
        assert sales.values == ["a"]
