"""Queries of Structured Streaming die between the sink's commit and the checkpoint's; begun again,
every row is there once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.processes.streaming_queries import BATCHES, KAFKA, ROWS, drive, write_input
from tests.servers.kafka import KafkaServer
from tests.topologies.sinks import BACKENDS, LOOSE, shop

HELD = 1


@pytest.mark.rule(27, 28)
def test_a_query_that_is_killed_after_the_sink_and_before_the_checkpoint_writes_every_row_once(
    tmp_path: Path,
) -> None:
    rows = write_input(tmp_path)
    shops = [shop(backend, tmp_path, LOOSE) for backend in BACKENDS]
    for each in shops:
        each.execute(LOOSE.replace("sales", "sold"))
    addresses = [each.address for each in shops]

    killed = drive(tmp_path, 2, addresses, held=HELD)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for number, each in enumerate(shops):
        assert each.sales == rows[: (HELD + 1) * ROWS]
        sold = each.execute("SELECT id FROM sold")
        assert HELD * ROWS < len(sold) <= (HELD + 1) * ROWS
        for name in ("sales", "sold"):
            committed = {
                path.name
                for path in (tmp_path / f"checkpoint-{name}-{number}" / "commits").glob("[0-9]*")
            }
            assert str(HELD) not in committed, "the checkpoint was faster than the kill"

    # Whole micro-batches are divided otherwise than before; it makes no difference.
    ended = drive(tmp_path, 5, addresses)
    assert ended.returncode == 0, ended.stderr
    for each in shops:
        assert each.sales == rows
        assert sorted(each.execute("SELECT id, cents FROM sold")) == rows
        fences = each.sink().ledger.fences()
        assert sorted((fence.component, fence.txid) for fence in fences) == [
            ("foreach", BATCHES),
            ("foreach_batch", BATCHES),
        ]
        assert all(len(fence.generation) == 36 for fence in fences), "the id of the checkpoint"


@pytest.mark.thorough
@pytest.mark.rule(27, 28, 40)
def test_a_killed_query_writes_every_record_to_a_topic_once(
    tmp_path: Path, kafka: KafkaServer
) -> None:
    rows = write_input(tmp_path)
    for name in ("sales", "sold"):
        kafka.new_topic(name, partitions=2)
    address = f"{KAFKA}{kafka.servers}"
    killed = drive(tmp_path, 2, [address], held=HELD)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert ids(kafka, "sales") == list(range((HELD + 1) * ROWS))

    ended = drive(tmp_path, 5, [address])
    assert ended.returncode == 0, ended.stderr
    assert ids(kafka, "sales") == ids(kafka, "sold") == [number for number, _ in rows]


def ids(kafka: KafkaServer, topic: str) -> list[int]:
    return sorted(json.loads(value)["id"] for value in kafka.values(topic))
