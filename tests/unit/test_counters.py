"""``context.count``: each committed attempt counts once, after any replay and crash; refused names
and numbers; bounds."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests import local_engine
from tests.local_engine import Died, Dying
from tests.servers.clusters import Journal
from tests.topologies.columns import NotingArrowCommitter
from tests.topologies.recording import NotingBolt, NotingCommitter, builder, rows, run_once
from tests.topologies.spouts import Keep
from tests.topologies.step_spouts import SPOUTS, Source
from txtopo import TopologyContext, TransactionalTopologyBuilder, UsageError
from txtopo.dataplane.outcome import Tally
from txtopo.engine.counter_names import CounterNames
from txtopo.engine.observer import EndedAttempt, Observer
from txtopo.state.memory import MemoryStateStore
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryStore
from txtopo.testing.simulator.simulation import Simulation
from txtopo.topology import counters
from txtopo.topology.counters import NAMES_MAX, OTHER

NUMBERS = 40
"""How many numbers a source's partition has."""


class Counting(Keep):
    """Counts rows while executing, and commits in the commit phase."""

    def execute(self, tup: Any) -> None:
        self.context.count("numbers")
        super().execute(tup)

    def finish_batch(self) -> None:
        super().finish_batch()
        self.context.count("commits")
        self.fail_once("counted")


def counting_spout(kind: str, source: Source) -> Any:
    """A spout that counts its emitters."""

    def get_emitter(self: Any, conf: Any, context: TopologyContext) -> Any:
        context.count("emitters")
        return super(spout, self).get_emitter(conf, context)

    spout: Any = type("Spout", (SPOUTS[kind],), {"get_emitter": get_emitter})
    return spout(source)


class Sums(Observer):
    """The counters of committed attempts, by transaction."""

    def __init__(self) -> None:
        self.by_txid: dict[int, Any] = {}
        self.discarded = 0

    def committed(self, ended: EndedAttempt) -> None:
        assert ended.attempt.txid not in self.by_txid
        self.by_txid[ended.attempt.txid] = ended.counters

    def attempt_ended(self, ended: EndedAttempt) -> None:
        assert ended.counters == {}
        self.discarded += 1

    def total(self, component: str, name: str) -> int:
        return sum(each[component][name] for each in self.by_txid.values())


class Scene:
    """A topology whose spout and committer count, and whose attempts fail in both phases."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory, self.kind = directory, kind
        self.state, self.sums = MemoryStateStore(), Sums()
        self.store = SqliteStore(directory / "kept.db", "kept", opaque=True)

    def run(self, surroundings: Dying, life: int, **settings: Any) -> None:
        """Run until the input is exhausted."""
        source = Source(self.directory / "spouts", NUMBERS, life)
        spout = counting_spout(self.kind, source)
        topology = TransactionalTopologyBuilder("topology", "numbers", spout, 2)
        keep = Counting(
            self.store, Journal(self.directory / "journal"), ((2, "counted"), (3, "execute"))
        )
        topology.set_bolt("keep", keep).global_grouping("numbers")
        local_engine.run_to_idle(
            topology.build_topology(), self.state, surroundings, [self.sums], **settings
        )

    @property
    def kept(self) -> dict[int, int]:
        """By transaction, how many numbers the store has."""
        items: list[tuple[Any, Any]] = [*self.store.items()]
        return {key[1]: len(ns) for key, ns in items if key != "total"}


@pytest.mark.parametrize("small_transaction_s", [0.0, 3600.0])
@pytest.mark.parametrize("kind", SPOUTS)
def test_replayed_transactions_count_once_from_every_spout_in_every_job(
    tmp_path: Path, kind: str, small_transaction_s: float
) -> None:
    scene = Scene(tmp_path, kind)
    scene.run(Dying(None, 0), 1, small_transaction_s=small_transaction_s)
    sums = scene.sums
    assert {txid: each["keep"]["numbers"] for txid, each in sums.by_txid.items()} == scene.kept
    assert sums.total("keep", "commits") == len(sums.by_txid)
    assert sums.total("numbers", "emitters") == 2 * len(sums.by_txid)
    assert sums.discarded >= 2


@pytest.mark.parametrize("point", local_engine.POINTS)
def test_a_dying_driver_counts_nothing_twice(tmp_path: Path, point: str) -> None:
    """Only the transaction that was recorded just before the death is missing."""
    scene = Scene(tmp_path, "planned")
    with pytest.raises(Died, match=point):
        scene.run(Dying(point, 2), 1)
    scene.run(Dying(None, 0), 2)
    kept = scene.kept
    if point in ("record.after", "forget.before"):
        del kept[2]
    assert {txid: each["keep"]["numbers"] for txid, each in scene.sums.by_txid.items()} == kept


def count(bolt: Any, *ignored: Any) -> None:
    """Count one under the name of the phase."""
    bolt.context.count(bolt.context.phase)


class CountingColumns(NotingArrowCommitter):
    """Counts rows and batches of columns."""

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.context.count("rows_seen", batch.num_rows)

    def finish_batch(self) -> None:
        count(self)


@pytest.mark.parametrize("cores", [1, 3])
def test_tasks_on_all_slots_and_levels_add_up(cores: int) -> None:
    topology = builder(parallelism=2)
    topology.set_bolt("split", NotingBolt(count, count, count), 3).all_grouping("spout")
    topology.set_bolt("rows", NotingCommitter(count, count, count), 2).all_grouping("spout")
    topology.set_bolt("columns", CountingColumns(), 2).all_grouping("spout")
    ran = run_once(topology.build_topology(), {0: rows("a", "b"), 1: rows("c")}, cores=cores)
    total = Tally()
    for reports in ran.reports.values():
        total.add(reports[0].before)
        for report in reports:
            total.add(report.own)
    assert total.counters == {
        "split": {"processing": 3 * (1 + 3 + 1)},
        "rows": {"processing": 2 * (1 + 3), "commit": 2},
        "columns": {"rows_seen": 2 * 3, "commit": 2},
    }


def test_the_simulator_runs_bolts_that_count(tmp_path: Path) -> None:
    spout = counting_spout("planned", Source(tmp_path / "spouts", NUMBERS, 1))
    topology = TransactionalTopologyBuilder("topology", "numbers", spout, 2)
    store: Any = MemoryStore("kept")
    topology.set_bolt("keep", Counting(store, Journal(tmp_path / "journal"))).global_grouping(
        "numbers"
    )
    with Simulation(topology.build_topology(), transactions=4) as simulation:
        assert simulation.run(3).violation is None


def test_a_tally_without_counters_is_pickled_without_them() -> None:
    _, arguments = Tally({"split": 1}).__reduce__()
    assert len(arguments) == 7
    counted = Tally(counters={"split": {"late": 2}})
    assert pickle.loads(pickle.dumps(counted)) == counted


@pytest.mark.parametrize(
    ("name", "n", "cure"),
    [
        ("Late", 1, "Use a to z, 0 to 9 and _, with no digit first, as in late_rows."),
        ("9th", 1, "Use a to z"),
        ("", 1, "Use a to z"),
        ("late\n", 1, "Use a to z"),
        (None, 1, "Use a to z"),
        (["late"], 1, "Use a to z"),
        ("late", -1, "Count an int of at least 0. Another number type becomes one by int()."),
        ("late", 1.0, "Count an int"),
        ("late", 2**63, "Count an int"),
    ],
)
@pytest.mark.parametrize("is_caught", [False, True])
def test_a_wrong_name_or_number_fails_the_hook_even_if_it_is_caught(
    name: Any, n: Any, cure: str, is_caught: bool
) -> None:
    def count_wrongly(bolt: Any, tup: Any) -> None:
        try:
            bolt.context.count(name, n)
        except UsageError:
            if not is_caught:
                raise

    topology = builder()
    topology.set_bolt("split", NotingBolt(count_wrongly)).shuffle_grouping("spout")
    failure = run_once(topology.build_topology(), {0: rows("a")}).failure
    assert failure is not None
    error = failure.to_error()
    assert isinstance(error, UsageError)
    assert cure in str(error)
    assert "in component 'split', task 0, attempt 1:0, processing phase, execute" in str(error)


contexts: list[TopologyContext] = []
"""Contexts that outlive their task."""


def keep_context(bolt: Any, tup: Any) -> None:
    contexts.append(bolt.context)


def test_a_task_that_has_ended_counts_no_more() -> None:
    """A count after the task's report would be lost."""
    topology = builder()
    topology.set_bolt("split", NotingBolt(keep_context)).shuffle_grouping("spout")
    assert run_once(topology.build_topology(), {0: rows("a")}).failure is None
    with pytest.raises(UsageError, match="belongs to a task that has ended"):
        contexts.pop().count("late")


class Interrupting(int):
    """A number during whose addition another thread may count."""

    def __radd__(self, other: int) -> int:
        assert counters._LOCK.locked(), "another thread's count would be lost"
        return int(self) + other


def test_a_task_counts_under_a_lock_because_it_may_have_threads() -> None:
    counted = counters.Counters()
    counted.count("late", Interrupting(2))
    assert counted.close() == {"late": 2}


def test_counts_under_too_many_names_count_as_other_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if a single task has too many."""

    def count_words(bolt: Any) -> None:
        for n in range(10 * NAMES_MAX):
            bolt.context.count(f"word_{n:04}")

    topology = builder()
    topology.set_bolt("split", NotingBolt(on_finish=count_words)).shuffle_grouping("spout")
    (report,) = run_once(topology.build_topology(), {0: rows("a")}, cores=1).reports["processing"]
    assert len(report.own.counters["split"]) < 3 * NAMES_MAX
    names = CounterNames()
    with caplog.at_level(logging.WARNING, "txtopo"):
        first = names.bounded(report.own.counters)["split"]
        second = names.bounded({"split": {"another": 2, "word_0000": 3}, "count": {"late": 1}})
    assert len(first) == NAMES_MAX + 1
    assert sum(first.values()) == 10 * NAMES_MAX
    assert second == {"split": {OTHER: 2, "word_0000": 3}, "count": {"late": 1}}
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("component 'split' counts under more than 100 names: 'word_0100'")
