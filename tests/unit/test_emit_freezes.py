"""Values are frozen at emit: later changes of a list, in the sender or in a receiver, reach no
other task."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import random
import uuid
from typing import Any

import pytest

from tests.topologies.recording import (
    InProcessTopology,
    NotingBolt,
    NotingCommitter,
    RowsSpout,
    builder,
    planned,
    rows,
    run_once,
)
from tests.wrong.circles import CIRCLES
from txtopo import Fields, StreamSpec, TransactionAttempt, Tuple
from txtopo.dataplane.collector import Collector, is_immutable
from txtopo.dataplane.job import Batch, Limits

pytestmark = pytest.mark.rule(14)

ATTEMPT = TransactionAttempt(1, 0)


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Basket:
    fruit: list[str]


def collector(*receivers: list[Any]) -> Collector:
    connected = Collector("split", ATTEMPT, {"default": StreamSpec(Fields("tx", "value"))}, "run")
    for receiver in receivers:
        connected.connect("default", receiver.append)
    return connected


@pytest.mark.parametrize(
    "value",
    [[1], {"a": [1]}, {1}, bytearray(b"a"), ([1],), Basket(["apple"]), frozenset({(1,)})],
    ids=repr,
)
def test_a_value_that_could_change_is_copied_for_every_receiver(value: Any) -> None:
    got: tuple[list[Any], list[Any]] = ([], [])
    collector(*got).emit([ATTEMPT, value])
    first, second = got[0][0][1], got[1][0][1]
    assert first == second == value
    assert len({id(value), id(first), id(second)}) == 3


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        1.5,
        True,
        "a",
        b"a",
        1j,
        uuid.UUID(int=1),
        decimal.Decimal(1),
        datetime.date(2024, 1, 1),
        datetime.timedelta(1),
        ATTEMPT,
        ("a", (1,)),
    ],
    ids=repr,
)
def test_a_value_that_cannot_change_is_shared(value: Any) -> None:
    got: tuple[list[Any], list[Any]] = ([], [])
    collector(*got).emit([ATTEMPT, value])
    assert got[0][0][1] is got[1][0][1] is value
    assert is_immutable(value)


def test_the_list_of_values_itself_may_be_used_again() -> None:
    got: list[Any] = []
    values = [ATTEMPT, "a"]
    sender = collector(got)
    sender.emit(values)
    values[1] = "b"
    sender.emit(values)
    assert got == [(ATTEMPT, "a"), (ATTEMPT, "b")]


def test_an_enum_stays_the_member_it_was() -> None:
    got: list[Any] = []
    collector(got).emit([ATTEMPT, [Colour.RED]])
    assert got[0][1][0] is Colour.RED


@pytest.mark.parametrize("circle", CIRCLES.values(), ids=CIRCLES)
@pytest.mark.parametrize("cores", [1, 3])
def test_a_value_that_contains_itself_arrives_as_it_was_or_is_refused_with_the_cure(
    cores: int, circle: Any
) -> None:
    for grouping in ("none", "shuffle", "all", "global", "fields", "partial_key"):
        topology = builder()
        emitting = NotingBolt(lambda bolt, tup: bolt.emit(circle))
        topology.set_bolt("split", emitting).none_grouping("spout")
        receiver = topology.set_bolt("notes", NotingBolt(), 2)
        by_key = grouping in ("fields", "partial_key")
        fields = [Fields("value")] if by_key else []
        getattr(receiver, f"{grouping}_grouping")("split", *fields)
        ran = run_once(topology.build_topology(), {0: rows("a")}, cores=cores)
        if by_key:
            assert ran.failure is not None
            assert "cannot route on a value of type" in str(ran.failure.to_error())
            assert "\n  Group on None" in str(ran.failure.to_error())
        else:
            assert ran.failure is None
            assert repr(circle) in map(
                repr,
                (
                    event.details[3][0]
                    for event in ran.events
                    if event.component == "notes" and event.hook == "execute"
                ),
            )


def _emit_and_change(bolt: NotingBolt, tup: Tuple) -> None:
    value = [tup[1]]
    bolt.emit(value)
    value.append("changed by the sender after the emit")
    bolt.emit(value)


def _change(bolt: NotingBolt, tup: Tuple) -> None:
    bolt.emit(tup[1])
    tup[1].append("changed by a receiver")


@pytest.mark.parametrize("grouping", ["none", "shuffle", "all", "global"])
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("spill_bytes", [0, 1 << 20])
def test_neither_sender_nor_receiver_can_change_the_tuples_of_another_receiver(
    grouping: str, cores: int, spill_bytes: int
) -> None:
    declared = builder()
    declared.set_bolt("sender", NotingBolt(_emit_and_change), 1).none_grouping("spout")
    for receiver in ("one", "other"):
        getattr(declared.set_bolt(receiver, NotingBolt(_change), 1), f"{grouping}_grouping")(
            "sender"
        )
    declared.set_bolt("after", NotingBolt()).none_grouping("one").global_grouping("other")
    ran = run_once(
        declared.build_topology(),
        {0: rows("a")},
        cores=cores,
        limits=Limits(spill_bytes=spill_bytes, inline_bytes_max=1 << 30),
    )
    expected = [["a"], ["a", "changed by the sender after the emit"]]
    assert [
        value[: len(expected[i % 2])] for i, value in enumerate(ran.executed("after"))
    ] == expected * 2
    for receiver in ("one", "other"):
        values = [
            event.details[3][0]
            for event in ran.events
            if event.component == receiver and event.hook == "execute"
        ]
        assert [value[-1] for value in values] == ["changed by a receiver"] * 2, (
            "each changed its own copy, once"
        )
        assert [value[:-1] for value in values] == expected


@pytest.mark.parametrize("cores", [1, 2])
def test_receivers_of_a_recorded_emission_share_no_objects(cores: int) -> None:
    declared = builder(RowsSpout({0: rows(["a"])}))
    declared.set_bolt("one", NotingBolt(_change)).none_grouping("spout")
    declared.set_bolt("other", NotingBolt(_change)).none_grouping("spout")
    with InProcessTopology(declared.build_topology(), cores, rng=random.Random(0)) as topology:
        ran = topology.run(Batch("new", num_partitions=1))
    assert [event.details[3] for event in ran.events if event.hook == "execute"] == [
        (["a", "changed by a receiver"],)
    ] * 2


def _keep(bolt: NotingBolt, tup: Tuple) -> None:
    bolt.kept = tup  # type: ignore[attr-defined]


def _compare(bolt: NotingBolt) -> None:
    bolt.emit([bolt.kept[1], bolt.kept.source_component, bolt.kept["value"]])  # type: ignore[attr-defined]


def test_a_held_bolt_may_keep_a_tuple_until_its_commit() -> None:
    declared = builder()
    declared.set_bolt("keeps", NotingCommitter(_keep, _compare)).shuffle_grouping("spout")
    declared.set_bolt("after", NotingBolt()).shuffle_grouping("keeps")
    ran = run_once(declared.build_topology(), {0: rows(["a"])})
    assert ran.executed("after") == [[["a"], "spout", ["a"]]]


def test_emitting_the_metadata_of_a_batch_leaves_the_metadata_alone() -> None:
    declared = builder()
    declared.set_bolt("changes", NotingBolt(_change)).none_grouping("spout")
    metadata = rows(["a"])
    with InProcessTopology(declared.build_topology()) as topology:
        topology.run(planned({0: metadata}))
        assert metadata == rows(["a"])
