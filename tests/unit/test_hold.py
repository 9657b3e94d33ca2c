"""Holding: the state of a bolt between the phases, the parts bound anew, and members that cannot be
kept.
"""

from __future__ import annotations

import pickle
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.topologies.recording import (
    ROOMY,
    InProcessTopology,
    NotingBasicBolt,
    NotingBolt,
    NotingCommitter,
    Ran,
    builder,
    note,
    planned,
    rows,
    run_once,
)
from txtopo import (
    Fields,
    HeldStateError,
    OutputFieldsDeclarer,
    TransactionAttempt,
    Tuple,
    UserCodeError,
)
from txtopo.dataplane import hold, wire
from txtopo.dataplane.job import Limits

pytestmark = pytest.mark.rule(12)


def held_run(bolt: Any, cores: int = 2, limits: Limits | None = None) -> Ran:
    declared = builder(parallelism=2)
    declared.set_committer_bolt("sum", bolt, 3).fields_grouping(
        "spout", Fields("value")
    ).add_configuration("own", "setting")
    declared.set_bolt("after", NotingBolt()).shuffle_grouping("sum")
    return run_once(
        declared.build_topology(),
        {0: rows(*range(10)), 1: rows(*range(10, 20))},
        cores=cores,
        limits=limits or ROOMY,
    )


@pytest.mark.rule(10)
def test_a_held_bolt_is_prepared_once_and_finishes_in_the_commit_phase_with_its_state() -> None:
    ran = held_run(NotingCommitter())
    assert ran.failure is None
    for task in range(3):
        seen = [
            event.details[3]
            for event in ran.events
            if (event.component, event.task, event.hook) == ("sum", task, "execute")
        ]
        assert ran.of("sum", task) == [("processing", "prepare")] + [
            ("processing", "execute")
        ] * len(seen) + [("commit", "finish_batch")]
        finished = [
            event.details
            for event in ran.events
            if (event.component, event.task, event.hook) == ("sum", task, "finish_batch")
        ]
        assert finished == [tuple(seen)]


def _look(bolt: Any) -> None:
    same = bolt.kept_context is bolt.context
    note(
        bolt.context,
        "look",
        bolt.context.phase,
        bolt.context.task_index,
        bolt.context.num_tasks,
        bolt.conf["own"],
        bolt.attempt,
        same,
    )
    bolt.bound_emit([bolt.attempt, "from the commit"])


def _keep_more(bolt: Any) -> None:
    bolt.kept_context = bolt.context
    bolt.bound_emit = bolt.collector.emit


def test_collector_context_and_conf_are_those_of_the_commit_phase() -> None:
    ran = held_run(NotingCommitter(on_prepare=_keep_more, on_finish=_look))
    assert ran.failure is None, ran.failure
    looks = [event for event in ran.events if event.hook == "look"]
    expected = [
        ("commit", "commit", task, 3, "setting", TransactionAttempt(1, 0), True)
        for task in range(3)
    ]
    assert sorted((event.phase, *event.details) for event in looks) == expected
    assert ran.executed("after") == ["from the commit"] * 3


class WithState(NotingCommitter):
    """Leaves its lock out and makes a new lock."""

    lock: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = "made again"


def _make_lock(bolt: Any) -> None:
    bolt.lock = threading.Lock()


def _tell_lock(bolt: Any) -> None:
    note(bolt.context, "lock", bolt.lock)


def test_getstate_and_setstate_are_honoured() -> None:
    ran = held_run(WithState(on_prepare=_make_lock, on_finish=_tell_lock))
    assert ran.failure is None, ran.failure
    assert [event.details for event in ran.events if event.hook == "lock"] == [("made again",)] * 3


class WithSlots(NotingCommitter):
    __slots__ = ("slotted",)


def _fill_slot(bolt: Any) -> None:
    bolt.slotted = threading.Lock()


def _keep(name: str, make: Callable[[], Any]) -> Callable[[Any], None]:
    def prepare(bolt: Any) -> None:
        bolt.harmless = 1
        setattr(bolt, name, make())

    return prepare


@pytest.mark.parametrize(
    ("make", "type_name"),
    [
        (threading.Lock, "lock"),
        (lambda: {"deep": [threading.Lock()]}, "lock"),
        (lambda: (i for i in range(3)), "generator"),
    ],
    ids=["lock", "deep inside", "generator"],
)
def test_an_attribute_that_cannot_be_pickled_is_an_error_that_names_component_attribute_and_cure(
    make: Callable[[], Any], type_name: str
) -> None:
    ran = held_run(NotingCommitter(on_prepare=_keep("culprit", make)))
    assert ran.failed_in == "processing"
    assert ran.failure is not None
    error = ran.failure.to_error()
    assert isinstance(error, HeldStateError)
    assert (error.component, error.phase, error.hook) == (
        "sum",
        "processing",
        "holding the bolt between the phases",
    )
    assert "its attribute 'culprit' cannot be pickled (TypeError: cannot pickle '" in error.error
    assert type_name in error.error
    assert "context.resource(name, factory)" in error.error
    assert "__getstate__" in error.error
    assert [event for event in ran.events if event.hook == "finish_batch"] == []


def test_a_slot_that_cannot_be_pickled_is_named_too() -> None:
    failure = held_run(WithSlots(on_prepare=_fill_slot)).failure
    assert failure is not None
    assert "its attribute 'slotted' cannot be pickled" in failure.error


def _keep_connection(bolt: Any) -> None:
    bolt.database = bolt.context.resource("database", lambda: sqlite3.connect(":memory:"))


def test_a_connection_kept_in_an_attribute_is_named_although_it_came_from_a_resource() -> None:
    failure = held_run(NotingCommitter(on_prepare=_keep_connection)).failure
    assert failure is not None
    assert "its attribute 'database' cannot be pickled" in failure.error
    assert isinstance(failure.to_error(), HeldStateError)


def _use_resource(bolt: Any) -> None:
    note(bolt.context, "resource", bolt.context.resource("made", lambda: object()))


def test_a_resource_outlives_the_phases_and_the_attempts() -> None:
    declared = builder()
    declared.set_bolt(
        "sum", NotingCommitter(on_prepare=_use_resource, on_finish=_use_resource)
    ).shuffle_grouping("spout")
    with InProcessTopology(declared.build_topology()) as topology:
        first = topology.run(planned({0: rows("a")}))
        second = topology.run(planned({0: rows("a")}), TransactionAttempt(1, 1))
    resources = [
        event.details[0]
        for ran in (first, second)
        for event in ran.events
        if event.hook == "resource"
    ]
    assert len(resources) == 4
    assert len({id(resource) for resource in resources}) == 1


class Closing:
    closed = 0

    def close(self) -> None:
        Closing.closed += 1
        raise RuntimeError("closing failed too")


def _fail_once(bolt: Any) -> None:
    _use_closing(bolt)
    if bolt.attempt.attempt_id == 0:
        raise RuntimeError("connection lost")


def _use_closing(bolt: Any) -> None:
    note(bolt.context, "resource", bolt.context.resource("closing", Closing))


def test_a_resource_a_failing_task_had_asked_for_is_closed_and_made_again() -> None:
    Closing.closed = 0
    declared = builder()
    declared.set_bolt("sum", NotingCommitter(on_finish=_fail_once)).shuffle_grouping("spout")
    with InProcessTopology(declared.build_topology()) as topology:
        first = topology.run(planned({0: rows("a")}))
        second = topology.run(planned({0: rows("a")}), TransactionAttempt(1, 1))
    assert (first.failed_in, second.failure, Closing.closed) == ("commit", None, 1)
    (one,), (other,) = (
        [event.details[0] for event in ran.events if event.hook == "resource"]
        for ran in (first, second)
    )
    assert one is not other


@pytest.mark.parametrize("blob_bytes_max", [300, 1 << 20])
def test_a_large_held_bolt_travels_in_pieces(blob_bytes_max: int) -> None:
    def execute(bolt: Any, tup: Tuple) -> None:
        bolt.ballast = bytes(range(256)) * 50

    def finish(bolt: Any) -> None:
        note(bolt.context, "ballast", bolt.ballast == bytes(range(256)) * 50)

    ran = held_run(
        NotingCommitter(execute, finish),
        limits=Limits(blob_bytes_max=blob_bytes_max, spill_bytes=0, inline_bytes_max=1 << 30),
    )
    assert ran.failure is None, ran.failure
    assert [event.details for event in ran.events if event.hook == "ballast"] == [(True,)] * 3
    pieces = [frame for frame in ran.frames["processing"] if frame.kind == "held"]
    assert max(len(piece.payload) for piece in pieces) <= max(blob_bytes_max, 15_000)
    assert (len(pieces) > 3 * 10) == (blob_bytes_max == 300)


@pytest.mark.rule(15)
def test_a_basic_bolt_downstream_of_a_committer_is_held_and_cleaned_up_in_the_commit() -> None:
    declared = builder()
    declared.set_bolt(
        "sum", NotingCommitter(on_finish=lambda bolt: bolt.emit("total"))
    ).shuffle_grouping("spout")
    declared.set_bolt("basic", NotingBasicBolt(), 2).shuffle_grouping("sum").all_grouping("spout")
    ran = run_once(declared.build_topology(), {0: rows("a")})
    assert ran.failure is None, ran.failure
    for task in range(2):
        hooks = ran.of("basic", task)
        assert hooks[:2] == [("processing", "prepare"), ("processing", "execute")]
        assert hooks[-1] == ("commit", "cleanup")
        assert (
            [hook for _, hook in hooks].count("cleanup")
            == [hook for _, hook in hooks].count("prepare")
            == 1
        )
    assert sorted(ran.executed("basic")) == ["a", "a", "total"]


@pytest.mark.rule(10)
def test_every_attempt_and_task_gets_a_fresh_copy_of_the_template() -> None:
    declared = builder()
    template = NotingBolt()
    template.seen = ["given"]
    declared.set_bolt("count", template, 2).all_grouping("spout")
    with InProcessTopology(declared.build_topology(), cores=1) as topology:
        for n in range(3):
            ran = topology.run(planned({0: rows("a")}), TransactionAttempt(1, n))
            assert [event.details for event in ran.events if event.hook == "finish_batch"] == [
                ("given", ("a",))
            ] * 2
    assert template.seen == ["given"]


class SharedDefault(NotingBolt):
    """The classic mistake: a mutable class attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.nested = {"list": []}  # type: ignore[var-annotated]

    def execute(self, tup: Tuple) -> None:
        self.nested["list"].append(tup[1])

    def finish_batch(self) -> None:
        note(self.context, "nested", list(self.nested["list"]))


def test_copies_of_a_bolt_share_no_nested_values() -> None:
    declared = builder()
    declared.set_bolt("count", SharedDefault(), 3).all_grouping("spout")
    ran = run_once(declared.build_topology(), {0: rows("a")}, cores=1)
    assert [event.details for event in ran.events if event.hook == "nested"] == [(["a"],)] * 3


class Unrestorable(NotingCommitter):
    """Cannot be restored once it has seen a tuple."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["seen"]:
            raise RuntimeError("cannot be restored")
        self.__dict__.update(state)


def test_a_bolt_that_cannot_be_restored_fails_the_commit_as_data() -> None:
    ran = held_run(Unrestorable())
    assert ran.failed_in == "commit"
    assert ran.failure is not None
    assert (ran.failure.hook, ran.failure.error) == (
        "restoring the held bolt",
        "RuntimeError: cannot be restored",
    )
    assert type(ran.failure.to_error()) is UserCodeError


def test_a_reference_to_the_task_means_nothing_outside_a_held_bolt() -> None:
    declared = builder()
    declared.set_bolt("sum", NotingCommitter()).shuffle_grouping("spout")
    ran = run_once(declared.build_topology(), {0: rows("a")})
    held = next(frame for frame in ran.frames["processing"] if frame.kind == "held")
    with pytest.raises(pickle.UnpicklingError, match="outside a held bolt"):
        pickle.loads(held.payload)


def test_an_object_that_is_no_bolt_is_reported_without_an_attribute() -> None:
    with pytest.raises(
        hold.CannotHoldError,
        match=r"the bolt is held until its commit, but it cannot be pickled \(TypeError",
    ):
        hold.dump_held(threading.Lock(), "run", wire.PieceWriter(100, list[bytes]().append))


class Silent(NotingCommitter):
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None: ...


def test_a_held_bolt_of_which_every_task_gets_nothing_still_finishes() -> None:
    declared = builder()
    declared.set_bolt("sum", Silent(), 3).shuffle_grouping("spout")
    ran = run_once(declared.build_topology(), {})
    assert [ran.of("sum", task) for task in range(3)] == [
        [("processing", "prepare"), ("commit", "finish_batch")]
    ] * 3


class LeavesTheLockOut(NotingCommitter):
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}


def _keep_two(bolt: Any) -> None:
    bolt.lock, bolt.culprit = threading.Lock(), threading.Lock()


def test_an_attribute_that_getstate_leaves_out_is_not_blamed() -> None:
    failure = held_run(LeavesTheLockOut(on_prepare=_keep_two)).failure
    assert failure is not None
    assert "its attribute 'culprit' cannot be pickled" in failure.error


def test_the_error_begins_with_the_fact_and_not_with_a_class_of_ours() -> None:
    failure = held_run(NotingCommitter(on_prepare=_keep("culprit", threading.Lock))).failure
    assert failure is not None
    assert str(failure.to_error()).startswith(
        "the bolt is held until its commit, but its attribute 'culprit'"
    )
