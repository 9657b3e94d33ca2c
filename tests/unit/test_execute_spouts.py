"""A spout's tasks: the partitions they own, the arguments of their emitters, and their closing
after any failure."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.topologies.recording import (
    FIRST,
    Event,
    InProcessTopology,
    NotingBolt,
    NotingCommitter,
    Ran,
    RowsEmitter,
    RowsSpout,
    builder,
    note,
    planned,
    rows,
)
from txtopo import (
    BaseOpaquePartitionedTransactionalSpout,
    BaseTransactionalSpout,
    BatchOutputCollector,
    CoordinatorContext,
    FailedException,
    Fields,
    HeldStateError,
    ICommitterTransactionalSpout,
    MetadataError,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
    UserCodeError,
)
from txtopo.dataplane.job import Batch, BatchMode

CORES = [1, 2, 5]
MODES: tuple[BatchMode, ...] = ("planned", "known")


def run(
    spout: Any,
    batch: Batch,
    parallelism: int = 1,
    cores: int = 2,
    bolt: Any = None,
    attempt: TransactionAttempt = FIRST,
) -> Ran:
    declared = builder(spout, parallelism)
    declared.set_bolt("end", bolt or NotingBolt()).global_grouping("spout")
    with InProcessTopology(declared.build_topology(), cores, rng=random.Random(0)) as topology:
        return topology.run(batch, attempt)


def of_spout(ran: Ran, task: int) -> list[tuple[Any, ...]]:
    return [
        (event.hook, *event.details)
        for event in ran.events
        if (event.component, event.task) == ("spout", task)
    ]


@pytest.mark.rule(19, 22)
@pytest.mark.parametrize("cores", CORES)
def test_partition_p_belongs_to_task_p_mod_tasks_and_an_emitter_is_made_emits_and_is_closed(
    cores: int,
) -> None:
    ran = run(
        RowsSpout(), planned({p: rows(f"p{p}") for p in range(8)}), parallelism=3, cores=cores
    )
    for task in range(3):
        assert of_spout(ran, task) == [
            ("get_emitter",),
            *(("emit_partition_batch", p, rows(f"p{p}")) for p in range(8) if p % 3 == task),
            ("close",),
        ]
    assert ran.executed("end") == ["p0", "p3", "p6", "p1", "p4", "p7", "p2", "p5"], (
        "by task, then by partition"
    )


@pytest.mark.rule(19)
def test_a_task_without_a_partition_is_made_and_closed_all_the_same() -> None:
    assert of_spout(run(RowsSpout(), planned({0: rows("a")}), parallelism=3), 2) == [
        ("get_emitter",),
        ("close",),
    ]


@pytest.mark.rule(21)
@pytest.mark.parametrize("mode", MODES)
def test_a_partition_without_progress_emits_nothing(mode: BatchMode) -> None:
    ran = run(
        RowsSpout(), Batch(mode, partitions={0: rows("a"), 1: None, 2: rows("b")}, num_partitions=3)
    )
    assert [event.details[0] for event in ran.events if event.hook == "emit_partition_batch"] == [
        0,
        2,
    ]
    assert ran.executed("end") == ["a", "b"]


class PlanningSpout(RowsSpout):
    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> RowsEmitter:
        return PlanningEmitter(self, context)


class PlanningEmitter(RowsEmitter):
    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        note(self.context, "emit_planned_partition_batch", partition)


@pytest.mark.rule(4)
def test_a_planned_batch_is_emitted_by_the_hook_for_plans_and_a_known_one_by_that_for_replays() -> (
    None
):
    partitions = {0: rows("a")}
    hooks = [
        [hook for hook, *_ in of_spout(run(PlanningSpout(), Batch(mode, partitions=partitions)), 0)]
        for mode in MODES
    ]
    assert hooks == [["emit_planned_partition_batch", "close"], ["emit_partition_batch", "close"]]


@pytest.mark.rule(4, 19)
@pytest.mark.parametrize("cores", CORES)
def test_a_new_batch_is_emitted_once_and_then_replayed_from_its_record(cores: int) -> None:
    fresh = {p: rows(*(f"p{p}.{i}" for i in range(3))) for p in range(4)}
    ran = run(
        RowsSpout(fresh),
        Batch("new", partitions={1: {"at": 7}}, num_partitions=5),
        parallelism=3,
        cores=cores,
    )
    assert ran.failure is None, ran.failure
    told = sorted(event.details for event in ran.events if event.hook == "emit_partition_batch_new")
    assert told == [(0, None), (1, {"at": 7}), (2, None), (3, None), (4, None)]
    assert {p: m for report in ran.reports["emission"] for p, m in report.own.metadata.items()} == {
        **fresh,
        4: None,
    }
    assert [hook for hook, *_ in of_spout(ran, 0)].count("get_emitter") == 1, (
        "the processing job does not emit again"
    )
    assert ran.executed("end") == [f"p{p}.{i}" for p in (0, 3, 1, 2) for i in range(3)]


class Forgetful(RowsSpout):
    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> RowsEmitter:
        return ForgetfulEmitter(self, context)


class ForgetfulEmitter(RowsEmitter):
    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        super().emit_partition_batch_new(attempt, collector, partition, last_metadata)


@pytest.mark.rule(21)
def test_none_with_tuples_is_an_error_that_names_component_and_partition() -> None:
    failure = run(
        Forgetful({3: rows("a", "b")}), Batch("new", num_partitions=4), parallelism=2
    ).failure
    assert failure is not None
    error = failure.to_error()
    assert isinstance(error, MetadataError)
    assert (error.component, error.task, error.hook) == (
        "spout",
        1,
        "emit_partition_batch_new, partition 3",
    )
    assert "partition 3 emitted 2 tuples but returned None as metadata" in error.error
    assert "Return metadata for every batch with tuples" in error.error


@pytest.mark.rule(21)
def test_none_without_tuples_is_no_progress() -> None:
    ran = run(Forgetful(), Batch("new", num_partitions=2))
    assert ran.failure is None
    assert ran.reports["emission"][0].own.metadata == {0: None, 1: None}


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ({"offsets": [1, {2}]}, "$.offsets[1]"),
        ({1: 2}, "$"),
        (float("nan"), "$"),
        (object(), "$"),
        ([10**5000], "$[0]"),
        ("\ud83d\ude00", "$"),
    ],
    ids=["set", "int key", "nan", "object", "huge", "surrogates"],
)
def test_metadata_that_json_does_not_give_back_is_refused_with_the_path(
    metadata: Any, path: str
) -> None:
    class Odd(RowsSpout):
        def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> RowsEmitter:
            emitter = RowsEmitter(self, context)
            emitter.emit_partition_batch_new = lambda *args: metadata  # type: ignore[method-assign]
            return emitter

    failure = run(Odd(), Batch("new", num_partitions=1)).failure
    assert failure is not None
    error = failure.to_error()
    assert isinstance(error, MetadataError)
    assert f"at {path}: " in error.error
    assert error.hook == "emit_partition_batch_new, partition 0"


class Model:
    """Stands in for a pydantic model."""

    def __init__(self, at: int) -> None:
        self.at = at

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if "at" not in value:
            raise ValueError("field required: at")
        return cls(value["at"])

    def model_dump_json(self) -> str:
        return f'{{"at": {self.at}}}'


class Modelled(RowsSpout):
    metadata_type = Model

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> RowsEmitter:
        return ModelledEmitter(self, context)


class ModelledEmitter(RowsEmitter):
    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        note(self.context, "new", None if last_metadata is None else last_metadata.at)
        return Model(5)

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        note(self.context, "known", metadata.at)


def test_metadata_of_a_model_is_json_on_the_way_and_an_instance_in_the_emitter() -> None:
    ran = run(Modelled(), Batch("new", partitions={1: {"at": 3}}, num_partitions=2))
    assert [event.details for event in ran.events if event.hook == "new"] == [(None,), (3,)]
    assert ran.reports["emission"][0].own.metadata == {0: {"at": 5}, 1: {"at": 5}}
    assert [
        event.details
        for event in run(Modelled(), planned({0: {"at": 9}})).events
        if event.hook == "known"
    ] == [(9,)]


@pytest.mark.rule(7)
@pytest.mark.parametrize("mode", ["planned", "known", "new"])
def test_stored_metadata_that_the_model_refuses_is_an_error_and_no_crash(mode: BatchMode) -> None:
    ran = run(Modelled(), Batch(mode, partitions={0: {"was": 1}}, num_partitions=1))
    assert ran.failure is not None
    error = ran.failure.to_error()
    assert isinstance(error, UserCodeError)
    assert error.component == "spout"
    assert "field required: at" in error.error
    assert ran.of("spout")[-1][1] == "close"


class Failing(RowsSpout):
    """Fails in ``where``."""

    def __init__(self, where: str, error: BaseException, closes: bool = True) -> None:
        super().__init__({0: rows("a")})
        self.where, self.error, self.closes = where, error, closes

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> RowsEmitter:
        if self.where == "get_emitter":
            raise self.error
        return FailingEmitter(self, context)


class FailingEmitter(RowsEmitter):
    spout: Failing

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        super().emit_partition_batch(attempt, collector, partition, metadata)
        if self.spout.where == "emit":
            raise self.spout.error

    def close(self) -> None:
        super().close()
        if self.spout.where == "close" or not self.spout.closes:
            raise RuntimeError("close failed")


@pytest.mark.rule(7, 22)
@pytest.mark.parametrize(
    "error",
    [ValueError("mine"), FailedException("mine"), SystemExit(3), KeyboardInterrupt("mine")],
    ids=repr,
)
@pytest.mark.parametrize("closes", [True, False], ids=["closes", "fails to close"])
def test_an_emitter_is_closed_also_after_a_failure_which_a_failing_close_does_not_hide(
    error: BaseException, closes: bool
) -> None:
    ran = run(Failing("emit", error, closes), planned({0: rows("a")}))
    assert ran.of("spout")[-1] == ("processing", "close")
    assert ran.failure is not None
    assert ran.failure.hook == "emit_planned_partition_batch, partition 0"
    assert str(error) in ran.failure.error
    assert ran.failure.kind == ("failed" if isinstance(error, FailedException) else "error")


@pytest.mark.rule(22)
def test_a_failing_close_fails_the_attempt() -> None:
    ran = run(Failing("close", ValueError()), planned({0: rows("a")}))
    assert ran.failure is not None
    assert (ran.failure.hook, ran.failure.error) == ("close", "RuntimeError: close failed")


@pytest.mark.rule(7)
def test_an_emitter_that_cannot_be_made_fails_the_attempt() -> None:
    ran = run(Failing("get_emitter", FailedException("source is away")), planned({0: rows("a")}))
    assert ran.failure is not None
    assert (ran.failure.kind, ran.failure.hook) == ("failed", "get_emitter")


class WholeEmitter:
    """Notes its calls; emits its share of ``metadata``."""

    def __init__(self, spout: Any, context: TopologyContext) -> None:
        self.spout, self.context, self.emitted = spout, context, 0

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        note(self.context, "emit_batch", metadata)
        self.collector = collector
        for value in metadata[self.context.task_index :: self.context.num_tasks]:
            collector.emit([attempt, value])
            self.emitted += 1

    def cleanup_before(self, txid: int) -> None:
        note(self.context, "cleanup_before", txid)

    def close(self) -> None:
        note(self.context, "close")


class Whole(BaseTransactionalSpout):
    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> Any:
        raise AssertionError

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        note(context, "get_emitter")
        return WholeEmitter(self, context)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "value"))


@pytest.mark.rule(18, 22)
def test_every_task_emits_its_part_of_a_whole_batch() -> None:
    ran = run(Whole(), Batch("whole", [1, 2, 3, 4, 5]), parallelism=2)
    assert of_spout(ran, 0) == [("get_emitter",), ("emit_batch", [1, 2, 3, 4, 5]), ("close",)]
    assert ran.executed("end") == [1, 3, 5, 2, 4]


@pytest.mark.rule(22)
def test_cleaning_up_never_covers_the_transaction_the_next_batch_starts_from() -> None:
    declared = builder(Whole())
    declared.set_bolt("end", NotingBolt()).global_grouping("spout")
    with InProcessTopology(declared.build_topology()) as topology:
        topology.jobs.run(
            topology.job("processing", TransactionAttempt(8, 0), Batch("whole", [1]), committed=6)
        )
        assert [
            event.details for event in topology_events(topology) if event.hook == "cleanup_before"
        ] == [(6,)], "everything below 6 may go"


def topology_events(topology: InProcessTopology) -> list[Event]:
    from tests.topologies.recording import journals

    return journals[topology.graph.id]


class CommitterEmitter(WholeEmitter):
    def commit(self, attempt: TransactionAttempt) -> None:
        note(self.context, "commit", str(attempt), self.emitted)
        self.spout.on_commit(self)


class CommitterSpout(Whole, ICommitterTransactionalSpout):
    def __init__(
        self,
        on_commit: Callable[[Any], None] = lambda emitter: None,
        on_emit: Callable[[Any], None] = lambda emitter: None,
    ) -> None:
        self.on_commit, self.on_emit = on_commit, on_emit

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        emitter = CommitterEmitter(self, context)
        self.on_emit(emitter)
        return emitter


@pytest.mark.rule(22)
@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize(
    "bolt", [NotingBolt(), NotingCommitter()], ids=["nothing else held", "a committer beside"]
)
def test_the_emitter_of_a_committer_spout_is_held_and_commits_its_emissions(
    cores: int, bolt: Any
) -> None:
    ran = run(
        CommitterSpout(), Batch("whole", [1, 2, 3, 4, 5]), parallelism=2, cores=cores, bolt=bolt
    )
    assert ran.failure is None, ran.failure
    for task, emitted in ((0, 3), (1, 2)):
        events = [
            (event.phase, event.hook, *event.details)
            for event in ran.events
            if (event.component, event.task) == ("spout", task)
        ]
        assert events == [
            ("processing", "emit_batch", [1, 2, 3, 4, 5]),
            ("commit", "commit", "1:0", emitted),
            ("commit", "close"),
        ]
    assert ran.of("end")[-1] == (
        "commit" if isinstance(bolt, NotingCommitter) else "processing",
        "finish_batch",
    )
    assert ran.executed("end") == [1, 3, 5, 2, 4]


def _emit_again(emitter: Any) -> None:
    emitter.collector.emit([FIRST, "too late"])


@pytest.mark.rule(22)
@pytest.mark.parametrize(
    "bolt", [NotingBolt(), NotingCommitter()], ids=["nothing else held", "a committer beside"]
)
def test_a_committer_spout_that_emits_while_committing_is_told_so(bolt: Any) -> None:
    """Nobody would execute it: everything a spout emits belongs to the processing phase."""
    ran = run(CommitterSpout(_emit_again), Batch("whole", [1]), bolt=bolt)
    assert ran.failed_in == "commit"
    assert ran.failure is not None
    assert (ran.failure.component, ran.failure.hook) == ("spout", "commit")
    assert "emitted 1 tuple in commit" in ran.failure.error


@pytest.mark.rule(22)
def test_a_commit_that_fails_closes_its_emitter() -> None:
    def fail(emitter: Any) -> None:
        raise FailedException("not now")

    ran = run(CommitterSpout(fail), Batch("whole", [1]))
    assert ran.failed_in == "commit"
    assert ran.failure is not None
    assert (ran.failure.kind, ran.failure.hook) == ("failed", "commit")
    assert ran.of("spout")[-1] == ("commit", "close")


@pytest.mark.rule(12, 22)
def test_an_emitter_that_cannot_be_held_is_closed_and_its_attribute_named() -> None:
    def keep_lock(emitter: Any) -> None:
        emitter.lock = threading.Lock()

    ran = run(CommitterSpout(on_emit=keep_lock), Batch("whole", [1]))
    assert ran.failure is not None
    error = ran.failure.to_error()
    assert isinstance(error, HeldStateError)
    assert "'lock'" in error.error
    assert ran.of("spout")[-1] == ("processing", "close")


class OpaqueEmitter(RowsEmitter):
    spout: Any

    def num_partitions(self) -> Any:
        answer = self.spout.partitions
        return answer(self.context.task_index) if callable(answer) else answer

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        return self.emit_partition_batch_new(attempt, collector, partition, last_metadata)


class Opaque(BaseOpaquePartitionedTransactionalSpout):
    def __init__(self, fresh: Any, partitions: Any) -> None:
        self.fresh, self.partitions = fresh, partitions

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> Any:
        raise AssertionError

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        emitter: Any = OpaqueEmitter
        return emitter(self, context)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "value"))


def emission(spout: Any, batch: Batch, parallelism: int) -> tuple[list[Any], list[Event], Any]:
    declared = builder(spout, parallelism)
    declared.set_bolt("end", NotingBolt()).global_grouping("spout")
    with InProcessTopology(declared.build_topology()) as topology:
        reports, result = topology.run_job(topology.job("emission", batch=batch))
        if result.failure is None:
            topology.jobs.run(topology.job("processing", batch=Batch("recorded")), result.frames)
        return reports, topology_events(topology), result.failure


@pytest.mark.rule(4, 19)
def test_an_opaque_emitter_is_asked_how_many_partitions_there_are_and_told_where_each_ended() -> (
    None
):
    reports, events, failure = emission(
        Opaque({p: rows(f"p{p}") for p in range(3)}, 3),
        Batch("opaque", partitions={1: {"at": 7}}),
        2,
    )
    assert failure is None
    assert sorted(
        event.details for event in events if event.hook == "emit_partition_batch_new"
    ) == [(0, None), (1, {"at": 7}), (2, None)]
    assert {p: m for report in reports for p, m in report.own.metadata.items()} == {
        p: rows(f"p{p}") for p in range(3)
    }
    assert [
        event.details[3][0]
        for event in events
        if event.component == "end" and event.hook == "execute"
    ] == ["p0", "p2", "p1"]


@pytest.mark.rule(19)
def test_tasks_that_see_different_numbers_of_partitions_say_so() -> None:
    reports, _, failure = emission(Opaque({}, lambda task: 3 + task), Batch("opaque"), 2)
    assert failure is None
    assert {count for report in reports for count in report.own.partition_counts} == {3, 4}


@pytest.mark.rule(19)
@pytest.mark.parametrize("answer", ["three", None, -1, 2.0], ids=repr)
def test_a_number_of_partitions_that_is_none_is_the_spouts_error(answer: Any) -> None:
    _, events, failure = emission(Opaque({}, lambda task: answer), Batch("opaque"), 2)
    assert failure is not None
    assert (failure.component, failure.hook) == ("spout", "num_partitions")
    assert repr(answer) in failure.error
    assert "close" in {event.hook for event in events}
