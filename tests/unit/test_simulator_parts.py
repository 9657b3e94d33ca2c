"""The contract checkers test a topology's parts before any schedule: their finding is the verdict,
with rule, hook and cure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tests.starter.commands import ROOT
from tests.topologies import numbered_lines, outside
from tests.topologies.simulated import SPOUTS, Store, generated
from tests.unit.test_simulator_live_sources import CUTS, Ready, live_spout, topology
from tests.wrong.blamed import (
    RIGHT,
    STORE,
    WRONG,
    ClassAttribute,
    Each,
    SharedDict,
    Sums,
    Words,
    Wrong,
)
from txtopo import (
    BaseArrowBatchBolt,
    BaseBasicBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    CombinerAggregator,
    Fields,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.command import target
from txtopo.errors import UsageError
from txtopo.exports import Exporter, ExportQueue, SequencedExport
from txtopo.stores import SqliteStore
from txtopo.testing import OpaqueMemoryTransactionalSpout, Simulation, Violation
from txtopo.testing.simulator import mistakes, parts
from txtopo.testing.simulator.decisions import Script
from txtopo.testing.simulator.schedule import StoppedError

OF_SPOUTS = {
    name: wrong
    for name, wrong in WRONG.items()
    if wrong.component == "words" and wrong.grouping is None
}
HOOKS = {
    "an emitter that reads to the end": (18, "emit_batch"),
    "a destructive initialize_transaction": (20, "initialize_transaction and emit_batch"),
    "an acknowledgement at emit": (18, "emit_batch"),
    "a position in a class attribute": (18, "emit_batch"),
    "a position in the coordinator": (5, "is_ready"),
}


def checked(wrong: Wrong) -> Violation | None:
    with Simulation(
        wrong.topology(), {"max_spout_pending": 2}, effects=outside.effects, reset=outside.reset
    ) as simulation:
        return simulation.check_parts()


@pytest.mark.parametrize("name", OF_SPOUTS)
@pytest.mark.rule(18, 20)
def test_a_spout_that_breaks_its_contract_is_told_with_rule_hook_and_cure(name: str) -> None:
    violation = checked(OF_SPOUTS[name])
    assert violation is not None
    assert violation.broken is not None
    assert (violation.component, violation.mistakes) == (
        "words",
        (OF_SPOUTS[name].mistake.name,),
    ), str(violation)
    rule, hook = HOOKS[name]
    assert (violation.broken.rule, violation.broken.what.startswith(hook)) == (rule, True), str(
        violation
    )
    assert violation.broken.cure in str(violation)
    assert violation.seed is None


@pytest.mark.rule(28)
def test_a_committer_that_breaks_its_contract_is_told_with_the_rule_and_the_schedule_that_shows_it() -> (
    None
):
    violation = checked(WRONG["an increment that is not in a store"])
    assert violation is not None
    assert violation.broken is not None
    assert (violation.component, violation.mistakes, violation.broken.rule) == (
        "sums",
        (mistakes.APPLIED_AGAIN.name,),
        28,
    )
    assert violation.seed is not None
    assert "bolt contract, R28: " in str(violation)


OF_BOLTS = (
    "chance",
    "a clock",
    "an address",
    "threads",
    "a dict shared between attempts",
    "a class attribute",
    "a grouping by chance",
)
"""Mistakes of purely processing bolts, by name."""


def without_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test where a schedule is played to find a verdict."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a schedule was needed")

    monkeypatch.setattr(Simulation, "run", refuse)


@pytest.mark.parametrize("name", OF_BOLTS)
@pytest.mark.rule(10, 17)
def test_a_bolt_that_only_processes_and_breaks_its_contract_is_told_without_a_schedule(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(0)
    without_schedules(monkeypatch)
    violation = checked(WRONG[name])
    assert violation is not None
    assert violation.broken is not None
    assert (violation.component, violation.mistakes) == (
        WRONG[name].component,
        (WRONG[name].mistake.name,),
    ), str(violation)
    assert violation.broken.rule == (17 if name == "a grouping by chance" else 10)
    assert parts.hook_of(violation.broken) == f"component {WRONG[name].component!r}"
    assert violation.seed is None
    assert violation.broken.cure in str(violation)


class RemembersWords(BaseBasicBolt):
    """A basic bolt that numbers the tuples of a process."""

    numbers: ClassVar[dict[str, int]] = {}

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.numbers[tup["key"]] = self.numbers.get(tup["key"], 0) + 1
        collector.emit([tup[0], tup["key"], tup["value"] * self.numbers[tup["key"]]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "value"))


class TakesOverTheLastBatch(Each):
    """Adds the batch before, if this process has it: each attempt of a batch in one process gives
    the same."""

    batches: ClassVar[dict[tuple[int, int], int]] = {}

    def finish_batch(self) -> None:
        txid, task = self.attempt.txid, self.context.task_index
        self.batches[txid, task] = sum(value for _, value in self.rows)
        self.collector.emit([self.attempt, "all", self.batches.get((txid - 1, task), 0)])


class SharesAListBetweenTasks(Each):
    """Collects in a list of the class and empties it in the end: right as long as no other task of
    the process is in between."""

    collected: ClassVar[list[int]] = []

    def execute(self, tup: Tuple) -> None:
        self.collected.append(tup["value"])

    def finish_batch(self) -> None:
        self.collector.emit([self.attempt, "all", sum(self.collected)])
        self.collected.clear()


class Alternate:
    """A custom grouping that gives both tasks a tuple."""

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        return [values[-1] % 2]


class KeepsAResource(Each):
    """Counts batches in a resource of the worker process."""

    def finish_batch(self) -> None:
        counted = self.context.resource("counted", list)
        counted.append(1)
        self.collector.emit([self.attempt, "all", len(counted)])


@pytest.mark.parametrize(
    "bolt",
    [RemembersWords(), TakesOverTheLastBatch(), SharesAListBetweenTasks()],
    ids=lambda bolt: type(bolt).__name__,
)
@pytest.mark.rule(10)
def test_a_bolt_that_keeps_something_in_its_class_is_told_without_a_schedule(
    bolt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_schedules(monkeypatch)
    violation = checked(Wrong("each", mistakes.MODULE_GLOBAL, each=bolt, grouping=Alternate()))
    assert violation is not None
    assert (violation.component, violation.mistakes, violation.seed) == (
        "each",
        (mistakes.MODULE_GLOBAL.name,),
        None,
    ), str(violation)
    assert any(type(bolt).__name__ in detail for detail in violation.diagnosis.details)


@pytest.mark.rule(10)
def test_a_bolt_that_keeps_something_in_a_resource_is_told_without_a_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_schedules(monkeypatch)
    violation = checked(Wrong("each", mistakes.LEFT_BEHIND, each=KeepsAResource()))
    assert violation is not None
    assert (violation.component, violation.mistakes) == ("each", (mistakes.LEFT_BEHIND.name,)), str(
        violation
    )


class NumbersColumns(BaseArrowBatchBolt):
    """Takes columns, and numbers the batches of a process."""

    batches: ClassVar[list[int]] = []

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector = collector

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch.num_rows)
        numbers = pa.array([len(self.batches)] * batch.num_rows)
        self.collector.emit_batch(
            pa.RecordBatch.from_arrays([batch.column(0), numbers], names=["key", "value"])
        )

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "value"))


@pytest.mark.rule(10)
def test_a_bolt_that_takes_and_emits_columns_is_told_without_a_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_schedules(monkeypatch)
    violation = checked(Wrong("each", mistakes.MODULE_GLOBAL, each=NumbersColumns()))
    assert violation is not None
    assert (violation.component, violation.mistakes) == ("each", (mistakes.MODULE_GLOBAL.name,)), (
        str(violation)
    )


class SumOnce(CombinerAggregator):
    """Adds a value the first time that a process sees the value."""

    seen: ClassVar[set[int]] = set()

    def init(self, tup: Tuple) -> int:
        if tup["value"] in self.seen:
            return 0
        self.seen.add(tup["value"])
        return int(tup["value"])

    def combine(self, left: int, right: int) -> int:
        return left + right


@pytest.mark.rule(10)
def test_an_aggregate_with_a_memory_is_told_without_a_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_schedules(monkeypatch)
    builder = TransactionalTopologyBuilder("aggregated", "words", Words(), 2)
    builder.set_aggregate("sum", SumOnce(), STORE).group_by("words", Fields("key"))
    with Simulation(builder.build_topology()) as simulation:
        violation = simulation.check_parts()
    assert violation is not None
    assert (violation.component, violation.mistakes) == (
        "sum-of-words",
        (mistakes.MODULE_GLOBAL.name,),
    ), str(violation)


@pytest.mark.rule(10)
def test_a_topology_without_a_committer_has_its_bolts_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_schedules(monkeypatch)
    builder = TransactionalTopologyBuilder("processing", "words", Words(), 2)
    builder.set_bolt("each", SharedDict(), 2).fields_grouping("words", Fields("key"))
    with Simulation(builder.build_topology()) as simulation:
        violation = simulation.check_parts()
    assert violation is not None
    assert (violation.component, violation.mistakes) == ("each", (mistakes.MODULE_GLOBAL.name,)), (
        str(violation)
    )


@pytest.mark.rule(10)
def test_a_bolt_behind_an_opaque_spout_is_checked_where_the_batch_stays_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_schedules(monkeypatch)
    rows = {0: [("ant", 1), ("bee", 2)], 1: [("cat", 3), ("dog", 4)]}
    spout = OpaqueMemoryTransactionalSpout(rows, Fields("key", "value"), 1)
    builder = TransactionalTopologyBuilder("opaque", "words", spout, 2)
    builder.set_bolt("each", ClassAttribute(), 2).fields_grouping("words", Fields("key"))
    builder.set_bolt(
        "sums", Sums(SqliteStore("/nowhere/blamed.db", "sums", opaque=True))
    ).global_grouping("each")
    with Simulation(builder.build_topology()) as simulation:
        violation = simulation.check_parts()
    assert violation is not None
    assert (violation.component, violation.mistakes) == ("each", (mistakes.MODULE_GLOBAL.name,)), (
        str(violation)
    )


@pytest.mark.rule(28)
def test_a_basic_bolt_downstream_of_a_committer_is_told_with_the_schedule_that_shows_it() -> None:
    builder = TransactionalTopologyBuilder("blamed", "words", Words(), 2)
    builder.set_bolt("sums", Sums(STORE)).global_grouping("words")
    builder.set_bolt("numbered", RemembersWords()).global_grouping("sums")
    builder.set_bolt("shown", Store(SqliteStore("/nowhere/blamed.db", "shown"))).global_grouping(
        "numbered"
    )
    with Simulation(builder.build_topology(), {"max_spout_pending": 2}) as simulation:
        violation = simulation.check_parts()
    assert violation is not None
    assert violation.broken is not None
    assert (violation.component, violation.mistakes, violation.broken.rule) == (
        "numbered",
        (mistakes.MODULE_GLOBAL.name,),
        28,
    ), str(violation)
    assert violation.seed is not None


class Unreachable(Exporter):
    """Fails always."""

    def export(self, entries: Iterator[SequencedExport]) -> None:
        raise OSError("no route to host")


def test_an_exporter_that_fails_without_any_failure_is_no_right_exporter() -> None:
    store = SqliteStore("/nowhere/blamed.db", "counts")
    queue = ExportQueue("lines", store, exporter=Unreachable())
    graph = numbered_lines.topology(numbered_lines.Queueing(queue), False, False)
    with (
        Simulation(graph, effects=outside.effects, reset=outside.reset) as simulation,
        pytest.raises(UsageError, match=r"Unreachable of export queue 'lines' fails .*no route"),
    ):
        simulation.check_parts()


def test_a_bolt_that_reads_a_store_while_it_processes_is_left_to_schedules() -> None:
    # None of the compared attempts has a commit behind it that another attempt lacks.
    with Simulation(
        WRONG["a read-ahead in the processing phase"].topology(), {"max_spout_pending": 2}
    ) as simulation:
        assert simulation.check_parts() is None


class Remembers(Each):
    """Right: looks up in a process-wide dict instead of computing again."""

    computed: ClassVar[dict[str, int]] = {}

    def finish_batch(self) -> None:
        for key, value in self.rows:
            self.collector.emit(
                [self.attempt, key, value * self.computed.setdefault(key, len(key))]
            )


class NamesItsAttempt(Each):
    """Right: names the attempt on a stream of its own, to which only a bolt that commits nothing
    listens."""

    def finish_batch(self) -> None:
        super().finish_batch()
        self.collector.emit([self.attempt, self.attempt.attempt_id], "log")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        super().declare_output_fields(declarer)
        declarer.declare_stream("log", Fields("tx", "attempt"))


class Plain:
    """A value that shows its address in memory, and is equal regardless."""

    def __init__(self, value: int) -> None:
        self.value = value


class EmitsObjects(Each):
    """Right: emits objects that can only be compared by their content."""

    def finish_batch(self) -> None:
        for key, value in self.rows:
            self.collector.emit([self.attempt, key, Plain(value)])


class SumsObjects(Sums):
    """Right: a committer that looks into the objects."""

    def execute(self, tup: Tuple) -> None:
        self.sums["all"] = self.sums.get("all", 0) + tup["value"].value


@pytest.mark.parametrize(
    ("each", "sums"),
    [
        (Remembers(), Sums(STORE)),
        (NamesItsAttempt(), Sums(STORE)),
        (EmitsObjects(), SumsObjects(STORE)),
    ],
    ids=["a cache", "an attempt in a log", "objects"],
)
@pytest.mark.rule(10)
def test_a_difference_that_no_committer_can_notice_is_no_violation(each: Any, sums: Any) -> None:
    with Simulation(Wrong("", mistakes.HASH, each=each, sums=sums).topology()) as simulation:
        violation = simulation.check_parts()
    assert violation is None, str(violation)


@pytest.mark.parametrize("name", RIGHT)
def test_parts_that_keep_their_contracts_are_no_violation(name: str) -> None:
    assert checked(RIGHT[name]) is None


@pytest.mark.in_gate("0", "1")
@pytest.mark.parametrize("number", range(12))
def test_generated_topologies_keep_the_contracts(number: int) -> None:
    with Simulation(generated(number)) as simulation:
        violation = simulation.check_parts()
    assert violation is None, str(violation)


@pytest.mark.in_gate("*-planned")
@pytest.mark.parametrize("kind", SPOUTS)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.rule(4)
def test_a_source_that_lives_keeps_the_contract(kind: str, cut: str) -> None:
    with Simulation(topology(live_spout(kind, cut), kind)) as simulation:
        violation = simulation.check_parts()
    assert violation is None, str(violation)


class SeldomReady(Ready):
    """Every other time."""

    def is_ready(self, last: Any) -> bool:
        return super().is_ready(last) and (not last or random.random() < 0.6)


@pytest.mark.thorough
@pytest.mark.rule(5)
def test_a_source_that_has_nothing_yet_keeps_the_contract_of_spouts() -> None:
    source = live_spout("planned", "chance")
    source.source = SeldomReady("chance")
    for _ in range(8):
        with Simulation(topology(source, "planned")) as simulation:
            violation = simulation.check_parts()
        assert violation is None, str(violation)


def test_a_checker_that_takes_long_begins_no_further_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ENOUGH_S", -1.0)
    assert checked(WRONG["an emitter that reads to the end"]) is None


def test_a_checker_stops_when_it_is_asked_to() -> None:
    with Simulation(RIGHT["nothing wrong"].topology()) as simulation:
        simulation.subject.goes_on = lambda: False
        with pytest.raises(StoppedError):
            simulation.check_parts()


def test_a_topology_out_of_a_file_is_the_same_after_its_parts_were_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its classes travel by value, and must not be made anew: their globals would be others."""
    monkeypatch.setenv("TXTOPO_STARTER_STORE", str(tmp_path / "wrong"))
    resolved = target.resolve(str(ROOT / "starter" / "wrong" / "module_global.py"))
    with Simulation(resolved.topology, resolved.conf) as simulation:
        violation = simulation.check_parts()
        assert simulation.replay(Script()) == []
    assert violation is not None
    assert (violation.component, violation.mistakes) == ("total", (mistakes.MODULE_GLOBAL.name,))
