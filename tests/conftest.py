"""The folder of a test is its tier and sets its marker; in CI nothing may be skipped."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.clusters import cluster, shared_cluster

__all__ = ["cluster", "shared_cluster"]

TIERS = ("unit", "property", "conformance", "integration", "fault", "starter")
NO_SKIPS = os.environ.get("TXTOPO_NO_SKIPS") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(root).parts[0]
        if tier in TIERS:
            item.add_marker(tier)
    items.sort(key=lambda item: TIERS.index(item.path.relative_to(root).parts[0]) if item.path.relative_to(root).parts[0] in TIERS else len(TIERS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if NO_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and TXTOPO_NO_SKIPS=1 forbids it: {report.longrepr}"
    return report
