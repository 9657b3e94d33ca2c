"""The verdicts of probes, from views."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from txtopo import Config
from txtopo.journal import records
from txtopo.page import health

NOW = datetime.datetime(2026, 11, 28, 12, 0, tzinfo=datetime.UTC).timestamp()
EARLIER = NOW - 3600
BOUND_S = Config().message_timeout_s


def ago(seconds: float) -> str:
    return records.time_of(NOW - seconds)


def view(is_alive: bool = True, settings: dict[str, Any] | None = None, **status: Any) -> Any:
    return {
        "run": {"is_alive": is_alive, "ended": None, "settings": settings or {}},
        "live": {"turned_at": ago(1), "status": {"state": "running", "idle": False, **status}},
    }


def test_a_run_is_at_work_while_its_loop_turns() -> None:
    assert health.doubt_about_work({"live": {"turned_at": ago(9.9)}}, NOW) is None
    doubt = health.doubt_about_work({"live": {"turned_at": ago(12)}}, NOW)
    assert doubt == "the run's loop has not turned for 12 s"
    assert health.doubt_about_work({"live": None}, NOW) == "no run has begun"


@pytest.mark.parametrize(
    ("shown", "doubt"),
    [
        (view(last_commit_at=ago(BOUND_S - 1)), None),
        (view(last_commit_at=ago(BOUND_S + 1), idle=True), None),
        (view(last_commit_at=ago(BOUND_S + 1), state="paused"), None),
        (view(last_commit_at=ago(BOUND_S + 1)), "no commit for"),
        (view(last_commit_at=None), "no commit for"),
        (view(last_commit_at=ago(7), settings={"message_timeout_s": 5.0}), "no commit for 7 s"),
        (view(last_commit_at=ago(1), state="draining"), "the run is draining"),
        (view(last_commit_at=ago(1), state="standby"), "the run is standby"),
        (view(last_commit_at=ago(1), is_alive=False), "no run has the topology"),
        ({"run": None, "live": None}, "no run has the topology"),
    ],
)
def test_a_run_is_ready_while_it_commits_or_has_nothing_to_do(
    shown: Any, doubt: str | None
) -> None:
    told = health.Readiness(EARLIER).doubt(shown, NOW)
    assert (told is None) == (doubt is None)
    assert (doubt or "") in (told or "")


def test_a_run_that_was_idle_lately_has_time_for_its_first_commit() -> None:
    readiness = health.Readiness(EARLIER)
    assert readiness.doubt(view(idle=True, last_commit_at=ago(BOUND_S + 9)), NOW) is None
    busy = view(last_commit_at=ago(BOUND_S + 9))
    assert readiness.doubt(busy, NOW + BOUND_S - 1) is None
    assert readiness.doubt(busy, NOW + BOUND_S + 1) is not None
