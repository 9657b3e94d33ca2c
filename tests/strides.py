"""Kills a sink at fewer lines than ``check_sink`` does."""

from __future__ import annotations

import pytest

from txtopo.testing.contracts import sink

NAMES = {12: "every 12th", 1: "every"}.__getitem__


def kill_at_every(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill sinks at the lines ``stride``, twice ``stride``, and so on."""
    killed_at = sink.Subject.killed_at
    monkeypatch.setattr(
        sink.Subject,
        "killed_at",
        lambda subject, line, action: killed_at(subject, line * stride, action),
    )
