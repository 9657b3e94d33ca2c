"""Queries of Structured Streaming die between the sink's commit and the checkpoint's; begun again, every row is there once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.postgres import PostgresServer
from tests.sinks import LOOSE, Shop
from tests.streaming_queries import BATCHES, ROWS, drive, write_input

HELD = 1


@pytest.mark.timeout(300)
@pytest.mark.rule(27, 28)
def test_a_query_that_is_killed_after_the_sink_and_before_the_checkpoint_writes_every_row_once(tmp_path: Path, postgres: PostgresServer) -> None:
    rows = write_input(tmp_path)
    shops = [Shop(str(tmp_path / "shop.db"), LOOSE), Shop(postgres.new_url(), LOOSE)]
    for shop in shops:
        shop.execute(LOOSE.replace("sales", "sold"))
    addresses = [shop.address for shop in shops]

    killed = drive(tmp_path, 2, addresses, held=HELD)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for number, shop in enumerate(shops):
        assert shop.sales == rows[: (HELD + 1) * ROWS]
        sold = shop.execute("SELECT id FROM sold")
        assert HELD * ROWS < len(sold) <= (HELD + 1) * ROWS
        for name in ("sales", "sold"):
            committed = {path.name for path in (tmp_path / f"checkpoint-{name}-{number}" / "commits").glob("[0-9]*")}
            assert str(HELD) not in committed, "the checkpoint was faster than the kill"

    # Whole micro-batches are divided otherwise than before; it makes no difference.
    ended = drive(tmp_path, 5, addresses)
    assert ended.returncode == 0, ended.stderr
    for shop in shops:
        assert shop.sales == rows
        assert sorted(shop.execute("SELECT id, cents FROM sold")) == rows
        auxiliary = shop.execute("SELECT component, txid, generation FROM txtopo_fence ORDER BY component")
        assert [(component, txid) for component, txid, _ in auxiliary] == [("foreach", BATCHES), ("foreach_batch", BATCHES)]
        assert all(len(generation) == 36 for *_, generation in auxiliary), "the id of the checkpoint"
