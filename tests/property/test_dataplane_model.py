"""Random topologies: every task does the same as in a plain program, in the same phases and order,
under any plan.

The model below knows the rules and nothing of levels, slots, fusing, shuffles, chunks or jobs: the
model takes the components in turn and gives every task its tuples sorted. The data plane must agree
with the model for every number of cores, for buffers and chunks of any size, and for any order of
arrival of the pieces.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.topologies.recording import (
    InProcessTopology,
    Ran,
    RowsSpout,
    builder,
    journals,
    note,
    origin,
    planned,
)
from txtopo import (
    BaseBasicBolt,
    BaseBatchBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    FailedException,
    Fields,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
    Tuple,
)
from txtopo.dataplane.job import Batch, Limits
from txtopo.topology.graph import TopologyGraph

FIELDS = ("tx", "key", "number", "trail")
STREAMS = {"default": FIELDS, "side": FIELDS}
EMITS_MAX = 6
"""How much one task emits while executing, in one phase: without a bound, random topologies
explode."""

Row = tuple[str, int, list[str]]
Tag = tuple[str, int]
Failing = tuple[str, int, str]
"""Component, task, hook."""


# -- what bolts do: the same few lines for the data plane's bolts and for the model --------------


def answers(id: str, number: int, key: str, trail: Sequence[str]) -> list[tuple[str, Row]]:
    """The emissions of a bolt for a tuple."""
    emits: list[tuple[str, Row]] = []
    if number % 4 != 3:
        emits.append(("default", (key, number + len(id), [*trail, id])))
    if number % 3 == 1:
        emits.append(("side", (f"{key}{number % 5}", number * 2 % 17, [*trail, id, "side"])))
    return emits


def summary(id: str, task: int, executed: int) -> list[tuple[str, Row]]:
    """The emissions of a batch bolt in ``finish_batch``."""
    emits: list[tuple[str, Row]] = [("default", (f"{id}{task}", executed, ["total"]))]
    return emits + [("side", ("many", executed, ["total"]))] * (executed > 2)


class _Work:
    """The common part of both kinds of bolts."""

    context: TopologyContext

    def __init__(self, id: str, failing: Failing | None) -> None:
        self.id, self.failing = id, failing
        self.executed = 0

    def fail_in(self, hook: str) -> None:
        if self.failing == (self.id, self.context.task_index, hook):
            raise FailedException(hook)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        for stream, fields in STREAMS.items():
            declarer.declare_stream(stream, Fields(fields))


class Working(_Work, BaseBatchBolt):
    """Does the same as the functions above, and mistreats every list within reach."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.emits: dict[str, int] = {"processing": 0, "commit": 0}
        note(context, "prepare")
        self.fail_in("prepare")

    def execute(self, tup: Tuple) -> None:
        work(self, tup, self.collector)
        self.fail_in("execute")

    def finish_batch(self) -> None:
        note(self.context, "finish_batch", self.executed)
        self.fail_in("finish_batch")
        for stream, row in summary(self.id, self.context.task_index, self.executed):
            self.collector.emit([self.attempt, *row], stream)
            row[2].append("changed after the emit")


class WorkingBasic(_Work, BaseBasicBolt):
    """The same, tuple by tuple."""

    def prepare(self, conf: TopologyConf, context: TopologyContext) -> None:
        self.context = context
        self.emits = {"processing": 0, "commit": 0}
        note(context, "prepare")
        self.fail_in("prepare")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        work(self, tup, collector)
        self.fail_in("execute")

    def cleanup(self) -> None:
        note(self.context, "finish_batch", self.executed)
        self.fail_in("finish_batch")


def work(bolt: Any, tup: Tuple, collector: BatchOutputCollector) -> None:
    component, task, stream, (key, number, trail) = origin(tup)
    note(bolt.context, "execute", component, task, stream, key, number, tuple(trail))
    bolt.executed += 1
    trail_before = list(trail)
    trail.append("changed by a receiver")
    for out, row in answers(bolt.id, number, key, trail_before):
        if bolt.emits[bolt.context.phase] < EMITS_MAX:
            bolt.emits[bolt.context.phase] += 1
            collector.emit([tup[0], *row], out)
            row[2].append("changed after the emit")


# -- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """One bolt. ``inputs``: (source, stream) to grouping."""

    id: str
    kind: str
    parallelism: int
    inputs: tuple[tuple[tuple[str, str], str], ...]


@dataclass(frozen=True)
class Drawn:
    """A topology and its batch."""

    tasks: int
    bolts: tuple[Spec, ...]
    partitions: dict[int, list[Any]]
    txid: int

    def graph(self, failing: Failing | None = None) -> TopologyGraph:
        declared = builder(RowsSpout(self.partitions, STREAMS), self.tasks)
        for spec in self.bolts:
            bolt: Any = (WorkingBasic if spec.kind == "basic" else Working)(spec.id, failing)
            setter = declared.set_committer_bolt if spec.kind == "committer" else declared.set_bolt
            declarer = setter(spec.id, bolt, spec.parallelism)
            for (source, stream), grouping in spec.inputs:
                if grouping == "fields":
                    declarer.fields_grouping(source, Fields("key"), stream)
                else:
                    getattr(declarer, f"{grouping}_grouping")(source, stream)
        return declared.build_topology()


def _encoded(key: str) -> int:
    body = b"s" + key.encode()
    return int.from_bytes(
        blake2b(len(body).to_bytes(4, "big") + body, digest_size=8).digest(), "big"
    )


class Model:
    """Runs a drawn topology by the rules, one component after the other."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.rank = {"spout": 0, **{spec.id: i + 1 for i, spec in enumerate(drawn.bolts)}}
        self.events: dict[Tag, list[tuple[Any, ...]]] = defaultdict(list)
        self.executed: dict[Tag, int] = defaultdict(int)
        self.held: set[str] = set()
        for spec in drawn.bolts:
            if spec.kind == "committer" or any(
                source in self.held for (source, _), _ in spec.inputs
            ):
                self.held.add(spec.id)

    def run(self) -> dict[Tag, list[tuple[Any, ...]]]:
        self.begin_phase("processing")
        for partition, metadata in sorted(
            self.drawn.partitions.items(), key=lambda item: (item[0] % self.drawn.tasks, item[0])
        ):
            for stream, row in metadata:
                self.emit("spout", partition % self.drawn.tasks, stream, row)
        for spec in self.drawn.bolts:
            for task in range(spec.parallelism):
                self.execute(spec, task)
                if spec.id not in self.held:
                    self.finish(spec, task)
        self.begin_phase("commit")
        for spec in self.drawn.bolts:
            for task in range(spec.parallelism if spec.id in self.held else 0):
                self.execute(spec, task)
                self.finish(spec, task)
        return self.events

    def begin_phase(self, phase: str) -> None:
        self.phase = phase
        self.inboxes: dict[Tag, list[tuple[int, int, int, str, str, Row]]] = defaultdict(list)
        self.sent: dict[Any, int] = defaultdict(int)
        self.emits: dict[Tag, int] = defaultdict(int)
        self.emissions = 0

    def emit(self, component: str, task: int, stream: str, row: Any) -> None:
        self.emissions += 1
        for spec in self.drawn.bolts:
            for (source, on), grouping in spec.inputs:
                if (source, on) == (component, stream):
                    for receiver in self.receivers(grouping, component, task, stream, spec, row[0]):
                        self.inboxes[spec.id, receiver].append(
                            (
                                self.rank[component],
                                task,
                                self.emissions,
                                component,
                                stream,
                                tuple(row),
                            )
                        )

    def receivers(
        self, grouping: str, component: str, task: int, stream: str, spec: Spec, key: str
    ) -> Sequence[int]:
        n = spec.parallelism
        if grouping == "all":
            return range(n)
        if grouping == "global":
            return [0]
        if grouping == "fields":
            return [_encoded(key) % n]
        if grouping in ("none", "local_or_shuffle"):
            return [task % n]
        turn = self.sent[component, task, stream, spec.id]
        self.sent[component, task, stream, spec.id] += 1
        return [(task + self.drawn.txid + turn) % n]

    def execute(self, spec: Spec, task: int) -> None:
        me = (spec.id, task)
        for _, source_task, _, component, stream, (key, number, trail) in sorted(
            self.inboxes[me], key=lambda arrived: arrived[:3]
        ):
            self.events[me].append(
                (self.phase, "execute", component, source_task, stream, key, number, tuple(trail))
            )
            self.executed[me] += 1
            for out, row in answers(spec.id, number, key, trail):
                if self.emits[me] < EMITS_MAX:
                    self.emits[me] += 1
                    self.emit(spec.id, task, out, row)

    def finish(self, spec: Spec, task: int) -> None:
        me = (spec.id, task)
        self.events[me].append((self.phase, "finish_batch", self.executed[me]))
        if spec.kind != "basic":
            for stream, row in summary(spec.id, task, self.executed[me]):
                self.emit(spec.id, task, stream, row)


# -- drawing -------------------------------------------------------------------------------------


@st.composite
def topologies(draw: st.DrawFn) -> Drawn:
    sources = ["spout"]
    bolts = []
    for i in range(draw(st.integers(1, 6))):
        inputs: dict[tuple[str, str], str] = {}
        for source in draw(st.lists(st.sampled_from(sources), min_size=1, max_size=3)):
            stream = draw(st.sampled_from(["default", "default", "side"]))
            inputs[source, stream] = draw(
                st.sampled_from(
                    ["shuffle", "fields", "global", "all", "none", "none", "local_or_shuffle"]
                )
            )
        kind = draw(st.sampled_from(["batch", "batch", "basic", "committer"]))
        bolts.append(Spec(f"b{i}", kind, draw(st.integers(1, 5)), tuple(inputs.items())))
        sources.append(f"b{i}")
    values = st.tuples(st.sampled_from("abcdef"), st.integers(0, 30), st.just([])).map(list)
    row = st.tuples(st.sampled_from(["default", "default", "side"]), values).map(list)
    partitions = draw(st.dictionaries(st.integers(0, 5), st.lists(row, max_size=6), max_size=4))
    return Drawn(draw(st.integers(1, 5)), tuple(bolts), partitions, draw(st.integers(1, 9)))


LIMITS = [
    Limits(inline_bytes_max=1 << 40),
    Limits(blob_bytes_max=1 << 20, spill_bytes=0, inline_bytes_max=1 << 40),
    Limits(blob_bytes_max=400, spill_bytes=0, inline_bytes_max=1 << 40),
    Limits(blob_bytes_max=400, spill_bytes=1000, inline_bytes_max=1 << 40),
]


def happened(ran: Ran, spout: str = "spout") -> dict[Tag, list[tuple[Any, ...]]]:
    """Per task, all hooks but ``prepare``, which some held bolts get in the phase that first needs
    them."""
    by_task: dict[Tag, list[tuple[Any, ...]]] = defaultdict(list)
    for one in ran.events:
        if one.component != spout and one.hook != "prepare":
            by_task[one.component, one.task].append((one.phase, one.hook, *one.details))
    return by_task


def run(
    drawn: Drawn,
    cores: int,
    limits: Limits,
    seed: int,
    learns: bool,
    failing: Failing | None = None,
    whole: bool = False,
) -> Ran:
    graph = drawn.graph(failing)
    batch = (
        planned(drawn.partitions)
        if not learns
        else Batch("new", num_partitions=max(drawn.partitions, default=-1) + 1)
    )
    with InProcessTopology(graph, cores, limits, random.Random(seed)) as topology:
        ran = topology.run(batch, TransactionAttempt(drawn.txid, 0), whole)
    del journals[graph.id]
    return ran


# -- the claims ----------------------------------------------------------------------------------


@pytest.mark.rule(10, 11, 12, 13, 14, 15, 16, 17, 19)
@examples(60)
@given(drawn=topologies(), data=st.data())
def test_every_plan_of_every_topology_equals_the_model(drawn: Drawn, data: st.DataObject) -> None:
    expected = Model(drawn).run()
    for cores in data.draw(
        st.lists(st.integers(1, 8), min_size=2, max_size=3, unique=True), label="cores"
    ):
        limits = data.draw(st.sampled_from(LIMITS), label="limits")
        learns = data.draw(st.booleans(), label="learns its metadata by emitting")
        ran = run(drawn, cores, limits, data.draw(st.integers(0, 99), label="seed"), learns)
        assert ran.failure is None, ran.failure
        event(f"late job: {'late' in ran.reports}, commit: {'commit' in ran.reports}")
        assert happened(ran) == expected
        prepared = [(one.component, one.task) for one in ran.events if one.hook == "prepare"]
        assert sorted(prepared) == sorted(
            (spec.id, task) for spec in drawn.bolts for task in range(spec.parallelism)
        ), "once each"
        last = {
            (one.component, one.task): one.hook for one in ran.events if one.component != "spout"
        }
        assert set(last.values()) <= {"finish_batch"}, "finishing is the last thing a task does"


@pytest.mark.rule(10, 11, 12, 13, 14, 15, 16, 17, 19)
@examples(60)
@given(drawn=topologies(), cores=st.integers(1, 8), limits=st.sampled_from(LIMITS))
def test_a_whole_transaction_in_one_task_equals_the_model(
    drawn: Drawn, cores: int, limits: Limits
) -> None:
    ran = run(drawn, cores, limits, seed=0, learns=False, whole=True)
    assert ran.failure is None, ran.failure
    assert happened(ran) == Model(drawn).run()
    (report,) = ran.reports["whole"]
    executed = {
        spec.id: sum(one.hook == "execute" and one.component == spec.id for one in ran.events)
        for spec in drawn.bolts
    }
    assert {id: count for id, count in report.own.executed.items() if id != "spout"} == executed


@pytest.mark.rule(7)
@examples(50)
@given(drawn=topologies(), data=st.data())
def test_a_failure_anywhere_is_told_under_every_plan_and_nothing_of_its_job_is_used(
    drawn: Drawn, data: st.DataObject
) -> None:
    spec = data.draw(st.sampled_from(drawn.bolts), label="bolt")
    task = data.draw(st.integers(0, spec.parallelism - 1), label="task")
    failing = (
        spec.id,
        task,
        data.draw(st.sampled_from(["prepare", "execute", "finish_batch"]), label="hook"),
    )
    model = Model(drawn).run()[spec.id, failing[1]]
    phases = [phase for phase, hook, *_ in model if hook == failing[2]]
    limits, whole = (
        data.draw(st.sampled_from(LIMITS), label="limits"),
        data.draw(st.booleans(), label="whole"),
    )
    ran = run(drawn, data.draw(st.integers(1, 8), label="cores"), limits, 1, False, failing, whole)
    if failing[2] == "execute" and not phases:
        assert ran.failure is None, "it was never called"
        return
    assert ran.failure is not None
    hook = "cleanup" if (spec.kind, failing[2]) == ("basic", "finish_batch") else failing[2]
    assert (ran.failure.kind, ran.failure.component, ran.failure.task, ran.failure.hook) == (
        "failed",
        spec.id,
        failing[1],
        hook,
    )
    assert ran.failed_in is not None
    assert ran.frames[ran.failed_in] == []
    if failing[2] != "prepare":
        assert ran.failure.phase == phases[0]
        finished = {
            one.component
            for one in ran.events
            if one.hook == "finish_batch" and one.phase == "commit"
        }
        assert not (phases[0] == "processing" and finished), (
            "a failed attempt does not reach its commit"
        )


@pytest.mark.rule(16)
@examples(60)
@given(drawn=topologies())
def test_shuffled_counts_differ_by_at_most_one_per_sending_task_and_phase(drawn: Drawn) -> None:
    ran = run(drawn, 2, LIMITS[0], 0, False)
    counts: dict[Any, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for one in ran.events:
        if one.hook == "execute":
            component, task, stream, *_ = one.details
            counts[one.component, one.phase, component, task, stream][one.task] += 1
    for spec in drawn.bolts:
        for (source, stream), grouping in spec.inputs:
            for (receiver, _, component, _, on), by_task in counts.items():
                if (receiver, component, on, grouping) == (spec.id, source, stream, "shuffle"):
                    of_all = [by_task[task] for task in range(spec.parallelism)]
                    assert max(of_all) - min(of_all) <= 1
