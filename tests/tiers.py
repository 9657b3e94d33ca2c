"""Marks of the tests: the folder of a test is a mark, and a mark may keep the test out of the gate.

``@pytest.mark.thorough`` keeps a test for ``make thorough``. ``@pytest.mark.in_gate("sqlite-*")``
names the parameters with which a test is in the gate, by patterns of their ids; with all others the
test is thorough. A pattern of no parameters is an error: its test would leave the gate unnoticed.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
from pathlib import Path
from typing import Any

import pytest

FOLDERS = ("fault", "starter", "integration", "conformance", "property", "unit")
"""In the order in which the tests run: tests that take long begin early, so that no process is left
alone with them at the end."""


def scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of pytest-xdist that keeps a file of tests in one process, and all files that
    need Kafka: a broker takes seconds to start."""
    xdist: Any = importlib.import_module("xdist.scheduler")
    scheduling = xdist.LoadFileScheduling(config, log)
    scheduling._split_scope = process_of
    return scheduling


def process_of(nodeid: str) -> str:
    """The key of the process for a test: equal keys share a process."""
    file = nodeid.partition("::")[0]
    needs_kafka = "/test_kafka_" in file or file.endswith("/test_reset.py")
    return "kafka" if needs_kafka and not file.startswith("tests/unit/") else file


def unmatched(items: list[pytest.Item]) -> list[str]:
    """The patterns of ``in_gate`` that match none of the ``items``, each with its test."""
    hits: dict[str, bool] = {}
    for item in items:
        for marker in item.iter_markers("in_gate"):
            for pattern in marker.args:
                key = f"{item.nodeid.partition('[')[0]}: {pattern}"
                hits[key] = hits.get(key, False) or fnmatch.fnmatchcase(
                    parameters_of(item), pattern
                )
    return sorted(key for key, is_hit in hits.items() if not is_hit)


def arrange(items: list[pytest.Item]) -> None:
    """Mark all tests with their folders, and those outside of the gate, and put them in order."""
    for item in items:
        if folder_of(item) in FOLDERS:
            item.add_marker(folder_of(item))
        for marker in item.iter_markers("in_gate"):
            if not any(
                fnmatch.fnmatchcase(parameters_of(item), pattern) for pattern in marker.args
            ):
                item.add_marker("thorough")
    items.sort(
        key=lambda item: (
            FOLDERS.index(folder_of(item)) if folder_of(item) in FOLDERS else len(FOLDERS)
        )
    )


def folder_of(item: pytest.Item) -> str:
    """The folder of a test below ``tests``."""
    return _folder_of(item.path)


@functools.cache
def _folder_of(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).parts[0]


def parameters_of(item: pytest.Item) -> str:
    """The id of a test's parameters, without brackets, which are no pattern here."""
    callspec = getattr(item, "callspec", None)
    return "" if callspec is None else str(callspec.id)
