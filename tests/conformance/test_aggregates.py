"""Aggregates keep the contract of committers, and equal the results of a plain loop after any
replay.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.aggregates import BY_NAME, aggregated, effects, in_a_plain_loop
from txtopo import Count
from txtopo.testing import check_bolt_idempotence, simulate
from txtopo.topology import aggregate


def checked(aggregator: Any, keys: tuple[str, ...] = ("word",), late_tasks: bool = True) -> None:
    seen: list[Any] = []

    def noted(directory: Path) -> Any:
        seen.append(effects(directory))
        return seen[-1]

    make = functools.partial(aggregated, aggregator=aggregator, keys=keys)
    report = check_bolt_idempotence(
        make, effects=noted, other_processes=False, late_tasks=late_tasks
    )
    assert report.components == ("kept", "changes")
    assert report.points > 2
    assert in_a_plain_loop(aggregator, keys) in seen


@pytest.mark.in_gate("longest")
@pytest.mark.rule(12, 17, 28, 32)
@pytest.mark.parametrize("name", BY_NAME)
def test_an_aggregate_equals_a_plain_loop_and_emits_its_changes(name: str) -> None:
    checked(BY_NAME[name])


@pytest.mark.thorough
@pytest.mark.rule(17, 28)
@pytest.mark.parametrize("name", ["sum", "longest"])
def test_combining_in_portions_gives_the_same_aggregate(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate, "COMBINED_KEYS_MAX", 1)
    checked(BY_NAME[name])


@pytest.mark.in_gate("two fields-balance", "no key-balance")
@pytest.mark.rule(28, 32)
@pytest.mark.parametrize("name", ["sum", "balance"])
@pytest.mark.parametrize(
    "keys", [("word", "day"), ("day",), ()], ids=["two fields", "a number", "no key"]
)
def test_the_key_may_be_of_several_fields_of_one_or_of_none(
    keys: tuple[str, ...], name: str
) -> None:
    checked(BY_NAME[name], keys, late_tasks=False)


@pytest.mark.in_gate("mean")
@pytest.mark.rule(28, 30, 31)
@pytest.mark.parametrize("name", ["sum", "max", "mean", "longest", "balance"])
def test_over_an_opaque_spout_every_tuple_counts_once_under_any_failure(
    name: str, tmp_path: Path
) -> None:
    report = simulate(
        aggregated(tmp_path, BY_NAME[name], opaque=True, history=False).build_topology(), seeds=25
    )
    assert report.violation is None, report.violation
    assert report.schedules == 25


@pytest.mark.thorough
@pytest.mark.rule(17, 28, 29)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_counting_the_emissions_of_an_aggregate_is_right_under_any_failure(
    opaque: bool, tmp_path: Path
) -> None:
    report = simulate(
        aggregated(tmp_path, Count(), opaque=opaque).build_topology(),
        {"max_spout_pending": 3},
        seeds=40,
    )
    assert report.violation is None, report.violation
