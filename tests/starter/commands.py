"""Commands in processes of their own: started in a directory, watched while they run, and ended
with the test."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import quick_java
from tests.patience import PATIENCE_S, OutOfPatience, wait_until
from tests.processes import owners

ROOT = Path(__file__).resolve().parents[2]
STARTERS = ROOT / "starter"
BIN = Path(sys.executable).parent
LOOK_S = 0.05
"""The pause between two looks at a condition, unless there is output."""


class Command:
    """A running command; its output is read as it comes, standard error into standard output."""

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
        """Until ``text`` has been written; the command must go on meanwhile."""
        self.wait_until(lambda: text in self.said, repr(text))

    def wait_until(self, condition: Callable[[], bool], event: str = "a condition") -> None:
        """Until ``condition`` holds; the command must go on meanwhile."""

        def holds() -> bool:
            has_ended = self._process.poll() is not None
            self._listen()
            if condition():
                return True
            assert not has_ended, f"ended without {event}, having said:\n{self.said}"
            return False

        self._wait(holds, event)

    def signal(self, signum: int) -> None:
        """Send it to the process alone."""
        self._process.send_signal(signum)

    def suspend(self) -> None:
        """SIGSTOP to the process alone; returns when it stands still."""
        self.signal(signal.SIGSTOP)
        owners.wait_until_suspended(self.pid)

    def wait(self) -> int:
        """Until it has ended; its exit code."""

        def has_ended() -> bool:
            is_over = self._process.poll() is not None
            self._listen()
            return is_over

        self._wait(has_ended, "its end")
        return self._process.returncode

    def _wait(self, condition: Callable[[], bool], event: str) -> None:
        try:
            wait_until(condition, event)
        except OutOfPatience as error:
            raise OutOfPatience(f"{error}; it said:\n{self.said}") from None

    def _listen(self) -> None:
        """Read its output so far, all of it if the command has ended; wait a moment for more."""
        output, wait_s = self._process.stdout, LOOK_S
        assert output is not None
        while select.select([output], [], [], wait_s)[0] and (
            data := os.read(output.fileno(), 65536)
        ):
            self.said, wait_s = self.said + data.decode(errors="replace"), 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def done(
    arguments: Sequence[str | Path], place: Path, exit_code: int = 0, **environment: str
) -> str:
    """The output of the command, which must have ended with ``exit_code``."""
    with Command(arguments, place, **environment) as command:
        ended = command.wait()
        assert ended == exit_code, f"exit code {ended}:\n{command.said}"
        return command.said


def _environment() -> dict[str, str]:
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "TXTOPO_"))
    }
    ours |= {name: os.environ[name] for name in (quick_java.OF_SPARK, quick_java.OF_LAUNCHER)}
    # spark-submit and Spark's workers take the first Python they find.
    return {
        **ours,
        "PATH": f"{BIN}{os.pathsep}{ours.get('PATH', '')}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
