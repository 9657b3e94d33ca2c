"""Fault points: named places where a test may kill the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import get_args

import pytest

from txtopo import faults
from txtopo.faults import FaultPoint

PROGRAM = "from txtopo import faults; faults.reach('apply.after', 1); print('one'); faults.reach('apply.after', 2); print('two')"


def run(armed: str | None, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != faults.VARIABLE}
    environment.update({} if armed is None else {faults.VARIABLE: armed})
    return subprocess.run([sys.executable, "-u", "-c", program], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("armed", [None, "", "seal.before@2=kill", "apply.after@3=kill"])
def test_a_point_that_is_not_armed_for_this_txid_does_nothing(armed: str | None) -> None:
    done = run(armed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\ntwo\n", "")


@pytest.mark.parametrize("armed", ["apply.after@2=kill", "seal.before@9=kill,apply.after@2=kill"])
def test_an_armed_point_kills_the_process_and_says_so_first(armed: str) -> None:
    done = run(armed)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "one\n")
    assert done.stderr == "fault: apply.after at txid 2: kill\n"


@pytest.mark.parametrize("armed", ["apply.later@2=kill", "apply.after@two=kill", "apply.after@2=raise", "apply.after", "apply.after@=kill"])
def test_a_misspelt_fault_is_an_error_and_not_a_test_that_tests_nothing(armed: str) -> None:
    done = run(armed)
    assert done.returncode == 1
    assert f"TXTOPO_FAULT: '{armed}' is not POINT@TXID=kill with POINT one of seal.before, seal.after" in done.stderr


def test_there_is_a_point_before_and_after_every_step_of_a_commit() -> None:
    assert set(get_args(FaultPoint)) == {f"{step}.{when}" for step in ("seal", "apply", "record", "forget") for when in ("before", "after")}
