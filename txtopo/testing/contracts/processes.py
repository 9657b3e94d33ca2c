"""Worker processes: this process, or a new process with its own module globals and its own seed for
Python's ``hash``.

A job's results must not depend on the process: the checkers compare processes.
"""

from __future__ import annotations

import itertools
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from txtopo import errors
from txtopo.dataplane import one_task, wire, worker
from txtopo.dataplane.job import Job, Run
from txtopo.dataplane.wire import Frame
from txtopo.engine.jobs import JobResult
from txtopo.testing import emissions, in_process
from txtopo.testing.contracts import probe
from txtopo.topology import pickling

_END_S = 30.0


@dataclass(frozen=True, slots=True)
class Done:
    """A job's result, with its probed bolts' emits and the number of their points."""

    result: JobResult
    emitted: list[emissions.Emission] = field(default_factory=list)
    points: int = 0


def start_python(
    program: str,
    hash_seed: int | None = None,
    stderr: int | None = None,
    start_new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a Python interpreter with pipes for standard input and output. The interpreter has this
    process's module search path, and its ``hash`` uses ``hash_seed``, if given."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = str(hash_seed)
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        start_new_session=start_new_session,
    )


class Process(Protocol):
    """Computes jobs, one at a time."""

    def run(self, job: Job, seeds: Sequence[Frame] = (), strike: int | None = None) -> Done:
        """Compute ``job`` from ``seeds``. With ``strike`` given, a probed bolt fails at its
        ``strike``-th point."""
        ...

    def close(self) -> None:
        """Close all tasks' resources."""
        ...


class LocalProcess:
    """This process, with its own templates and resources. ``slot_run``, if given, makes the objects
    that compute slots, without a probe."""

    def __init__(self, run: Run, slot_run: one_task.SlotFactory | None = None) -> None:
        self._worker = worker.WorkerRun(run)
        self._slot_run = slot_run or self._probed
        self._task_attempts = itertools.count()

    def _probed(self, *arguments: Any) -> probe.ProbedSlot:
        return probe.ProbedSlot(self._observer, *arguments)

    def run(self, job: Job, seeds: Sequence[Frame] = (), strike: int | None = None) -> Done:
        self._observer = probe.Observer(strike)
        running = in_process.InProcessJob(
            self._worker, job, seeds, None, self._task_attempts, self._slot_run
        )
        result = in_process.run_to_end(running)
        return Done(result, self._observer.emitted, self._observer.points)

    def close(self) -> None:
        self._worker.resources.close()
        wire.forget_classes(self._worker.run.token)


class RemoteProcess:
    """A new Python interpreter whose ``hash`` uses ``hash_seed``."""

    def __init__(self, run: Run, hash_seed: int) -> None:
        self._child = start_python(f"from {__name__} import serve; serve()", hash_seed)
        try:
            answer = self._ask(pickling.dumps(run))
        except BaseException:
            self.close()
            raise
        if isinstance(answer, str):
            self.close()
            raise errors.UsageError(
                f"the topology cannot be made in another process: {answer}\n"
                "  Workers import the bolts' module by name: put the module on the workers' path, or check with other_processes=False."
            )

    def run(self, job: Job, seeds: Sequence[Frame] = (), strike: int | None = None) -> Done:
        answer = self._ask(pickling.dumps((job, list(seeds), strike)))
        if not isinstance(answer, Done):
            raise errors.UsageError(
                f"a job failed in another process: {answer}\n  Emit only values whose classes both processes can import."
            )
        return answer

    def close(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def _ask(self, data: bytes) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            _send(self._child.stdin, data)
            received = _receive(self._child.stdout)
        except BrokenPipeError:
            received = None
        if received is None:
            raise errors.UsageError(
                "the other process died while it ran the topology\n  Read its last words on standard error."
            )
        return pickling.loads(received)


def serve() -> None:
    """Compute jobs in the remote process: jobs come by standard input, results go by standard
    output. User code prints to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    process: LocalProcess | None = None
    while (data := _receive(sys.stdin.buffer)) is not None:
        try:
            if process is None:
                run: Run = pickling.loads(data)
                for component in run.graph.components.values():
                    pickling.loads(component.template)
                process = LocalProcess(run)
                _send(answers, pickling.dumps(None))
            else:
                _send(answers, pickling.dumps(process.run(*pickling.loads(data))))
        except (ImportError, AttributeError, pickle.PickleError, TypeError) as error:
            _send(answers, pickling.dumps(f"{type(error).__name__}: {error}"))
    if process is not None:
        process.close()


def _send(stream: IO[bytes], data: bytes) -> None:
    stream.write(struct.pack(">Q", len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    header = stream.read(8)
    return stream.read(struct.unpack(">Q", header)[0]) if len(header) == 8 else None
