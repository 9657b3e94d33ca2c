"""Export queues over every backend: entries are committed and taken back with the values, and reach
the target in order, also if attempts and exporters die."""

from __future__ import annotations

import contextlib
import enum
import errno
import itertools
import json
import random
import sys
import threading
import types
import urllib.error
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conformance.test_store_contract import FACTORIES, Process
from tests.patience import PATIENCE_S
from tests.topologies.stepped_tasks import Task
from txtopo import errors
from txtopo.exports import (
    Exporter,
    ExportQueue,
    SequencedExport,
    exporting,
    layout,
    leases,
    upkeep,
)
from txtopo.exports.exporting import Exporting
from txtopo.runtime import export
from txtopo.runtime.export import Export
from txtopo.stores import Store, VisibleTxid
from txtopo.topology import grouping
from txtopo.topology.transaction import RecordedAttempt

pytestmark = [pytest.mark.in_gate("*memory*", "*sqlite*"), pytest.mark.rule(40)]

TASKS = 2


class Died(BaseException):
    """The exporter's process dies."""


class Target(Exporter):
    """Keeps sequences as a target must. ``meanwhile`` happens in the middle of each call."""

    def __init__(self) -> None:
        self.kept: dict[Any, tuple[int, Any]] = {}
        self.calls: list[list[SequencedExport]] = []
        self.meanwhile: Callable[[list[SequencedExport]], None] = lambda told: None

    def export(self, entries: Iterator[SequencedExport]) -> None:
        told = list(entries)
        self.calls.append(told)
        self.meanwhile(told)
        for entry in told:
            if entry.key not in self.kept or self.kept[entry.key][0] < entry.sequence:
                self.kept[entry.key] = entry.sequence, entry.value
        self.meanwhile(told)

    @property
    def values(self) -> dict[Any, Any]:
        return {key: value for key, (_, value) in self.kept.items() if value is not None}


class Topology:
    """Stands for the coordinator and two tasks that count words and queue what became of them."""

    def __init__(self, store: Store, **form: Any) -> None:
        self.store, self.process = store, Process()
        self.queue = ExportQueue("words", store, **{"buckets": 3, **form})
        self.recorded: dict[str, RecordedAttempt] = {}
        self.txid, self.attempt, self.generation = 0, 0, self.process.task("count", 0).generation
        self.clock = 0.0
        self.restored: str | None = None
        self.value: Callable[[Any], Any] = lambda count: count

    def visible(self) -> VisibleTxid:
        return VisibleTxid(
            self.txid,
            self.process.task("count", 0).topology_id,
            self.generation,
            self.recorded,
            self.restored,
        )

    def write(self, words: list[Any], tasks: int = TASKS) -> int:
        """An attempt at the next transaction by the first ``tasks`` tasks. Returns how many store
        transactions it transactions."""
        self.attempt += 1
        transactions = 0
        for number in range(tasks):
            context = self.process.task(
                "count",
                number,
                num_tasks=TASKS,
                generation=self.generation,
                known_stores=dict(self.recorded),
            )
            with self.store.transaction(
                context, RecordedAttempt(self.txid + 1, self.attempt, 0)
            ) as opened:
                for word in words:
                    if grouping.task_for_key([word], TASKS) == number:
                        gone = word == "gone"
                        update = (
                            opened.delete(word)
                            if gone
                            else opened.update(word, lambda old: (old or 0) + 1)
                        )
                        self.queue.add(opened, word, self.value(update.curr))
            transactions += sum(context.touched_stores.values())
        return transactions

    def commit(self, *words: Any) -> None:
        transactions = self.write(list(words))
        self.txid += 1
        self.recorded = {
            f"count/{self.store.name}": RecordedAttempt(self.txid, self.attempt, transactions)
        }

    def add(self, *pairs: tuple[Any, Any]) -> None:
        """Commit a transaction whose first task only queues ``pairs``."""
        attempt = RecordedAttempt(self.txid + 1, self.attempt + 1, 1)
        context = self.process.task(
            "count",
            num_tasks=TASKS,
            generation=self.generation,
            known_stores=dict(self.recorded),
        )
        with self.store.transaction(context, attempt) as opened:
            for key, value in pairs:
                self.queue.add(opened, key, value)
        self.txid, self.attempt = attempt.txid, attempt.attempt_id
        self.recorded = {f"count/{self.store.name}": attempt}

    def exporter(self, target: Exporter, **options: Any) -> Exporting:
        return Exporting(self.queue, target, self.visible, clock=lambda: self.clock, **options)

    def settle(self, exporter: Exporting) -> None:
        """Export until nothing is left."""
        for _ in range(1000):
            self.clock += leases.BEAT_S
            if not exporter.step() and exporter.is_empty():
                return
        raise AssertionError("the queue does not become empty")

    def rows(self, kind: str) -> list[str]:
        with self.store.direct() as direct:
            ((begin, end),) = [layout.Names("words").all_of(kind)]
            return [row.key for row in direct.read_ranges([(begin, end)], 10_000)[0]]


@pytest.fixture(params=sorted(FACTORIES))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Topology]]:
    topologies: list[Topology] = []

    def topology(opaque: bool = False, **form: Any) -> Topology:
        topologies.append(Topology(FACTORIES[request.param](tmp_path, opaque=opaque), **form))
        return topologies[-1]

    yield topology
    for each in topologies:
        each.process.close()


def test_only_recorded_transactions_are_told_and_the_queue_is_empty_after_it(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(), Target()
    exporter = topology.exporter(target)
    topology.commit("a", "b", "a")
    topology.write(["a", "c"])
    topology.settle(exporter)
    assert target.values == {"a": 2, "b": 1}
    topology.commit("a", "c")
    topology.commit("gone", ("x", 1, None))
    topology.settle(exporter)
    assert target.values == {"a": 3, "b": 1, "c": 1, ("x", 1, None): 1}
    assert [key for key, _ in topology.store.items()] == ["a", "b", "c", ("x", 1, None)]
    assert topology.rows("e") == []
    assert upkeep.status(topology.queue).entries == 0
    told = [entry for call in target.calls for entry in call]
    assert sorted((entry.key, entry.txid, entry.value) for entry in told if entry.key == "a") == [
        ("a", 1, 1),
        ("a", 1, 2),
        ("a", 2, 3),
    ]
    exporter.close()


@pytest.mark.in_gate("mariadb", "postgresql", "redis")
def test_entries_of_a_failed_opaque_attempt_never_leave(make: Callable[..., Topology]) -> None:
    topology, target = make(opaque=True), Target()
    topology.commit("a")
    topology.write(["a", "b"], tasks=1)
    topology.write(["a", "b"])
    topology.commit("c")
    topology.settle(topology.exporter(target))
    assert target.values == {"a": 1, "c": 1}
    assert topology.rows("e") == []


def test_entries_of_attempts_that_do_not_count_are_not_told(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(opaque=True), Target()
    topology.commit("a")
    topology.write(["b"])
    topology.txid += 1  # recorded by an attempt that opened no store
    topology.settle(exporter := topology.exporter(target))
    assert target.values == {"a": 1}
    topology.commit("c")
    topology.settle(exporter)
    assert target.values == {"a": 1, "c": 1}
    assert topology.rows("e") == []


def test_an_exporter_that_was_overtaken_changes_nothing(
    make: Callable[..., Topology], caplog: pytest.LogCaptureFixture
) -> None:
    topology, slow, target = make(buckets=1), Target(), Target()
    topology.commit("a")
    first, second = topology.exporter(slow), topology.exporter(target)

    def meanwhile(told: list[SequencedExport]) -> None:
        slow.meanwhile = lambda told: None
        second.step()
        topology.clock += leases.LEASE_S + 1
        topology.commit("a", "a")
        topology.settle(second)

    slow.meanwhile = meanwhile
    topology.clock += leases.BEAT_S
    first.step()
    with topology.store.direct() as direct:
        ((row,),) = direct.read_ranges([layout.Names("words").all_of("b")], 2)
    state = layout.Bucket.of(row.curr or "")
    assert (state.holder, state.sequence) == (second.holder, target.kept["a"][0])
    assert target.values == {"a": 3}
    assert f"this exporter takes bucket 0 from {first.holder}, which" in caplog.text


@pytest.mark.in_gate("memory")
def test_exporters_whose_calls_outlast_a_lease_come_to_an_end(
    make: Callable[..., Topology], caplog: pytest.LogCaptureFixture
) -> None:
    """An idle exporter takes the buckets of an exporter in a long call, again and again."""
    topology, target, end_s = make(buckets=1), Target(), 1000.0
    topology.commit(*range(100))

    def meanwhile(told: list[SequencedExport]) -> None:
        ends = topology.clock + len(told) / 4
        while topology.clock < ends:
            cast("Task", threading.current_thread()).wait()

    def export() -> None:
        exporter = topology.exporter(target)
        while not exporter.is_empty() and topology.clock < end_s:
            exporter.step()
            cast("Task", threading.current_thread()).wait()
        exporter.close()

    target.meanwhile = meanwhile
    tasks = [Task(export) for _ in range(3)]
    while any(task.is_alive() for task in tasks):
        topology.clock += 1.0
        for task in tasks:
            task.step()
    assert [getattr(task, "outcome", None) for task in tasks] == [None] * 3
    assert topology.clock < end_s
    assert target.values == dict(topology.store.items())
    assert "s, and others may take its buckets after 15 s" in caplog.text


@pytest.mark.in_gate("memory")
def test_a_target_that_is_too_slow_is_told_from_all_buckets(make: Callable[..., Topology]) -> None:
    topology, target = make(), Target()

    def meanwhile(told: list[SequencedExport]) -> None:
        topology.clock += leases.LEASE_S / 2

    target.meanwhile = meanwhile
    exporter = topology.exporter(target)
    for _ in range(20):
        topology.commit(*"abi")
        exporter.step()
    assert [len(call) for call in target.calls[-3:]] == [1, 1, 1]
    assert {entry.bucket for call in target.calls[-3:] for entry in call} == {0, 1, 2}
    exporter.close()


@pytest.mark.in_gate("memory")
def test_no_more_than_a_page_of_rows_is_in_memory(
    make: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "PAGE_ROWS", 6)
    monkeypatch.setattr(exporting, "BATCH", 4)  # too few for all buckets: some wait longer
    topology, target = make(), Target()
    for _ in range(20):
        topology.commit(*"abi")  # a row in each bucket
    exporter, held = topology.exporter(target), []

    def meanwhile(told: list[SequencedExport]) -> None:
        held.append(sum(len(reading.lines) for reading in exporter._readings.values()))

    target.meanwhile = meanwhile
    while exporter.step():
        pass
    assert max(held) == 6
    assert sum(map(len, target.calls)) == 60
    exporter.close()


@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_target_equals_store_whatever_dies(
    make: Callable[..., Topology], opaque: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random histories: attempts that fail, exporters that die, are paused and overtaken, targets
    that fail before and after they have taken entries."""
    monkeypatch.setattr(exporting, "PAGE_ROWS", 2)
    monkeypatch.setattr(exporting, "BATCH", 3)
    monkeypatch.setattr(layout, "CHUNK_ENTRIES", 2)
    topology, target = make(opaque), Target()
    for seed in range(10 if "Memory" in type(topology.store).__name__ else 2):
        _random_history(topology, target, random.Random(seed))


def _random_history(topology: Topology, target: Target, rng: random.Random) -> None:
    running: list[Exporting] = []
    depth = 0

    def meanwhile(told: list[SequencedExport]) -> None:
        nonlocal depth
        fate = rng.random()
        if fate < 0.1:
            raise ValueError("the target is away")
        if fate < 0.2:
            raise Died
        if fate < 0.5 and depth < 3 and len(running) > 1:
            depth += 1
            topology.clock += rng.choice([0.0, leases.LEASE_S + 1])
            if rng.random() < 0.5:
                topology.commit(*rng.choices("abcdef", k=rng.randrange(6)))
            step(rng.choice(running))
            depth -= 1

    def step(exporter: Exporting) -> None:
        if exporter in stepping:
            return
        stepping.append(exporter)
        try:
            exporter.step()
        except Died:
            if exporter in running:
                running.remove(exporter)
        finally:
            stepping.remove(exporter)

    stepping: list[Exporting] = []
    target.meanwhile = meanwhile
    for _ in range(40):
        topology.clock += rng.choice([0.0, leases.BEAT_S, leases.LEASE_S + 1])
        if len(running) < 3 and rng.random() < 0.5:
            running.append(topology.exporter(target, max_attempts=10**6))
        batch = rng.choices([*"abcdef", "gone"], k=rng.randrange(8))
        if rng.random() < 0.3:
            topology.write(
                batch if not topology.store.opaque else [*batch[::-1], "f"],
                rng.randrange(TASKS + 1),
            )
            if not topology.store.opaque:
                topology.commit(*batch)
        elif rng.random() < 0.7:
            topology.commit(*batch)
        for exporter in running[:]:
            step(exporter)
    target.meanwhile = lambda told: None
    topology.clock += 100
    last = topology.exporter(target)
    topology.clock += leases.LEASE_S + 1
    for _ in range(3):
        topology.clock += leases.LEASE_S + 1
        last.step()
    topology.settle(last)
    topology.commit()
    topology.settle(last)
    last.close()
    assert target.values == dict(topology.store.items())
    assert topology.rows("e") == []
    assert upkeep.status(topology.queue).entries == 0
    first: dict[tuple[int, int], None] = {}
    for call in target.calls:
        for entry in call:
            first.setdefault((entry.bucket, entry.sequence))
    for bucket in range(3):
        numbers = [number for of, number in first if of == bucket]
        assert numbers == sorted(numbers)


def test_a_poison_entry_stops_its_bucket_and_no_other_until_it_is_skipped(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(), Target()

    def meanwhile(told: list[SequencedExport]) -> None:
        if any(entry.key == "b" for entry in told):
            raise ValueError("b is refused")

    target.meanwhile = meanwhile
    exporter = topology.exporter(target, max_attempts=3)
    topology.commit("a", "b", "c", "d", "e", "f")
    topology.settle(exporter)
    ours = grouping.task_for_key(["b"], 3)
    others = {key: 1 for key in "acdef" if grouping.task_for_key([key], 3) != ours}
    assert others.items() <= target.values.items()
    (stopped,) = [each for each in upkeep.status(topology.queue).buckets if each.stopped]
    assert stopped.bucket == ours
    assert stopped.stopped is not None
    assert (stopped.stopped["key"], stopped.stopped["attempts"]) == ("b", 3)
    assert "b is refused" in stopped.stopped["error"]
    assert stopped.waits_txid == 1

    topology.commit("b", "b")
    assert upkeep.retry(topology.queue, []) == [ours]
    topology.settle(exporter)
    assert upkeep.status(topology.queue).buckets[ours].stopped is not None

    assert upkeep.skip(topology.queue, ours)["value"] == 1
    target.meanwhile = lambda told: None
    topology.settle(exporter)
    assert target.values == dict(topology.store.items())
    status = upkeep.status(topology.queue)
    assert [(each["key"], each["value"]) for each in status.skipped] == [("b", 1)]
    assert (status.entries, topology.rows("e")) == (0, [])
    with pytest.raises(errors.UsageError, match="has not stopped"):
        upkeep.skip(topology.queue, ours)


class Color(enum.StrEnum):
    """Python takes a member for equal to its value, and R16 does not."""

    RED = "red"


class Rank(enum.IntEnum):
    """As :class:`Color`, with numbers."""

    FIRST = 1


def test_a_key_has_one_bucket_in_each_spelling_and_in_a_replay(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(buckets=17), Target()
    spellings = [
        (Color.RED, "red"),
        (Rank.FIRST, 1),
        ((Color.RED, (Rank.FIRST, None)), ("red", (1, None))),
    ]
    for spelled, key in spellings:
        topology.add((spelled, 1), (key, 2))
        for wrong in (True, 1.0, (True,), (1.0,)):  # equal to a key, or to one in a tuple
            with pytest.raises(errors.UsageError, match="store key cannot hold"):
                topology.add(((1,), 0), (wrong, 3))
    topology.settle(topology.exporter(target))
    topology.commit("a")
    for spelled, _ in spellings:
        topology.queue.entry_of = lambda key, value, spelled=spelled: (spelled, 4)
        upkeep.replay(topology.queue, target, topology.visible())
    told = [(entry.key, entry.value, entry.bucket) for call in target.calls for entry in call]
    assert sorted(told, key=repr) == sorted(
        [
            (key, value, grouping.task_for_key([key], 17))
            for _, key in spellings
            for value in (1, 2, 4)
        ],
        key=repr,
    )


def test_a_lost_target_is_told_every_value_again(make: Callable[..., Topology]) -> None:
    topology, target = make(), Target()
    exporter = topology.exporter(target)
    topology.commit("a", "b", "a")
    topology.settle(exporter)
    topology.commit("b")
    target.kept.clear()
    assert upkeep.replay(topology.queue, target, topology.visible()) == 2
    assert target.values == {"a": 2, "b": 2}
    topology.commit("a")
    topology.settle(exporter)
    assert target.values == {"a": 3, "b": 2}


def test_a_replay_tells_what_add_would_have_queued(make: Callable[..., Topology]) -> None:
    topology, target = make(entry_of=lambda word, count: (word, (count,))), Target()
    topology.commit("a", "b", "a")
    upkeep.replay(topology.queue, target, topology.visible())
    assert target.values == {"a": [2], "b": [1]}
    topology.queue.entry_of = lambda word, count: (word, float("nan"))
    with pytest.raises(errors.UsageError, match="cannot be kept"):
        upkeep.replay(topology.queue, target, topology.visible())


def test_an_exporter_that_leaves_entries_for_another_call_is_told_every_value_again(
    make: Callable[..., Topology],
) -> None:
    topology = make(buckets=1)
    words = list("abcdefg")
    topology.commit(*words)
    target = Hesitant()
    assert upkeep.replay(topology.queue, target, topology.visible()) == len(words)
    assert target.values == dict.fromkeys(words, 1)
    with pytest.raises(errors.TxtopoError, match="without asking for a second entry"):
        upkeep.replay(topology.queue, Unasking(), topology.visible())


class Hesitant(Target):
    """Takes three entries in a call, and tells two."""

    def export(self, entries: Iterator[SequencedExport]) -> None:
        taken = list(itertools.islice(entries, 3))
        super().export(iter(taken[:2]))  # the third one comes again


class Unasking(Exporter):
    """Takes a single entry in a call."""

    def export(self, entries: Iterator[SequencedExport]) -> None:
        next(entries)


def test_another_generation_is_refused_until_the_target_is_told_again(
    make: Callable[..., Topology], caplog: pytest.LogCaptureFixture
) -> None:
    topology, target = make(), Target()
    exporter = topology.exporter(target)
    topology.commit("a")
    topology.settle(exporter)
    exporter.close()
    topology.commit("b")
    topology.store.adopt("words", "second", 0, ["count"])
    topology.generation, topology.txid = "second", 0
    topology.recorded = {}
    with pytest.raises(errors.StateMismatchError, match="export replay"):
        topology.settle(topology.exporter(target))
    target.kept.clear()
    assert upkeep.replay(topology.queue, target, topology.visible()) == 2
    assert "1 entries that waited when the store was adopted are dropped" in caplog.text
    topology.commit("a")
    topology.settle(topology.exporter(target))
    assert target.values == {"a": 2, "b": 1}
    assert (upkeep.status(topology.queue).entries, topology.rows("e")) == (0, [])


def test_a_state_restored_from_a_copy_is_refused_until_the_target_is_told_again(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(), Target()
    topology.commit("a")
    exporter = topology.exporter(Target())
    topology.settle(exporter)
    exporter.close()
    # A transaction after the copy was made.
    lost = SequencedExport("words", 0, "a", 9, 9 << 24, topology.generation)
    target.export(iter([lost]))

    topology.restored = "again"
    topology.commit("a")
    refused = topology.exporter(target)
    with pytest.raises(errors.StateMismatchError, match="export replay"):
        topology.settle(refused)
    refused.close()
    target.kept.clear()
    assert upkeep.replay(topology.queue, target, topology.visible()) == 1
    topology.commit("b")
    topology.settle(topology.exporter(target))
    assert target.values == dict(topology.store.items()) == {"a": 2, "b": 1}


def test_a_new_queue_of_a_restored_state_needs_a_replay_alone(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(buckets=1), Target()
    topology.restored = "again"
    topology.commit("a")
    refused = topology.exporter(target)
    with pytest.raises(errors.StateMismatchError, match="unless the queue is new since the state"):
        topology.settle(refused)
    refused.close()
    upkeep.replay(topology.queue, target, topology.visible())
    topology.commit("a", "b")
    topology.settle(topology.exporter(target))
    assert target.values == dict(topology.store.items()) == {"a": 2, "b": 1}


def test_entries_that_a_restored_state_tells_once_more_wait_once_more(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(buckets=1), Hesitant()
    assert topology.queue.rows_left("words") == ""
    topology.commit(*"abcde")
    topology.clock += leases.BEAT_S
    exporter = topology.exporter(target)
    with topology.store.direct() as rows:
        exporter._leases.tend(rows, topology.visible())
    assert "the target of export queue 'words'" in topology.queue.rows_left("words")
    exporter.step()
    exporter.close()
    assert upkeep.status(topology.queue).entries == 3
    topology.restored = "again"
    upkeep.replay(topology.queue, target, topology.visible())
    assert upkeep.status(topology.queue).entries == 5
    topology.settle(topology.exporter(target))
    assert upkeep.status(topology.queue).entries == 0


def test_a_full_queue_fails_the_attempt_and_a_reader_sees_no_entry(
    make: Callable[..., Topology],
) -> None:
    topology = make(max_entries=2)
    words = [word for word in "abcdefgh" if grouping.task_for_key([word], TASKS) == 0]
    topology.commit(*words[:2])
    with pytest.raises(errors.FailedException, match=r"full.*max_entries is 2"):
        topology.write(words[2:3])
    with pytest.raises(errors.UsageError, match=r"adds 3 entries .*max_entries is 2"):
        topology.write(words[:3])
    assert sorted(dict(topology.store.items())) == sorted(words[:2])
    topology.settle(topology.exporter(Target()))
    topology.commit(words[2])
    assert topology.store.count() == 3


CUT = [
    [1000, 1000, 1000, 1000, 1000, 67, 1000, 78, 78, 22],
    [1000, 1000, 1000, 1000, 933, 1000, 22],
]
"""By bucket, the entries in each row."""


@pytest.mark.in_gate("memory")
def test_entries_are_cut_into_rows_as_ever(make: Callable[..., Topology]) -> None:
    """A replay by a later version must find the rows of the version before."""
    topology = make(buckets=2)
    entries = [*((number, None) for number in range(12_000)), *((7, "x" * 400) for _ in range(200))]
    for _ in range(2):
        topology.txid, topology.recorded = 0, {}
        topology.add(*entries)
        counts: list[list[int]] = [[], []]
        with topology.store.direct() as direct:
            for number in range(2):
                (rows,) = direct.read_ranges([layout.Names("words").entries_of(number)], 100)
                counts[number] = [len(json.loads(row.curr or "")["entries"]) for row in rows]
        assert counts == CUT
    assert upkeep.status(topology.queue).entries == len(entries)


def test_entries_are_counted_anew_when_a_component_was_cleared(
    make: Callable[..., Topology],
) -> None:
    topology = make(max_entries=2)
    exporter = topology.exporter(Target())
    for _ in range(2):
        topology.add(("a", 1), ("b", 1))
        topology.settle(exporter)
    topology.add(("c", 1))
    topology.store.clear("words", ["count"])
    assert upkeep.status(topology.queue).entries == 0
    topology.recorded = {}
    topology.add(("a", 2), ("b", 2))
    assert upkeep.status(topology.queue).entries == 2
    with pytest.raises(errors.FailedException, match=r"full.*would have 3 entries"):
        topology.add(("a", 3))
    topology.settle(exporter)
    assert upkeep.status(topology.queue).entries == 0


@pytest.mark.in_gate("memory")
def test_a_task_adds_no_more_than_exporters_can_number(
    make: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = make()
    monkeypatch.setattr("txtopo.exports.entries.ENTRIES_MAX", 2)
    topology.add(("a", 1), ("a", 2))
    with pytest.raises(errors.UsageError, match=r"adds 3 entries .* 2 at most, "):
        topology.add(("a", 1), ("a", 2), ("a", 3))
    topology.settle(topology.exporter(target := Target()))
    assert target.values == {"a": 2}


def test_an_exporter_may_take_a_part(make: Callable[..., Topology]) -> None:
    topology, told = make(buckets=1), list[Any]()

    class Some(Exporter):
        def export(self, entries: Iterator[SequencedExport]) -> None:
            told.extend(entry.key for entry, _ in zip(entries, range(2), strict=False))

    topology.commit(*range(5))
    exporter = topology.exporter(Some())
    topology.clock += leases.BEAT_S
    assert exporter.step()
    assert len(topology.rows("e")) == TASKS
    topology.settle(exporter)
    assert sorted(told) == list(range(5))


def test_mistakes_are_refused(make: Callable[..., Topology], tmp_path: Path) -> None:
    topology = make()
    topology.commit("a")
    mistakes: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        *(((id, topology.store), {}, "id") for id in ("a~b", "a:b", "a/b", "", "a" * 41)),
        (("a", topology.store, 0), {}, "buckets"),
        (("a", topology.store, True), {}, "buckets"),
        *((("a", topology.store), {"max_entries": most}, "max_entries") for most in (0, 1.0, True)),
        (("a", topology.store), {"exporter": 42}, r"exporter=42\n  Give an Exporter"),
        (("a", topology.store), {"exporter": Target}, r"exporter=<class .*\n  Give an Exporter"),
        (("a", topology.store), {"entry_of": 3}, r"entry_of=3\n  Give a function"),
        (("a", "counts.db"), {}, "needs a store"),
    ]
    for arguments, options, message in mistakes:
        with pytest.raises(errors.UsageError, match=message):
            ExportQueue(*arguments, **options)
    topology.queue = ExportQueue("words", topology.store, 4)
    with pytest.raises(errors.UsageError, match="has 3 buckets, not 4"):
        topology.write(["a"])
    with pytest.raises(errors.UsageError, match="has 3 buckets, not 4"):
        topology.settle(topology.exporter(Target()))
    for look in (upkeep.status, upkeep.topology_of):
        with pytest.raises(errors.UsageError, match="has 3 buckets, not 4"):
            look(topology.queue)
    for attempts in (0, -1, 2.0, True):
        with pytest.raises(errors.UsageError, match=r"max_attempts=.*\n  Give a positive"):
            topology.exporter(Target(), max_attempts=attempts)
    with pytest.raises(errors.UsageError, match=r"was given .*\n  Give an Exporter"):
        topology.exporter(cast("Any", Target))
    topology.queue = ExportQueue("words", topology.store, 3)
    stranger = Exporting(topology.queue, Target(), lambda: VisibleTxid(1, "other", "of other", {}))
    with pytest.raises(errors.UsageError, match="has entries of topology 'words', not 'other'"):
        stranger.step()
    topology.settle(topology.exporter(Target()))
    other = FACTORIES["memory"](tmp_path, "other")
    topology.queue = ExportQueue("words", other, 3)
    with pytest.raises(errors.UsageError, match="of the queue's own store"):
        topology.write(["a"])
    with pytest.raises(errors.UsageError, match="open transaction"):
        topology.queue.add(cast("Any", topology.store), "a", 1)
    topology.queue = ExportQueue("words", topology.store, 3)
    context = topology.process.task("count", 0, num_tasks=TASKS, known_stores=topology.recorded)
    pairs: list[tuple[Any, Any, str]] = [
        (1.5, 1, r"cannot hold 1\.5 of type float .*\n  A key is a str, an int"),
        (("a", b"b"), 1, r"cannot hold b'b' of type bytes .*\n  A key is a str, an int"),
        ("a", {1}, r"the value \{1\} cannot be kept .*\n  Store None, bool"),
        ("a", float("nan"), r"the value nan cannot be kept .*\n  Store None, bool"),
        ("a", "x" * 2**20, r"has 1048584 characters, .* 1048576\n  Queue the key alone"),
    ]
    for key, value, message in pairs:
        with (
            pytest.raises(errors.UsageError, match=message),
            topology.store.transaction(context, RecordedAttempt(9, 99, 0)) as opened,
        ):
            topology.queue.add(opened, key, value)
    looking = topology.process.task("count", 0, num_tasks=TASKS, phase="processing")
    with (
        pytest.raises(errors.UsageError, match=r"in the processing phase\n  A store is written in"),
        topology.store.transaction(looking, RecordedAttempt(9, 99, 0)) as opened,
    ):
        topology.queue.add(opened, "a", 1)
    with pytest.raises(errors.UsageError, match="has ended"):
        topology.queue.add(opened, "a", 1)


def begin_anew(topology: Topology) -> None:
    """As if ZooKeeper had lost the state."""
    topology.generation, topology.txid, topology.recorded = "second", 0, {}


def test_entries_from_before_an_adoption_are_refused_also_if_none_was_ever_exported(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(buckets=1), Target()
    later, first = (
        next(word for word in "abcdefgh" if grouping.task_for_key([word], TASKS) == task)
        for task in (1, 0)
    )
    topology.commit(later)
    topology.commit(later)
    topology.store.adopt("words", "second", 0, ["count"])
    begin_anew(topology)
    topology.commit(later, first)
    refused = topology.exporter(target)
    with pytest.raises(errors.StateMismatchError, match="belongs to generation first"):
        topology.settle(refused)
    refused.close()
    assert target.values == {}
    assert upkeep.replay(topology.queue, target, topology.visible()) == 2
    topology.commit(first)
    topology.settle(topology.exporter(target))
    assert target.values == dict(topology.store.items()) == {later: 3, first: 2}
    assert topology.rows("e") == []


def test_an_exporter_ends_when_its_topology_begins_anew(make: Callable[..., Topology]) -> None:
    topology, target = make(buckets=1), Target()

    def meanwhile(told: list[SequencedExport]) -> None:
        raise ValueError("refused")

    target.meanwhile = meanwhile
    exporter = topology.exporter(target)
    topology.commit("old")
    topology.clock += leases.BEAT_S
    exporter.step()  # has read the entry, and keeps it
    topology.store.clear("words")
    begin_anew(topology)
    topology.commit("new")
    target.meanwhile = lambda told: None
    with pytest.raises(errors.StateMismatchError, match="begun anew"):
        exporter.step()
    exporter.close()
    topology.settle(topology.exporter(target))
    assert target.values == {"new": 1}


def test_a_bucket_goes_on_by_itself_when_a_target_that_was_away_is_back(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(buckets=1), Target()

    def meanwhile(told: list[SequencedExport]) -> None:
        raise errors.FailedException("503")

    target.meanwhile = meanwhile
    topology.commit("a")
    exporter = topology.exporter(target, max_attempts=1)
    for failures in (1, 2, 2000):  # so often that a power of two is no float
        topology.clock += exporting.BACK_OFF_MAX_S
        exporter.step()
        (status,) = upkeep.status(topology.queue).buckets
        assert status.stopped is not None
        assert (status.stopped["key"], status.stopped["error"]) == ("a", "FailedException: 503")
        exporter._readings[0].failures[True] = max(failures, 1999)
    target.meanwhile = lambda told: None
    topology.clock += exporting.BACK_OFF_MAX_S
    exporter.step()
    assert target.values == {"a": 1}
    (status,) = upkeep.status(topology.queue).buckets
    assert status.stopped is None


@pytest.mark.parametrize("is_done", [True, False])
def test_an_exchange_without_an_answer_is_looked_up(
    make: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    topology, target = make(), Target()
    exporter = topology.exporter(target)
    topology.commit(*"aab")
    topology.clock += leases.BEAT_S
    change, asked = leases.Leases.change, list[bool]()

    def unanswered(self: Any, rows: Any, *more: Any) -> bool:
        def exchange(*arguments: Any) -> bool:
            if is_done:
                assert rows.exchange(*arguments)
            raise errors.FailedException("no answer")

        if asked or not target.calls:
            return change(self, rows, *more)
        asked.append(True)
        return change(self, cast("Any", types.SimpleNamespace(exchange=exchange)), *more)

    monkeypatch.setattr(leases.Leases, "change", unanswered)
    with pytest.raises(errors.FailedException, match="no answer"):
        exporter.step()
    topology.commit(*"bc")
    topology.settle(exporter)
    assert target.values == dict(topology.store.items())
    assert (upkeep.status(topology.queue).entries, topology.rows("e")) == (0, [])
    told = [(entry.key, entry.value) for call in target.calls for entry in call]
    assert sorted(told) == sorted(
        [("a", 1), ("a", 2), ("b", 1)] * (2 - is_done) + [("b", 2), ("c", 1)]
    )
    exporter.close()


@pytest.mark.in_gate("memory*")
@pytest.mark.parametrize("part", ["key", "value"])
def test_the_deepest_entry_stops_its_bucket_alone_and_is_kept(
    make: Callable[..., Topology], part: str
) -> None:
    topology, target = make(buckets=1), Target()

    def refuse(told: list[SequencedExport]) -> None:
        raise ValueError("refused")

    def nested(levels: int) -> Any:
        return (nested(levels - 1),) if levels else "a"

    sys.setrecursionlimit(2 * (before := sys.getrecursionlimit()))  # in an executor
    try:
        for levels in range(before, 0, -1):
            with contextlib.suppress(errors.UsageError):
                topology.add((nested(levels), 1) if part == "key" else ("a", nested(levels)))
                break
    finally:
        sys.setrecursionlimit(before)
    target.meanwhile = refuse
    topology.settle(topology.exporter(target, max_attempts=1))
    (status,) = upkeep.status(topology.queue).buckets
    assert status.stopped is not None
    skipped = upkeep.skip(topology.queue, 0)
    assert upkeep.status(topology.queue).skipped == [skipped]
    assert str(skipped[part]).count("[") == levels == 200


def behind(error: Exception, cause: Exception) -> Exception:
    """``error``, as raised while ``cause`` was handled."""
    error.__context__ = cause
    return error


def test_outages_and_refusals_are_counted_apart(make: Callable[..., Topology]) -> None:
    topology, target, kinds = make(buckets=1), Target(), list[Exception]()

    def meanwhile(told: list[SequencedExport]) -> None:
        raise kinds[-1]

    target.meanwhile = meanwhile
    topology.commit("a")
    exporter = topology.exporter(target, max_attempts=2)
    refusal = urllib.error.HTTPError("http://shop", 400, "no such article", Message(), None)
    for kind, is_stopped in [
        *[(errors.FailedException("503"), False)] * 3,
        (ConnectionResetError(), False),
        (TimeoutError("no answer"), False),
        (OSError(errno.EHOSTUNREACH, "no route to host"), False),
        (behind(urllib.error.URLError("refused"), ConnectionRefusedError()), False),
        (FileNotFoundError(errno.ENOENT, "no such directory"), False),
        (errors.FailedException("503"), False),
        (refusal, True),  # or a target that does both in turns would never stop
    ]:
        kinds.append(kind)
        topology.clock += exporting.BACK_OFF_MAX_S
        exporter.step()
        (state,) = [held.state for held in exporter._leases.held.values()]
        assert state.waits_for_a_person is is_stopped
        assert exporter.is_empty() is is_stopped, "a target that is away is waited for"


def test_a_value_that_an_exporter_spoiled_comes_again_as_it_was(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(buckets=1), Target()
    topology.value = lambda count: {"n": count}

    def spoil(told: list[SequencedExport]) -> None:
        for entry in told:
            entry.value.pop("n")
        raise ValueError("refused")

    target.meanwhile = spoil
    topology.commit("a", "b")
    exporter = topology.exporter(target, max_attempts=2)
    topology.settle(exporter)
    assert len(target.calls) == 3
    (status,) = upkeep.status(topology.queue).buckets
    assert status.stopped is not None
    assert status.stopped["value"] == {"n": 1}
    target.meanwhile = lambda told: None
    upkeep.retry(topology.queue, [])
    topology.settle(exporter)
    assert target.values == {"a": {"n": 1}, "b": {"n": 1}}
    exporter.close()


def test_the_end_is_heard_between_two_buckets(make: Callable[..., Topology]) -> None:
    topology, target, ends = make(), Target(), threading.Event()

    def meanwhile(told: list[SequencedExport]) -> None:
        topology.clock += 31.0
        ends.set()
        raise errors.FailedException("no answer")

    topology.commit(*"abcdefgh")
    exporter = topology.exporter(target)
    target.meanwhile = meanwhile
    topology.clock += leases.BEAT_S
    exporter.step()  # the next calls are for one bucket each
    target.calls.clear()
    ends.clear()
    exporter.run(lambda: False, threading.Event(), ends, 30.0)
    assert len(target.calls) == 2


def test_a_store_that_stays_away_ends_an_export_that_would_end_by_itself(
    make: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, ends, answers = make(), threading.Event(), [True, *[False] * 3]
    exporter = topology.exporter(Target())

    def step() -> bool:
        topology.clock += exporting.AWAY_S + 1  # in calls, perhaps, before the failure
        if not answers.pop():
            raise errors.FailedException("the store is away")
        if not answers:
            answers.extend([False] * 3)
            ends.set()
        return True

    monkeypatch.setattr(exporter, "step", step)
    monkeypatch.setattr(exporting, "PAUSE_S", 0.0)
    with pytest.raises(errors.FailedException, match="the store is away"):
        exporter.run(lambda: not answers, threading.Event(), ends, float("inf"))
    assert answers == [False]
    answers *= 3
    exporter.run(lambda: not answers, threading.Event(), ends, 1e6)  # which bounds the wait, too


def test_a_late_exporter_is_the_exports_error_and_not_the_runs(
    make: Callable[..., Topology],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topology, target, is_done = make(buckets=1), Target(), threading.Event()
    monkeypatch.setattr(export, "END_S", 0.0)

    def meanwhile(told: list[SequencedExport]) -> None:
        is_done.wait(PATIENCE_S)

    target.meanwhile = meanwhile
    topology.commit("a")
    running = Export(topology.exporter(target), cast("Any", Looks(topology)), "words")
    running.ended(None)
    export.finish_all([running], lambda: False)
    assert isinstance(running.error, TimeoutError)
    assert "exporter of queue 'words' does not return" in caplog.text
    is_done.set()
    running.stop(PATIENCE_S)


@pytest.mark.parametrize(("killed_at", "ended_at"), [(1000, 60), (0, 10), (44, 54)])
def test_late_exporters_have_one_end(
    make: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch, killed_at: int, ended_at: int
) -> None:
    topology, clock = make(buckets=1), [0]

    class Stuck(Export):
        def wait(self, timeout_s: float) -> bool:
            clock[0] += 1 if timeout_s else 0
            return False

    late = [
        Stuck(topology.exporter(Target()), cast("Any", Looks(topology)), "words") for _ in range(2)
    ]
    monkeypatch.setattr(export, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    export.finish_all(late, lambda: clock[0] >= killed_at)
    assert clock == [ended_at], "a killed run has 30 s"
    assert [each._stop.is_set() for each in late] == [killed_at < ended_at] * 2
    assert all(isinstance(each.error, TimeoutError) for each in late)
    for each in late:
        each.request_stop()
        each._thread.join(PATIENCE_S)


def test_the_error_of_a_stopped_bucket_is_kept_without_passwords_and_control_characters(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(buckets=1), Target()

    def meanwhile(told: list[SequencedExport]) -> None:
        raise ValueError("no caf\udce9 at https://ann:sw0rdfish@shop\x1b[2J\n\0")

    target.meanwhile = meanwhile
    topology.commit("a")
    topology.settle(topology.exporter(target, max_attempts=1))
    (status,) = upkeep.status(topology.queue).buckets
    assert status.stopped is not None
    assert status.stopped["error"] == (
        "ValueError: no caf\\udce9 at https://ann:***@shop\\x1b[2J\n\\x00"
    )


def test_a_request_to_stop_is_heard_between_two_buckets(make: Callable[..., Topology]) -> None:
    topology, target = make(), Target()

    def meanwhile(told: list[SequencedExport]) -> None:
        raise ValueError("refused")

    target.meanwhile = meanwhile
    topology.commit(*"abcdefgh")
    exporter = topology.exporter(target)
    topology.clock += leases.BEAT_S
    exporter.step()  # the next calls are for one bucket each
    exporter.run(lambda: len(target.calls) > 1, threading.Event(), threading.Event(), 0.0)
    assert len(target.calls) == 2


class Looks:
    """Stands for a connection to ZooKeeper."""

    def __init__(self, topology: Topology) -> None:
        self.txid, self.is_open = topology.visible, True

    def close(self) -> None:
        self.is_open = False


def test_an_exporter_serves_one_thread_and_leaves_no_connection(
    make: Callable[..., Topology],
) -> None:
    topology, target = make(), Target()
    topology.commit("a")

    def begun() -> Export:
        return Export(topology.exporter(target), cast("Any", looks), "words")

    for _ in range(2):
        looks = Looks(topology)
        running = begun()
        with pytest.raises(errors.UsageError, match=r"run\.export an exporter of its own"):
            begun()
        running.ended(None)
        export.finish_all([running], lambda: False)
        assert not looks.is_open
        looks.is_open = True
        running.wait_until_empty(PATIENCE_S)
        assert not looks.is_open
    assert target.values == {"a": 1}


def test_a_wait_for_an_empty_queue_opens_one_connection(
    make: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, target, looks = make(), Target(), list[int]()
    opened, may_end, waiter = list[int](), threading.Event(), threading.get_ident()
    kind = type(topology.store)
    open_rows = kind.direct

    def visible() -> VisibleTxid:
        looks.append(threading.get_ident())
        if looks.count(waiter) == 3:
            may_end.set()
        return topology.visible()

    def direct(store: Store) -> Any:
        opened.append(threading.get_ident())
        return open_rows(cast("Any", store))

    def meanwhile(told: list[SequencedExport]) -> None:
        assert may_end.wait(PATIENCE_S)

    target.meanwhile = meanwhile
    topology.commit("a")
    monkeypatch.setattr(kind, "direct", direct)
    exporter = Exporting(topology.queue, target, visible)
    running = Export(exporter, cast("Any", Looks(topology)), "words")
    running.wait_until_empty(PATIENCE_S)
    assert looks.count(waiter) > opened.count(waiter) == 1
    running.stop(PATIENCE_S)


def test_exporters_that_overtake_each_other_grow_patient(
    make: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, slow, target = make(buckets=1), Target(), Target()
    topology.commit("a")
    first, second = topology.exporter(slow), topology.exporter(target)

    def overtake(told: list[SequencedExport]) -> None:
        slow.meanwhile = target.meanwhile = lambda told: None
        second.step()
        topology.clock += leases.LEASE_S + 1
        monkeypatch.setattr(second, "_tell", lambda *arguments: 0)
        second.step()

    slow.meanwhile = overtake
    topology.clock += leases.BEAT_S
    first.step()
    assert first._leases.held == {}
    for is_taken in (False, False, True):
        first.step()
        assert bool(first._leases.held) is is_taken
        topology.clock += leases.LEASE_S + 1
