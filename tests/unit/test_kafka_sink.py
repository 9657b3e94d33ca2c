"""A Kafka sink before it meets a broker: its arguments, and the way from a tuple to a message."""

from __future__ import annotations

import contextlib
import datetime
import pickle
import shlex
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers import memory_kafka
from tests.wrong.circles import CIRCLES
from txtopo import Fields, InvalidTopologyError, TransactionalTopologyBuilder, TransactionAttempt
from txtopo.connectors.kafka import (
    KafkaSink,
    auxiliary,
    intake,
    log,
    messages,
    producing,
    target,
    upkeep,
)
from txtopo.connectors.kafka.auxiliary import Record, decoded
from txtopo.connectors.kafka.client import Cluster, confluent_kafka
from txtopo.connectors.kafka.messages import Convert, Shape
from txtopo.connectors.kafka.producing import TaskProducer
from txtopo.errors import (
    ConfigError,
    FailedException,
    RowRefusedError,
    StateMismatchError,
    UsageError,
)
from txtopo.sinks import spool, task_ledger
from txtopo.testing import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txtopo.testing.contracts.worker_process import WorkerProcess

UTC = datetime.UTC


def sink(**arguments: Any) -> KafkaSink:
    return KafkaSink(
        arguments.pop("servers", "kafka:9092"), arguments.pop("topic", "sales"), **arguments
    )


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"servers": "kafka"}, "is not 'host:port'"),
            ({"topic": ""}, "topic is ''\n  Give a topic's name, or 'field:name'"),
            ({"topic": "field:"}, "topic is 'field:'"),
            ({"topic": ["a"]}, "topic is \\['a'\\]"),
            ({"key": ""}, "key is ''\n  Give the name of a field, or None"),
            ({"value": None}, "value is None\n  Give the name of a field"),
            ({"partition": 3}, "partition is 3\n  Give the name of a field, or None"),
            ({"timestamp": 3}, "timestamp is 3\n  Give the name of a field, or None"),
            ({"format": "avro"}, "format is 'avro'\n  Give one of 'bytes', 'text', 'json'"),
            (
                {"format": "json", "value": "text"},
                "with format='json' the value is an object of columns\n  Give columns=",
            ),
            (
                {"columns": ["a"]},
                "columns are for format='json', and format is 'bytes'\n  Leave one of them out",
            ),
            ({"format": "json", "columns": "abc"}, "columns is 'abc'\n  Give a list of fields, or"),
            (
                {"format": "json", "columns": ["a", "a"]},
                "which has a name twice\n  Give each name once",
            ),
            ({"headers": 3}, "headers is 3\n  Give a list of fields, or"),
            (
                {"headers": ["txtopo-txid"]},
                "the header 'txtopo-txid' begins with txtopo-\n  Give another name",
            ),
            ({"name": "a/b"}, "name is 'a/b'\n  Give a text without '/'"),
            (
                {"transactions_topic": "größe"},
                "transactions_topic is 'größe'\n  Give a name with letters, digits",
            ),
            ({"transactions_topic": "x" * 250}, "249 at most"),
            (
                {"transaction_timeout_s": 0},
                "transaction_timeout_s is 0\n  Give a number of seconds, at least 1",
            ),
            ({"transaction_timeout_s": True}, "transaction_timeout_s is True"),
            ({"client": {"acks": 1}}, "client\\['acks'\\] is not for users: .*\n  Leave it out"),
            ({"client": {"enable.idempotence": False}}, "enable.idempotence.* is not for users"),
            ({"client": {"transactional.id": "mine"}}, "transactional.id.* is not for users"),
            (
                {"client": {"max.in.flight.requests.per.connection": 6}},
                "max.in.flight.* is not for users",
            ),
            (
                {"client": {"message.timeout.ms": 6}},
                "message.timeout.ms.* is not for users: give transaction_timeout_s",
            ),
            ({"client": {"sasl.password": "secret"}}, "would be a secret in the topology"),
            (
                {"client": {"default.topic.config": {"sasl.password": "secret"}}},
                "would hide settings in a setting",
            ),
            ({"client": {"on_delivery": print}}, "is no setting that may be given"),
        ],
    )
    def test_an_impossible_argument_is_refused_with_the_cure(
        self, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message) as refused:
            sink(**arguments)
        assert "secret'" not in str(refused.value)

    def test_the_sink_is_told_by_its_topic(self) -> None:
        assert repr(sink()) == "<KafkaSink kafka://kafka:9092#sales>"
        assert sink(name="b").ledger.guarantee().known_as == "b"

    def test_a_topology_with_a_sink_is_built_without_the_library(self) -> None:
        program = (
            "import sys; sys.modules['confluent_kafka'] = None\n"
            "from txtopo.connectors.kafka import KafkaSink\n"
            "KafkaSink('kafka:9092', 'sales').ledger.guarantee()\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True)


class TestOpaqueSpouts:
    @pytest.mark.rule(31, 40)
    def test_one_is_refused_when_the_topology_is_built(self) -> None:
        rows: dict[int, list[tuple[Any, ...]]] = {0: [(b"a",)]}
        for spout, is_refused in (
            (OpaqueMemoryTransactionalSpout(rows, Fields("value"), take_per_partition=1), True),
            (MemoryTransactionalSpout(rows, Fields("value"), take_per_partition=1), False),
        ):
            builder = TransactionalTopologyBuilder("shop", "spout", spout)
            builder.set_bolt("write", sink(), 2).shuffle_grouping("spout")
            if not is_refused:
                builder.build_topology()
                continue
            said = r"KafkaSink kafka://kafka:9092#sales holds records, appended, but .* is opaque.*; use a trans"
            with pytest.raises(InvalidTopologyError, match=said):
                builder.build_topology()


class TestMessages:
    FIELDS = ("tx", "id", "name", "when", "shop")

    def convert(self, *values: Any, **shape: Any) -> producing.Message:
        convert: Convert = pickle.loads(
            pickle.dumps(Convert(Shape("sales", **shape), self.FIELDS, "write"))
        )
        return convert(("1:0", *values))

    def test_texts_and_bytes_are_written_as_they_are(self) -> None:
        assert self.convert(b"k", b"v", None, "", key="id", value="name") == (
            "sales",
            b"v",
            b"k",
            None,
            -1,
            0,
        )
        assert self.convert("k", "größe", None, "", key="id", value="name", format="text")[1:3] == (
            "größe".encode(),
            b"k",
        )
        assert self.convert(None, bytearray(b"v"), None, "", key="id", value="name")[1:3] == (
            b"v",
            None,
        )

    def test_an_object_has_the_columns_or_all_fields_that_are_nothing_else(self) -> None:
        assert (
            self.convert(7, "tea", 1, "x", format="json").value
            == b'{"id":7,"name":"tea","when":1,"shop":"x"}'
        )
        shape: dict[str, Any] = {
            "format": "json",
            "key": "id",
            "timestamp": "when",
            "headers": {"origin": "shop"},
        }
        message = self.convert(7, "tea", 1, "x", **shape)
        assert message == ("sales", b'{"id":7,"name":"tea"}', b"7", [("origin", b"x")], -1, 1)
        assert (
            self.convert(7, "tea", 1, "x", format="json", columns={"article": "name"}).value
            == b'{"article":"tea"}'
        )
        assert self.convert("ä", "tea", 1, "x", format="json", key="id").key == "ä".encode()

    def test_topic_partition_and_time_come_from_the_fields_that_were_named(self) -> None:
        when = datetime.datetime(2026, 11, 23, 1, 2, 3, 456_000, UTC)
        convert = Convert(
            Shape("field:shop", value="name", partition="id", timestamp="when"),
            self.FIELDS,
            "write",
        )
        assert convert(("1:0", 3, b"v", when, "tea-shop")) == (
            "tea-shop",
            b"v",
            None,
            None,
            3,
            round(when.timestamp() * 1000),
        )
        assert convert(("1:0", None, b"v", None, "s")).partition == -1

    @pytest.mark.parametrize(
        ("values", "shape", "message"),
        [
            (
                ("k", "v", 1, ""),
                {"value": "name"},
                "the field 'name' has a str, and format='bytes' takes bytes\n  Give format='text'",
            ),
            (
                ("k", b"v", 1, ""),
                {"value": "name", "format": "text"},
                "the field 'name' has a bytes, and format='text' takes str",
            ),
            (
                ("k", None, 1, ""),
                {"value": "name"},
                "the field 'name' is None, .*\n  If that is meant, give tombstones=True",
            ),
            (("k", "\ud800", 1, ""), {"value": "name", "format": "text"}, "has no form in UTF-8"),
            (
                ("k", {1}, 1, ""),
                {"format": "json"},
                r"at \$.name: a value of type set would not come back",
            ),
            (("k", float("nan"), 1, ""), {"format": "json"}, "nan has no form in JSON"),
            (
                (-1, b"v", 1, ""),
                {"value": "name", "partition": "id"},
                "the partition is -1, and not a whole number from 0",
            ),
            ((True, b"v", 1, ""), {"value": "name", "partition": "id"}, "the partition is True"),
            (("k", b"v", -5, ""), {"value": "name", "timestamp": "when"}, "the timestamp is -5"),
            (
                ("k", b"v", datetime.datetime(2026, 1, 1), ""),
                {"value": "name", "timestamp": "when"},
                "a datetime with a time zone",
            ),
            (
                ("k", b"v", 1, 7),
                {"value": "name", "headers": {"a": "shop"}},
                "the header 'a' would be a int, and a header takes bytes, str or None",
            ),
        ],
    )
    def test_a_value_of_another_type_is_refused(
        self, values: tuple[Any, ...], shape: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(messages.RefusedError, match=message):
            self.convert(*values, **shape)

    @pytest.mark.parametrize("circle", CIRCLES.values(), ids=CIRCLES)
    def test_a_value_that_contains_itself_is_refused_with_its_field(self, circle: Any) -> None:
        with pytest.raises(
            messages.RefusedError, match=r"^at \$\.name.*: the value contains itself"
        ):
            self.convert("k", circle, 1, "", format="json")
        with pytest.raises(messages.RefusedError, match=r"^the field 'id', at .*contains itself"):
            self.convert(circle, "tea", 1, "", format="json", key="id", columns={"a": "name"})

    def test_a_topic_that_is_no_text_is_refused(self) -> None:
        with pytest.raises(
            messages.RefusedError, match="the field 'shop' names the topic, and is 7"
        ):
            Convert(Shape("field:shop", value="name"), self.FIELDS, "write")(("1:0", 1, b"v", 1, 7))

    def test_a_field_that_is_not_there_is_named(self) -> None:
        with pytest.raises(
            UsageError,
            match="the sink of 'write' gets no field 'value'; there are id, name, when, shop\n",
        ):
            Convert(Shape("sales"), self.FIELDS, "write")


class TestRecords:
    def test_a_record_is_read_as_it_was_written(self) -> None:
        record = Record("shop", "write", 3, "generation", 7, 1_000_002, 4, 3, 10, "sales")
        assert decoded("topic", record.value) == record

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (None, "it is no sink's record, but b''"),
            (b"text", "no sink's record"),
            (b"[]", "no sink's record"),
            (b'{"version": 1, "task": 3}', "no sink's record"),
            (b'{"version": 9}', "its version is 9, which a newer txtopo has written"),
        ],
    )
    def test_another_is_refused(self, value: bytes | None, message: str) -> None:
        with pytest.raises(StateMismatchError, match=message):
            decoded("topic", value)


class Brokers(Cluster):
    """Brokers that report ``report``, an error and an offset, of a task's own record; None: nothing
    until the time is over. While ``fault`` is pending, reports that the library calls end in it."""

    report: tuple[Any, int] | None
    fault: Exception | None
    calls: list[str]

    def __init__(self, report: tuple[Any, int] | None, fault: Exception | None = None) -> None:
        super().__init__("Kafka sink", "kafka:9092", {})
        object.__setattr__(self, "report", report)
        object.__setattr__(self, "fault", fault)
        object.__setattr__(self, "calls", [])

    def confluent_kafka(self) -> Any:
        def produce(
            topic: str, value: Any, key: Any, partition: int, report: Any, **more: Any
        ) -> None:
            if report is not None and self.report is not None:
                report(self.report[0], SimpleNamespace(offset=lambda: self.report[1]))

        def call(name: str) -> Any:
            def called(*arguments: Any) -> None:
                self.calls.append(name)
                if self.fault is not None and name in ("flush", "abort_transaction"):
                    raise SystemError("a result with an exception set") from self.fault

            return called

        methods = {
            name: call(name)
            for name in ("begin_transaction", "flush", "commit_transaction", "abort_transaction")
        }
        return SimpleNamespace(
            KafkaException=OSError,
            Producer=lambda settings, logger: SimpleNamespace(produce=produce, **methods),
        )


class TestOwnRecord:
    @pytest.mark.rule(28)
    @pytest.mark.parametrize(
        ("report", "end", "refused"),
        [
            (
                None,
                4,
                "the record is at an unknown offset in topic a, partition 0, which had ended at 4",
            ),
            (
                (None, 5),
                4,
                "the record is at offset 5 in topic a, partition 0, which had ended at 4",
            ),
            ((None, 4), 4, ""),
            (("refused", -1), 4, ""),
            (None, None, ""),
        ],
    )
    def test_a_record_is_committed_only_at_the_expected_end_of_its_partition(
        self, report: Any, end: int | None, refused: str
    ) -> None:
        """Of a record that was refused the commit tells why."""
        brokers = Brokers(report)
        producer = TaskProducer(brokers, "id", 1.0)
        if refused:
            with pytest.raises(FailedException, match=refused):
                producer.write([], [], producing.Message("a", b"v", b"k", partition=0), end)
            producer.close()
        else:
            producer.write([], [], producing.Message("a", b"v", b"k", partition=0), end)
        assert brokers.calls == [
            "begin_transaction",
            "flush",
            "abort_transaction" if refused else "commit_transaction",
        ]

    @pytest.mark.rule(28, 29)
    def test_a_fatal_error_under_a_report_fails_the_attempt(self) -> None:
        fenced = SimpleNamespace(name=lambda: "_FENCED", str=lambda: "another producer has begun")
        brokers = Brokers(None, OSError(fenced))
        producer = TaskProducer(brokers, "id", 1.0)
        with pytest.raises(FailedException, match=r"writing as id .*another producer has begun"):
            producer.write([], [], producing.Message("a", b"v", b"k", partition=0))
        producer.close()
        assert brokers.calls == ["begin_transaction", "flush", "abort_transaction"]

    def test_another_error_under_a_report_is_raised_as_it_is(self) -> None:
        producer = TaskProducer(Brokers(None, ValueError()), "id", 1.0)
        with pytest.raises(SystemError):
            producer.write([], [], producing.Message("a", b"v", b"k", partition=0))


@pytest.mark.parametrize(
    ("bounds", "outcome", "said"),
    [
        ([1000, 8000], FailedException, "topic sales had another bound on a record meanwhile"),
        ([1000, 1000], RowRefusedError, r"too large \(MSG_SIZE_TOO_LARGE\)\n  The row"),
        (
            [None, None],
            RowRefusedError,
            "LARGE\\).*allow the user DESCRIBE_CONFIGS.*message.max.bytes",
        ),
    ],
)
def test_a_record_that_is_too_large_blames_the_row_only_for_a_bound_that_holds(
    bounds: list[int | None],
    outcome: type[Exception],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> bool:
        raise producing.MessageRefusedError("MSG_SIZE_TOO_LARGE", "too large", 1)

    def described(*arguments: object) -> target.Target:
        return target.Target(1, False, bounds.pop(0))

    monkeypatch.setattr(target, "_look_up", described)
    context = WorkerProcess().task("write", 0, num_tasks=1)
    ledger: Any = SimpleNamespace(
        apply=refuse, cluster=Cluster("Kafka sink", "kafka:9092", {}), sink="sales"
    )
    rows = [producing.Message("sales", b"v" * 2000)]
    target.targets_of(context.resource, ledger.cluster).bytes_max(rows)
    with pytest.raises(outcome, match=said):
        intake.apply(ledger, context, TransactionAttempt(1, 0), rows)


def test_a_setting_with_which_no_producer_can_be_made_is_an_error_of_the_configuration() -> None:
    """It would fail every attempt."""
    cluster = Cluster("Kafka sink", "127.0.0.1:1", {"socket.timeout.ms": 90_000})
    with pytest.raises(
        ConfigError, match=r"client: .*`socket.timeout.ms` .*\n  Mend client, or trans"
    ):
        TaskProducer(cluster, "id", 60.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda cluster: TaskProducer(cluster, "id", 60.0),
        lambda cluster: log.Log(cluster).consumer({}),
        lambda cluster: log.Log(cluster).admin,
    ],
    ids=["producer", "consumer", "admin"],
)
def test_a_machine_without_room_for_a_clients_threads_fails_an_attempt(
    make: Callable[[Cluster], Any],
) -> None:
    real = confluent_kafka()

    def full(*arguments: object, **named: object) -> Any:
        raise real.KafkaException(real.KafkaError(real.KafkaError._CRIT_SYS_RESOURCE, "no thread"))

    class Full(Cluster):
        def confluent_kafka(self) -> Any:
            return SimpleNamespace(
                KafkaException=real.KafkaException,
                admin=SimpleNamespace(AdminClient=full),
                Consumer=full,
                Producer=full,
            )

    with pytest.raises(FailedException, match=r"making a client .*no thread \(_CRIT_SYS_RESOURCE"):
        make(Full("Kafka sink", "127.0.0.1:1", {}))


@pytest.mark.parametrize(
    ("hosts", "named"), [(["near", "far"], True), (["near"], False), ([], False)]
)
def test_a_broker_out_of_reach_is_named_where_others_can_be_reached(
    hosts: list[str], named: bool
) -> None:
    class Nearby(Cluster):
        def reach(self, host: str, port: int, wait_s: float) -> None:
            if host == "far":
                raise OSError("refused")

        def confluent_kafka(self) -> Any:
            brokers = {n: SimpleNamespace(host=host, port=9092) for n, host in enumerate(hosts)}
            admin = SimpleNamespace(
                list_topics=lambda *arguments, **more: SimpleNamespace(brokers=brokers),
                poll=lambda wait_s: 0,
            )
            return SimpleNamespace(
                KafkaException=OSError,
                admin=SimpleNamespace(AdminClient=lambda settings, logger: admin),
            )

    timed_out = SimpleNamespace(name=lambda: "_TIMED_OUT", str=lambda: "timed out")
    asking = log.Log(Nearby("Kafka sink", "near:9092", {}))
    assert asking.admin
    with pytest.raises(FailedException) as refused, asking.translated("asking"):
        raise OSError(timed_out)
    assert ("far:9092 (refused), out of reach from here" in str(refused.value)) == named


class TestOtherNumbersOfTasks:
    @pytest.mark.rule(23, 27)
    def test_a_transaction_that_was_written_by_another_number_is_a_state_mismatch(self) -> None:
        """As where the state was restored to before the transaction was sealed."""
        own = Record("words", "write", 0, "first", 21, 0, 2, 0, 1, "sales")
        written = Record("words", "write", 1, "first", 21, 0, 4, 4, 1, "sales")
        context = WorkerProcess().task("write", 0, num_tasks=2)
        with pytest.raises(
            StateMismatchError, match="written by 4 tasks, and the transaction now has 2"
        ) as refused:
            task_ledger.Judge(sink().ledger, context, own, None, {1: written}).is_written()
        assert (refused.value.exit_code, str(pickle.loads(pickle.dumps(refused.value)))) == (
            6,
            str(refused.value),
        )

    def test_what_a_task_that_is_no_more_left_open_is_ended_before_the_end_is_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done: list[str] = []
        topic = SimpleNamespace(
            name="topic",
            partitions=lambda surely=False: 4,
            make=lambda tasks, before: None,
            check_is_kept=lambda: None,
            undecided=lambda tasks: [3],
            wait_until_decided=lambda tasks: done.append(f"waited for {tasks}"),
            ends=lambda tasks: dict.fromkeys(tasks, 0),
            last_records=lambda ends: {},
        )
        monkeypatch.setattr(auxiliary, "AuxiliaryTopic", lambda log, name: topic)
        monkeypatch.setattr(
            producing,
            "TaskProducer",
            lambda *arguments: SimpleNamespace(
                init=lambda topic: done.append(arguments[1]), close=str
            ),
        )
        own = Record("words", "write", 0, "first", 21, 0, 2, 0, 1, "sales")
        sink().ledger._new_writer(
            WorkerProcess().task("write", 0, num_tasks=2),
            own,
            "topic",
            producing.OF_THE_LIBRARY,
        )
        assert done == ["topic.0", "topic.3", "waited for [0, 2, 3]"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"client.id": "a+b c&d=e%2F#"},
        {"debug": ""},
        {"socket.keepalive.enable": True},
        {"sasl.password_file": "/run/secrets/a b"},
    ],
)
@pytest.mark.parametrize("topic", [None, "my-tx"])
def test_the_command_of_an_error_opens_the_topics_of_the_sink(
    settings: dict[str, Any], topic: str | None
) -> None:
    sink = KafkaSink(
        "one:9092,two:9092", "sales", name="my sink; x", transactions_topic=topic, client=settings
    )
    words = shlex.split(sink.ledger.place.command("clear", "the topology"))
    assert words[:3] + words[4:] == [
        "txtopo",
        "store",
        "clear",
        "my sink; x",
        "--topology",
        "the topology",
    ]
    opened = upkeep.open_topics(words[3], words[4], "the topology")
    assert (opened._cluster.servers, opened._topic, opened.name) == (
        "one:9092,two:9092",
        topic,
        "my sink; x",
    )
    assert opened._cluster.settings == {
        name: "true" if value is True else value for name, value in settings.items()
    }


def test_a_sink_asks_the_brokers_for_its_topic_before_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(target.Targets, "check_timeout", lambda *arguments: None)
    monkeypatch.setattr(target.Targets, "checked", lambda self, topic, has_key: asked.append(topic))
    KafkaSink("localhost:1", "sales").check_destination(Fields("tx", "value"))
    KafkaSink("localhost:1", "field:where").check_destination(Fields("tx", "where", "value"))
    assert asked == ["sales"]


def test_a_broker_that_has_not_heard_of_a_new_partition_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = memory_kafka.patched_in(monkeypatch)
    topic = kafka.new_topic(partitions=2)
    targets = target.Targets(Cluster("Kafka sink", kafka.servers, {}))
    assert targets.target(topic, 1).partitions == 2
    describe, answers = log.Log.describe, [{topic: log.Topic("id", 2)}]
    monkeypatch.setattr(log, "_HEARSAY_S", PATIENCE_S)
    monkeypatch.setattr(
        log.Log,
        "describe",
        lambda self, topics: answers.pop() if answers else describe(self, topics),
    )
    kafka.add_partitions(topic, 4)
    assert targets.target(topic, 3).partitions == 4


def test_a_refused_record_of_a_query_is_named_though_its_rows_are_in_a_file() -> None:
    """As the brokers refuse it, which the sink's own checks do not always foresee."""

    def refuse(*arguments: object) -> bool:
        raise producing.MessageRefusedError("INVALID_RECORD", "no", 2)

    ledger: Any = SimpleNamespace(apply=refuse, sink="sales")
    context: Any = SimpleNamespace(component_id="query", task_index=0)
    rows: Any = spool.Spool()
    with contextlib.closing(rows):
        for value in (b"a", b"bcd"):
            rows.append(producing.Message("sales", value))
        with pytest.raises(RowRefusedError, match=r"row 2 of .*\n.*a record of 3 bytes"):
            intake.apply(ledger, context, TransactionAttempt(1, 0), rows)
