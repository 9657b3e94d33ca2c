"""The quick ways of a tuple, from an emit to the bolt, have the same results as the plain ways."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import pytest

from tests.topologies.recording import NotingBasicBolt, NotingBolt, builder, pass_on, rows, run_once
from txtopo import (
    BasicOutputCollector,
    BatchOutputCollector,
    Fields,
    StreamSpec,
    TransactionAttempt,
    Tuple,
)
from txtopo.dataplane import collector as emit
from txtopo.dataplane import worker
from txtopo.dataplane.collector import Collector
from txtopo.dataplane.job import Limits
from txtopo.dataplane.outbox import Outbox

ATTEMPT = TransactionAttempt(1, 0)
ALIKE = TransactionAttempt(1, 0)
OUTPUTS = {
    "default": StreamSpec(Fields("tx", "value")),
    "side": StreamSpec(Fields("tx", "value")),
    "three": StreamSpec(Fields("tx", "a", "b")),
}
ROWS: dict[str, list[Any]] = {
    "text": [ATTEMPT, "cat"],
    "a number": [ATTEMPT, 7],
    "None": [ATTEMPT, None],
    "bytes": [ATTEMPT, b"cat"],
    "long text": [ATTEMPT, "x" * 257],
    "text as long as a light one may be": [ATTEMPT, "x" * 256],
    "long bytes": [ATTEMPT, b"x" * 257],
    "a list": [ATTEMPT, ["cat"]],
    "a nested tuple": [ATTEMPT, ("x" * 200, ("y" * 200,))],
    "an attempt that is equal, not the same": [ALIKE, "cat"],
    "another attempt": [TransactionAttempt(1, 1), "cat"],
    "no attempt": [None, "cat"],
    "too few": [ATTEMPT],
    "none at all": [],
    "too many": [ATTEMPT, "cat", 1],
    "what cannot be pickled": [ATTEMPT, threading.Lock()],
}


class Seen:
    """A collector, and the result of an emit."""

    def __init__(self, receivers: int) -> None:
        self.got: list[Any] = []
        self.collector = Collector("bolt", ATTEMPT, OUTPUTS, "run")
        for stream in OUTPUTS:
            for receiver in range(receivers):
                self.collector.connect(stream, functools.partial(self._take, receiver))
        self.collector.on_heavy = lambda size: self.got.append(("heavy", size))
        self.collector.on_failure = lambda error: self.got.append(("failure", type(error)))

    def _take(self, receiver: int, row: Any) -> None:
        self.got.append((receiver, row))

    def after(self, act: Callable[[Collector], None]) -> tuple[list[Any], int, str]:
        """The sent chunks, the count, and the error."""
        try:
            act(self.collector)
        except Exception as error:
            return self.got, self.collector.emitted, f"{type(error).__name__}: {error}"
        return self.got, self.collector.emitted, ""


@pytest.mark.rule(7, 14)
@pytest.mark.parametrize("receivers", [0, 1, 2])
@pytest.mark.parametrize("name", ROWS)
def test_every_way_to_emit_a_row_checks_freezes_weighs_sends_and_counts_alike(
    name: str, receivers: int
) -> None:
    row = ROWS[name]
    plain = Seen(receivers).after(lambda collector: collector.emit(cast(Any, iter(row)), "side"))
    ways: list[Callable[[Collector], None]] = [
        lambda collector: collector.emit(row),
        lambda collector: collector.emit(tuple(row)),
        lambda collector: collector.emit(row, "side"),
        lambda collector: collector.emit_all([row]),
        lambda collector: collector.emit_all(iter([tuple(row)])),
        lambda collector: collector.emit_all([tuple(row)], stream="side"),
    ]
    for way in ways:
        got, emitted, error = Seen(receivers).after(way)
        assert (got, emitted, error.replace("'default'", "'side'")) == plain


@pytest.mark.rule(7)
@pytest.mark.parametrize("before", [[], [[ATTEMPT, "a"]]], ids=len)
def test_an_error_while_making_the_rows_is_the_callers_as_in_a_loop_of_emits(
    before: list[Any],
) -> None:
    def failing() -> Iterable[Sequence[Any]]:
        yield from before
        raise ValueError("mine")

    got, emitted, error = Seen(1).after(lambda collector: collector.emit_all(failing()))
    assert (emitted, error) == (len(before), "ValueError: mine")
    assert len(got) == len(before), (
        "an emit that failed would fail the attempt, though the caller handles the error"
    )


def test_a_collector_of_another_library_emits_all_rows_one_by_one() -> None:
    class Plain(BatchOutputCollector):
        def __init__(self) -> None:
            self.got: list[Any] = []

        def emit(self, values: Sequence[Any], stream: str = "default") -> None:
            self.got.append((values, stream))

        def emit_direct(
            self, task_index: int, values: Sequence[Any], stream: str = "default"
        ) -> None:
            raise AssertionError("nobody asked for this")

    plain = Plain()
    plain.emit_all([[1], [2]], "side")
    assert plain.got == [([1], "side"), ([2], "side")]


@pytest.mark.parametrize("way", ["emit", "emit_all", "emit_direct", "recorded"])
def test_rows_that_wait_are_counted_after_every_so_many(way: str) -> None:
    outputs = {"default": StreamSpec(Fields("tx", "value"), direct=way == "emit_direct")}
    collector = Collector("bolt", ATTEMPT, outputs, "run")
    rows: list[Any] = []
    if way == "emit_direct":
        collector.connect_direct("default", "after", [rows.append])
    else:
        collector.connect("default", rows.append)
    told: list[tuple[int, int]] = []
    collector.on_many = lambda: told.append((collector.emitted, len(rows)))
    many = emit._MANY
    for _ in range(2 * many + 1):
        match way:
            case "emit":
                collector.emit([ATTEMPT, 1])
            case "emit_all":
                collector.emit_all([(ATTEMPT, 1)])
            case "emit_direct":
                collector.emit_direct(0, [ATTEMPT, 1])
            case _:
                collector.send_recorded("default", (ATTEMPT, 1))
    assert [emitted for emitted, _ in told] == [many, 2 * many]
    assert all(waiting >= emitted - 1 for emitted, waiting in told)
    assert collector.emitted == 2 * many + 1


@pytest.mark.parametrize("only", [None, "default"])
def test_an_outbox_packs_when_as_many_rows_wait_as_it_may_keep(only: str | None) -> None:
    outbox = Outbox("job", 0, 0, 1, 2, "run", Limits(1 << 20, 1 << 20))
    lanes = [outbox.lane("count", task, "split", 0, only) for task in range(2)]
    sends = [lane.sender("default") for lane in lanes]
    for number in range(outbox.rows_max - 1):
        sends[number % 2]((ATTEMPT, number))
    outbox.pack_if_many()
    assert sum(len(lane.rows) for lane in lanes) == outbox.rows_max - 1
    sends[0]((ATTEMPT, -1))
    outbox.pack_if_many()
    assert [lane.rows for lane in lanes] == [[], []]
    sends[1]((ATTEMPT, "after"))
    assert lanes[1].take(1 << 20) == [("default", [(ATTEMPT, "after")])], (
        "what was handed out sends on"
    )
    outbox.close()


def _values_later(tup: Tuple) -> Iterable[Any]:
    yield tup[1]


def _traceback_with(tup: Tuple) -> BaseException:
    try:
        raise ValueError(str(tup[1]))
    except ValueError as error:
        return error


def _value_in_frame(error: BaseException) -> Any:
    assert error.__traceback__ is not None
    return error.__traceback__.tb_frame.f_locals["tup"][1]


WAYS_TO_KEEP: dict[str, tuple[Callable[[Tuple], Any], Callable[[Any], Any]]] = {
    "in a list": (lambda tup: [tup], lambda kept: kept[0][1]),
    "itself": (lambda tup: tup, lambda kept: kept[1]),
    "by a method": (lambda tup: tup.get_value, lambda kept: kept(1)),
    "in a closure": (lambda tup: lambda: tup[1], lambda kept: kept()),
    "in a generator": (_values_later, lambda kept: next(iter(kept))),
    "in a partial call": (
        lambda tup: functools.partial(getattr, tup, "values"),
        lambda kept: kept()[1],
    ),
    "in the frame of a traceback": (_traceback_with, _value_in_frame),
    "its values alone": (lambda tup: tup.values, lambda kept: kept[1]),
    "an iterator over its values": (iter, lambda kept: list(kept)[1]),
}
KEPT: list[Any] = []


def _note(kept: Any) -> None:
    """Keep the list here, and not in the bolt: a copy of the bolt travels to its task."""
    KEPT.append(kept)


def _bolt(keep: Callable[[Tuple], Any], kind: str) -> Any:
    """A bolt that keeps two tuples of three."""

    def take(bolt: Any, tup: Tuple, *collector: BasicOutputCollector) -> None:
        if tup[1] % 3:
            _note(keep(tup))

    return NotingBasicBolt(take) if kind == "basic" else NotingBolt(take)


@pytest.mark.rule(14)
@pytest.mark.parametrize("kind", ["batch", "basic"])
@pytest.mark.parametrize("way", WAYS_TO_KEEP)
@pytest.mark.parametrize("grouping", ["none", "fields"])
def test_a_tuple_that_a_bolt_keeps_in_any_way_is_not_used_again(
    grouping: str, way: str, kind: str
) -> None:
    keep, value_of = WAYS_TO_KEEP[way]
    topology = builder(parallelism=2)
    declarer = topology.set_bolt("keeps", _bolt(keep, kind), 2)
    (
        declarer.none_grouping("spout")
        if grouping == "none"
        else declarer.fields_grouping("spout", Fields("value"))
    )
    KEPT.clear()
    ran = run_once(
        topology.build_topology(), {0: rows(*range(20)), 1: rows(*range(20, 40))}, cores=2
    )
    assert ran.failure is None
    assert (len(ran.reports["processing"]), ran.reports["processing"][0].before.executed) == (
        (2, {}) if grouping == "none" else (2, {"spout": 0})
    )
    assert sorted(map(value_of, KEPT)) == [number for number in range(40) if number % 3]


@pytest.mark.rule(17)
def test_two_neighbours_of_one_bolt_do_not_share_a_tuple() -> None:
    topology = builder()
    topology.set_bolt("left", NotingBolt(pass_on)).none_grouping("spout")
    topology.set_bolt("keeps", _bolt(lambda tup: tup, "batch")).none_grouping(
        "spout"
    ).none_grouping("left")
    KEPT.clear()
    ran = run_once(topology.build_topology(), {0: rows(1, 2, 4, 5)}, cores=1)
    assert ran.failure is None
    assert [(tup.source_component, tup[1]) for tup in KEPT] == [
        (source, number) for source in ("spout", "left") for number in (1, 2, 4, 5)
    ]


def test_a_tuple_object_without_a_reference_is_used_again() -> None:
    """Otherwise the tests above would show nothing."""
    seen: dict[str, list[int]] = {"none": [], "fields": []}
    for grouping, addresses in seen.items():
        topology = builder(parallelism=2)
        declarer = topology.set_bolt("looks", _bolt(id, "batch"), 2)
        (
            declarer.none_grouping("spout")
            if grouping == "none"
            else declarer.fields_grouping("spout", Fields("value"))
        )
        KEPT.clear()
        run_once(topology.build_topology(), {0: rows(*range(20))}, cores=2)
        addresses.extend(KEPT)
    assert len(set(seen["none"])) == 1
    assert len(set(seen["fields"])) <= 2, "one object for each task at most"


def test_garbage_is_looked_for_less_often_during_a_task_and_as_before_after_it() -> None:
    before = gc.get_threshold()
    with worker.seldom_collected():
        assert gc.get_threshold() == (max(before[0], 50_000), *before[1:])
    assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="mine"), worker.seldom_collected():
        raise ValueError("mine")
    assert gc.get_threshold() == before
