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


@pytest.mark.parametrize(
    ("outputs", "word"),
    [(["ERROR", "FAILED"], "noticed"), (["ERROR", "ERROR"], "broken"), (["FAILED"], "noticed")],
)
def test_a_fixture_that_failed_is_tried_once_more(
    outputs: list[str], word: str, tmp_path: Path
) -> None:
    left = list(outputs)

    class Python:
        def run(self, tree: Path, arguments: Sequence[str]) -> Any:
            assert (tree / "a.py").read_text() == "after"
            return subprocess.CompletedProcess(
                [], 1, f"=\n{left.pop(0)} tests/a.py::test_a - RuntimeError\n", ""
            )

    (tmp_path / "a.py").write_text("before")
    python: Any = Python()
    assert (
        runner.judge(
            Mutation("trial", "a.py", "before", "after", ("tests/a.py",)), tmp_path, python
        ).word
        == word
    )
    assert left == []


TESTS = """
import pytest
@pytest.mark.parametrize("backend", ["memory", "redis"])
def test_one(backend): assert backend == "memory"
class TestOthers:
    def test_two(self): pass
    def test_three(self): assert False
"""


@pytest.mark.thorough
def test_a_mutation_whose_test_fails_without_it_is_told_from_those_whose_tests_pass(
    tmp_path: Path,
) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text("def test_four(): pass")
    selections = {
        "a failed file": ("test_b.py", "test_a.py"),
        "a failed test": ("test_a.py::TestOthers::test_three",),
        "failed cases": ("test_a.py::test_one",),
        "a failed keyword": ("test_a.py", "-k", "one and redis"),
        "a file": ("test_b.py",),
        "a test": ("test_a.py::TestOthers::test_two",),
        "a keyword": ("test_a.py", "test_b.py", "-k", "(memory or others) and not three"),
    }
    chosen = [Mutation(name, "a.py", "a", "b", tests) for name, tests in selections.items()]
    failing, modules = runner.failing_unbroken(chosen, tmp_path)
    of_one, of_three = "test_a.py::test_one[redis]", "test_a.py::TestOthers::test_three"
    assert failing == {
        "a failed file": of_one,
        "a failed test": of_three,
        "failed cases": of_one,
        "a failed keyword": of_one,
    }
    assert "pytest" in modules


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
