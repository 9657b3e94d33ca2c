"""A plugin of pytest that runs the tests of many selections, each test once, and reports the
selections of which a test failed.

A selection is what a mutation gives pytest: files and ids of tests, perhaps ``-k`` and an
expression. The environment variable :data:`FILE_VARIABLE` names a file of JSON with the selections.
In the end the file has instead the first failed test of each selection, by its number, and the
modules that the tests have imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import KeywordMatcher
from _pytest.mark.expression import Expression

FILE_VARIABLE = "SELECTIONS_OF_TESTS"

_failed: dict[int, str] = {}
_modules: list[str] = []


class Selection:
    """The tests that pytest would run for ``arguments``."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._places, expression = (
            (arguments[:-2], arguments[-1]) if "-k" in arguments else (arguments, None)
        )
        self._expression = None if expression is None else Expression.compile(expression)

    def __contains__(self, item: pytest.Item) -> bool:
        if not any(
            f"{item.nodeid}[".startswith((f"{place}::", f"{place}[")) for place in self._places
        ):
            return False
        return self._expression is None or self._expression.evaluate(KeywordMatcher.from_item(item))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker: keep the selected tests, each with the numbers of its selections."""
    selections = [Selection(arguments) for arguments in json.loads(_file().read_text())]
    for item in items:
        item.user_properties.append(
            (
                "selections",
                [number for number, selection in enumerate(selections) if item in selection],
            )
        )
    items[:] = [item for item in items if _numbers(item)]
    config.workeroutput["modules"] = sorted(sys.modules)  # type: ignore[attr-defined]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        for number in _numbers(report):
            _failed.setdefault(number, report.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _modules[:] = node.workeroutput["modules"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In the process that started the workers: report."""
    if not hasattr(session.config, "workeroutput"):
        _file().write_text(json.dumps({"failed": _failed, "modules": _modules}))


def _numbers(tested: pytest.Item | pytest.TestReport) -> list[int]:
    numbers: Any = dict(tested.user_properties)["selections"]
    return list(numbers)


def _file() -> Path:
    return Path(os.environ[FILE_VARIABLE])
