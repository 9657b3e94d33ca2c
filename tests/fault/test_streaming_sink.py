"""Queries of Structured Streaming die between the sink's commit and the checkpoint's; begun again,
every row is there once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.dataset
import pytest

from tests.processes.streaming_queries import (
    BATCHES,
    FILES,
    KAFKA,
    MOMENTS,
    ROWS,
    WRITERS,
    drive,
    write_input,
)
from tests.servers.kafka import KafkaServer
from tests.topologies.sinks import BACKENDS, LOOSE, shop
from txtopo.connectors.files import read_committed

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
    for name in ("sales", "sold"):
        assert not (tmp_path / f"checkpoint-{name}-0" / "commits" / str(HELD)).exists()

    ended = drive(tmp_path, 5, [address])
    assert ended.returncode == 0, ended.stderr
    assert ids(kafka, "sales") == ids(kafka, "sold") == [number for number, _ in rows]


@pytest.mark.thorough
@pytest.mark.rule(27, 28)
@pytest.mark.parametrize("kind", FILES)
def test_a_query_that_is_killed_at_any_moment_has_every_row_in_files_once(
    kind: str, tmp_path: Path
) -> None:
    rows = write_input(tmp_path)
    roots = {
        (number, moment, name): tmp_path / moment / name
        for number, moment in enumerate(MOMENTS)
        for name in ("sales", "sold")
    }
    addresses = [f"{kind}:{moment}:{tmp_path / moment}" for moment in MOMENTS]
    before, whole = rows[: HELD * ROWS], rows[: (HELD + 1) * ROWS]

    killed = drive(tmp_path, 2, addresses, held=HELD)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for (number, moment, name), root in roots.items():
        assert not (tmp_path / f"checkpoint-{name}-{number}" / "commits" / str(HELD)).exists()
        # Of single partitions the other ones may have been slower.
        allowed = {"pieces": [before], "decided": [whole], "before": [before]}.get(
            moment, [whole] if name == "sales" else [before, whole]
        )
        assert rows_of(read_committed(root).to_arrow()) in allowed
        allowed = [before] if moment == "decided" else allowed
        assert told(kind, root) in allowed
        if (moment, name) == ("pieces", "sold"):
            assert len([*root.glob(f"_txtopo/00000/pieces/{HELD + 1:020d}.*")]) == WRITERS

    ended = drive(tmp_path, 5, addresses)
    assert ended.returncode == 0, ended.stderr
    for root in roots.values():
        assert rows_of(read_committed(root).to_arrow()) == told(kind, root) == rows
        assert [txid for txid, _ in read_committed(root)] == [*range(1, BATCHES + 1)]
        if kind == "delta":
            # One commit makes the table, and each batch with rows has one.
            assert deltalake.DeltaTable(root).version() == BATCHES - 1


def told(kind: str, root: Path) -> list[tuple[int, int]]:
    """The rows that a reader sees without txtopo."""
    if kind == "delta":
        return rows_of(deltalake.DeltaTable(root).to_pyarrow_table())
    return rows_of(pyarrow.dataset.dataset(root, format="json").to_table())


def rows_of(table: pa.Table) -> list[tuple[int, int]]:
    return sorted((row["id"], row["cents"]) for row in table.to_pylist())


def ids(kafka: KafkaServer, topic: str) -> list[int]:
    return sorted(json.loads(value)["id"] for value in kafka.values(topic))
