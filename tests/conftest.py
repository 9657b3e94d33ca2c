"""The folder of a test sets its mark; in CI nothing may be skipped."""

from __future__ import annotations

import gc
import math
import os
import random
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import examples, quick_java, tiers
from tests.patience import PATIENCE_S
from tests.servers import server_stores
from tests.servers.azurite import azurite
from tests.servers.clusters import cluster, shared_cluster
from tests.servers.databases import Database
from tests.servers.fake_gcs import fake_gcs
from tests.servers.hdfs import hdfs
from tests.servers.kafka import kafka, sole_broker
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres
from tests.servers.redis_server import redis_server
from tests.servers.s3 import s3
from tests.servers.server_stores import place, server_store, workers
from tests.servers.versitygw import versitygw
from tests.topic_drive import driven, drives
from txtopo.config import sources
from txtopo.runtime import run
from txtopo.state import embedded, server_process
from txtopo.stores import transaction
from txtopo.testing.contracts import sink, store_fences, store_subject
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.testing.simulator import judge, parts

__all__ = [
    "azurite",
    "cluster",
    "driven",
    "drives",
    "fake_gcs",
    "hdfs",
    "kafka",
    "mariadb",
    "place",
    "postgres",
    "redis_server",
    "s3",
    "server_store",
    "shared_cluster",
    "sole_broker",
    "versitygw",
    "workers",
]

NO_SKIPS = os.environ.get("TXTOPO_NO_SKIPS") == "1"

# Settings of the user who runs the tests do not reach the tests, nor the processes that a test
# starts.
for _name in [
    name
    for name in os.environ
    if name.startswith(sources.ENVIRONMENT_PREFIX) and name not in sources.RESERVED
]:
    del os.environ[_name]
os.environ[sources.FILE_VARIABLE] = ""
quick_java.be_quick()
# A slow machine finds the same mistakes, and tells them in the same words.
parts.ENOUGH_S = judge.LONG_S = math.inf
embedded.START_TIMEOUT_S = server_process.END_TIMEOUT_S = run._END_S = PATIENCE_S
sink._WAIT_S = store_fences._WAIT_S = store_subject._WAIT_S = PATIENCE_S


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    """A worker process, for the contexts of tasks that run in it."""
    process = WorkerProcess()
    yield process
    process.close()


@pytest.fixture
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the gate a store holds few rows in memory, and a test soon has more rows. In thorough
    tests the store's own bound holds."""
    if request.node.get_closest_marker("thorough") is None:
        for module in (transaction, store_fences):
            monkeypatch.setattr(module, "ROWS_HELD_MAX", 1_000)


@pytest.fixture(params=sorted(server_stores.DATABASES))
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A new, empty database of each kind in turn; its server runs when the test begins, and may not
    when it ends."""
    with server_stores.new_database(request.param) as database:
        yield database


@pytest.hookimpl(tryfirst=True)  # Hypothesis reads its options in the same hook
def pytest_configure(config: pytest.Config) -> None:
    """A run on a copy of the tree must test that copy."""
    import txtopo

    if examples.PROFILE == "search" and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().getrandbits(32))
    tree = os.environ.get("TXTOPO_TREE")
    if tree and not Path(str(txtopo.__file__)).is_relative_to(tree):
        raise pytest.UsageError(f"txtopo comes from {txtopo.__file__}, not from {tree}")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return tiers.scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_report_header(config: pytest.Config) -> str | None:
    return (
        f"to search the same examples again: --hypothesis-seed {config.option.hypothesis_seed}"
        if examples.PROFILE == "search"
        else None
    )


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A test that is asked for by its id comes with some of its parameters only.
    if not any("::" in argument for argument in config.args) and (
        unmatched := tiers.unmatched(items)
    ):
        raise pytest.UsageError(
            "in_gate names parameters that there are not: " + "; ".join(unmatched)
        )
    tiers.arrange(items)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Dice fall the same in every run."""
    random.seed(item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The time-out of a test comes once: its clean-up has the same time again, and no more."""
    seconds = float(item.config.getini("timeout") or 0)
    if (
        seconds
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        and callable(signal.getsignal(signal.SIGALRM))
    ):
        signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if NO_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and TXTOPO_NO_SKIPS=1 forbids it: {report.longrepr}"
    return report
