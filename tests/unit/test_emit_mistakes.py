"""An emit that cannot be delivered: the attempt fails, also if the bolt swallows the exception, and
the error names the expected form."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.topologies.recording import (
    FIRST,
    InProcessTopology,
    NotingBasicBolt,
    NotingBolt,
    NotingCommitter,
    Ran,
    RowsSpout,
    builder,
    pass_on,
    planned,
    rows,
    run_once,
)
from txtopo import (
    BasicOutputCollector,
    BatchTooLargeError,
    EmitError,
    Fields,
    OutputFieldsDeclarer,
    TransactionAttempt,
    Tuple,
    UserCodeError,
)
from txtopo.dataplane.job import Limits

STREAMS = {"default": ("tx", "word", "count"), "side": ("tx", "why")}
OLDER = TransactionAttempt(1, -1)


class DirectBolt(NotingBolt):
    """Emits on direct streams."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        for stream, fields in self.streams.items():
            declarer.declare_stream(stream, Fields(fields), direct=True)


def failed(on_execute: Callable[[Any, Tuple], None], **how: Any) -> Ran:
    """One attempt in which task 1 of ``bad`` does ``on_execute`` on every tuple."""
    declared = builder(parallelism=2)
    declared.set_bolt("bad", NotingBolt(on_execute, streams=STREAMS), 2).none_grouping("spout")
    declared.set_bolt("after", NotingBolt(), 2).shuffle_grouping("bad").all_grouping("bad", "side")
    ran = run_once(declared.build_topology(), {1: rows("cat")}, **how)
    assert ran.failed_in == "processing"
    return ran


def emit_error(on_execute: Callable[[Any, Tuple], None]) -> EmitError:
    failure = failed(on_execute).failure
    assert failure is not None
    error = failure.to_error()
    assert isinstance(error, EmitError), error
    assert (error.component, error.task, error.attempt, error.phase, error.hook) == (
        "bad",
        1,
        "1:0",
        "processing",
        "execute",
    )
    return error


@pytest.mark.rule(14)
@pytest.mark.parametrize("first", ["cat", None, OLDER, TransactionAttempt(2, 0), (1, 0)], ids=repr)
def test_a_first_value_that_is_not_the_current_attempt_is_refused(first: Any) -> None:
    error = emit_error(lambda bolt, tup: bolt.collector.emit([first, "cat", 1]))
    assert (
        f"component 'bad' emits on stream 'default' with {first!r} as first value instead of the current attempt"
        in error.error
    )
    assert "emit([tup[0], ...]) for (tx, word, count)" in error.error


@pytest.mark.rule(14)
@pytest.mark.parametrize("values", [[], [FIRST], [FIRST, "cat"], [FIRST, "cat", 1, 2]], ids=len)
def test_a_wrong_number_of_values_is_refused_naming_the_fields(values: list[Any]) -> None:
    error = emit_error(lambda bolt, tup: bolt.collector.emit(values))
    assert (
        f"component 'bad' emits on stream 'default' {len(values)} values for the 3 fields (tx, word, count)"
        in error.error
    )


@pytest.mark.rule(14)
def test_an_undeclared_stream_is_refused_naming_those_that_are() -> None:
    error = emit_error(lambda bolt, tup: bolt.collector.emit([FIRST, "cat", 1], stream="sdie"))
    assert (
        "component 'bad' emits on stream 'sdie', which it does not declare\n  It declares 'default', 'side'."
        in error.error
    )


@pytest.mark.rule(14)
@pytest.mark.parametrize("values", [None, 5, FIRST], ids=repr)
def test_values_that_are_no_list_are_refused_naming_the_fields(values: Any) -> None:
    error = emit_error(lambda bolt, tup: bolt.collector.emit(values))
    assert f"component 'bad' emits {values!r} on stream 'default'" in error.error
    assert "(tx, word, count)" in error.error


@pytest.mark.rule(14)
def test_a_value_that_cannot_be_pickled_is_refused_naming_the_cure() -> None:
    error = emit_error(lambda bolt, tup: bolt.collector.emit([FIRST, threading.Lock(), 1]))
    assert "component 'bad' emits a value that cannot be pickled (TypeError: " in error.error
    assert "Emit plain data." in error.error


def test_emitting_directly_on_a_stream_that_is_not_direct_names_the_call_that_works() -> None:
    error = emit_error(lambda bolt, tup: bolt.collector.emit_direct(0, [FIRST, "why"], "side"))
    assert (
        "component 'bad' emits directly on stream 'side', which is not a direct stream"
        in error.error
    )
    assert "use emit(values)" in error.error


@pytest.mark.rule(16)
@pytest.mark.parametrize("task", [-1, 2, 1.0, "0", None], ids=repr)
def test_emitting_directly_to_a_task_that_does_not_exist_names_those_that_do(task: Any) -> None:
    declared = builder()
    streams = {"default": ("tx", "value")}
    declared.set_bolt(
        "bad",
        DirectBolt(
            lambda bolt, tup: bolt.collector.emit_direct(task, [FIRST, "a"]), streams=streams
        ),
    ).none_grouping("spout")
    declared.set_bolt("after", NotingBolt(), 2).direct_grouping("bad")
    failure = run_once(declared.build_topology(), {0: rows("cat")}).failure
    assert failure is not None
    assert isinstance(failure.to_error(), EmitError)
    assert f"to task {task!r}, but its receiver 'after' has tasks 0 … 1" in failure.error


class Chooses:
    """Sends everything to one task."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        return [self.task]


@pytest.mark.rule(16)
@pytest.mark.parametrize("task", [-1, 2, 1.0, "0", None], ids=repr)
@pytest.mark.parametrize("by", ["tuples", "columns"])
def test_a_custom_grouping_that_chooses_a_task_that_does_not_exist_is_told_with_sender_stream_and_receiver(
    task: Any, by: str
) -> None:
    declared = builder()
    streams = {"default": ("tx", "value")}

    def emit(bolt: Any, tup: Tuple) -> None:
        if by == "tuples":
            bolt.collector.emit([FIRST, "a"])
        else:
            bolt.collector.emit_batch(pa.RecordBatch.from_pydict({"value": ["a"]}))

    declared.set_bolt("sender", NotingBolt(emit, streams=streams)).none_grouping("spout")
    declared.set_bolt("receiver", NotingBolt(), 2).custom_grouping("sender", Chooses(task))
    declared.set_bolt("another", NotingBolt(), 3).shuffle_grouping("sender")
    failure = run_once(declared.build_topology(), {0: rows("cat")}).failure
    assert failure is not None
    assert isinstance(failure.to_error(), EmitError)
    assert (
        f"component 'sender' emits on stream 'default' to 'receiver': Chooses.choose_tasks chose task {task!r}, but 'receiver' has tasks 0 … 1\n"
        "  Choose among these, or give 'receiver' more tasks." in failure.error
    )


@pytest.mark.rule(16)
def test_emitting_undirectedly_on_a_direct_stream_names_the_call_that_works() -> None:
    declared = builder()
    declared.set_bolt("bad", DirectBolt(pass_on)).none_grouping("spout")
    declared.set_bolt("after", NotingBolt(), 2).direct_grouping("bad")
    failure = run_once(declared.build_topology(), {0: rows("cat")}).failure
    assert failure is not None
    assert "which is a direct stream\n  Use emit_direct(task_index, values)." in failure.error


def test_a_bolt_that_declares_nothing_is_told_to() -> None:
    declared = builder()
    declared.set_bolt("mute", NotingBolt(pass_on, streams={})).shuffle_grouping("spout")
    failure = run_once(declared.build_topology(), {0: rows("cat")}).failure
    assert failure is not None
    assert (
        "which it does not declare\n  It declares none: define declare_output_fields."
        in failure.error
    )


def test_the_error_shows_the_users_line_and_none_of_ours() -> None:
    error = emit_error(lambda bolt, tup: bolt.collector.emit(["cat"]))
    assert "test_emit_mistakes.py" in error.traceback
    assert "/txtopo/dataplane/" not in error.traceback
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def _swallowing(emit: Callable[[Any, Tuple], None]) -> Callable[[Any, Tuple], None]:
    def execute(bolt: Any, tup: Tuple) -> None:
        try:
            emit(bolt, tup)
        except BaseException:
            bolt.seen.append("swallowed")

    return execute


@pytest.mark.rule(7, 14)
@pytest.mark.parametrize(
    "emit",
    [
        lambda bolt, tup: bolt.collector.emit(["cat"]),
        lambda bolt, tup: bolt.collector.emit([FIRST, "cat", 1], "sdie"),
        lambda bolt, tup: bolt.collector.emit([FIRST, threading.Lock(), 1]),
        lambda bolt, tup: bolt.collector.emit_direct(0, [FIRST, "why"], "side"),
    ],
    ids=["first value", "stream", "pickle", "direct"],
)
def test_swallowing_the_exception_does_not_make_a_lost_tuple_good(
    emit: Callable[[Any, Tuple], None],
) -> None:
    failure = failed(_swallowing(emit)).failure
    assert failure is not None
    assert isinstance(failure.to_error(), EmitError)
    assert (failure.component, failure.task) == ("bad", 1)


@pytest.mark.rule(7, 14)
def test_an_emit_after_the_swallowed_one_does_not_hide_the_failure() -> None:
    """The receiver in the same process, which takes nothing more, is where the second emit ends."""

    def execute(bolt: Any, tup: Tuple) -> None:
        _swallowing(lambda bolt, tup: bolt.collector.emit(["cat"]))(bolt, tup)
        bolt.emit("dog")

    declared = builder()
    declared.set_bolt("bad", NotingBolt(execute)).none_grouping("spout")
    declared.set_bolt("after", NotingBolt()).none_grouping("bad")
    failure = run_once(declared.build_topology(), {0: rows("cat")}).failure
    assert failure is not None
    assert (failure.component, failure.hook, type(failure.to_error())) == (
        "bad",
        "execute",
        EmitError,
    )


@pytest.mark.rule(7, 16)
def test_a_key_that_cannot_be_routed_fails_the_attempt_even_if_the_bolt_swallows_the_exception() -> (
    None
):
    """Otherwise the tuple would have reached one receiver and not the other."""
    declared = builder()
    declared.set_bolt(
        "bad", NotingBolt(_swallowing(lambda bolt, tup: bolt.emit({1})))
    ).none_grouping("spout")
    declared.set_bolt("all", NotingBolt()).none_grouping("bad")
    declared.set_bolt("by-key", NotingBolt(), 2).fields_grouping("bad", Fields("value"))
    ran = run_once(declared.build_topology(), {0: rows("cat")})
    assert ran.failure is not None
    assert (ran.failure.component, ran.failure.task) == ("bad", 0)
    assert "fields grouping cannot route on a value of type builtins.set" in str(
        ran.failure.to_error()
    )


def _emit_in_basic_bolt(bolt: NotingBasicBolt, tup: Tuple, collector: BasicOutputCollector) -> None:
    try:
        collector.emit(["cat"])
    except Exception:
        return


@pytest.mark.rule(14, 15)
def test_a_basic_bolts_mistake_is_an_emit_error_too() -> None:
    declared = builder()
    declared.set_bolt("bad", NotingBasicBolt(_emit_in_basic_bolt)).none_grouping("spout")
    failure = run_once(declared.build_topology(), {0: rows("cat")}).failure
    assert failure is not None
    assert isinstance(failure.to_error(), EmitError)


@pytest.mark.rule(14)
def test_a_spouts_mistake_names_the_spout_and_its_task() -> None:
    declared = builder(RowsSpout(streams={"default": ("tx", "value")}), parallelism=3)
    declared.set_bolt("end", NotingBolt()).shuffle_grouping("spout")
    failure = run_once(declared.build_topology(), {2: [["default", ["one", "too many"]]]}).failure
    assert failure is not None
    error = failure.to_error()
    assert isinstance(error, EmitError)
    assert (error.component, error.task, error.hook) == (
        "spout",
        2,
        "emit_planned_partition_batch, partition 2",
    )


def _emit_one_too_large_among_many(bolt: Any, tup: Tuple) -> None:
    for i in range(5000):
        bolt.collector.emit([FIRST, f"word-{i}", i])
    for _ in range(2):
        bolt.collector.emit([FIRST, "x" * 10_000, -1])
    for i in range(5000):
        bolt.collector.emit([FIRST, f"word-{i}", i])


TIGHT = Limits(blob_bytes_max=2000, inline_bytes_max=1 << 40)


@pytest.mark.rule(7)
@pytest.mark.parametrize(
    "on_execute",
    [_emit_one_too_large_among_many, _swallowing(_emit_one_too_large_among_many)],
    ids=["raised", "swallowed"],
)
@pytest.mark.parametrize("cores", [2, 4])
def test_a_tuple_beyond_the_bound_fails_the_attempt_by_name_even_if_the_bolt_swallows_the_exception(
    on_execute: Callable[[Any, Tuple], None], cores: int
) -> None:
    """It is noticed when rows are packed, which may be in the middle of another tuple's emit."""
    failure = failed(on_execute, cores=cores, limits=TIGHT).failure
    assert failure is not None
    error = failure.to_error()
    assert isinstance(error, BatchTooLargeError)
    assert (error.what, error.setting) == ("one tuple from component 'bad'", "blob_bytes_max")


@pytest.mark.rule(7)
@pytest.mark.parametrize("cores", [2, 4])
def test_tuples_beyond_the_bound_in_a_commit_fail_it_as_data_too(cores: int) -> None:
    def finish(bolt: NotingBolt) -> None:
        for value in ("a" * 9000, "b" * 9000, "c" * 9000):
            bolt.emit(value)

    declared = builder()
    declared.set_bolt("sum", NotingCommitter(on_finish=finish), 4).all_grouping("spout")
    declared.set_bolt("after", NotingBolt(), 4).fields_grouping("sum", Fields("value"))
    ran = run_once(declared.build_topology(), {0: rows("cat")}, cores=cores, limits=TIGHT)
    assert ran.failed_in == "commit"
    assert ran.failure is not None
    assert isinstance(ran.failure.to_error(), BatchTooLargeError)
    assert [
        event for event in ran.events if event.component == "after" and event.hook == "finish_batch"
    ] == []


@pytest.mark.rule(17)
@pytest.mark.parametrize("cores", [1, 2])
def test_tuples_emitted_in_prepare_arrive_within_and_between_processes(cores: int) -> None:
    declared = builder()
    declared.set_bolt(
        "eager", NotingBolt(on_prepare=lambda bolt: bolt.emit("prepared"))
    ).none_grouping("spout")
    declared.set_bolt("fused", NotingBolt()).none_grouping("eager")
    declared.set_bolt("apart", NotingBolt()).all_grouping("eager")
    declared.set_bolt("both", NotingBolt()).all_grouping("spout").none_grouping("eager")
    with InProcessTopology(declared.build_topology(), cores) as topology:
        ran = topology.run(planned({0: rows("cat")}))
    assert ran.failure is None
    for receiver, expected in (
        ("fused", ["prepared"]),
        ("apart", ["prepared"]),
        ("both", ["cat", "prepared"]),
    ):
        assert ran.executed(receiver) == expected, receiver
        assert ran.of(receiver)[0][1] == "prepare"


def test_an_ordinary_exception_around_emit_stays_unchanged() -> None:
    def execute(bolt: Any, tup: Tuple) -> None:
        bolt.emit("cat", 1)
        raise RuntimeError("mine")

    failure = failed(execute).failure
    assert failure is not None
    error = failure.to_error()
    assert type(error) is UserCodeError
    assert error.error == "RuntimeError: mine"
