"""Fault points: named places where a test may kill the process, have it wait to be killed, or lose
an answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from txtopo import faults
from txtopo.faults import FaultPoint

PROGRAM = "from txtopo import faults; faults.reach('apply.after', 1); print('one'); faults.reach('apply.after', 2, 'words'); print('two')"
LOSING = """
from txtopo import faults
for number in range(3):
    try:
        faults.reach('seal.inside', 2, 'words')
        print('answered')
    except faults.AnswerLostError as error:
        print(error)
"""


def run(
    armed: str | None, program: str = PROGRAM, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in (faults.VARIABLE, faults.DIRECTORY_VARIABLE)
    }
    environment.update({} if armed is None else {faults.VARIABLE: armed})
    environment.update({} if directory is None else {faults.DIRECTORY_VARIABLE: str(directory)})
    return subprocess.run(
        [sys.executable, "-u", "-c", program], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "armed",
    [
        None,
        "",
        "seal.before@2=kill",
        "apply.after@3=kill",
        "apply.after@counts:2=kill",
        "apply.after@words:1=kill",
    ],
)
def test_a_point_that_is_not_armed_for_this_txid_and_topology_does_nothing(
    armed: str | None,
) -> None:
    done = run(armed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\ntwo\n", "")


@pytest.mark.parametrize("armed", ["apply.after@2=kill", "seal.before@9=kill,apply.after@2=kill"])
def test_an_armed_point_kills_the_process_and_says_so_first(armed: str) -> None:
    done = run(armed)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "one\n")
    assert done.stderr == "fault: apply.after at txid 2: kill\n"


def test_a_point_may_be_armed_for_one_topology() -> None:
    done = run("apply.after@words:2=kill")
    assert (done.returncode, done.stdout, done.stderr) == (
        -signal.SIGKILL,
        "one\n",
        "fault: apply.after at words txid 2: kill\n",
    )


@pytest.mark.parametrize("directory", [True, False])
def test_an_answer_is_lost_once(tmp_path: Path, directory: bool) -> None:
    done = run("seal.inside@words:2=lose", LOSING, tmp_path if directory else None)
    assert (done.returncode, done.stdout) == (
        0,
        "the answer is lost at seal.inside\nanswered\nanswered\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == (
        ["seal.inside@words:2=lose"] if directory else []
    )


def test_with_a_directory_a_fault_kills_one_process_and_not_the_next(tmp_path: Path) -> None:
    armed = "apply.after@2=kill"
    assert [run(armed, directory=tmp_path).returncode for _ in range(3)] == [-signal.SIGKILL, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == [armed]


def test_every_process_that_holds_waits_to_be_killed(tmp_path: Path) -> None:
    armed = "apply.after@2=hold"
    environment = {**os.environ, faults.VARIABLE: armed, faults.DIRECTORY_VARIABLE: str(tmp_path)}
    command = [sys.executable, "-u", "-c", PROGRAM]
    held = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for process in held:
            assert process.stderr is not None
            assert process.stderr.readline() == b"fault: apply.after at txid 2: hold\n"
        assert (tmp_path / armed).exists()
        assert [process.poll() for process in held] == [None, None]
    finally:
        for process in held:
            process.kill()
    assert [process.communicate()[0] for process in held] == [b"one\n", b"one\n"]


@pytest.mark.parametrize(
    "armed",
    [
        "apply.later@2=kill",
        "apply.after@two=kill",
        "apply.after@2=raise",
        "apply.after",
        "apply.after@=kill",
        "apply.after@words=kill",
    ],
)
def test_a_misspelt_fault_is_an_error_and_not_a_test_that_tests_nothing(armed: str) -> None:
    done = run(armed)
    assert done.returncode == 1
    assert (
        f"TXTOPO_FAULT: '{armed}' is not POINT@TXID=ACTION with POINT one of seal.before, seal.inside"
        in done.stderr
    )


def test_an_answer_can_be_lost_only_where_there_is_one() -> None:
    done = run("apply.inside@2=lose")
    assert done.returncode == 1
    assert "an answer can be lost only at seal.inside and record.inside" in done.stderr


def test_there_is_a_point_before_inside_and_after_every_step_of_a_commit() -> None:
    steps = [
        f"{step}.{when}"
        for step in ("seal", "apply", "record", "forget")
        for when in ("before", "inside", "after")
    ]
    assert list(get_args(FaultPoint)) == steps
