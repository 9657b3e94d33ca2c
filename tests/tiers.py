"""Tiers of the tests: the folder of a test is its tier, and a mark may keep it out of the gate.

``@pytest.mark.thorough`` keeps a test for ``make thorough``. ``@pytest.mark.in_gate("sqlite-*")``
names the parameters with which a test is in the gate, by patterns of their ids; with all others the
test is thorough.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

TIERS = ("fault", "starter", "integration", "conformance", "property", "unit")
"""In the order in which the tests run: tests that take long begin early, so that no process is left
alone with them at the end."""


def arrange(items: list[pytest.Item]) -> None:
    """Mark all tests with their tiers, and put them in order."""
    for item in items:
        if tier_of(item) in TIERS:
            item.add_marker(tier_of(item))
        for marker in item.iter_markers("in_gate"):
            if not any(fnmatch.fnmatchcase(parameters_of(item), pattern) for pattern in marker.args):
                item.add_marker("thorough")
    items.sort(key=lambda item: TIERS.index(tier_of(item)) if tier_of(item) in TIERS else len(TIERS))


def tier_of(item: pytest.Item) -> str:
    """The folder of a test below ``tests``."""
    return item.path.relative_to(Path(__file__).parent).parts[0]


def parameters_of(item: pytest.Item) -> str:
    """The id of a test's parameters, without brackets, which are no pattern here."""
    callspec = getattr(item, "callspec", None)
    return "" if callspec is None else str(callspec.id)
