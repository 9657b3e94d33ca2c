"""A contender in a fresh process: started, asked for one block of work after the other, ended.

Blocks of several contenders can then take turns, although each contender has a Spark of its own,
started and warmed up once. The two sides talk in lines of JSON over the child's standard input and
output; other output of the child (Spark prints some) goes to a log file.

Invariants: a child ends when its parent closes the pipe or dies; a child that does not answer in
time is killed with everything it started.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parent.parent
BLOCK_S_MAX = 300.0
"""How long one block may take before its contender is taken to hang."""
CLOSE_S_MAX = 30.0
_LOG_TAIL_LINES = 15

Sample = dict[str, Any]
"""What one block measured. ``seconds`` is there always."""


class Contender(Protocol):
    """What runs in the child. Made with keyword settings, after which ``directory`` holds the files
    it may use."""

    def block(self, **arguments: Any) -> Sample:
        """Do a block of work, check its result, and say how long it took."""

    def close(self) -> None:
        """Let go of everything."""


class BlockFailedError(Exception):
    """A contender raised, hung or died; the text quotes its last words."""


class ContenderProcess:
    """The parent's side. ``contender`` is ``module:Class``."""

    def __init__(
        self,
        contender: str,
        settings: Mapping[str, Any],
        directory: Path,
        block_s_max: float = BLOCK_S_MAX,
        python: str = sys.executable,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._contender, self._block_s_max = contender, block_s_max
        self._log = directory / "log.txt"
        command = [
            python,
            "-m",
            "bench.process",
            contender,
            json.dumps({**settings, "directory": str(directory)}),
        ]
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The child."""
        return self._child.pid

    def block(self, **arguments: Any) -> Sample:
        """One block, checked by the child."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        watch = threading.Timer(self._block_s_max, self._kill)
        watch.daemon = True
        watch.start()
        try:
            self._child.stdin.write(json.dumps(arguments) + "\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            watch.cancel()
        if not answer:
            raise BlockFailedError(
                f"{self._contender} died, or did not answer for {self._block_s_max:.0f} s; its log ends with\n{self._said()}"
            )
        said: Sample = json.loads(answer)
        if "error" in said:
            raise BlockFailedError(f"{self._contender}: {said['error']}")
        return said

    def close(self) -> None:
        """End the child and all processes it has started."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(CLOSE_S_MAX)
        self._kill()
        self._child.wait()

    def _kill(self) -> None:
        # The child leads a process group of its own, so that the signal reaches its JVMs too, and
        # no other process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _said(self) -> str:
        return "\n".join(
            self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        )

    def __enter__(self) -> ContenderProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def serve(contender: str, settings: Mapping[str, Any]) -> None:
    """The child's side: answer until the parent has no more questions."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, name = contender.partition(":")
    running: Contender | None = None
    try:
        for question in sys.stdin:
            try:
                if running is None:
                    running = getattr(importlib.import_module(module), name)(**settings)
                answer = json.dumps(running.block(**json.loads(question)))
            except BaseException:
                answer = json.dumps({"error": traceback.format_exc()})
            answers.write(answer + "\n")
            answers.flush()
    finally:
        if running is not None:
            running.close()


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
