"""The journal tells what the coordinators did, under any schedule of the simulator, and being
watched changes no schedule."""

from __future__ import annotations

from typing import Any

import pytest

from tests.topologies.simulated import generated
from tests.unit.test_journal import counts
from txtopo import TransactionAttempt
from txtopo.engine.engine import Engine
from txtopo.engine.observer import EndedAttempt, Observer
from txtopo.journal import fold, records
from txtopo.journal.records import Record
from txtopo.testing import Simulation
from txtopo.testing.simulator import driver as drivers
from txtopo.testing.simulator.schedule import Schedule

SEEDS = 3
FAILED = ("failed", "timeout", "crash", "fatal")
FACTS: Record = {"host": "simulated", "pid": 0}


class Kept(Observer):
    """Keeps the lines that a run's journal would have."""

    def __init__(self, lines: list[Record], number: int) -> None:
        self._lines, self._facts = lines, {**FACTS, "pid": number}

    def began(self, generation: str, epoch: int, current: int, is_resumed: bool) -> None:
        self._keep(records.run_began(self._facts, 0.0, generation, epoch, current, is_resumed))

    def attempt_ended(self, ended: EndedAttempt) -> None:
        self._keep(records.attempt(ended, 0.0, "full"))

    def committed(self, ended: EndedAttempt) -> None:
        self.attempt_ended(ended)

    def _keep(self, record: Record) -> None:
        self._lines.append(records.decode(records.encode(record)))


def play(
    simulation: Simulation, seed: int, patch: pytest.MonkeyPatch, lines: list[list[Record]] | None
) -> tuple[list[str], Any]:
    """The trace and the end of one schedule. The journals go to ``lines``, one for each driver, in
    the order of the drivers."""

    def engine(run: Any, conf: Any, jobs: Any, state: Any, none: Any, *more: Any) -> Engine:
        observers = []
        if lines is not None:
            lines.append([])
            observers.append(Kept(lines[-1], len(lines)))
        return Engine(run, conf, jobs, state, observers, *more)

    trace: list[str] = []
    schedule = Schedule(simulation.subject, simulation._decisions_of(seed), trace.append)
    with patch.context() as patched:
        patched.setattr(drivers, "Engine", engine)
        schedule.play()
    return trace, (schedule.world.commits, schedule.world.decisions.written_down())


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.thorough] * (n > 5)) for n in range(60)]
)
def test_the_journal_has_each_commit_once_and_each_discarded_attempt_names_a_failed_one(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = generated(number)
    with Simulation(topology, {"max_spout_pending": 1 + number % 3}) as simulation:
        for seed in range(SEEDS):
            journals: list[list[Record]] = []
            watched = play(simulation, seed, monkeypatch, journals)
            assert watched == play(simulation, seed, monkeypatch, None)
            trace, (commits, _) = watched
            lines = [record for journal in journals for record in journal]
            view = fold.fold(lines, current=commits + 1)
            recorded = {txid for txid, each in view.transactions.items() if each.committed}
            # A driver that died between the record in ZooKeeper and its news leaves a hole.
            in_holes = {t for first, last in view.holes(1, commits) for t in range(first, last + 1)}
            assert (recorded | in_holes, recorded & in_holes) == ({*range(1, commits + 1)}, set())
            assert len(in_holes) <= sum("dies" in line for line in trace)
            for each in view.transactions.values():
                outcomes = [attempt["outcome"] for attempt in each.attempts]
                assert outcomes.count("committed") <= 1
            for journal in journals:
                check_attempts([record for record in journal if record["kind"] == "attempt"])
            outcomes = [record.get("outcome") for record in lines]
            failed = sum(outcomes.count(kind) for kind in FAILED)
            assert counts(view)[1:] == (failed, outcomes.count("behind"))


def check_attempts(attempts: list[Record]) -> None:
    """One driver's attempts: each txid's ascend, the committed one is the last, and a commit has
    its steps, its counts and its batch."""
    newest: dict[int, TransactionAttempt] = {}
    failures = {
        f"{record['txid']}:{record['attempt']}"
        for record in attempts
        if record["outcome"] in (*FAILED, "outgrown")
    }
    for number, record in enumerate(attempts):
        if record["outcome"] == "abandoned":
            later = attempts[number:]
            assert all(each["txid"] <= record["txid"] for each in later), "the run was stopping"
        attempt = TransactionAttempt(record["txid"], record["attempt"])
        assert newest.get(attempt.txid, TransactionAttempt(attempt.txid, -1)) < attempt
        newest[attempt.txid] = attempt
        assert (record["outcome"] == "behind") == ("because_of" in record)
        if record["outcome"] == "behind":
            assert record["because_of"] in failures
            assert int(record["because_of"].partition(":")[0]) < attempt.txid
        if record["outcome"] == "committed":
            assert list(record["steps"])[-3:] == ["sealing", "applying", "recording"]
            assert record["meta"] is not None
            assert record["executed"].keys() == record["emitted"].keys()
