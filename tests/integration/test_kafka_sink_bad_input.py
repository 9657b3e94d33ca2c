"""The mistakes that a Kafka sink meets, on a real broker: each with the fact and the cure, as early
as it can be known, with nothing written and nothing left open."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from tests.patience import PATIENCE_S
from tests.servers.kafka import PASSWORD, USER, KafkaServer
from tests.topologies.kafka_sinks import Sales, finish
from txtopo.connectors.kafka import KafkaSink
from txtopo.errors import RowRefusedError, SetupError
from txtopo.testing.contracts.worker_process import WorkerProcess


@pytest.fixture
def sales(kafka: KafkaServer) -> Sales:
    return Sales(kafka)


class TestTopics:
    @pytest.mark.usefixtures("sole_broker")
    def test_an_unknown_topic_is_refused_at_once_and_not_made(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        with pytest.raises(
            SetupError,
            match=r"there is no topic 'nowhere' at 127.*\n  Check the name, or make the topic first",
        ):
            sales.prepared(process, 1, 0, sink=KafkaSink(sales.kafka.servers, "nowhere"))
        assert "nowhere" not in sales.kafka.topics

    @pytest.mark.usefixtures("sole_broker")
    def test_an_unknown_topic_in_a_row_is_refused(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        sink = KafkaSink(sales.kafka.servers, "field:key", format="text")
        with pytest.raises(SetupError, match="there is no topic 'k' at 127"):
            sales.prepared(process, 1, 0, ["a"], sink=sink)

    def test_rows_go_to_the_topics_that_they_name(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        second = Sales(sales.kafka)
        sink = KafkaSink(sales.kafka.servers, "field:value", value="key", format="text")
        assert (
            finish(
                sales.prepared(process, 1, 0, [sales.topic, second.topic, sales.topic], sink=sink)
            )
            == 3
        )
        assert (sales.values, second.values) == (["k", "k"], ["k"])

    def test_a_compacted_topic_needs_a_key(
        self, kafka: KafkaServer, process: WorkerProcess
    ) -> None:
        sales = Sales(kafka, cleanup_policy="compact")
        with pytest.raises(
            SetupError, match=r"is compacted: every record needs a key\n  Give key='field'"
        ):
            sales.prepared(process, 1, 0, sink=sales.sink(key=None))
        with pytest.raises(
            RowRefusedError,
            match=r"row 2 of component 'write', task 0, attempt 1:0: the key is None, and topic sales-",
        ):
            sales.prepared(process, 1, 0, ["a", None], sink=sales.sink(key="value", value="key"))

    def test_the_partition_of_a_row_exists(
        self, kafka: KafkaServer, process: WorkerProcess
    ) -> None:
        sales = Sales(kafka, partitions=2)
        sink = KafkaSink(kafka.servers, sales.topic, value="key", partition="value", format="text")
        with pytest.raises(
            RowRefusedError, match=r"row 2 of .*: the partition is 2, and topic sales-.* has 2"
        ):
            sales.prepared(process, 1, 0, [1, 2], sink=sink)

    def test_a_partition_that_the_topic_has_got_meanwhile_is_written_to(
        self, kafka: KafkaServer, process: WorkerProcess
    ) -> None:
        sales = Sales(kafka, partitions=2)
        sink = KafkaSink(kafka.servers, sales.topic, value="key", partition="value", format="text")
        assert sales.write(process, 1, 0, [1], sink=sink) == 1
        kafka.add_partitions(sales.topic, 4)
        kafka.wait_until(lambda: kafka._has_leaders(sales.topic, 4))
        assert sales.write(process, 2, 0, [3], sink=sink) == 1
        assert sales.values == ["k", "k"]

    def test_a_tombstone_is_written_if_it_is_meant(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        sales.write(process, 1, 0, ["a", None], sink=sales.sink(tombstones=True))
        sales.kafka.wait_until_settled(sales.topic)
        assert [record.value for record in sales.kafka.read(sales.topic)] == [b"a", None]
        with pytest.raises(
            RowRefusedError,
            match=r"the field 'value' is None, which deletes .*\n  If that is meant, give tombstones=True",
        ):
            sales.prepared(process, 1, 0, ["a", None])


class TestSizes:
    def test_a_row_above_the_bound_of_its_topic_is_named(
        self, kafka: KafkaServer, process: WorkerProcess
    ) -> None:
        sales = Sales(kafka, max_message_bytes="1000")
        with pytest.raises(
            RowRefusedError,
            match=r"row 2 of .*\(MSG_SIZE_TOO_LARGE\)\n  The row: a record of 2000 bytes, key=b'k'",
        ):
            sales.write(process, 1, 0, ["a", "b" * 2000, "c"])
        assert sales.values == []
        kafka.wait_until_settled(sales.topic)

    def test_many_small_rows_are_more_than_a_large_one_may_be(
        self, kafka: KafkaServer, process: WorkerProcess
    ) -> None:
        sales = Sales(kafka, max_message_bytes="1000")
        sales.write(process, 1, 0, ["b" * 100] * 200)
        assert len(sales.values) == 200

    def test_a_topic_of_large_rows_takes_them(
        self, kafka: KafkaServer, process: WorkerProcess
    ) -> None:
        sales = Sales(kafka, max_message_bytes="6000000")
        sales.write(process, 1, 0, ["b" * 5_000_000])
        assert len(sales.values) == 1

    def test_a_task_without_rows_takes_large_rows_later(
        self, kafka: KafkaServer, process: WorkerProcess
    ) -> None:
        sales = Sales(kafka, max_message_bytes="6000000")
        sales.write(process, 1, 0, [])
        sales.write(process, 2, 0, ["b" * 2_000_000])
        assert len(sales.values) == 1

    def test_topics_with_other_bounds_take_what_each_of_them_may(
        self, kafka: KafkaServer, process: WorkerProcess
    ) -> None:
        small, large = (
            Sales(kafka, max_message_bytes="1000"),
            Sales(kafka, max_message_bytes="6000000"),
        )
        sink = KafkaSink(kafka.servers, "field:key", value="value", format="text")
        rows = [*([(small.topic, "b" * 100)] * 200), (large.topic, "b" * 5_000_000)]
        assert small.write_rows(process, 1, rows, sink) == 201
        assert (len(small.values), len(large.values)) == (200, 1)
        with pytest.raises(
            RowRefusedError,
            match=r"row 1 of .*\(MSG_SIZE_TOO_LARGE\)\n  The row: a record of 2000 bytes",
        ):
            small.write_rows(
                process, 2, [(small.topic, "b" * 2000), (large.topic, "b" * 4000)], sink
            )
        kafka.wait_until_settled(small.topic)


class TestAuxiliaryTopics:
    def test_one_that_forgets_is_refused(self, sales: Sales, process: WorkerProcess) -> None:
        topic = sales.kafka.new_topic(cleanup_policy="delete")
        with pytest.raises(
            SetupError,
            match=rf"the auxiliary topic {topic} has cleanup.policy=delete, and would forget .*\n  Set cleanup.policy to compact",
        ):
            sales.write(process, 1, 0, ["a"], sink=sales.sink(transactions_topic=topic))

    def test_one_with_too_few_partitions_gets_more(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        topic = sales.kafka.new_topic(cleanup_policy="compact")
        sales.write(
            process, 1, 0, ["a"], task=2, tasks=3, sink=sales.sink(transactions_topic=topic)
        )
        assert (
            len(sales.kafka.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
            == 3
        )

    def test_an_id_that_is_no_name_of_a_topic_is_refused(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        for id in ("größe", "x" * 250):
            with pytest.raises(
                SetupError,
                match=r"topic names have letters.*\n  Give transactions_topic='name'",
            ):
                sales.prepared(process, 1, 0, topology_id=id)


class TestTimeouts:
    def test_one_above_the_brokers_maximum_is_refused(
        self, sales: Sales, process: WorkerProcess
    ) -> None:
        with pytest.raises(
            SetupError,
            match=r"transaction_timeout_s is 901, which is more than the brokers at .* allow\n  Give less",
        ):
            sales.prepared(process, 1, 0, sink=sales.sink(transaction_timeout_s=901))


class TestRights:
    @pytest.fixture
    def secret(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Settings of a user with a password."""
        monkeypatch.setenv("KAFKA_TEST_PASSWORD", PASSWORD)
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password_env": "KAFKA_TEST_PASSWORD",
        }

    def test_a_wrong_password_is_refused_at_once(
        self,
        sales: Sales,
        process: WorkerProcess,
        secret: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("KAFKA_TEST_PASSWORD", "wrong")
        with pytest.raises(
            SetupError,
            match=r"Authentication failed: Invalid username or password.*\n  Check the user and the password",
        ):
            sales.prepared(
                process, 1, 0, sink=sales.sink(servers=sales.kafka.sasl_servers, client=secret)
            )

    def test_each_missing_right_is_named_and_with_all_of_them_it_writes(
        self, sales: Sales, process: WorkerProcess, secret: dict[str, Any]
    ) -> None:
        def write() -> int:
            try:
                return sales.write(
                    process,
                    1,
                    0,
                    ["a"],
                    sink=sales.sink(servers=sales.kafka.sasl_servers, client=secret),
                )
            finally:
                process.close()

        kafka, operations = sales.kafka, AclOperation
        with pytest.raises(
            SetupError, match=r"Topic authorization failed\n  Allow the user to READ, DESCRIBE"
        ):
            write()
        kafka.grant(ResourceType.TOPIC, sales.topic, operations.DESCRIBE)
        with pytest.raises(
            SetupError,
            match=r"describing topic txtopo\..*: .*authorization failed\n  Allow .* to CREATE",
        ):
            write()
        kafka.grant(
            ResourceType.TOPIC,
            sales.auxiliary_topic,
            operations.CREATE,
            operations.DESCRIBE,
            operations.READ,
            operations.WRITE,
        )
        with pytest.raises(
            SetupError,
            match=r"Transactional Id authorization failed.*\n  Allow the user to WRITE to",
        ):
            write()
        kafka.grant(
            ResourceType.TRANSACTIONAL_ID,
            sales.auxiliary_topic,
            operations.WRITE,
            operations.DESCRIBE,
        )
        with pytest.raises(
            SetupError, match=r"Topic authorization failed.*\n  Allow the user to READ, DESCRIBE"
        ):
            write()
        kafka.wait_until_settled(sales.topic)
        kafka.grant(ResourceType.TOPIC, sales.topic, operations.WRITE)
        assert write() == 1
        assert sales.values == ["a"]

    def test_a_user_who_sees_no_settings_hears_of_mistakes_from_the_brokers(
        self, kafka: KafkaServer, process: WorkerProcess, secret: dict[str, Any]
    ) -> None:
        sales = Sales(kafka, max_message_bytes="1000")
        everything = (
            AclOperation.CREATE,
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
        )
        for name in (sales.topic, sales.auxiliary_topic):
            kafka.grant(ResourceType.TOPIC, name, *everything)
        kafka.grant(
            ResourceType.TRANSACTIONAL_ID,
            sales.auxiliary_topic,
            AclOperation.WRITE,
            AclOperation.DESCRIBE,
        )
        settings = {"servers": kafka.sasl_servers, "client": secret}
        with pytest.raises(
            RowRefusedError,
            match=r"row 2 of .*\(MSG_SIZE_TOO_LARGE\)\. The brokers do not .*DESCRIBE_CONFIGS.*\n  The row: a record of 2000",
        ):
            sales.write(process, 1, 0, ["a", "b" * 2000, "c"], sink=sales.sink(**settings))
        kafka.wait_until_settled(sales.topic)
        with pytest.raises(
            SetupError,
            match=r"transaction_timeout_s is 901, which is more than the brokers at .* allow",
        ):
            sales.write(
                process, 1, 0, ["a"], sink=sales.sink(transaction_timeout_s=901, **settings)
            )
