"""The contract of committers, over the bolts of the starters and of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from starter import transactional_global_count, transactional_words
from tests.wrong import bolts
from tests.wrong.failing_hooks import WORDS, FaultyCount
from txtopo import TransactionalTopologyBuilder
from txtopo.testing import MemoryTransactionalSpout, check_bolt_idempotence

RULES = pytest.mark.rule(10, 12, 28, 29, 32)


@pytest.mark.in_gate("starter.transactional_global_count")
@RULES
@pytest.mark.parametrize("module", [transactional_global_count, transactional_words])
def test_the_topologies_of_storms_documentation_keep_the_contract(module: Any) -> None:
    report = check_bolt_idempotence(
        lambda directory: module.make_topology(directory / "store.db"), transactions=3
    )
    expected = {transactional_global_count: ("sum",), transactional_words: ("count", "buckets")}
    assert (report.components, report.transactions) == (expected[module], 3)
    assert report.points > 2
    assert report.applications > 3 * report.points


@pytest.mark.thorough
@RULES
def test_a_topology_of_our_own_tests_keeps_the_contract() -> None:
    report = check_bolt_idempotence(
        lambda directory: FaultyCount("faulty", directory).topology, other_processes=False
    )
    assert (report.components, report.transactions) == (("count", "after"), len(WORDS) // 4)


@pytest.mark.in_gate("three tasks")
@RULES
@pytest.mark.parametrize(
    ("tasks", "group_by"), [(1, []), (3, ["word"])], ids=["one task", "three tasks"]
)
def test_a_bolt_that_writes_to_a_store_keeps_the_contract(tasks: int, group_by: list[str]) -> None:
    report = check_bolt_idempotence(
        bolts.Right, bolts.BATCHES, fields=bolts.FIELDS, tasks=tasks, group_by=group_by
    )
    assert (report.components, report.transactions) == (("bolt",), len(bolts.BATCHES))


@RULES
def test_a_bolt_that_compares_and_sets_keeps_the_contract() -> None:
    report = check_bolt_idempotence(
        bolts.CompareAndSet, bolts.BATCHES, fields=bolts.FIELDS, effects=bolts.ledger
    )
    assert report.transactions == len(bolts.BATCHES)


def test_a_builder_is_as_good_as_a_topology() -> None:
    def make(directory: Path) -> TransactionalTopologyBuilder:
        spout = MemoryTransactionalSpout({0: [("cat", 1), ("dog", 2)]}, bolts.FIELDS, 1)
        builder = TransactionalTopologyBuilder("counts", "spout", spout)
        builder.set_bolt("count", bolts.Right(directory)).global_grouping("spout")
        return builder

    assert check_bolt_idempotence(make, other_processes=False).components == ("count",)
