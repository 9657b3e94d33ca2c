"""Topologies that would not count exactly once are refused when they are built: by spout, store,
grouping and parallelism."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.topologies.recording import NotingBasicBolt, NotingBolt, NotingCommitter
from txtopo import (
    BoltDeclarer,
    Destination,
    Fields,
    Guarantee,
    InvalidTopologyError,
    TransactionalTopologyBuilder,
)
from txtopo.exports import Exporter, ExportQueue, SequencedExport
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txtopo.testing.contracts.store_forms import ComplexCodec
from txtopo.topology import soundness
from txtopo.topology.destination import Writes
from txtopo.topology.graph import Subscription
from txtopo.topology.grouping import TRAITS, Grouping, GroupingTraits

WORDS: dict[int, list[tuple[Any, ...]]] = {0: [("a",), ("b",)]}


def builder(opaque: bool = False) -> TransactionalTopologyBuilder:
    spout = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    return TransactionalTopologyBuilder("sound", "spout", spout(WORDS, Fields("word"), 1))


def store(opaque: bool = False) -> SqliteStore:
    return SqliteStore("counts.db", "counts", opaque=opaque)


class Writing(NotingCommitter):
    """A committer with an object in it."""

    def __init__(self, *held: Any) -> None:
        super().__init__()
        self.held = held


class WritingOwnKeys(Writing):
    has_own_keys = True


def problems_of(topology: TransactionalTopologyBuilder) -> tuple[str, ...]:
    with pytest.raises(InvalidTopologyError) as refused:
        topology.build_topology()
    assert refused.value.exit_code == 2
    return refused.value.problems


def grouped(declarer: BoltDeclarer, kind: str) -> None:
    declare = getattr(declarer, f"{kind}_grouping")
    declare("spout", *([Fields("word")] if kind in ("fields", "partial_key") else []))


class Sink(Destination):
    """A destination that takes writes from any task, but undoes none."""

    def guarantee(self) -> Guarantee:
        return Guarantee(
            "a sink of mine", "rows", takes_back=False, is_keyed=False, cure="use a store"
        )


@pytest.mark.rule(32)
@pytest.mark.parametrize("kind", ["shuffle", "local_or_shuffle", "none", "all", "partial_key"])
def test_a_keyed_committer_whose_input_is_spread_is_refused(kind: str) -> None:
    topology = builder()
    grouped(topology.set_bolt("count", Writing(store()), 2), kind)
    [problem] = problems_of(topology)
    assert problem.startswith(f"component 'count': {kind}")
    assert "several of its 2 tasks may write one key of SqliteStore" in problem
    assert "Use fields_grouping on the key" in problem
    assert "has_own_keys = True" in problem


@pytest.mark.rule(32)
@pytest.mark.parametrize("kind", ["shuffle", "local_or_shuffle", "none", "all", "partial_key"])
def test_one_task_may_be_fed_in_any_way(kind: str) -> None:
    topology = builder()
    grouped(topology.set_bolt("count", Writing(store())), kind)
    assert topology.build_topology().components["count"].parallelism == 1


@pytest.mark.rule(32)
@pytest.mark.parametrize("kind", ["fields", "global"])
def test_a_keyed_committer_may_have_many_tasks_if_equal_keys_meet_in_one(kind: str) -> None:
    topology = builder()
    grouped(topology.set_bolt("count", Writing(store()), 2), kind)
    assert topology.build_topology().components["count"].parallelism == 2


@pytest.mark.rule(32)
def test_a_class_may_say_that_its_tasks_have_keys_of_their_own() -> None:
    topology = builder()
    topology.set_bolt("count", WritingOwnKeys(store()), 2).shuffle_grouping("spout")
    assert topology.build_topology().components["count"].writes.has_own_keys


@pytest.mark.rule(32)
def test_one_spread_input_beside_a_fields_grouping_is_refused_and_named() -> None:
    topology = builder()
    topology.set_bolt("side", NotingBolt()).shuffle_grouping("spout")
    topology.set_bolt("count", Writing(store()), 2).fields_grouping(
        "spout", Fields("word")
    ).all_grouping("side")
    [problem] = problems_of(topology)
    assert "all grouping on 'side'" in problem


@pytest.mark.rule(12, 32)
def test_a_bolt_downstream_of_a_committer_is_held_to_the_same() -> None:
    topology = builder()
    topology.set_bolt("count", NotingCommitter()).shuffle_grouping("spout")
    topology.set_bolt("pass", NotingBasicBolt(), 2).shuffle_grouping("count")
    after: Any = NotingBolt()
    after.store = store()
    topology.set_bolt("after", after, 2).shuffle_grouping("pass")
    [problem] = problems_of(topology)
    assert problem.startswith("component 'after'")


def test_a_bolt_of_the_processing_phase_may_look_things_up_wherever_it_is() -> None:
    topology = builder(opaque=True)
    looks_up: Any = NotingBolt()
    looks_up.store = store()
    topology.set_bolt("look", looks_up, 3).shuffle_grouping("spout")
    assert topology.build_topology().components["look"].parallelism == 3


@pytest.mark.rule(31)
def test_an_opaque_spout_needs_a_store_that_takes_back() -> None:
    topology = builder(opaque=True)
    topology.set_bolt("count", Writing(store())).shuffle_grouping("spout")
    [problem] = problems_of(topology)
    assert "SqliteStore" in problem
    assert "holds transactional values, but the spout 'spout' is opaque" in problem
    assert "give the store opaque=True" in problem


@pytest.mark.rule(31)
@pytest.mark.parametrize("is_opaque_spout", [True, False])
def test_a_store_that_takes_back_fits_every_spout(is_opaque_spout: bool) -> None:
    topology = builder(is_opaque_spout)
    topology.set_bolt("count", Writing(store(opaque=True))).shuffle_grouping("spout")
    assert [
        written.holds
        for written in topology.build_topology().components["count"].writes.destinations
    ] == ["opaque values"]


@pytest.mark.rule(31, 32)
def test_a_sink_without_keys_takes_any_grouping_but_no_opaque_spout() -> None:
    for opaque in (False, True):
        topology = builder(opaque)
        topology.set_bolt("keep", Writing(Sink()), 3).shuffle_grouping("spout")
        if opaque:
            [problem] = problems_of(topology)
            assert problem.endswith("(R31); use a store")
        else:
            assert (
                topology.build_topology().components["keep"].writes.destinations[0].name
                == "a sink of mine"
            )


def test_a_queue_has_one_component_and_behind_an_opaque_spout_an_opaque_store() -> None:
    topology = builder(opaque=True)
    for id in ("count", "keep"):
        topology.set_bolt(id, Writing(ExportQueue("words", store()))).global_grouping("spout")
    problems = problems_of(topology)
    assert any(
        "ExportQueue 'words' in" in problem
        and "holds entries, but the spout" in problem
        and problem.endswith("give the queue's store opaque=True")
        for problem in problems
    )
    assert any(
        problem.startswith("components 'count', 'keep': all write to ExportQueue 'words' in")
        for problem in problems
    )


def test_an_exporter_that_cannot_be_pickled_is_named() -> None:
    queue = ExportQueue("words", store(), exporter=Locked())
    topology = builder()
    topology.set_bolt("count", Writing(queue)).global_grouping("spout")
    [problem] = problems_of(topology)
    assert "'held' cannot be pickled (TypeError: cannot pickle '_thread.lock' object)" in problem


class Locked(Exporter):
    """An exporter with a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def export(self, entries: Iterator[SequencedExport]) -> None:
        raise NotImplementedError


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner = inner


class ClassWide(NotingCommitter):
    store = SqliteStore("counts.db", "of_the_class")


def closed_over(held: SqliteStore) -> Any:
    return lambda: held


@pytest.mark.parametrize(
    "committer",
    [
        Writing({"a": [store()]}),
        Writing(Holder(Holder(store()))),
        Writing(closed_over(store())),
        ClassWide(),
    ],
    ids=["a list", "an object", "a closure", "the class"],
)
def test_a_store_is_found_wherever_a_committer_keeps_it(committer: NotingCommitter) -> None:
    topology = builder(opaque=True)
    topology.set_bolt("count", committer).shuffle_grouping("spout")
    [problem] = problems_of(topology)
    assert "counts.db" in problem
    assert "opaque" in problem


def test_a_need_of_the_drivers_machine_is_found_in_any_attribute_of_a_component() -> None:
    topology = builder()
    topology.set_bolt("count", Writing([Holder(store())])).shuffle_grouping("spout")
    assert (
        "count",
        "SqliteStore writes a file on this machine",
    ) in topology.build_topology().local_only


def test_one_store_kept_twice_is_one_destination() -> None:
    topology = builder()
    topology.set_bolt("count", Writing(store(), store())).shuffle_grouping("spout")
    assert len(topology.build_topology().components["count"].writes.destinations) == 1


@pytest.mark.rule(27)
def test_one_component_may_not_keep_two_stores_of_one_name_in_different_places() -> None:
    elsewhere = SqliteStore("others.db", "counts")
    topology = builder()
    topology.set_bolt("count", Writing(store(), elsewhere)).shuffle_grouping("spout")
    [problem] = problems_of(topology)
    assert problem.startswith(
        f"component 'count': it writes to SqliteStore {store().address} and SqliteStore {elsewhere.address}, "
    )
    assert problem.endswith("Give each its own name")
    apart = builder()
    apart.set_bolt(
        "count", Writing(store(), SqliteStore("others.db", "other_counts"))
    ).shuffle_grouping("spout")
    apart.set_bolt("again", Writing(elsewhere)).shuffle_grouping("spout")
    assert [
        len(apart.build_topology().components[id].writes.destinations) for id in ("count", "again")
    ] == [2, 1]


@pytest.mark.rule(27)
@pytest.mark.parametrize(
    ("other", "held"),
    [
        pytest.param({"plain": True}, "plain values, by the codec 'json'", id="plain"),
        pytest.param(
            {"codec": ComplexCodec()},
            "stamped values, by the codec 'contract-complex'",
            id="a codec",
        ),
    ],
)
@pytest.mark.parametrize(
    "is_reader", [False, True], ids=["a committer", "a bolt that looks things up"]
)
def test_components_that_open_one_store_for_different_values_are_refused(
    other: dict[str, Any], held: str, is_reader: bool
) -> None:
    topology = builder()
    topology.set_bolt("count", Writing(store())).shuffle_grouping("spout")
    second: Any = NotingBolt() if is_reader else Writing()
    second.store = SqliteStore("counts.db", "counts", **other)
    topology.set_bolt("second", second).shuffle_grouping("spout")
    [problem] = problems_of(topology)
    assert problem.startswith(f"SqliteStore {store().address} is opened for different values")
    assert "for stamped values, by the codec 'json' by 'count'" in problem
    assert f"for {held} by 'second'" in problem


@pytest.mark.rule(27)
def test_one_store_may_be_opened_for_transactional_values_and_for_opaque_ones() -> None:
    topology = builder()
    topology.set_bolt("count", Writing(store())).shuffle_grouping("spout")
    topology.set_bolt("opaque", Writing(store(opaque=True))).shuffle_grouping("spout")
    assert {
        written.form
        for component in topology.build_topology().components.values()
        for written in component.writes.destinations
    } == {"stamped values, by the codec 'json'"}


class KeyedBy(Writing):
    def __init__(self, *names: str) -> None:
        super().__init__(store())
        self.key_fields = Fields(*names)


@pytest.mark.rule(32)
def test_a_fields_grouping_on_something_other_than_the_known_key_is_refused() -> None:
    spout = MemoryTransactionalSpout({0: [("a", 1)]}, Fields("word", "day"), 1)
    accepted: list[tuple[str, ...]] = []
    for names in [("word",), ("day",), ("word", "day")]:
        topology = TransactionalTopologyBuilder("sound", "spout", spout)
        topology.set_bolt("count", KeyedBy("word"), 2).fields_grouping("spout", Fields(*names))
        if names == ("word",):
            accepted.append(
                tuple(topology.build_topology().components["count"].writes.key_fields or ())
            )
        else:
            [problem] = problems_of(topology)
            assert "goes by day, but its keys have other fields" in problem
            assert "Use fields_grouping on the key, word" in problem
    assert accepted == [("word",)]


@pytest.mark.rule(32)
def test_two_fields_groupings_that_part_equal_keys_are_refused() -> None:
    spout = MemoryTransactionalSpout({0: [("a", 1)]}, Fields("word", "day"), 1)
    topology = TransactionalTopologyBuilder("sound", "spout", spout)
    topology.set_bolt(
        "pass", NotingBolt(streams={"default": ("tx", "word", "day")})
    ).shuffle_grouping("spout")
    count = topology.set_bolt("count", KeyedBy("word", "day"), 2)
    count.fields_grouping("spout", Fields("word")).fields_grouping("pass", Fields("word", "day"))
    [problem] = problems_of(topology)
    assert (
        "fields(word) on 'spout' and fields(word, day) on 'pass' send equal keys to different tasks"
        in problem
    )


@pytest.mark.rule(32)
def test_two_kinds_of_grouping_by_the_same_fields_that_part_equal_keys_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_kind_to_come: Any = "range"
    monkeypatch.setitem(TRAITS, a_kind_to_come, GroupingTraits(by_key=True))
    writes = Writes((store().guarantee(),), key_fields=Fields("word"))
    by_word = [Subscription("spout", "default", Grouping("fields", Fields("word")))]
    assert not list(
        soundness.problems("count", 2, [*by_word, *by_word], writes, "spout", "transactional")
    )
    by_range = Subscription("pass", "default", Grouping(a_kind_to_come, Fields("word")))
    [problem] = soundness.problems(
        "count", 2, [*by_word, by_range], writes, "spout", "transactional"
    )
    assert (
        "fields(word) on 'spout' and range(word) on 'pass' send equal keys to different tasks"
        in problem
    )


def test_these_mistakes_are_reported_with_all_others() -> None:
    topology = builder(opaque=True)
    topology.set_bolt("count", Writing(store()), 2).shuffle_grouping("spout").shuffle_grouping(
        "nobody"
    )
    assert len(problems_of(topology)) == 4


class Speechless(Destination):
    def guarantee(self) -> Guarantee:
        raise LookupError("which one?")


def test_a_destination_that_cannot_say_what_it_can_do_is_a_mistake_of_the_topology() -> None:
    topology = builder()
    topology.set_bolt("count", Writing(Speechless())).shuffle_grouping("spout")
    assert problems_of(topology) == (
        "component 'count': Speechless.guarantee failed: LookupError: which one?",
    )
