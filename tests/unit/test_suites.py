"""The gate forgives a test that only waited in vain and passes alone, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import suites
from tests.suites import Failure, Result

TESTS = """
import pytest
from tests.patience import wait_until

class TestWaiting:
    @pytest.mark.parametrize("text", ["a[b", "c::d"])
    def test_in_vain(self, text):
        wait_until(lambda: False, "an event", patience_s=0)

def test_wrong():
    assert 1 == 2, "waited OutOfPatience"

def test_wrong_and_not_cleaned():
    try:
        assert 1 == 2
    finally:
        wait_until(lambda: False, "the end of a process", patience_s=0)

@pytest.fixture
def broken():
    raise OSError("no server")

def test_without_a_server(broken):
    pass

def test_right():
    pass
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[Failure]:
    """Failures of a run of pytest, as its report tells them."""
    directory = tmp_path_factory.mktemp("suite")
    (directory / "test_it.py").write_text(TESTS)
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "junit_family=xunit1",
        "--junitxml=report.xml",
    ]
    environment = {"PYTHONPATH": str(suites.ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    count, failed = suites.read_report(directory / "report.xml")
    assert count == 6
    return failed


def test_a_report_names_failed_tests_as_pytest_selects_them(failures: list[Failure]) -> None:
    assert [failure.test for failure in failures] == [
        "test_it.py::TestWaiting::test_in_vain[a[b]",
        "test_it.py::TestWaiting::test_in_vain[c::d]",
        "test_it.py::test_wrong",
        "test_it.py::test_wrong_and_not_cleaned",
        "test_it.py::test_without_a_server",
    ]


def test_only_a_test_that_waited_in_vain_is_out_of_patience(failures: list[Failure]) -> None:
    assert [failure.is_out_of_patience for failure in failures] == [True, True, False, False, False]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tests that were run alone. Each test passes unless named broken."""
    ran: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command[-1])
        return subprocess.CompletedProcess(command, int("broken" in command[-1]), "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(suites, "wait_until_quiet", lambda: None)
    return ran


def result(*tests: str) -> Result:
    reports = {
        test: "tests.patience.OutOfPatience: waited 300 s for it" if "slow" in test else "wrong"
        for test in tests
    }
    closing = f"==== {len(tests)} failed, 3 passed ===="
    return Result(
        "test",
        1,
        1.0,
        10,
        [Failure(test, report) for test, report in reports.items()],
        closing=closing,
    )


def try_again(ended: Result) -> bool:
    suites.try_again(ended, lambda failure: failure.is_out_of_patience)
    return ended.is_good


def test_a_test_that_passes_alone_is_a_flake(alone: list[str]) -> None:
    ended = result("slow")
    assert try_again(ended)
    assert (ended.failures, [failure.test for failure in ended.forgiven], alone) == (
        [],
        ["slow"],
        ["slow"],
    )


def test_a_suite_that_did_not_run_to_its_end_stays_red(alone: list[str]) -> None:
    for closing in ("", "==== 1 failed, 3 passed, 1 error ===="):
        ended = result("slow")
        ended.closing = closing
        assert not try_again(ended)


def test_a_test_that_fails_alone_too_stays_red(alone: list[str]) -> None:
    assert not try_again(result("slow and broken", "slow"))


def test_wrong_data_is_red_at_once(alone: list[str]) -> None:
    assert not try_again(result("slow", "wrong"))
    assert alone == []


def test_many_tests_out_of_patience_are_no_flakes(alone: list[str]) -> None:
    assert not try_again(result(*(f"slow {number}" for number in range(suites.FORGIVEN_MAX + 1))))
    assert alone == []


def test_a_suite_that_ended_without_a_report_stays_red(
    alone: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = Result("lint", 2, 1.0)
    assert not try_again(ended)
    assert (
        suites.finish(
            [ended, Result("test", 0, 1.0, 3, closing="==== 3 passed ====")],
            "flaked",
            ended.is_good,
        )
        == 1
    )
    assert capsys.readouterr().out.splitlines()[-1] == "==== 3 passed ===="


def test_the_last_line_is_that_of_a_red_suite(capsys: pytest.CaptureFixture[str]) -> None:
    red, green = (
        Result("kills", 1, 1.0, 4, closing="==== 1 failed ===="),
        Result("test", 0, 1.0, 3, closing="==== 3 passed ===="),
    )
    assert suites.finish([red, green], "flaked", False) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "==== 1 failed ===="


def test_a_part_that_passed_is_not_run_again_on_the_same_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(name: str, command: object, environment: object) -> Result:
        ran.append(name)
        return Result(name, int(name == "soak"), 1.0, 7)

    monkeypatch.setattr(suites, "DONE", tmp_path)
    monkeypatch.setattr(suites, "run", run)
    monkeypatch.setattr(suites, "commit", lambda: "abc")
    assert suites.main(["thorough", "fault,soak"]) == 1
    assert suites.main(["thorough", "fault", "soak"]) == 1
    assert ran == ["fault", "soak", "soak"]
    monkeypatch.setattr(suites, "commit", lambda: "abd")
    assert suites.main(["thorough", "fault"]) == 0
    assert ran == ["fault", "soak", "soak", "fault"]
    for _ in range(2):
        monkeypatch.setattr(suites, "commit", lambda: suites.DIRTY)
        assert suites.main(["thorough", "fault"]) == 0
    assert ran[4:] == ["fault", "fault"], "changes since are in no commit"


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert suites.main(["thorough", "faults"]) == 2
    assert "no such part: faults" in capsys.readouterr().err
