"""A task is killed at every statement of a transaction of a store, over every database and with
values of every kind; its replay makes it right."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.processes.store_crashes import Way, crash_everywhere
from tests.servers.places import PLACES
from txtopo.stores import stamps
from txtopo.testing.contracts.store import KINDS

Values = dict[str, int]

BEFORE: dict[stamps.Kind, list[Values]] = {
    "transactional": [{"ant": 1, "cat": 1, "dog": 1}],
    # Writes of the attempt before, perhaps taken back.
    "opaque": [{"ant": 1, "cat": 1, "dog": 8, "fox": 7}, {"ant": 1, "cat": 1, "dog": 1}],
    "plain": [{"ant": 1, "cat": 1, "dog": 7, "fox": 7}],
}
AFTER: dict[stamps.Kind, Values] = {
    "transactional": {"ant": 1, "dog": 101, "owl": 100},
    "opaque": {"ant": 1, "dog": 101, "owl": 100},
    "plain": {"ant": 1, "dog": 100, "fox": 7, "owl": 100},
}


def replayed(kind: stamps.Kind, left: Values) -> Values:
    """The right content of the store after the replay of a transaction that had left ``left``."""
    if kind == "transactional":
        return AFTER[kind]
    return (
        {"ant": 1, "bee": 10, "cat": 1, "dog": 11}
        if kind == "opaque"
        else {**left, "bee": 10, "dog": 10}
    )


@pytest.mark.in_gate(
    "mariadb-opaque-updated",
    "postgresql-opaque-merged",
    "redis-transactional-merged",
    "sqlite-opaque-updated",
)
@pytest.mark.rule(28, 29, 30, 31)
@pytest.mark.parametrize(
    ("kind", "way"),
    [*((kind, "updated") for kind in KINDS), ("transactional", "merged"), ("opaque", "merged")],
)
@pytest.mark.parametrize("backend", PLACES)
def test_a_task_killed_at_any_statement_leaves_all_writes_or_none_and_its_replay_completes_them(
    backend: str, kind: stamps.Kind, way: Way, tmp_path: Path
) -> None:
    *killed, whole = crash_everywhere(PLACES[backend](tmp_path), kind, way)
    assert len(killed) > 10, "moments before and after every statement"
    assert {report["status"] for report in killed} == {-signal.SIGKILL}
    assert (whole["status"], whole["left"]) == (0, AFTER[kind])
    lefts = [report["left"] for report in killed]
    assert BEFORE[kind][0] in lefts
    assert AFTER[kind] in lefts, "killed when it had committed"
    for report in [*killed, whole]:
        assert report["left"] in [*BEFORE[kind], AFTER[kind]], report
        assert report["replayed"] == replayed(kind, report["left"]), report
        assert report["ended"] == {
            **report["replayed"],
            "dog": 1000 + (0 if kind == "plain" else report["replayed"]["dog"]),
        }, report
