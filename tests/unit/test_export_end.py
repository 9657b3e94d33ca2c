"""The end of a run's exports: only those that have not returned are given up."""

from __future__ import annotations

from typing import Any

import pytest

from txtopo.runtime import export


class Export:
    """An export that has returned, or never does."""

    def __init__(self, has_returned: bool) -> None:
        self._has_returned, self.is_given_up = has_returned, False

    def wait(self, timeout_s: float) -> bool:
        return self._has_returned

    def give_up(self) -> None:
        self.is_given_up = True


def test_an_export_that_returns_at_the_last_moment_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export, "END_S", 0.0)
    exports: Any = [Export(True), Export(False)]
    export.finish_all(exports, lambda: False)
    assert [each.is_given_up for each in exports] == [False, True]
