"""The folder of a test is its tier and sets its marker; in CI nothing may be skipped."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests import quick_java
from tests.servers import server_stores
from tests.servers.clusters import cluster, shared_cluster
from tests.servers.databases import Database
from tests.servers.kafka import kafka
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres
from tests.servers.redis_server import redis_server
from tests.servers.server_stores import place, server_store, workers
from txtopo.config import sources
from txtopo.testing.contracts.worker_process import WorkerProcess

__all__ = ["cluster", "kafka", "mariadb", "place", "postgres", "redis_server", "server_store", "shared_cluster", "workers"]

TIERS = ("unit", "property", "conformance", "integration", "fault", "starter")
NO_SKIPS = os.environ.get("TXTOPO_NO_SKIPS") == "1"

# Settings of the user who runs the tests do not reach the tests, nor the processes that a test
# starts.
for _name in [name for name in os.environ if name.startswith(sources.ENVIRONMENT_PREFIX) and name not in sources.RESERVED]:
    del os.environ[_name]
os.environ[sources.FILE_VARIABLE] = ""
quick_java.be_quick()


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    """A worker process, for the contexts of tasks that run in it."""
    process = WorkerProcess()
    yield process
    process.close()


@pytest.fixture(params=sorted(server_stores.DATABASES))
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A new, empty database of each kind in turn; its server runs when the test begins, and may not
    when it ends."""
    with server_stores.new_database(request.param) as database:
        yield database


def pytest_configure() -> None:
    """A run on a copy of the tree must test that copy."""
    import txtopo

    tree = os.environ.get("TXTOPO_TREE")
    if tree and not Path(str(txtopo.__file__)).is_relative_to(tree):
        raise pytest.UsageError(f"txtopo comes from {txtopo.__file__}, not from {tree}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(root).parts[0]
        if tier in TIERS:
            item.add_marker(tier)
    items.sort(key=lambda item: TIERS.index(item.path.relative_to(root).parts[0]) if item.path.relative_to(root).parts[0] in TIERS else len(TIERS))


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if NO_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and TXTOPO_NO_SKIPS=1 forbids it: {report.longrepr}"
    return report
