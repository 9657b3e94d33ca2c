"""The runner of mutants: ids of tests select the named tests, and a run without proof is no
success."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import mutation, runner
from tests.mutants.guards import GUARDS
from tests.mutants.mutation import Mutation
from tests.servers import fetch

ROOT = Path(__file__).resolve().parents[2]
TRIAL = Mutation("trial", "txtopo/errors.py", "a", "b", ("tests/unit/test_errors.py",))
BACKENDS = {"memory", "sqlite", "postgresql", "mariadb", "redis"}


def backends_of(tests: tuple[str, ...]) -> set[str]:
    """Which backends the contract's tests that ``tests`` select are of, as pytest sees it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    cases = [line.partition("[")[2] for line in done.stdout.splitlines() if "[" in line]
    return {backend for case in cases for backend in BACKENDS if case.startswith(backend)}


@pytest.mark.thorough
def test_mutations_of_stores_are_tried_on_memory_and_sqlite_and_wait_for_no_server() -> None:
    assert backends_of(mutation.STORE) == {"memory", "sqlite"}
    assert backends_of(mutation.READERS) == {"memory", "sqlite"}


@pytest.mark.parametrize(
    ("output", "code", "word"),
    [
        ("FAILED tests/a.py::test_a - AssertionError: 1 != 2\n", 1, "noticed"),
        ("", 0, "SURVIVED"),
        ("ERROR tests/a.py::test_a - RuntimeError: there is no server in servers/\n", 1, "broken"),
        (
            "ERROR tests/a.py::test_a - Failed: Timeout (>120.0s) from pytest-timeout.\n",
            1,
            "noticed",
        ),
        (
            "E   tests.servers.fetch.ServerMissingError: there is no mariadbd\nFAILED tests/a.py::test_a - tests...\n",
            1,
            "broken",
        ),
        ("no tests ran\n", 5, "broken"),
        ("INTERNALERROR\n", 3, "broken"),
    ],
)
def test_the_verdict_about_a_mutation(output: str, code: int, word: str) -> None:
    done: Any = subprocess.CompletedProcess([], code, output, "")
    assert runner.verdict_of(TRIAL, done, 1.0).word == word


def test_a_run_that_does_not_end_has_noticed_the_mutation() -> None:
    assert runner.verdict_of(TRIAL, None, 900.0).word == "noticed"


class Python:
    """Answers with the given outputs, first for a tree with the mutation; "passed" is status 0."""

    def __init__(self, mutated: Sequence[str], unbroken: Sequence[str] = ("passed",)) -> None:
        self._left = {"after": list(mutated), "before": list(unbroken)}

    def run(self, tree: Path, arguments: Sequence[str], environment: Any) -> Any:
        word = self._left[(tree / "a.py").read_text()].pop(0)
        status = {"passed": 0, "no such test": 4}.get(word, 1)
        output = f"=\n{word} tests/a.py::test_a - RuntimeError\n"
        return None if word == "hangs" else subprocess.CompletedProcess([], status, output, "")

    @property
    def is_used_up(self) -> bool:
        return not any(self._left.values())


def judged(python: Python, tree: Path) -> str:
    (tree / "a.py").write_text("before")
    warm: Any = python
    trial = Mutation("trial", "a.py", "before", "after", ("tests/a.py",))
    return runner.judge(trial, tree, warm).word


@pytest.mark.parametrize(
    ("outputs", "word"),
    [(["ERROR", "FAILED"], "noticed"), (["ERROR", "ERROR"], "broken"), (["FAILED"], "noticed")],
)
def test_a_fixture_that_failed_is_tried_once_more(
    outputs: list[str], word: str, tmp_path: Path
) -> None:
    python = Python(outputs, ["passed"] if word == "noticed" else [])
    assert judged(python, tmp_path) == word
    assert python.is_used_up


@pytest.mark.parametrize(
    ("output", "unbroken", "word"),
    [
        ("FAILED", ["FAILED"], "broken"),
        ("FAILED", ["no such test", "passed"], "noticed"),
        ("FAILED", ["no such test", "FAILED"], "broken"),
        ("hangs", ["passed"], "noticed"),
        ("hangs", ["hangs"], "broken"),
    ],
)
def test_a_test_that_fails_without_the_mutation_too_proves_nothing(
    output: str, unbroken: list[str], word: str, tmp_path: Path
) -> None:
    python = Python([output], unbroken)
    assert judged(python, tmp_path) == word
    assert python.is_used_up


def test_of_each_guard_at_most_one_mutation_is_chosen_and_its_tests_need_no_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = runner.one_per_guard()
    left_out = capsys.readouterr().out.splitlines()
    assert len(chosen) + len(left_out) == len(GUARDS)
    assert len(left_out) < 5
    assert [
        place
        for each in chosen
        for place in each.tests
        if place.startswith(("tests/integration", "tests/fault"))
        and not each.tests[-1].startswith("memory")
    ] == []


def test_a_server_that_is_not_there_is_said_so_in_a_way_that_the_runner_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "_fetched", lambda server: None)
    monkeypatch.setattr(fetch, "_installed", lambda server: None)
    for name in fetch.SERVERS:
        with pytest.raises(fetch.ServerMissingError, match="make servers"):
            fetch.found(name)
