"""``check_spout`` finds every way to be wrong, and names hook and rule."""

from __future__ import annotations

import threading
from typing import Any

import pydantic
import pytest

from tests.wrong import spouts
from tests.wrong.spouts import (
    Asking,
    Committing,
    Opaque,
    Plain,
    Planned,
    PlannedOpaque,
    emit_range,
    expected,
    following,
)
from txtopo import FailedException, Fields, OutputFieldsDeclarer, UsageError
from txtopo.testing import ContractError, check_spout

WHOLE = expected(1)
ALL = expected()


def broken(make_spout: Any, rule: int | None, naming: str, **options: Any) -> ContractError:
    """The violation that ``check_spout`` must find."""
    with pytest.raises(ContractError) as caught:
        check_spout(make_spout, **options)
    error = caught.value
    assert (error.contract, error.rule) == ("spout", rule), str(error)
    assert naming in error.what, str(error)
    assert error.cure
    assert str(error).startswith("spout contract" + (f", R{rule}: " if rule else ": ") + error.what)
    return error


# -- the same batch again (R17, R18, R19) ----------------------------------------------------------


@pytest.mark.rule(18)
def test_a_batch_that_depends_on_the_attempt_is_found() -> None:
    def emit_batch(emitter: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        emitter.dealt(attempt, [metadata[0], metadata[1] - attempt.attempt_id % 2], collector)

    error = broken(lambda: Plain(emit_batch=emit_batch), 18, "emit_batch of attempt 1:1")
    assert "1 missing, namely ('default', (3,))" in error.what


@pytest.mark.rule(18)
def test_a_batch_that_depends_on_the_present_source_is_found() -> None:
    def make() -> Planned:
        spouts.SHARED["size"] = 5
        return Planned(emit_partition_batch=emit_partition_batch)

    def emit_partition_batch(
        emitter: Any, attempt: Any, collector: Any, partition: int, metadata: Any
    ) -> None:
        emit_range(
            collector,
            attempt,
            partition,
            [metadata[0], min(metadata[0] + 4, spouts.SHARED["size"])],
        )

    broken(
        make,
        18,
        "emit_partition_batch of attempt 2:",
        grow=lambda spout: spouts.SHARED.update(size=9),
    )


@pytest.mark.rule(18, 23)
def test_an_empty_batch_that_does_not_stay_empty_is_found() -> None:
    def make() -> Plain:
        spouts.SHARED["grown"] = 0
        initialize = lambda c, txid, last: following(c.spout, last) or [c.spout.size] * 2  # noqa: E731
        return Plain(
            emit_batch=emit_batch, is_ready=lambda c: True, initialize_transaction=initialize
        )

    def emit_batch(emitter: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        emitter.dealt(attempt, metadata, collector)
        if (
            metadata[0] == metadata[1]
            and spouts.SHARED["grown"] == 2
            and emitter.context.task_index == 0
        ):
            collector.emit([attempt, 99])

    def grow(spout: Any) -> None:
        spouts.SHARED["grown"] += 1

    broken(make, 18, "1 too many, namely ('default', (99,))", grow=grow)


@pytest.mark.rule(18, 19)
@pytest.mark.parametrize(
    ("make", "rule", "hook"),
    [(Plain, 18, "emit_batch"), (Planned, 19, "emit_partition_batch")],
    ids=["plain", "partitioned"],
)
def test_tuples_that_depend_on_the_number_of_tasks_are_found(
    make: Any, rule: int, hook: str
) -> None:
    def emit_batch(emitter: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        for n in range(*metadata):
            if n % 2 == emitter.context.task_index:  # whatever the number of tasks
                collector.emit([attempt, n])

    def emit_partition_batch(
        emitter: Any, attempt: Any, collector: Any, partition: int, metadata: Any
    ) -> None:
        emit_range(collector, attempt, partition % emitter.context.num_tasks, metadata)

    naming = f"{hook} of attempt 1:2 with 2 tasks, against 1:0 with 1"
    broken(
        lambda: make(emit_batch=emit_batch, emit_partition_batch=emit_partition_batch), rule, naming
    )


@pytest.mark.rule(17, 18)
def test_another_order_in_another_attempt_is_found() -> None:
    def emit_partition_batch(
        emitter: Any, attempt: Any, collector: Any, partition: int, metadata: Any
    ) -> None:
        for n in sorted(range(*metadata), reverse=bool(attempt.attempt_id % 2)):
            collector.emit([attempt, partition * 1000 + n])

    broken(
        lambda: Planned(emit_partition_batch=emit_partition_batch),
        17,
        "the same tuples in another order",
    )


@pytest.mark.rule(18)
def test_storm_style_emission_that_differs_from_its_replay_is_found() -> None:
    again = lambda emitter, attempt, collector, partition, metadata: emit_range(  # noqa: E731
        collector, attempt, partition, [metadata[0], metadata[1] + 1]
    )
    broken(lambda: Asking(emit_partition_batch=again), 18, "emit_partition_batch of attempt 1:1")


@pytest.mark.rule(18, 22)
def test_a_commit_that_deletes_input_of_a_replay_is_found() -> None:
    def make() -> Committing:
        spouts.SHARED["deleted"] = set()
        return Committing(emit_batch=emit_batch, commit=commit, size=40, take=2)

    def emit_batch(emitter: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        emitter.emitted = list(range(*metadata))
        emitter.dealt(
            attempt,
            metadata if spouts.SHARED["deleted"].isdisjoint(range(*metadata)) else [0, 0],
            collector,
        )

    def commit(emitter: Any, attempt: Any) -> None:
        spouts.SHARED["deleted"].update(emitter.emitted)

    broken(make, 18, "2 missing", stories=20)


@pytest.mark.rule(22)
def test_a_clean_up_that_goes_too_far_is_found() -> None:
    def make() -> Plain:
        spouts.SHARED["deleted"] = set()
        return Plain(
            emit_batch=emit_batch,
            cleanup_before=lambda emitter, txid: spouts.SHARED["deleted"].update(range(txid + 2)),
        )

    def emit_batch(emitter: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        emitter.dealt(
            attempt, [0, 0] if attempt.txid in spouts.SHARED["deleted"] else metadata, collector
        )

    broken(make, 18, "emit_batch of attempt")


# -- tuples lost or doubled (R20, R21) -------------------------------------------------------------


@pytest.mark.rule(20)
@pytest.mark.parametrize(
    ("shift", "violation"), [(1, "missing"), (-1, "too many")], ids=["a gap", "an overlap"]
)
@pytest.mark.parametrize("kind", ["plain", "planned", "asking", "opaque", "planned opaque"])
def test_gaps_between_batches_are_found_when_the_content_of_the_source_is_given(
    kind: str, shift: int, violation: str
) -> None:
    def shifted(half: Any, last: Any) -> Any:
        return following(
            half.spout,
            None if last is None else [0, last[1] + (shift if last[1] < half.spout.size else 0)],
        )

    def emit_shifted(emitter: Any, attempt: Any, collector: Any, partition: int, last: Any) -> Any:
        metadata = shifted(emitter, last)
        emit_range(collector, attempt, partition, metadata or [0, 0])
        return metadata

    makes = {
        "plain": lambda: Plain(initialize_transaction=lambda c, txid, last: shifted(c, last)),
        "planned": lambda: Planned(
            plan_partition_batch=lambda c, txid, partition, last: shifted(c, last)
        ),
        "asking": lambda: Asking(emit_partition_batch_new=emit_shifted),
        "opaque": lambda: Opaque(emit_partition_batch=emit_shifted),
        "planned opaque": lambda: PlannedOpaque(
            plan_batch=lambda c, txid, last: {p: shifted(c, last.get(p)) for p in range(3)}
        ),
    }
    error = broken(makes[kind], 20, violation, expected=WHOLE if kind == "plain" else ALL)
    assert "against the source" in error.what


@pytest.mark.rule(20, 22)
def test_a_position_kept_in_the_coordinator_is_found_by_a_restart() -> None:
    def initialize(coordinator: Any, txid: int, last: Any) -> Any:
        coordinator.last = following(coordinator.spout, getattr(coordinator, "last", None))
        return coordinator.last or [0, 0]

    broken(
        lambda: Plain(initialize_transaction=initialize, size=30),
        20,
        "initialize_transaction and emit_batch: against a run without failures",
    )


@pytest.mark.rule(20, 22)
@pytest.mark.parametrize(
    ("kind", "hook"), [(Asking, "emit_partition_batch_new"), (Opaque, "emit_partition_batch")]
)
def test_a_position_kept_in_a_resource_is_found_by_another_process(kind: Any, hook: str) -> None:
    def emit(emitter: Any, attempt: Any, collector: Any, partition: int, last: Any) -> Any:
        positions = emitter.context.resource("positions", dict)
        positions[partition] = following(emitter.spout, positions.get(partition)) or positions.get(
            partition
        )
        emit_range(collector, attempt, partition, positions[partition])
        return positions[partition]

    broken(lambda: kind(**{hook: emit}), 20, "against the source", expected=ALL)


@pytest.mark.rule(4, 20)
def test_a_position_that_a_failed_attempt_moves_on_is_found_without_knowing_the_source() -> None:
    def make() -> Opaque:
        spouts.SHARED["positions"] = {}
        return Opaque(emit_partition_batch=emit)

    def emit(emitter: Any, attempt: Any, collector: Any, partition: int, last: Any) -> Any:
        positions = spouts.SHARED["positions"]
        metadata = following(emitter.spout, positions.get(partition))
        positions[partition] = metadata or positions.get(partition)
        emit_range(collector, attempt, partition, metadata or [0, 0])
        return metadata

    error = broken(make, 20, "missing")
    assert "was abandoned on purpose" in error.what or "restarted" in error.what


@pytest.mark.rule(21)
def test_no_progress_that_is_said_with_a_fresh_position_instead_of_none_is_found() -> None:
    def plan(coordinator: Any, txid: int, partition: int, last: Any) -> Any:
        nothing_in_every_other = [0, 0] if txid % 2 else None
        return (
            following(coordinator.spout, last)
            if txid % 2 == partition % 2
            else nothing_in_every_other
        )

    broken(lambda: Planned(plan_partition_batch=plan), 20, "too many", expected=ALL)


@pytest.mark.rule(21)
@pytest.mark.parametrize("kind", [Asking, Opaque])
def test_tuples_without_metadata_are_found(kind: Any) -> None:
    def emit(emitter: Any, attempt: Any, collector: Any, partition: int, last: Any) -> None:
        emit_range(collector, attempt, partition, [0, 2])

    broken(
        lambda: kind(emit_partition_batch_new=emit, emit_partition_batch=emit),
        21,
        "emitted 2 tuples but returned None as metadata",
    )


def test_a_source_that_make_spout_does_not_bring_back_is_told_apart_from_a_loss() -> None:
    sizes = iter([14, 14, *range(13, 0, -1)])
    broken(lambda: Planned(size=next(sizes)), None, "two runs without failures differ")


# -- readiness (R5) --------------------------------------------------------------------------------


@pytest.mark.rule(5, 9)
def test_a_spout_that_is_ready_right_after_every_restart_is_found() -> None:
    def is_ready(coordinator: Any) -> bool:
        first = not hasattr(coordinator, "asked")
        coordinator.asked = True
        return first or following(coordinator.spout, coordinator.context.last_metadata) is not None

    initialize = lambda c, txid, last: following(c.spout, last) or last  # noqa: E731
    broken(
        lambda: Plain(is_ready=is_ready, initialize_transaction=initialize),
        5,
        "is_ready said False before transaction",
        stories=0,
    )


@pytest.mark.rule(5, 23)
def test_a_spout_that_ends_early_after_a_restart_is_found() -> None:
    def is_ready(coordinator: Any) -> bool:
        coordinator.left = getattr(
            coordinator, "left", None if coordinator.context.last_metadata is None else 0
        )
        return (
            coordinator.left is None
            and following(coordinator.spout, coordinator.context.last_metadata) is not None
        )

    error = broken(lambda: Plain(is_ready=is_ready, size=40), 20, "missing")
    assert "right after a restart, is_ready said that there is no transaction" in error.what


# -- metadata (R4) ---------------------------------------------------------------------------------


class Range(pydantic.BaseModel):
    """Metadata whose end is forgotten on the way."""

    begin: int
    end: int = pydantic.Field(default=0, exclude=True)


class Turning(pydantic.BaseModel):
    """Metadata that changes in JSON."""

    begin: int
    end: int

    @pydantic.field_serializer("end")
    def _lower(self, end: int) -> int:
        return end - 1


@pytest.mark.rule(4)
@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"x", {1: "a"}, float("nan"), object()],
    ids=["set", "bytes", "int key", "nan", "object"],
)
@pytest.mark.parametrize("kind", ["plain", "planned", "asking", "opaque", "planned opaque"])
def test_metadata_that_is_not_json_is_found(kind: str, value: Any) -> None:
    makes = {
        "plain": lambda: Plain(initialize_transaction=lambda c, txid, last: value),
        "planned": lambda: Planned(plan_partition_batch=lambda c, txid, partition, last: value),
        "asking": lambda: Asking(emit_partition_batch_new=lambda e, a, c, p, last: value),
        "opaque": lambda: Opaque(emit_partition_batch=lambda e, a, c, p, last: value),
        "planned opaque": lambda: PlannedOpaque(plan_batch=lambda c, txid, last: {0: value}),
    }
    broken(makes[kind], 4, "plain values are None, bool")


@pytest.mark.rule(4)
def test_a_model_that_changes_in_json_is_found() -> None:
    make = lambda: Plain(  # noqa: E731
        initialize_transaction=lambda c, txid, last: Turning(begin=0, end=9),
        emit_batch=lambda *_: None,
        metadata_type=Turning,
    )
    broken(make, 4, "comes back from its model as {'begin': 0, 'end': 7}")


@pytest.mark.rule(4, 20)
def test_a_model_that_forgets_is_found_by_the_missing_tuples() -> None:
    def initialize(coordinator: Any, txid: int, last: Any) -> Any:
        begin, end = following(coordinator.spout, None if last is None else [last.begin, last.end])
        return Range(begin=begin, end=end)

    ready = lambda c: (c.context.last_metadata or Range(begin=-1)).begin < 8  # noqa: E731
    emit = lambda emitter, attempt, metadata, collector: emitter.dealt(  # noqa: E731
        attempt, [metadata.begin, metadata.end], collector
    )
    broken(
        lambda: Plain(
            is_ready=ready, initialize_transaction=initialize, emit_batch=emit, metadata_type=Range
        ),
        20,
        "14 missing",
        expected=WHOLE,
    )


# -- tasks and hooks -------------------------------------------------------------------------------


@pytest.mark.rule(19)
def test_tasks_that_see_different_numbers_of_partitions_are_found() -> None:
    broken(
        lambda: Opaque(num_partitions=lambda emitter: 2 + emitter.context.task_index % 2),
        19,
        "saw different numbers of partitions: [2, 3]",
    )


@pytest.mark.rule(14)
@pytest.mark.parametrize(
    ("values", "stream", "violation"),
    [
        ([7], "default", "1 values for the 2 fields"),
        (["x", 7], "default", "as first value"),
        ([None, 7], "other", "which it does not declare"),
    ],
    ids=["arity", "attempt", "stream"],
)
def test_emits_that_were_not_declared_are_found(
    values: list[Any], stream: str, violation: str
) -> None:
    def emit_batch(emitter: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        collector.emit([value or attempt for value in values], stream)

    broken(lambda: Plain(emit_batch=emit_batch), 14, violation)


@pytest.mark.rule(22)
def test_a_spout_that_cannot_be_pickled_is_found() -> None:
    class Locked(Plain):
        lock: Any

    def make() -> Locked:
        spout = Locked()
        spout.lock = threading.Lock()
        return spout

    broken(make, 22, "its attribute 'lock' cannot be pickled")


@pytest.mark.rule(22)
def test_an_emitter_that_cannot_be_held_until_its_commit_is_found() -> None:
    def emit_batch(emitter: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        emitter.lock = threading.Lock()

    broken(lambda: Committing(emit_batch=emit_batch), 22, "its attribute 'lock' cannot be pickled")


@pytest.mark.rule(7)
def test_a_hook_that_never_stops_failing_is_found() -> None:
    def fail(*args: Any) -> None:
        raise FailedException("again")

    broken(
        lambda: Plain(is_ready=fail),
        7,
        "opening transaction 1 raised FailedException 20 times in a row",
    )
    broken(
        lambda: Plain(emit_batch=fail),
        7,
        "emitting transaction 1 raised FailedException 20 times in a row",
    )


@pytest.mark.rule(7)
def test_a_hook_that_fails_now_and_then_is_none_of_the_contracts_business() -> None:
    def emit_batch(emitter: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        if attempt.attempt_id % 3 == 1:
            raise FailedException("now and then")
        emitter.dealt(attempt, metadata, collector)

    assert check_spout(lambda: Plain(emit_batch=emit_batch), expected=WHOLE).is_exhausted


@pytest.mark.parametrize(
    "hook",
    ["is_ready", "initialize_transaction", "emit_batch", "cleanup_before", "commit", "close"],
    ids=lambda hook: hook,
)
def test_a_hook_that_raises_is_named_with_its_traceback(hook: str) -> None:
    def bug(*args: Any) -> None:
        raise ZeroDivisionError("a bug")

    def make() -> Committing:
        spout = Committing()
        spout.hooks[hook] = bug
        return spout

    error = broken(make, None, hook)
    assert "ZeroDivisionError: a bug" in error.what


def test_an_object_that_is_no_spout_is_refused() -> None:
    broken(object, 22, "is not a transactional spout")


def test_numbers_that_make_no_sense_are_refused() -> None:
    for options in (
        {"transactions": 0},
        {"stories": -1},
        {"parallelisms": ()},
        {"parallelisms": (0,)},
    ):
        with pytest.raises(UsageError, match="at least 1"):
            check_spout(Plain, **options)


@pytest.mark.rule(16)
def test_several_streams_and_direct_ones_are_compared_too() -> None:
    class Streams(Plain):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare(Fields("tx", "n"))
            declarer.declare_stream("even", Fields("tx"))
            declarer.declare_stream("direct", Fields("tx", "n"), direct=True)

    def emit_batch(emitter: Any, attempt: Any, metadata: Any, collector: Any) -> None:
        emitter.dealt(attempt, metadata, collector)
        if emitter.context.task_index == 0:
            collector.emit([attempt], "even")
            collector.emit_direct(
                7 if wrong and attempt.attempt_id == 4 else 3, [attempt, 1], "direct"
            )

    wrong = False
    assert (
        check_spout(lambda: Streams(emit_batch=emit_batch), stories=2).tuples == spouts.SIZE + 4 * 2
    )
    wrong = True
    broken(lambda: Streams(emit_batch=emit_batch), 18, "direct")
