"""Does a batch come out the same when another process computes it? Asked of processes with another ``PYTHONHASHSEED``.

Within one process ``hash()`` never changes, so no schedule can show that something depends on it. Here the topology runs without failures in
fresh interpreters, with different seeds; and if the results differ, once more with the same one, to tell ``hash()`` from clocks and dice.

Apart from ``simulation`` because it costs a second, not milliseconds. Run as a module it is that other process.

Invariants: what travels back is text, so that classes of the user's need not.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from txtopo import config, errors
from txtopo.testing.simulator import mistakes
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.diagnosis import Diagnosis
from txtopo.testing.simulator.outcome import Difference, Outcome, differences, shown
from txtopo.testing.simulator.schedule import Schedule
from txtopo.testing.simulator.subject import Subject
from txtopo.testing.simulator.violation import Violation
from txtopo.topology import pickling
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import TransactionAttempt

HASH_SEEDS = (1, 2)
TIMEOUT_S = 300.0

Place = tuple[int, str, int]
"""(txid, component, task)."""


@dataclass(slots=True)
class Recomputed:
    """What one process made of the topology: per task what it took and what it emitted, sorted."""

    outcome: Outcome
    taken: dict[Place, list[str]] = field(default_factory=dict)
    emitted: dict[Place, list[str]] = field(default_factory=dict)


class _LookingOn:
    """A watch that has the schedule write everything down."""

    def around(
        self, schedule: Schedule, component: str, task: int, hook: str, phase: str, attempt: TransactionAttempt
    ) -> AbstractContextManager[None]:
        """Nothing more."""
        return contextlib.nullcontext()


def check_recomputation(
    topology: TopologyGraph,
    conf: config.Config | Mapping[str, Any] | None,
    transactions: int,
    effects: Callable[[], Any] | None,
    reset: Callable[[], None] | None,
) -> Violation | None:
    """A violation if processes with different hash seeds make different things of ``topology`` without any failure."""
    payload = pickling.dumps((topology, conf, transactions, effects, reset))
    first, second = (_in_process(payload, seed) for seed in HASH_SEEDS)
    found = _compare(topology, first, second)
    if not found:
        return None
    by_itself = bool(_compare(topology, first, _in_process(payload, HASH_SEEDS[0])))
    mistake = mistakes.CHANGES_BY_ITSELF if by_itself else mistakes.HASH
    component = next((difference.component for difference in found if difference.component is not None), None)
    return Violation(topology.id, None, tuple(found), Diagnosis(component, (mistake,)))


def _in_process(payload: bytes, hash_seed: int) -> Recomputed:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": path}
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=payload, capture_output=True, env=environment, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise errors.UsageError(f"the topology cannot be computed in another process:\n{done.stderr.decode(errors='replace').rstrip()}")
    recomputed: Recomputed = pickle.loads(done.stdout)
    return recomputed


def recompute(payload: bytes) -> Recomputed:
    """In the other process: run the topology without failures."""
    topology, conf, transactions, effects, reset = pickling.loads(payload)
    subject = Subject(topology, conf, transactions=transactions, effects=effects, reset=reset)
    try:
        schedule = Schedule(subject, Decisions(), watch=_LookingOn())
        recomputed = Recomputed(schedule.play())
        taken: dict[Place, list[str]] = defaultdict(list)
        emitted: dict[Place, list[str]] = defaultdict(list)
        for txid, tuples in schedule.executed.items():
            for component, task, source, stream, values in tuples:
                taken[txid, component, task].append(f"{source}/{stream}: {shown(values)}")
        for txid, emissions in schedule.emitted.items():
            for component, task, stream, values in emissions:
                emitted[txid, component, task].append(f"{stream}: {shown(values)}")
        recomputed.taken = {place: sorted(rows) for place, rows in taken.items()}
        recomputed.emitted = {place: sorted(rows) for place, rows in emitted.items()}
        return recomputed
    finally:
        subject.close()


def _compare(topology: TopologyGraph, first: Recomputed, second: Recomputed) -> list[Difference]:
    """A task that took the same and emitted something else; or, if there is none, results that differ."""
    culprits = list(_culprits(topology, first, second))
    return culprits or differences(second.outcome, first.outcome, compares_outputs=topology.spout.spout_kind != "opaque")


def _culprits(topology: TopologyGraph, first: Recomputed, second: Recomputed) -> Iterator[Difference]:
    order = list(topology.components)
    for place in sorted(first.emitted.keys() | second.emitted.keys(), key=lambda place: (order.index(place[1]), place)):
        txid, component, task = place
        ours, theirs = first.emitted.get(place, []), second.emitted.get(place, [])
        is_opaque_spout = component == topology.spout.id and topology.spout.spout_kind == "opaque"
        if ours != theirs and first.taken.get(place) == second.taken.get(place) and not is_opaque_spout:
            what = f"what task {task} of {component!r} makes of the same tuples of transaction {txid} in another process"
            yield Difference(what, _short(theirs), _short(ours), component)


def _short(rows: list[str]) -> str:
    text = ", ".join(row.removeprefix("default: ") for row in rows) or "nothing"
    return text if len(text) <= 120 else text[:117] + "..."


if __name__ == "__main__":
    # As __main__ this module is not the one whose classes the parent knows.
    from txtopo.testing.simulator import recomputation

    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    results.write(pickle.dumps(recomputation.recompute(sys.stdin.buffer.read())))
    results.close()
