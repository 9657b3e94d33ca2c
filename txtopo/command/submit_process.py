"""Runs spark-submit as a child process: takes over its exit code, and passes signals to the driver.

spark-submit is a JVM, and the driver, a Python process, is its child. If the JVM is told to stop,
it takes the SparkContext away from the driver at once, and loses the commits in flight. So signals
go to the driver alone, which drains, and then the JVM ends. A terminal sends Ctrl-C to every
process in the foreground's group, hence spark-submit has a session of its own.

Runs on: where the command is typed, main thread.

Invariants: spark-submit ends when this process ends, for whatever reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from txtopo import errors
from txtopo.spark import children, jvm_output
from txtopo.state import java

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def run(arguments: Sequence[str], program: str) -> int:
    """Run ``arguments`` to the end, and return the exit code. ``program`` is the file that the
    driver runs: the driver is recognised by this argument."""
    java.require_user()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    parent = os.getpid()
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def end_with_parent() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                # The driver ended before its arguments were read.
                os.kill(os.getpid(), signal.SIGKILL)

    def pass_on(signum: int, frame: FrameType | None = None) -> None:
        if process is None:
            early.append(signum)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver_of(process.pid, program) or process.pid, signum)

    # Before the child starts: otherwise an early signal would end this process, and then the child.
    earlier: dict[int, Any] = {signum: signal.signal(signum, pass_on) for signum in _SIGNALS}
    try:
        output = jvm_output.PassedOn()
        with output as stderr:
            process = subprocess.Popen(
                list(arguments), start_new_session=True, preexec_fn=end_with_parent, stderr=stderr
            )
        for signum in early:
            pass_on(signum)
        code = process.wait()
        output.finish()
    except OSError as error:
        raise errors.SetupError(
            f"{arguments[0]} cannot be run: {error.strerror or error}"
        ) from None
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
    return 128 - code if code < 0 else code


def driver_of(pid: int, program: str) -> int | None:
    """The pid of the child of ``pid`` that runs ``program``, or ``None`` while there is none."""
    # Only the first argument counts: scripts that become the JVM name the file in a later argument.
    named = os.fsencode(program)
    return next(
        (
            child
            for child, arguments in children.children_of(pid).items()
            if arguments[1:2] == (named,)
        ),
        None,
    )
