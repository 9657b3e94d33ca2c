"""Two exporters work beside the simulator's schedules, die, and overtake each other. The target gets
nothing that may be taken back, and ends with the values of a run without failures."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.topologies.simulated import NOWHERE, Committer, spout
from txtopo import Fields, TransactionalTopologyBuilder, TransactionAttempt, errors
from txtopo.engine.surroundings import Action
from txtopo.exports import Exporter, ExportQueue, SequencedExport, leases, upkeep
from txtopo.exports.exporting import Exporting
from txtopo.runtime.visibility import Visibility
from txtopo.state import memory
from txtopo.stores import SqliteStore
from txtopo.stores.visible import VisibleTxid
from txtopo.testing import Simulation
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.driver import Driver
from txtopo.testing.simulator.schedule import Schedule
from txtopo.topology.graph import TopologyGraph

SEEDS = 25
FATES = ("lives", "returns", "dies", "is overtaken")
LONG_S = 2 * leases.PATIENCE_MAX_S


class DiedError(BaseException):
    """The exporter's process is gone."""


class Queueing(Committer):
    """Adds the batch to a store, and queues each new value."""

    def __init__(self, store: SqliteStore, queue: ExportQueue) -> None:
        super().__init__(store)
        self.queue = queue

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            updates = transaction.update_many(self.sums, lambda old, more: (old or 0) + more)
            for key, update in updates.items():
                self.queue.add(transaction, key, update.curr)


def topology(kind: str, buckets: int) -> TopologyGraph:
    store = SqliteStore(NOWHERE, "sums", opaque="opaque" in kind)
    builder = TransactionalTopologyBuilder("exported", "spout", spout(kind, [5, 3], 2), 2)
    bolt = Queueing(store, ExportQueue("sums", store, buckets=buckets))
    builder.set_bolt("sum", bolt, 2).fields_grouping("spout", Fields("key"))
    return builder.build_topology()


class Target(Exporter):
    """The other system. ``recorded`` gives the last recorded txid, and ``strike`` is called before
    each entry is told, and after the last one. It tells whether the call goes on."""

    def __init__(self, recorded: Callable[[], int]) -> None:
        self._recorded = recorded
        self.strike: Callable[[], bool] = lambda: True
        self.values: dict[Any, tuple[int, Any]] = {}
        """By key: sequence and value."""
        self.told: dict[tuple[int, int], tuple[Any, Any]] = {}
        """By bucket and sequence: key and value."""
        self._ends = Counter[int]()
        self.wrong: list[str] = []

    def export(self, entries: Iterator[SequencedExport]) -> None:
        for entry in entries:
            if not self.strike():
                return
            self._take(entry)
        self.strike()

    def _take(self, entry: SequencedExport) -> None:
        if entry.txid > self._recorded():
            self.wrong.append(f"{entry} may be taken back")
        now = (entry.key, entry.value)
        before = self.told.setdefault((entry.bucket, entry.sequence), now)
        if before != now:
            self.wrong.append(f"{entry} had {before}")
        if before is now and entry.sequence < self._ends[entry.bucket]:
            self.wrong.append(f"{entry} comes after a newer one for the first time")
        self._ends[entry.bucket] = max(self._ends[entry.bucket], entry.sequence)
        if entry.sequence > self.values.get(entry.key, (0, None))[0]:
            self.values[entry.key] = (entry.sequence, entry.value)


class Exported(Schedule):
    """A schedule with two exporters. If they are ``hasty``, they take the next transaction for
    recorded, too, which is wrong."""

    def __init__(self, simulation: Simulation, seed: int, hasty: bool = False) -> None:
        super().__init__(simulation.subject, simulation._decisions_of(seed))
        self.queue = queue_of(simulation)
        self.target = Target(lambda: self.world.commits)
        self.fates = Counter[str]()
        self._rng, self._hasty, self._looked = random.Random(seed), hasty, 0
        self._zookeeper = memory.MemoryStateStore(self.world.server)
        self._visibility = Visibility(self.subject.graph.id, data_dir=NOWHERE)
        self._fates = itertools.cycle([*FATES[seed % 4 :], *FATES[: seed % 4]])
        self._ahead_s = [0.0, 0.0]
        self._exporters = [self._begin(0), self._begin(1)]

    def _begin(self, number: int) -> Exporting:
        def clock() -> float:
            return self.world.now + self._ahead_s[number]

        return Exporting(self.queue, self.target, self._visible, clock=clock)

    def _visible(self) -> VisibleTxid:
        seen = self._visibility._read(self._zookeeper)
        if not self._hasty:
            return seen
        stores = {
            name: TransactionAttempt(last.txid + 1, last.attempt_id)
            for name, last in seen.stores.items()
        }
        return VisibleTxid(seen + 1, seen.topology_id, seen.generation, stores, seen.restored)

    def _possible(self, alive: list[Driver]) -> list[tuple[Driver | None, Action]]:
        steps = super()._possible(alive)
        if self.world.commits > self._looked:
            steps.append((None, self._export))
        return steps

    def _export(self) -> None:
        """Let one exporter work, until it dies, is overtaken, or has told all."""
        number, left = self._rng.randrange(2), self._rng.randrange(5)
        fate = next(self._fates)

        def strike() -> bool:
            nonlocal left
            left -= 1
            if left >= 0:
                return True
            self.target.strike = lambda: True
            self.fates[fate] += 1
            if fate == "dies":
                raise DiedError
            if fate == "is overtaken":
                self._step(1 - number)
                self._ahead_s[1 - number] += LONG_S
                self._step(1 - number)
            return fate != "returns"

        self.target.strike = strike
        commits = self.world.commits
        if not self._step(number):
            self._looked = commits
        self.target.strike = lambda: True

    def _step(self, number: int) -> bool:
        self._ahead_s[number] += self._rng.choice((0, leases.BEAT_S, LONG_S))
        try:
            return self._exporters[number].step()
        except DiedError:
            self._exporters[number] = self._begin(number)
        except errors.FailedException:  # a fault of the store
            self.fates["waits"] += 1
        return True

    def export_the_rest(self) -> None:
        for _ in range(20):
            self._step(0)
            self._ahead_s[0] += LONG_S
        assert self._exporters[0].is_empty()


def queue_of(simulation: Simulation) -> ExportQueue:
    (queue,) = (each for each in simulation.subject.stores if isinstance(each, ExportQueue))
    return queue


@pytest.mark.parametrize("kind", ["planned", "storm", "opaque", "planned opaque"])
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.rule(31)
def test_a_target_gets_what_is_recorded_and_ends_with_the_values_of_the_store(
    kind: str, buckets: int
) -> None:
    with Simulation(topology(kind, buckets), {"max_spout_pending": 3}) as simulation:
        Schedule(simulation.subject, Decisions(), is_patient=True).play()
        queue = queue_of(simulation)
        entries = {
            (entry.bucket, entry.sequence): (entry.key, entry.value)
            for entry in upkeep.entries_of(queue)
        }
        values, fates = dict(queue.store.items()), Counter[str]()
        for seed in range(SEEDS):
            schedule = Exported(simulation, seed)
            assert schedule.play().error is None
            schedule.export_the_rest()
            target = schedule.target
            assert not target.wrong, f"seed {seed}"
            assert {key: value for key, (_, value) in target.values.items()} == values
            if "opaque" not in kind:
                assert target.told == entries
            fates += schedule.fates
    assert all(fates[fate] for fate in FATES), fates


def test_exporters_that_do_not_wait_for_the_record_are_noticed() -> None:
    with Simulation(topology("opaque", 3), {"max_spout_pending": 3}) as simulation:
        schedules = [Exported(simulation, seed, hasty=True) for seed in range(SEEDS)]
        for schedule in schedules:
            schedule.play()
    wrong = [line for schedule in schedules for line in schedule.target.wrong]
    assert any("may be taken back" in line for line in wrong)
