"""Share of Spark for a transaction, by the work of the transactions before."""

from __future__ import annotations

from txtopo.engine.pace import Pace

SMALL, LARGE = {"processing": 0.004, "commit": 0.004}, {"processing": 0.5, "commit": 0.1}


def paced(
    *transactions: dict[str, float],
    small_s: float = 0.02,
    overlaps: bool = False,
    is_narrow: bool = False,
) -> Pace:
    pace = Pace(small_s, overlaps, is_narrow)
    for busy_s in transactions:
        pace.committed(busy_s)
    return pace


def test_nothing_is_small_until_three_in_a_row_were() -> None:
    assert [paced(*[SMALL] * n).is_small for n in range(5)] == [False, False, False, True, True]
    assert not paced(SMALL, SMALL, LARGE, SMALL).is_small


def test_a_large_transaction_ends_the_savings_and_a_slightly_slow_one_does_not() -> None:
    small = [SMALL] * 3
    assert not paced(*small, LARGE).is_small
    assert paced(*small, {"processing": 0.03}).is_small
    assert not paced(*small, {"processing": 0.05}).is_small
    assert not paced({"processing": 0.03}, {"processing": 0.03}, {"processing": 0.03}).is_small


def test_all_phases_count_together() -> None:
    assert not paced(*[{"processing": 0.012, "commit": 0.012}] * 5).is_small


def test_after_a_late_job_no_transaction_counts_as_small() -> None:
    pace = paced(*[SMALL] * 3)
    pace.late()
    assert not pace.is_small


def test_with_zero_none_is_small() -> None:
    assert not paced(*[{"processing": 0.0}] * 5, small_s=0.0).is_small


def test_processing_is_deferred_unless_overlapping_it_pays() -> None:
    busy = {"processing": 0.015, "commit": 0.001}
    assert paced(*[busy] * 3).defers
    assert not paced(*[busy] * 3, overlaps=True).defers
    assert paced(*[SMALL] * 3, overlaps=True).defers
    assert not paced(SMALL, SMALL).defers


def test_a_long_commit_is_small_where_every_component_has_one_task_and_processing_is_short() -> (
    None
):
    long = {"processing": 0.005, "commit": 0.1}
    assert paced(*[long] * 3, is_narrow=True).defers
    assert paced(*[long] * 3, is_narrow=True, overlaps=True).defers
    assert not paced(*[long] * 3).is_small
    for other in ({"processing": 0.03, "commit": 0.1}, {"processing": 0.005, "commit": 0.5}):
        assert not paced(*[other] * 5, is_narrow=True).is_small
        assert not paced(*[long] * 3, other, other, is_narrow=True).is_small


def test_one_transaction_that_opens_what_a_process_keeps_does_not_end_the_savings() -> None:
    opening = {"processing": 0.03, "commit": 0.1}
    pace = paced(*[SMALL] * 3, overlaps=True, is_narrow=True)
    for busy in (opening, SMALL, opening, SMALL):
        pace.committed(busy)
        assert pace.defers
    pace.committed(opening)
    pace.committed(opening)
    assert not pace.is_small
