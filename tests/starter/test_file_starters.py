"""The starters with files and a Delta table: each row is there once, also if the run is killed, for
every kind of reader."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow.parquet as pq
import pytest

from starter import delta_words, files_by_day
from tests.servers.clusters import run_to_idle
from tests.servers.s3 import SECRET_VARIABLE, S3Server
from tests.starter.commands import STARTERS, Command, done
from txtopo import LocalCluster
from txtopo.connectors.files import read_committed, storage

EVENTS = [json.loads(line) for line in files_by_day.EVENTS.read_text().splitlines()]
WORDS = sorted(delta_words.LINES.read_text().split())


def events_in(root: Any) -> list[tuple[Any, ...]]:
    """The events that readers of Parquet see."""
    ((*counted,),) = (
        duckdb.connect()
        .execute(
            f"SELECT count(*), sum(cents), count(DISTINCT day)"
            f" FROM read_parquet('{root}/*/*.parquet', hive_partitioning = true)"
        )
        .fetchall()
    )
    rows = pq.read_table(root, partitioning="hive").to_pylist()
    assert all(str(row["day"]) == str(row["at"])[:10] for row in rows)
    days = {row["day"] for row in rows}
    assert counted == [len(rows), sum(row["cents"] for row in rows), len(days)]
    return sorted((row["at"].isoformat(), row["shop"], row["cents"]) for row in rows)


def words_in(root: Any) -> list[str]:
    """The words that a reader of Delta tables sees."""
    return sorted(deltalake.DeltaTable(root).to_pyarrow_table()["word"].to_pylist())


EXPECTED: dict[str, list[Any]] = {
    "files-by-day": sorted((each["at"], each["shop"], each["cents"]) for each in EVENTS),
    "delta-words": WORDS,
}
READERS: dict[str, Callable[[Any], list[Any]]] = {
    "files-by-day": events_in,
    "delta-words": words_in,
}


@pytest.mark.rule(28)
def test_each_row_is_there_once_also_after_a_second_run(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    for name, starter in {"files-by-day": files_by_day, "delta-words": delta_words}.items():
        for _ in range(2):
            run_to_idle(cluster, starter.make_topology(tmp_path / name), max_spout_pending=3)
            assert READERS[name](tmp_path / name) == EXPECTED[name]


@pytest.mark.thorough
@pytest.mark.rule(28)
@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("step", ["apply.inside", "record.before", "apply.after"])
def test_killed_and_run_again(tmp_path: Path, name: str, step: str) -> None:
    program = STARTERS / f"{name.replace('-', '_')}.py"
    run: list[str | Path] = ["txtopo", "run", program, "--master", "local[2]"]
    with Command(run, tmp_path, TXTOPO_FAULT=f"{step}@{name}:2=hold") as command:
        command.wait_until_it_says(f"fault: {step} at {name} txid 2: hold")
        command.signal(signal.SIGKILL)
        command.wait()
    root = tmp_path / ".txtopo" / {"files-by-day": "events"}.get(name, name)
    assert len(READERS[name](root)) < len(EXPECTED[name]), "killed in the middle"
    assert f"txtopo: {name} resumes at txid " in done(run, tmp_path)
    assert READERS[name](root) == EXPECTED[name]


@pytest.mark.thorough
@pytest.mark.rule(28)
def test_orders_in_objects(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = s3.new_root()
    store = storage.open_storage(root, s3.client)
    orders: list[dict[str, Any]] = [
        {"order": n, "article": "pen", "count": n % 7} for n in range(20_000)
    ]
    for number in range(4):
        lines = [json.dumps(order) for order in orders[5000 * number :][:5000]]
        store.put(f"orders/{number}.jsonl", "\n".join(lines).encode() + b"\n")
    for variable, value in {
        "S3_ROOT": root,
        "S3_ENDPOINT": s3.client["endpoint"],
        "AWS_ACCESS_KEY_ID": s3.client["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": os.environ[SECRET_VARIABLE],
    }.items():
        monkeypatch.setenv(variable, value)
    run: list[str | Path] = ["txtopo", "run", STARTERS / "s3_orders.py", "--master", "local[2]"]
    with Command(run, tmp_path, TXTOPO_FAULT="apply.inside@s3-orders:1=hold") as command:
        command.wait_until_it_says("fault: apply.inside at s3-orders txid 1: hold")
        command.signal(signal.SIGKILL)
        command.wait()
    assert "txtopo: s3-orders resumes at txid " in done(run, tmp_path)
    rows = read_committed(f"{root}/priced", client=s3.client).to_arrow().to_pylist()
    expected = [{**order, "cents": order["count"] * 120} for order in orders]
    assert sorted(rows, key=lambda row: row["order"]) == expected
