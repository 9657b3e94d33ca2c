"""The metrics of a run, for Prometheus."""

from __future__ import annotations

from typing import Any


def metrics(live: dict[str, Any] | None) -> str:
    """The metrics in ``live``, the content of ``live.json``, as Prometheus reads them."""
    raise NotImplementedError
