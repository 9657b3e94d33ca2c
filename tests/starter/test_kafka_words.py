"""The starter over a topic of a real Kafka broker, killed in the middle and run again: each record
counts once."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from starter import kafka_words
from tests.servers.kafka import KafkaServer
from tests.starter.commands import STARTERS, Command, done


@pytest.mark.thorough
@pytest.mark.rule(28)
def test_every_record_counts_once_also_if_the_run_is_killed_and_the_topic_grows(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic(partitions=2)
    draw = random.Random(1)
    lines = [
        " ".join(f"word{min(draw.getrandbits(8), draw.getrandbits(6))}" for _ in range(3))
        for _ in range(12_000)
    ]
    for partition in (0, 1):
        kafka.produce(topic, lines[partition::2], partition)
    expected = Counter(word for line in lines for word in line.split())
    monkeypatch.setenv("KAFKA_SERVERS", kafka.servers)
    monkeypatch.setenv("KAFKA_TOPIC", topic)
    run: list[str | Path] = ["txtopo", "run", STARTERS / "kafka_words.py", "--master", "local[2]"]
    store = kafka_words.open_store(tmp_path / kafka_words.STORE_PATH)

    def counted() -> int:
        return sum(count for _, count in store.items())

    with Command(run, tmp_path, TXTOPO_FAULT="apply.after@kafka-words:2=hold") as command:
        command.wait_until_it_says("fault: apply.after at kafka-words txid 2: hold")
        command.signal(signal.SIGKILL)
        command.wait()
    assert 0 < counted() < expected.total(), "killed in the middle"

    kafka.produce(topic, ["one more", None], 1)
    resumed = done(run, tmp_path)
    assert "txtopo: kafka-words resumes at txid " in resumed
    assert dict(store.items()) == expected + Counter(["one", "more"])
