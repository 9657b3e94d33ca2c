"""Marks of the tests: the folder of a test is a mark, and a mark may keep the test out of the gate.

``@pytest.mark.thorough`` keeps a test for ``make thorough``. ``@pytest.mark.in_gate("sqlite-*")``
names the parameters with which a test is in the gate, by patterns of their ids; with all others the
test is thorough. A pattern of no parameters is an error: its test would leave the gate unnoticed.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

FOLDERS = ("fault", "starter", "integration", "conformance", "property", "unit")
"""In the order in which the tests run: tests that take long begin early, so that no process is left
alone with them at the end."""


def unmatched(items: list[pytest.Item]) -> list[str]:
    """The patterns of ``in_gate`` that match none of the ``items``, each with its test."""
    hits: dict[str, bool] = {}
    for item in items:
        for marker in item.iter_markers("in_gate"):
            for pattern in marker.args:
                key = f"{item.nodeid.partition('[')[0]}: {pattern}"
                hits[key] = hits.get(key, False) or fnmatch.fnmatchcase(parameters_of(item), pattern)
    return sorted(key for key, is_hit in hits.items() if not is_hit)


def arrange(items: list[pytest.Item]) -> None:
    """Mark all tests with their folders, and those outside of the gate, and put them in order."""
    for item in items:
        if folder_of(item) in FOLDERS:
            item.add_marker(folder_of(item))
        for marker in item.iter_markers("in_gate"):
            if not any(fnmatch.fnmatchcase(parameters_of(item), pattern) for pattern in marker.args):
                item.add_marker("thorough")
    items.sort(key=lambda item: FOLDERS.index(folder_of(item)) if folder_of(item) in FOLDERS else len(FOLDERS))


def folder_of(item: pytest.Item) -> str:
    """The folder of a test below ``tests``."""
    return item.path.relative_to(Path(__file__).parent).parts[0]


def parameters_of(item: pytest.Item) -> str:
    """The id of a test's parameters, without brackets, which are no pattern here."""
    callspec = getattr(item, "callspec", None)
    return "" if callspec is None else str(callspec.id)
