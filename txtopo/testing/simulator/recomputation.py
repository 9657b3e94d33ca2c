"""Computes a topology in two interpreters with different ``PYTHONHASHSEED``: each batch must come
out the same.

Within one process ``hash()`` never changes, so no schedule can show that results depend on
``hash()``. Here the topology runs in fresh interpreters, without failures and then in a few
schedules, the same in both. From equal tuples a task must make equal results, and a tuple must go
to the same task. After a difference the topology is computed once more with the first hash seed, to
tell ``hash()`` from dice.

A process costs a second, not milliseconds, so each process plays all schedules for its hash seed.

Invariants: results travel back as text, so that the user's classes need not travel.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from txtopo import errors
from txtopo.testing.contracts import processes
from txtopo.testing.simulator import blame, mistakes
from txtopo.testing.simulator.clues import Clue
from txtopo.testing.simulator.decisions import Chance, Decisions
from txtopo.testing.simulator.diagnosis import Diagnosis
from txtopo.testing.simulator.outcome import Difference, Outcome, differences, shown
from txtopo.testing.simulator.schedule import Schedule
from txtopo.testing.simulator.subject import Subject
from txtopo.testing.simulator.violation import Violation
from txtopo.testing.simulator.world import null_watch
from txtopo.topology import pickling
from txtopo.topology.graph import TopologyGraph

HASH_SEEDS = (1, 2)
SCHEDULES = 6
"""How many schedules are played in each process, beside the schedule without failures."""
TIMEOUT_S = 300.0


@dataclass(slots=True)
class Recomputed:
    """One process's results in one schedule, as text."""

    outcome: Outcome
    """Values are text."""
    recorded: blame.Recording
    """The tuples that every task took and emitted."""


class _Text(str):
    """A value as text that shows itself without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def check_recomputation(subject: Subject) -> Violation | None:
    """Compare processes with different hash seeds: different results from the subject's topology
    are a violation."""
    topology, effects, reset = subject.topology, subject.effects, subject.reset
    payload = pickling.dumps((topology, subject.conf, subject.transactions, effects, reset))
    # Effects outside the simulation exist once, so one process at a time writes and reads them.
    alone = effects is not None or reset is not None
    first, second = _in_processes(payload, HASH_SEEDS, alone)
    differing = _compare(topology, first, second)
    if not differing:
        return None
    (again,) = _in_processes(payload, HASH_SEEDS[:1], alone)
    by_itself = _compare(topology, first, again)
    differing = by_itself or differing
    component = next(
        (difference.component for difference in differing if difference.component is not None), None
    )
    diagnosis = _diagnosis(subject, component, bool(by_itself))
    return Violation(topology.id, None, tuple(differing), diagnosis)


def _diagnosis(subject: Subject, component: str | None, by_itself: bool) -> Diagnosis:
    """Diagnose ``component``. The results also differ with the same hash seed if they differ
    ``by_itself``."""
    known = subject.clues_of(component) if component is not None else {}
    clue: Clue | None = (
        next((clue for clue in known if clue != "hash"), None) if by_itself else "hash"
    )
    mistake = mistakes.CHANGES_BY_ITSELF if clue is None else mistakes.BY_CLUE[clue]
    return Diagnosis(
        component, (mistake,), (known[clue],) if clue is not None and clue in known else ()
    )


def _in_processes(payload: bytes, hash_seeds: Sequence[int], alone: bool) -> list[list[Recomputed]]:
    """Compute the results in a process for each hash seed. The processes run side by side unless
    each must run ``alone``."""
    with concurrent.futures.ThreadPoolExecutor(1 if alone else len(hash_seeds)) as threads:
        return list(threads.map(functools.partial(_in_process, payload), hash_seeds))


def _in_process(payload: bytes, hash_seed: int) -> list[Recomputed]:
    with processes.start_python(
        f"from {__name__} import serve; serve()", hash_seed, stderr=subprocess.PIPE
    ) as child:
        try:
            results, complaints = child.communicate(payload, TIMEOUT_S)
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise errors.UsageError(
            f"the topology cannot be computed in another process:\n{complaints.decode(errors='replace').rstrip()}"
        )
    recomputed: list[Recomputed] = pickle.loads(results)
    return recomputed


def recompute(payload: bytes) -> list[Recomputed]:
    """Run in a child process: play the topology without failures, and in a few schedules."""
    topology, conf, transactions, effects, reset = pickling.loads(payload)
    subject = Subject(topology, conf, transactions=transactions, effects=effects, reset=reset)
    with contextlib.closing(subject):
        decisions = Decisions()
        played = [_play(subject, decisions)]
        chances = [Chance.of(seed, decisions.opportunities) for seed in range(SCHEDULES)]
        return [*played, *(_play(subject, Decisions(chance=chance)) for chance in chances)]


def _play(subject: Subject, decisions: Decisions) -> Recomputed:
    schedule = Schedule(subject, decisions, watch=null_watch)
    outcome = schedule.play()
    outcome.stores = {
        address: {_Text(shown(key)): _Text(shown(value)) for key, value in values.items()}
        for address, values in outcome.stores.items()
    }
    outcome.writers = {
        (address, _Text(shown(key))): component
        for (address, key), component in outcome.writers.items()
    }
    return Recomputed(outcome, schedule.recording())


def _compare(
    topology: TopologyGraph, first: Sequence[Recomputed], second: Sequence[Recomputed]
) -> list[Difference]:
    """Find the differences at the first component to blame. Without such a component, return all
    results that differ."""
    for ours, theirs in zip(first, second, strict=True):
        blamed = blame.first_to_differ(topology, theirs.recorded, ours.recorded, also_routes=True)
        if blamed is not None and blamed.txid in _comparable(
            topology, ours.outcome, theirs.outcome
        ):
            return [
                dataclasses.replace(difference, place=f"{difference.place} in another process")
                for difference in blamed.differences
            ]
    if topology.spout_traits.is_opaque or first[0].outcome.batches != second[0].outcome.batches:
        return []
    return differences(second[0].outcome, first[0].outcome, compares_outputs=True)


def _comparable(topology: TopologyGraph, ours: Outcome, theirs: Outcome) -> Iterator[int]:
    """Yield the transactions before the first batch that may rightly differ. Later results may all
    differ."""
    spout = topology.spout.id
    for txid in sorted(ours.emitted.keys() & theirs.emitted.keys()):
        is_other = (
            topology.spout_traits.is_opaque
            and ours.emitted[txid][spout] != theirs.emitted[txid][spout]
        )
        if is_other or ours.batches.get(txid) != theirs.batches.get(txid):
            return
        yield txid


def serve() -> None:
    """Serve as the child process: a topology comes by standard input, results go by standard
    output. User code prints to standard error."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    results.write(pickle.dumps(recompute(sys.stdin.buffer.read())))
    results.close()
