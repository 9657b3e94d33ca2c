"""Certain death of a process: never claimed of a living process, nor of a process of another
machine, boot or container."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from txtopo.state import liveness

TELL_AND_WAIT = (
    "from txtopo.state import liveness; print(liveness.process_identity(), flush=True); input()"
)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", TELL_AND_WAIT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield process
        process.kill()


def identity_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_process_lives_until_it_has_ended_and_then_is_dead_reaped_or_not(
    process: subprocess.Popen[str],
) -> None:
    identity = identity_of(process)
    assert identity.split("/")[2] == str(process.pid)
    assert not liveness.has_certainly_died(identity)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # It has ended, and is still listed.
    assert liveness.has_certainly_died(identity)
    process.wait()
    assert liveness.has_certainly_died(identity)


def test_a_process_is_not_taken_for_another_that_had_its_pid(
    process: subprocess.Popen[str],
) -> None:
    boot, namespace, pid, start = identity_of(process).split("/")
    assert liveness.has_certainly_died(f"{boot}/{namespace}/{pid}/{int(start) - 1}")


def test_the_fate_of_a_process_of_another_boot_or_container_is_unknown(
    process: subprocess.Popen[str],
) -> None:
    boot, namespace, pid, start = identity_of(process).split("/")
    process.kill()
    process.wait()
    assert liveness.has_certainly_died(f"{boot}/{namespace}/{pid}/{start}")
    for elsewhere in (
        f"other/{namespace}/{pid}/{start}",
        f"{boot}/1/{pid}/{start}",
        "",
        pid,
        f"{boot}/{namespace}//{start}",
        f"{pid}/{start}",
    ):
        assert not liveness.has_certainly_died(elsewhere)


def test_without_proc_a_process_has_no_identity_and_none_counts_as_dead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    identity = liveness.process_identity()
    monkeypatch.setattr(liveness, "_BOOT", tmp_path / "nothing")
    assert liveness.process_identity() == ""
    assert not liveness.has_certainly_died(identity.rpartition("/")[0] + "/0")
