"""The starter from topic to topic on a real Kafka broker, killed in the middle and run again: each
order is written once, and in order."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from starter import kafka_orders
from tests.servers.kafka import KafkaServer
from tests.starter.commands import STARTERS, Command, done


@pytest.mark.thorough
@pytest.mark.rule(28)
def test_every_order_is_written_once_and_in_order_also_if_the_run_is_killed(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, priced = kafka.new_topic(partitions=2), kafka.new_topic(partitions=2)
    articles = list(kafka_orders.CENTS)
    rows: list[dict[str, Any]] = [
        {"order": number, "article": articles[number % 3], "count": number % 7}
        for number in range(12_000)
    ]
    for partition in (0, 1):
        # The orders of an article are in one partition, and so have an order.
        kafka.produce(
            orders,
            [json.dumps(row) for row in rows if articles.index(row["article"]) % 2 == partition],
            partition,
        )
    for name, value in {
        "KAFKA_SERVERS": kafka.servers,
        "KAFKA_TOPIC": orders,
        "KAFKA_TARGET": priced,
    }.items():
        monkeypatch.setenv(name, value)
    run: list[str | Path] = ["txtopo", "run", STARTERS / "kafka_orders.py", "--master", "local[2]"]

    with Command(run, tmp_path, TXTOPO_FAULT="apply.after@kafka-orders:2=hold") as command:
        command.wait_until_it_says("fault: apply.after at kafka-orders txid 2: hold")
        command.signal(signal.SIGKILL)
        command.wait()
    assert 0 < len(kafka.read(priced)) < len(rows), "killed in the middle"

    assert "txtopo: kafka-orders resumes at txid " in done(run, tmp_path)
    written = [json.loads(value) for value in kafka.values(priced)]
    for article, cents in kafka_orders.CENTS.items():
        expected = [
            {**row, "cents": row["count"] * cents} for row in rows if row["article"] == article
        ]
        assert [row for row in written if row["article"] == article] == expected
