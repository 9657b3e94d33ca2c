"""spark-submit as a child: its exit code is ours, signals reach the driver and not the JVM, and it
does not outlive us. Two small programs stand for the JVM and the driver."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes import owners
from txtopo import SetupError
from txtopo.command import submit_process

JVM = """
import os, signal, subprocess, sys, threading
def asked(signum, frame):
    os.write(1, b"jvm asked\\n")
    os._exit(128 + signum)
signal.signal(signal.SIGTERM, asked)
os.write(1, b"jvm %d\\n" % os.getpid())
program = sys.argv[1]
if program != "none":
    # As the scripts that become the JVM do, it has a child with the program somewhere among its arguments.
    script = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", "script", program], stdin=subprocess.PIPE)
    sys.exit(subprocess.call([sys.executable, program, "run"]))
while True:
    threading.Event().wait(0.1)  # A signal may come just before a pause.
"""

DRIVER = """
import os, signal, sys, threading
def asked(signum, frame):
    os.write(1, b"driver asked %d\\n" % signum)
    os._exit(7)
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, asked)
os.write(1, b"driver %d\\n" % os.getpid())
while True:
    threading.Event().wait(0.1)
"""

COMMAND = "import sys; from txtopo.command import submit_process; sys.exit(submit_process.run([sys.executable, *sys.argv[1:]], sys.argv[2]))"

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command, with a JVM that runs a program."""
    started: list[subprocess.Popen[bytes]] = []
    (tmp_path / "jvm.py").write_text(JVM)
    (tmp_path / "driver.py").write_text(DRIVER)

    def begin(program: str) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", COMMAND, tmp_path / "jvm.py", program],
                stdout=subprocess.PIPE,
                bufsize=0,
            )
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def line(process: subprocess.Popen[bytes]) -> list[str]:
    """The next line it writes, as words."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], PATIENCE_S)[0], "it writes nothing"
    return process.stdout.readline().decode().split()


@pytest.mark.parametrize("code", [0, 1, 6, 130, 143])
def test_the_exit_code_is_passed_on(code: int) -> None:
    assert submit_process.run(["/bin/sh", "-c", f"exit {code}"], "program") == code


def test_an_end_by_a_signal_is_the_code_a_shell_would_say() -> None:
    assert submit_process.run(["/bin/sh", "-c", "kill -9 $$"], "program") == 128 + signal.SIGKILL


def test_a_program_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="spark-submit cannot be run: No such file or directory"):
        submit_process.run([str(tmp_path / "spark-submit")], "program")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_to_the_driver_and_not_to_the_jvm(
    start: Start, tmp_path: Path, signum: int
) -> None:
    command = start(str(tmp_path / "driver.py"))
    assert line(command)[0] == "jvm"
    assert line(command)[0] == "driver"
    command.send_signal(signum)
    assert line(command) == ["driver", "asked", str(int(signum))]
    assert line(command) == []
    assert command.wait(PATIENCE_S) == 7


def test_a_signal_before_there_is_a_driver_ends_the_jvm(start: Start) -> None:
    command = start("none")
    assert line(command)[0] == "jvm"
    command.send_signal(signal.SIGTERM)
    assert line(command) == ["jvm", "asked"]
    assert command.wait(PATIENCE_S) == 143


def test_the_jvm_does_not_outlive_the_command(start: Start, tmp_path: Path) -> None:
    command = start(str(tmp_path / "driver.py"))
    _, jvm = line(command)
    _, driver = line(command)
    try:
        command.kill()
        assert line(command) == ["jvm", "asked"]
        assert owners.has_ended(int(jvm))
    finally:
        os.kill(int(driver), signal.SIGKILL)


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    assert submit_process.run(["/bin/true"], "program") == 0
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before
