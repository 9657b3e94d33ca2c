"""Definitions of a mutation, and of a guard: a few lines that keep exactly-once in one kind of
trouble, each with the mutations that remove the guard."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutation:
    """Replace ``old``, which occurs once in the unfolded ``file``, by ``new``; one of ``tests``
    must fail. They are files or ids of tests, perhaps with ``-k`` and an expression at the end."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def is_quick(self) -> bool:
        """Whether its tests need neither Spark nor a server, and no luck."""
        is_local = "-k" in self.tests and bool(re.search(r"\b(memory|sqlite)\b", self.tests[-1]))
        local = ("tests/conformance/", "tests/integration/test_kafka_", "tests/fault/test_kafka_")
        folders = ("tests/unit/", "tests/property/", *(local if is_local else ()))
        return all(place.startswith(folders) for place in self.tests if ".py" in place)


@dataclass(frozen=True)
class Guard:
    """``prevents`` completes "without it, …". ``staged`` are further tests, in which the prevented
    trouble really happens."""

    name: str
    rules: tuple[int, ...]
    prevents: str
    mutations: tuple[Mutation, ...]
    staged: tuple[str, ...] = ()


def unfold(folder: Path) -> None:
    """Write each statement of the Python files in ``folder`` into one line, up to 320 characters:
    mutations name code, however it is wrapped."""
    settings = (
        "--line-length",
        "320",
        "--config",
        "format.skip-magic-trailing-comma=true",
        "--config",
        "lint.isort.split-on-trailing-comma=false",
    )
    subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--quiet", *settings, str(folder)],
        check=True,
    )


COORDINATOR = (
    "tests/unit/test_coordinator_commits.py",
    "tests/unit/test_coordinator_failures.py",
    "tests/unit/test_coordinator_window.py",
)
EXECUTE = (
    "tests/unit/test_execute_phases.py",
    "tests/unit/test_execute_spouts.py",
    "tests/unit/test_hold.py",
    "tests/property/test_dataplane_model.py",
)
# By the backend at the beginning of a test's id: the text of a clause may contain the word memory,
# too.
_NO_SERVER = "(memory or sqlite) and not postgresql and not mariadb and not redis"
# One backend goes through the rules as well as another; a mutation is not to wait for a server.
STORE = (
    "tests/conformance/test_store_contract.py",
    "tests/conformance/test_store_recorded.py",
    "-k",
    _NO_SERVER,
)
POSTGRESQL = (
    "tests/integration/test_store_servers.py",
    "tests/integration/test_store_postgresql.py",
    "-k",
    "not mariadb",
)
MARIADB = (
    "tests/integration/test_store_mariadb.py",
    "tests/integration/test_store_servers.py",
    "-k",
    "mariadb and (TestLocks or TestRivals)",
)
REDIS = ("tests/fault/test_store_redis.py", "tests/integration/test_store_redis.py")
REDIS_MERGES = ("tests/integration/test_store_redis_merges.py",)
STATE = ("tests/conformance/test_state_topology.py", "-k", "memory")
READERS = ("tests/conformance/test_store_contract.py", "-k", _NO_SERVER)
SOUNDNESS = ("tests/unit/test_soundness.py",)
MIXED = ("tests/unit/test_receive_mixed.py",)
RESULTS = ("tests/unit/test_job_results.py",)
ZOMBIES = ("tests/unit/test_zombie_wait.py",)
DEFERS = ("tests/unit/test_coordinator_defers.py",)
ENGINE_DEFERS = ("tests/unit/test_engine_defers.py",)
OPENED = ("tests/unit/test_opened_at.py",)
CONTINUITY = ("tests/unit/test_continuity.py",)
RESIDENT = ("tests/unit/test_resident_task.py",)
WHOLE = ("tests/unit/test_whole_run.py",)
ZNODE_FILES = ("tests/integration/test_znode_files.py",)
FULL_DISK = ("tests/integration/test_full_disk.py", "-k", "wrong or absent or forgotten or because")
KAFKA_SINK = ("tests/integration/test_kafka_sink.py",)
PRIVATE = ("tests/integration/test_private_data_directory.py",)
RESET = ("tests/unit/test_cli_reset.py",)
SOCKETS = ("tests/unit/test_socket_directory.py",)
