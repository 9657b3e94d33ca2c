"""Pauses of the engine before a transaction is tried again: longer each time, up to a bound,
and never twice the same (R7)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from txtopo import Config
from txtopo.engine.loop import Loop

LEAST_S, MOST_S = 0.5, 8.0


def waits(failures: list[int], seed: int = 1) -> list[float]:
    """How long the engine puts off a transaction that has failed so often."""
    loop: Any = object.__new__(Loop)
    object.__setattr__(loop, "conf", Config(backoff_min_s=LEAST_S, backoff_max_s=MOST_S))
    object.__setattr__(loop, "rng", random.Random(seed))
    return [loop.backoff_s(count) for count in failures]


@pytest.mark.rule(7)
def test_a_replay_waits_twice_as_long_each_time_up_to_a_bound() -> None:
    for count, bound in [
        (1, 0.5),
        (2, 1.0),
        (3, 2.0),
        (4, 4.0),
        (5, 8.0),
        (6, 8.0),
        (40, 8.0),
        (2_000, 8.0),
    ]:
        assert all(bound / 2 <= wait <= bound for wait in waits([count] * 50)), count


@pytest.mark.rule(7)
def test_waits_are_spread_so_that_topologies_that_failed_together_do_not_come_back_together() -> (
    None
):
    delays = waits([5] * 50)
    assert len(set(delays)) == 50
    assert max(delays) - min(delays) > MOST_S / 4
    assert delays != waits([5] * 50, seed=2)


@pytest.mark.rule(7)
def test_a_failure_without_blame_is_replayed_at_once() -> None:
    assert waits([0, 0]) == [0.0, 0.0]
