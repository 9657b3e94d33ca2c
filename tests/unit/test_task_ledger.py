"""Ledgers of sinks of one's own: their records as ``txtopo reset`` and the errors take them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from txtopo import StateMismatchError, TransactionAttempt, UsageError
from txtopo.sinks import Record, SimpleLedger
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.kept import CLOSED_ATTEMPT


class Listed(SimpleLedger):
    """Rows and records in lists of this process."""

    def __init__(self) -> None:
        super().__init__("lists", "lists of this test")
        self.rows: list[Any] = []
        self.kept_records: dict[tuple[str, str, int], Record] = {}

    def records(self, topology_id: str) -> Iterable[Record]:
        return [record for (of, _, _), record in self.kept_records.items() if of == topology_id]

    def write(self, record: Record, rows: Collection[Any]) -> None:
        self.rows.extend(rows)
        self.kept_records[record.topology_id, record.component, record.task] = record

    def remove(self, topology_id: str, component: str) -> None:
        self.kept_records = {
            place: record
            for place, record in self.kept_records.items()
            if place[:2] != (topology_id, component)
        }


def write(
    ledger: Listed, txid: int, task: int = 0, generation: str = "first", component: str = "write"
) -> bool:
    context = WorkerProcess().task(component, task, num_tasks=2, generation=generation)
    return ledger.apply(context, TransactionAttempt(txid, 0), [(txid, task)])


@pytest.mark.rule(27, 28)
def test_records_are_shown_cleared_and_adopted() -> None:
    ledger = Listed()
    for task in (0, 1):
        assert write(ledger, 1, task)
        assert not write(ledger, 1, task)
    write(ledger, 1, component="other")
    kept = ledger.kept("words", "write")
    assert [(line["component"], line["task"], line["txid"]) for line in kept.shown()] == [
        ("write", 0, 1),
        ("write", 1, 1),
        ("other", 0, 1),
    ]
    assert [(fence.component, fence.txid) for fence in kept.fences()] == [
        ("other", 1),
        ("write", 1),
    ]
    assert kept.clear("words", ["other"], dry_run=True).fences == 1
    assert kept.clear("words", ["other"]).rows == 1
    with pytest.raises(StateMismatchError, match="belongs to generation"):
        write(ledger, 1, generation="second")
    with pytest.raises(UsageError, match="Leave out --from-topology"):
        kept.adopt("words", "second", 4, ["write"], from_topology="others")
    assert kept.adopt("words", "second", 4, ["write"]).rows == 2
    assert {record.attempt for record in ledger.records("words")} == {CLOSED_ATTEMPT}
    assert write(ledger, 5, generation="second")
    assert ledger.rows == [(1, 0), (1, 1), (1, 0), (5, 0)]
    kept.clear("words")
    assert not kept.exists()


@pytest.mark.rule(27)
def test_errors_print_what_can_be_typed_for_a_place_that_the_command_line_cannot_open() -> None:
    ledger = Listed()
    write(ledger, 1)
    with pytest.raises(StateMismatchError, match="`txtopo reset TARGET`") as refused:
        write(ledger, 1, generation="second")
    assert refused.value.without_state == "txtopo reset TARGET --execute"
