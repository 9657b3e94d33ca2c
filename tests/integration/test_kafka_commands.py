"""``txtopo store show|clear|adopt kafka://…`` and ``txtopo kafka abort`` on a real broker."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.servers.kafka import KafkaServer
from tests.topologies.kafka_sinks import COMPONENT, Sales
from tests.unit.test_cli_upkeep import Stored
from txtopo.command import cli, maintain
from txtopo.connectors.kafka import auxiliary, client, log, upkeep
from txtopo.errors import FailedException, StateMismatchError, UsageError
from txtopo.testing.contracts.worker_process import WorkerProcess


@pytest.fixture
def sales(kafka: KafkaServer) -> Sales:
    return Sales(kafka)


def run(
    capsys: pytest.CaptureFixture[str], sales: Sales, command: str, *arguments: str
) -> tuple[int, str]:
    address = f"kafka://{sales.kafka.servers}"
    place = (
        ["kafka", command, address] if command == "abort" else ["store", command, address, "kafka"]
    )
    code = cli.main([*place, "--topology", sales.topology_id, *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_show_tells_the_last_transaction_of_each_task(
    sales: Sales, process: WorkerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, sales, "show") == (
        0,
        f"there are no records of a topology in kafka://{sales.kafka.servers}#txtopo.{sales.topology_id}.*\n",
    )
    for task in (0, 1):
        sales.write(process, 7, 3, ["a"] * task, task=task)
    # A topology whose id begins like the other's.
    Sales(sales.kafka, topology_id=f"{sales.topology_id}.other").write(WorkerProcess(), 1, 0, ["a"])
    # Other programs have topics with the same prefix.
    sales.kafka.produce(
        sales.kafka.new_topic(f"{sales.auxiliary_topic}-notes"), ["not a sink's"], key=b"k"
    )
    sales.kafka.new_topic(f"txtopo.{sales.topology_id}.another.{COMPONENT}")
    code, text = run(capsys, sales, "show")
    lines = [json.loads(line) for line in text.splitlines()]
    assert code == 0
    assert [
        (line["topic"], line["task"], line["txid"], line["attempt"], line["rows"], line["is_open"])
        for line in lines
    ] == [(sales.auxiliary_topic, task, 7, 3, task, False) for task in (0, 1)]


def test_abort_ends_what_a_dead_task_left_open(
    sales: Sales, process: WorkerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    sales.write(process, 1, 0, ["a"], tasks=1)
    sales.kafka.wait_until_settled(sales.topic)
    dead = sales.kafka.producer(transactional_id=f"{sales.auxiliary_topic}.0")
    dead.begin_transaction()
    dead.produce(sales.topic, b"left open")
    dead.flush(PATIENCE_S)
    code, text = run(capsys, sales, "show")
    assert json.loads(text.splitlines()[-1]) == {
        "target": sales.topic,
        "partition": 0,
        "readers_wait_at": 2,
        "end": 3,
    }
    # Of a topology whose id begins like ours.
    other = Sales(sales.kafka, topology_id=f"{sales.topology_id}.b")
    other.write(WorkerProcess(), 1, 0, ["b"], tasks=1)
    alive = sales.kafka.producer(transactional_id=f"{other.auxiliary_topic}.0")
    alive.begin_transaction()
    alive.produce(other.topic, b"goes on")
    alive.flush(PATIENCE_S)
    code, text = run(capsys, sales, "abort")
    assert (code, sales.kafka.is_settled(sales.topic)) == (0, False)
    assert other.topology_id not in text
    assert (
        f"would end the open transactions of 1 transactional ids:\n  {sales.auxiliary_topic}.0\n"
        in text
    )
    code, text = run(capsys, sales, "abort", "--execute")
    sales.kafka.wait_until_settled(sales.topic)
    assert (code, sales.values) == (0, ["a"])
    alive.commit_transaction(PATIENCE_S)
    sales.kafka.wait_until_settled(other.topic)
    assert other.values == ["b", "goes on"]


def test_clear_forgets_the_topology_and_leaves_the_rows(
    sales: Sales, process: WorkerProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sales.write(process, 3, 0, ["a"], tasks=1)
    process.close()
    data = ["--data-dir", str(tmp_path)]
    code, text = run(capsys, sales, "clear", *data)
    assert (code, len(sales.records)) == (0, 1)
    assert (
        f"would remove from kafka://{sales.kafka.servers}#txtopo.{sales.topology_id}.*, of topology '{sales.topology_id}': 1 row, 1 fence"
        in text
    )
    with pytest.raises(StateMismatchError):
        sales.write(process, 1, 0, ["b"], tasks=1, generation="second")
    process.close()
    assert run(capsys, sales, "clear", "--execute", *data)[0] == 0
    sales.kafka.wait_until(lambda: sales.auxiliary_topic not in sales.kafka.topics)
    sales.write(process, 1, 0, ["b"], tasks=1, generation="second")
    assert sales.values == ["a", "b"]


def test_adopt_goes_on_from_what_the_topics_hold(
    kafka: KafkaServer, process: WorkerProcess, tmp_path: Path
) -> None:
    sales, stored = Sales(kafka, topology_id="words"), Stored(tmp_path)
    for txid in (1, 2):
        stored.commit(txid)
    generation, known = stored.state.generation, sales.known(2, 0, 2)
    stored.state.close()
    topics = upkeep.AuxiliaryTopics(client.Cluster("test", kafka.servers, {}), "words")
    opened = stored.opened()
    with pytest.raises(StateMismatchError, match="holds nothing"):
        sales.write(process, 3, 0, ["c"], generation=generation, known_stores=known)
    text = maintain.adopt_store(topics, opened, "words", [COMPONENT], None, execute=True)
    assert text.startswith(
        f"adopted kafka://{kafka.servers}#txtopo.words.*, for component {COMPONENT} of topology 'words': 1 row, 1 fence\n"
    )
    for task in (0, 1):
        process.close()
        sales.write(process, 3, 0, ["c"], task=task, generation=generation, known_stores=known)
    assert sales.values == ["c", "c"]
    topics.clear("words")


def test_a_sink_of_another_name_is_left_alone(
    sales: Sales, process: WorkerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sales.write(process, 1, 0, ["a"], tasks=1, sink=sales.sink(name="orders"))
    for name, fences in (("kafka", 0), ("orders", 1)):
        address = f"kafka://{sales.kafka.servers}"
        assert (
            cli.main(
                [
                    "store",
                    "clear",
                    address,
                    name,
                    "--topology",
                    sales.topology_id,
                    "--data-dir",
                    str(tmp_path),
                ]
            )
            == 0
        )
        assert f"{fences} fence" in capsys.readouterr().out
    with pytest.raises(UsageError, match="Leave out --from-topology"):
        upkeep.AuxiliaryTopics(client.Cluster("test", sales.kafka.servers, {}), "words").adopt(
            "words", "first", 1, ["a"], from_topology="b"
        )


def test_clear_ends_when_the_brokers_no_longer_know_the_topic(
    sales: Sales, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales.write(process, 1, 0, ["a"], tasks=1)
    topics = upkeep.AuxiliaryTopics(
        client.Cluster("test", sales.kafka.servers, {}), sales.topology_id
    )
    # A broker hears of a deletion a moment after the controller's answer.
    describe = log.Log.describe
    described = [
        describe(log.Log(client.Cluster("test", sales.kafka.servers, {})), [sales.auxiliary_topic])
    ] * 6
    monkeypatch.setattr(
        log.Log,
        "describe",
        lambda self, names: described.pop() if described else describe(self, names),
    )
    assert topics.clear(sales.topology_id).fences == 1
    assert (described, topics.records()) == ([], {})
    monkeypatch.setattr(auxiliary, "_WAIT_S", 0.0)
    monkeypatch.setattr(
        log.Log, "describe", lambda self, names: {names[0]: log.Topic("as before", 1)}
    )
    with pytest.raises(
        FailedException, match="is not ready after 0 s: it is deleted, and a broker still has it"
    ):
        auxiliary.AuxiliaryTopic(
            log.Log(client.Cluster("test", sales.kafka.servers, {})), sales.auxiliary_topic
        ).delete()


def test_a_topic_is_not_called_empty_while_its_first_transaction_is_open(
    sales: Sales, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales.write(process, 1, 0, ["a"], tasks=1)
    process.close()
    (written,) = sales.records
    topics = upkeep.AuxiliaryTopics(
        client.Cluster("test", sales.kafka.servers, {}), sales.topology_id
    )
    topics.clear(sales.topology_id)
    sales.kafka.new_topic(sales.auxiliary_topic)
    dead = sales.kafka.producer(transactional_id=f"{sales.auxiliary_topic}.0")
    dead.begin_transaction()
    dead.produce(sales.auxiliary_topic, written.value, written.key)
    dead.flush(PATIENCE_S)
    monkeypatch.setattr(auxiliary, "DECIDED_S", 0.0)
    with pytest.raises(
        UsageError,
        match=r"has an open transaction\n  Type `txtopo kafka abort kafka://\S+ --topology \S+ --execute`",
    ):
        topics.fences()
    assert [line["is_open"] for line in topics.shown()] == [True]
    dead.commit_transaction(PATIENCE_S)
    monkeypatch.setattr(auxiliary, "DECIDED_S", PATIENCE_S)
    assert [fence.txid for fence in topics.fences()] == [1]


def test_a_topic_given_by_name_is_adopted_for_one_component(kafka: KafkaServer) -> None:
    topics = upkeep.AuxiliaryTopics(
        client.Cluster("test", kafka.servers, {}), "words", kafka.new_topic()
    )
    with pytest.raises(
        UsageError,
        match=r"is the auxiliary topic of one component, and these have a sink 'kafka': a, b\n  Give --component ID",
    ):
        topics.adopt("words", "first", 3, ["a", "b"])


def test_the_commands_that_an_error_prints_reach_the_topics_of_the_sink(
    sales: Sales, process: WorkerProcess
) -> None:
    named = {
        "transactions_topic": f"{sales.topic}-tx",
        "name": "orders",
        "client": {"client.id": "the shop", "security.protocol": "plaintext"},
    }
    sink = sales.sink(**named)
    sales.write(process, 1, 0, ["a"], tasks=1, sink=sink)
    process.close()
    with pytest.raises(StateMismatchError) as refused:
        sales.write(process, 1, 0, ["b"], tasks=1, sink=sink, generation="second")
    printed = {
        words[2]: words
        for line in str(refused.value).split("`")[1::2]
        if (words := shlex.split(line))[:2] == ["txtopo", "store"]
    }
    assert set(printed) == {"clear", "adopt"}
    for words in printed.values():
        settings = f"transactions_topic={named['transactions_topic']}&client.id=the%20shop&security.protocol=plaintext"
        assert words[3:] == [
            f"kafka://{sales.kafka.servers}?{settings}",
            "orders",
            "--topology",
            sales.topology_id,
        ]
    assert cli.main([*printed["clear"][1:], "--execute"]) == 0
    process.close()
    sales.write(process, 1, 0, ["b"], tasks=1, sink=sink, generation="second")
    assert sales.values == ["a", "b"]


def test_brokers_out_of_reach_and_wrong_options_are_told(
    sales: Sales, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 0.5)
    for address, said in {
        "kafka://127.0.0.1:1": "Try again when the brokers can be reached",
        "kafka://127.0.0.1:1?sasl.password=hunter2&nonsense": "setting=value",
        "kafka://127.0.0.1:1?group.id=mine": "client['group.id']",
    }.items():
        assert cli.main(["store", "show", address, "kafka", "--topology", "words"]) == 2
        text = capsys.readouterr().err
        assert said in text
        assert "hunter2" not in text
    assert cli.main(["store", "show", f"kafka://{sales.kafka.servers}", "kafka"]) == 2
    assert "Give --topology ID" in capsys.readouterr().err
