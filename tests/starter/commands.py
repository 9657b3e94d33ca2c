"""Commands in processes of their own: started in a directory, watched while they run, and ended
with the test."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
STARTERS = ROOT / "starter"
BIN = Path(sys.executable).parent

PATIENCE_S = 90.0
"""How long anything may take that is waited for; a Spark on a busy machine starts within 20 s."""


class Command:
    """A running command; its output is read as it comes, standard error into standard output.
    """

    def __init__(self, arguments: Sequence[str | Path], place: Path, **environment: str) -> None:
        """``arguments[0]`` is a program beside the running interpreter: python, txtopo or
        spark-submit."""
        self._process = subprocess.Popen(
            [str(BIN / arguments[0]), *map(str, arguments[1:])],
            cwd=place,
            env={**_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.said = ""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_until_it_says(self, text: str) -> None:
        """Until ``text`` has been written."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.said:
            assert self._read(deadline), f"never said {text!r}, but:\n{self.said}"

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until ``condition`` holds; the command must go on meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._process.poll() is None, f"ended, having said:\n{self.said}"
            assert time.monotonic() < deadline, f"waited in vain; it said:\n{self.said}"
            self._read(time.monotonic() + 0.05)

    def signal(self, signum: int) -> None:
        """Send it to the process alone."""
        self._process.send_signal(signum)

    def wait(self) -> int:
        """Until it has ended; its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"still running, having said:\n{self.said}"
            self._read(time.monotonic() + 0.2)
        while self._read(time.monotonic()):
            pass
        return self._process.returncode

    def _read(self, deadline: float) -> bool:
        """More output, if there is any until ``deadline``."""
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], max(deadline - time.monotonic(), 0))[0]:
            return False
        data = os.read(output.fileno(), 65536)
        self.said += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def done(arguments: Sequence[str | Path], place: Path, exit_code: int = 0, **environment: str) -> str:
    """The output of the command, which must have ended with ``exit_code``."""
    with Command(arguments, place, **environment) as command:
        ended = command.wait()
        assert ended == exit_code, f"exit code {ended}:\n{command.said}"
        return command.said


def _environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_", "TXTOPO_"))}
    # spark-submit and Spark's workers take the first Python they find.
    return {**ours, "PATH": f"{BIN}{os.pathsep}{ours.get('PATH', '')}", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
