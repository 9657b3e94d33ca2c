"""Judges a run's health from its view, for probes: is the run at work, and does it get on?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txtopo import config
from txtopo.journal import watch

TURNED_S = 10.0
"""A healthy run's loop turns at least so often."""


def doubt_about_work(view: Mapping[str, Any], now: float) -> str | None:
    """None if the run's loop has turned lately, else the reason for doubt. ``now`` is in seconds
    since 1970."""
    turned_at = (view["live"] or {}).get("turned_at")
    if turned_at is None:
        return "no run has begun"
    age_s = now - watch.seconds(turned_at)
    return None if age_s <= TURNED_S else f"the run's loop has not turned for {age_s:.0f} s"


class Readiness:
    """Whether a run gets on. Remembers when a probe last saw the run idle, at first ``now``."""

    def __init__(self, now: float) -> None:
        self._idle_at = now

    def doubt(self, view: Mapping[str, Any], now: float) -> str | None:
        """None if the run holds its topology, and was paused or idle, or has committed, within
        ``message_timeout_s``. Else the reason for doubt."""
        run, status = view["run"], (view["live"] or {}).get("status", {})
        if run is None or run["ended"] is not None or not run["is_alive"]:
            return "no run has the topology"
        state = status.get("state")
        if state not in ("running", "paused"):
            return f"the run is {state}"
        if state == "paused" or status["idle"]:
            self._idle_at = now
        bound_s = run["settings"].get("message_timeout_s", config.Config().message_timeout_s)
        idle_s = now - self._idle_at
        newest = status.get("last_commit_at")
        age_s = idle_s if newest is None else min(idle_s, now - watch.seconds(newest))
        return None if age_s <= bound_s else f"no commit for {age_s:.0f} s, and the run is not idle"
