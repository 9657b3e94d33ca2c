"""The starter of columns: its sums equal those of plain Python, under any failure on the way."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from starter import column_sales
from tests.servers.clusters import Journal, run_to_idle
from txtopo import FailedException, Fields, LocalCluster, TransactionalTopologyBuilder
from txtopo.testing import ArrowMemoryTransactionalSpout, check_bolt_idempotence, simulate


def expected() -> tuple[dict[str, int], dict[str, int]]:
    shops: Counter[str] = Counter()
    days: Counter[str] = Counter()
    for n in range(3200):
        cents = 100 + 37 * n % 900
        shops[column_sales.SHOPS[n * n % 5]] += cents
        days[(datetime.date(2026, 1, 1) + datetime.timedelta(days=n % 7)).isoformat()] += cents
    return dict(shops), dict(days)


class FailingOnce(column_sales.UpdateShops):
    """Fails after its write of a transaction, once over all processes."""

    def __init__(self, store: Any, journal: Journal) -> None:
        super().__init__(store)
        self.journal = journal

    def finish_batch(self) -> None:
        super().finish_batch()
        if self.journal.claim(f"failed {self.attempt.txid}"):
            raise FailedException("told to fail after the write")


@pytest.mark.in_gate("False")
@pytest.mark.rule(12, 28)
@pytest.mark.parametrize("fails", [False, True])
def test_the_totals_are_those_of_plain_python(
    cluster: LocalCluster, tmp_path: Path, fails: bool
) -> None:
    stores = column_sales.open_stores(tmp_path / "store.db")
    spout = ArrowMemoryTransactionalSpout(column_sales.DATA, rows_per_record_batch=500)
    builder = TransactionalTopologyBuilder(f"column-sales-{fails}", "sales", spout, 2)
    builder.set_bolt("partial", column_sales.AddUpPart(), 2).none_grouping("sales")
    totals = (
        FailingOnce(stores[0], Journal(tmp_path / "journal"))
        if fails
        else column_sales.UpdateShops(stores[0])
    )
    builder.set_bolt("totals", totals, 2).fields_grouping("partial", Fields("shop"), "by shop")
    builder.set_bolt("days", column_sales.UpdateDays(stores[1]), 2).fields_grouping(
        "partial", Fields("day"), "by day"
    )
    run = run_to_idle(cluster, builder.build_topology(), max_spout_pending=3)
    assert (dict(stores[0].items()), dict(stores[1].items())) == expected()
    assert run.status().committed == 4
    assert (tmp_path / "journal").exists() == fails


@pytest.mark.thorough
@pytest.mark.rule(28)
def test_the_committers_keep_the_contract() -> None:
    report = check_bolt_idempotence(
        lambda directory: column_sales.make_topology(directory / "store.db"), transactions=3
    )
    assert (report.components, report.transactions) == (("totals", "days"), 3)
    assert report.points > 2


@pytest.mark.thorough
@pytest.mark.rule(18, 28)
def test_its_results_are_the_same_under_every_schedule() -> None:
    report = simulate(column_sales.make_topology(), {"max_spout_pending": 3}, seeds=15)
    assert report.violation is None, report
    assert (report.schedules, report.transactions) == (15, 4)
    assert report.faults
