"""Plays schedules in several processes: each process plays every n-th seed and reports its
progress. A seed that shows a violation is played again here.

Invariants: results travel back as text, so that the user's classes need not travel. No process
outlives :func:`run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from txtopo import errors
from txtopo.dataplane import worker
from txtopo.testing.contracts.processes import start_python
from txtopo.testing.simulator.simulation import Simulation, SimulationReport
from txtopo.topology import pickling

TELL_EVERY_S = 0.2
LOOK_EVERY_S = 0.1
END_S = 10.0


def run(
    simulation: Simulation,
    conf: Any,
    options: Mapping[str, Any],
    report: SimulationReport,
    seeds: int,
    first_seed: int,
    processes: int,
    goes_on: Callable[[], bool],
) -> SimulationReport:
    """Play ``seeds`` schedules in ``processes``. Results go into ``report`` while schedules are
    still being played."""
    began = time.perf_counter()
    messages: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    children: list[subprocess.Popen[bytes]] = []
    listeners: list[threading.Thread] = []
    played: dict[int, int] = {}
    struck: dict[int, dict[str, int]] = {}
    try:
        for number in range(min(processes, seeds)):
            own_seeds = range(first_seed + number, first_seed + seeds, processes)
            child = _start(pickling.dumps((simulation.topology, conf, dict(options), own_seeds)))
            children.append(child)
            listener = threading.Thread(target=_listen, args=(number, child, messages))
            listener.start()
            listeners.append(listener)
        left = len(children)
        while left and goes_on():
            with contextlib.suppress(queue.Empty):
                number, message = messages.get(timeout=LOOK_EVERY_S)
                if message is None:
                    left -= 1
                    if children[number].wait(END_S):
                        raise errors.UsageError(
                            "a process that played schedules has died\n  Standard error shows why. Leave out -j."
                        )
                    continue
                played[number], struck[number] = message["schedules"], message["faults"]
                report.schedules = sum(played.values())
                report.faults.clear()
                for faults in struck.values():
                    report.faults.update(faults)
                if message["seed"] is not None:
                    report.violation = simulation.run(1, message["seed"]).violation
                    break
        report.is_partial = report.violation is None and left > 0
    finally:
        for child in children:
            child.kill()
            child.wait()
        for listener in listeners:
            listener.join()
        for child in children:
            assert child.stdout is not None
            child.stdout.close()
    report.elapsed_s = time.perf_counter() - began
    return report


def _start(data: bytes) -> subprocess.Popen[bytes]:
    # Ctrl-C reaches this process alone, which then ends the children.
    program = f"from {__name__} import serve; serve()"
    child = start_python(program, start_new_session=True)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(data)
    return child


def _listen(
    number: int,
    child: subprocess.Popen[bytes],
    messages: queue.Queue[tuple[int, dict[str, Any] | None]],
) -> None:
    assert child.stdout is not None
    try:
        for line in child.stdout:
            messages.put((number, json.loads(line)))
    except ValueError:
        # A part of a message, or no message: the process counts as dead.
        child.kill()
    finally:
        messages.put((number, None))


def serve() -> None:
    """Serve as the child process: seeds come by standard input, and are played up to the first that
    shows a violation. Results go by standard output. User code prints to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(seed: int | None) -> None:
        message = {"schedules": report.schedules, "faults": report.faults, "seed": seed}
        print(json.dumps(message), file=answers, flush=True)

    topology, conf, options, seeds = pickling.loads(sys.stdin.buffer.read())
    with worker.seldom_collected(), Simulation(topology, conf, **options) as simulation:
        report, told_at = simulation.report(), 0.0
        for seed in seeds:
            is_found = simulation.shows_a_violation(seed, report)
            if is_found or time.monotonic() - told_at > TELL_EVERY_S:
                told_at = time.monotonic()
                tell(seed if is_found else None)
            if is_found:
                return
        tell(None)
