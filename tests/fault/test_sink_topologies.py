"""SIGKILL of the driver in the middle of commits of topologies with sinks, which begin again with
other numbers of tasks: every row is there once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.processes.drivers import drive_sinks
from tests.topologies.sinks import shop
from tests.topologies.sinks_killed import WRITING
from tests.topologies.step_spouts import PARTITIONS
from txtopo.faults import FaultPoint

KILLS: tuple[tuple[FaultPoint, ...], ...] = (
    (
        "apply.inside",
        "apply.after",
        "apply.after",
        "record.before",
        "apply.after",
        "record.before",
        "apply.after",
    ),
    (
        "apply.after",
        "record.inside",
        "seal.after",
        "apply.after",
        "apply.inside",
        "apply.after",
        "record.inside",
    ),
)
"""Where the topologies are when the first driver, and the second, is killed."""
SIZE = 30


@pytest.mark.rule(22, 23, 28, 29, 30, 31)
def test_drivers_that_die_and_come_again_with_other_numbers_of_tasks_write_every_row_once(
    tmp_path: Path,
) -> None:
    addresses = {}
    for writing in WRITING:
        place = tmp_path / writing.name
        place.mkdir()
        addresses[writing.name] = shop(writing.backend, place, layout=None).address
    for writing in WRITING:
        writing.prepare(addresses)
    begins = dict.fromkeys(addresses, 1)
    for life, points in enumerate(KILLS):
        txids = {writing.name: begins[writing.name] + 1 for writing in WRITING}
        faults = [
            f"{point}@{writing.topology_id}:{txids[writing.name]}=hold"
            for writing, point in zip(WRITING, points, strict=True)
        ]
        killed = drive_sinks(tmp_path, addresses, SIZE, life, faults)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert {
            name: began for name, (began, _) in json.loads(killed.stdout.splitlines()[0]).items()
        } == begins
        for writing, point in zip(WRITING, points, strict=True):
            txid = txids[writing.name]
            cents = {row[0] for row in writing.shop(addresses).execute("SELECT cents FROM sales")}
            assert (txid in cents) == (point != "seal.after"), (
                f"{writing.name}: at {point} of {txid} there are rows of {sorted(cents)}"
            )
            begins[writing.name] = txid + 1 if point == "record.inside" else txid
    faults = [
        f"apply.inside@{writing.topology_id}:{begins[writing.name] + 1}=kill" for writing in WRITING
    ]
    ended = drive_sinks(tmp_path, addresses, SIZE, len(KILLS), faults)
    assert ended.returncode == 0, ended.stderr
    assert [fault for fault in faults if not (tmp_path / "faults" / fault).exists()] == [], (
        "these faults did not strike"
    )
    numbers = [1000 * partition + n for partition in range(PARTITIONS) for n in range(SIZE)]
    for writing in WRITING:
        sold, expected = (
            writing.shop(addresses),
            numbers[:SIZE] if writing.spout == "plain" else numbers,
        )
        assert [id for id, _ in sold.sales] == expected, writing.name
        told = dict(sold.execute('SELECT txid, SUM("rows") FROM told GROUP BY txid'))
        written = dict(sold.execute("SELECT cents, COUNT(*) FROM sales GROUP BY cents"))
        assert told == written, f"{writing.name}: what the sink told is not what it wrote"
        tasks = dict(sold.execute("SELECT txid, COUNT(*) FROM told GROUP BY txid"))
        assert {tasks[1], tasks[max(tasks)]} == {2, 2 + len(KILLS) % 3}
        assert len(set(tasks.values())) > 1, (
            f"{writing.name}: the number of tasks was always the same"
        )
