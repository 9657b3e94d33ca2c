"""The runner of mutants: ids of tests select the named tests, and a run without proof is no
success."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import mutation, runner
from tests.mutants.mutation import Mutation
from tests.servers import fetch

ROOT = Path(__file__).resolve().parents[2]
TRIAL = Mutation("trial", "txtopo/errors.py", "a", "b", ("tests/unit/test_errors.py",))
BACKENDS = {"memory", "sqlite", "postgresql", "mariadb", "redis"}


def backends_of(tests: tuple[str, ...]) -> set[str]:
    """Which backends the contract's tests that ``tests`` select are of, as pytest sees it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *tests], cwd=ROOT, capture_output=True, text=True, check=True
    )
    cases = [line.partition("[")[2] for line in done.stdout.splitlines() if "[" in line]
    return {backend for case in cases for backend in BACKENDS if case.startswith(backend)}


def test_mutations_of_stores_are_tried_on_memory_and_sqlite_and_wait_for_no_server() -> None:
    assert backends_of(mutation.STORE) == {"memory", "sqlite"}
    assert backends_of(mutation.READERS) == {"memory", "sqlite"}


@pytest.mark.parametrize(
    ("output", "code", "word"),
    [
        ("FAILED tests/a.py::test_a - AssertionError: 1 != 2\n", 1, "noticed"),
        ("", 0, "SURVIVED"),
        ("ERROR tests/a.py::test_a - RuntimeError: there is no server in servers/\n", 1, "broken"),
        ("E   tests.servers.fetch.ServerMissingError: there is no mariadbd\nFAILED tests/a.py::test_a - tests...\n", 1, "broken"),
        ("no tests ran\n", 5, "broken"),
        ("INTERNALERROR\n", 3, "broken"),
    ],
)
def test_the_verdict_about_a_mutation(output: str, code: int, word: str) -> None:
    done: Any = subprocess.CompletedProcess([], code, output, "")
    assert runner.verdict_of(TRIAL, done, 1.0).word == word


def test_a_server_that_is_not_there_is_said_so_in_a_way_that_the_runner_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_fetched", lambda server: None)
    monkeypatch.setattr(fetch, "_installed", lambda server: None)
    for name in fetch.SERVERS:
        with pytest.raises(fetch.ServerMissingError, match="make servers"):
            fetch.found(name)
