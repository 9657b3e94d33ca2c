"""Every mistake in a topology is found when it is built, all at once, naming the component and the
cure."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.recording import (
    NotingBasicBolt,
    NotingBolt,
    NotingCommitter,
    RowsSpout,
    builder,
    journals,
)
from txtopo import (
    BaseBasicBolt,
    BaseBatchBolt,
    BasicOutputCollector,
    Fields,
    ICommitter,
    InvalidTopologyError,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)


def problems_of(topology: TransactionalTopologyBuilder) -> tuple[str, ...]:
    with pytest.raises(InvalidTopologyError) as refused:
        topology.build_topology()
    assert refused.value.exit_code == 2
    return refused.value.problems


def only_problem_of(topology: TransactionalTopologyBuilder) -> str:
    problems = problems_of(topology)
    assert len(problems) == 1, problems
    return problems[0]


def test_an_unknown_component_is_named_with_the_nearest_one() -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).shuffle_grouping("spuot")
    assert (
        only_problem_of(topology)
        == "bolt 'count': shuffle grouping on unknown component 'spuot'; did you mean 'spout'?"
    )


def test_an_unknown_component_that_resembles_none_is_answered_with_those_there_are() -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).all_grouping("xyz")
    assert (
        only_problem_of(topology)
        == "bolt 'count': all grouping on unknown component 'xyz'; there are 'spout', 'count'"
    )


@pytest.mark.parametrize(
    "component", [None, 3, ["spout"], NotingBolt()], ids=["None", "int", "list", "bolt"]
)
def test_a_component_is_named_by_its_id(component: Any) -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).shuffle_grouping(component)
    problem = only_problem_of(topology)
    assert problem.startswith(f"bolt 'count': shuffle grouping on {component!r}")
    assert "id" in problem


def test_an_unknown_stream_is_named_with_the_nearest_one() -> None:
    topology = builder(RowsSpout(streams={"default": ("tx", "value"), "errors": ("tx", "why")}))
    topology.set_bolt("count", NotingBolt()).global_grouping("spout", "error")
    cure = "but 'spout' declares 'default', 'errors'; did you mean 'errors'?"
    assert only_problem_of(topology) == f"bolt 'count': global grouping on stream 'error', {cure}"


def test_listening_to_a_component_that_declares_nothing_says_what_it_needs() -> None:
    class Silent(BaseBatchBolt):
        def execute(self, tup: Tuple) -> None: ...

    topology = builder()
    topology.set_bolt("silent", Silent()).shuffle_grouping("spout")
    topology.set_bolt("count", NotingBolt()).shuffle_grouping("silent")
    cure = "but 'silent' declares no stream. Define declare_output_fields"
    assert (
        only_problem_of(topology) == f"bolt 'count': shuffle grouping on stream 'default', {cure}"
    )


def test_an_unknown_field_is_named_with_the_nearest_one() -> None:
    topology = builder(RowsSpout(streams={"default": ("tx", "word", "count")}))
    topology.set_bolt("count", NotingBolt()).fields_grouping("spout", Fields("wrod"))
    cure = "but stream 'default' of 'spout' has tx, word, count; did you mean 'word'?"
    assert only_problem_of(topology) == f"bolt 'count': fields grouping on field 'wrod', {cure}"


def test_direct_groupings_and_direct_streams_need_each_other() -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).direct_grouping("spout")
    problem = "bolt 'count': direct grouping on stream 'default' of 'spout', which is not a direct stream. Declare it with direct=True"
    assert only_problem_of(topology) == problem


@pytest.mark.parametrize("grouping", [None, object(), NotingBolt])
def test_a_custom_grouping_chooses_tasks(grouping: Any) -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).custom_grouping("spout", grouping)
    assert "has no method choose_tasks(task_index, values)" in only_problem_of(topology)


def test_a_fields_grouping_names_at_least_one_field() -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).fields_grouping("spout", Fields())
    assert (
        only_problem_of(topology)
        == "bolt 'count': fields grouping on 'spout' names no field. Name at least one, or use global_grouping"
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (["value", "value"], "duplicate field 'value'"),
        ([1], "non-empty string"),
        (None, "NoneType"),
        (3, "int"),
    ],
)
def test_fields_that_cannot_be_are_one_mistake(fields: Any, why: str) -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).fields_grouping("spout", fields)
    problem = only_problem_of(topology)
    assert problem.startswith("bolt 'count': fields grouping on 'spout': ")
    assert why in problem


def test_listening_twice_to_one_stream_is_refused() -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).shuffle_grouping("spout").all_grouping("spout")
    assert (
        only_problem_of(topology)
        == "bolt 'count' listens twice to stream 'default' of 'spout'. Keep one grouping"
    )


def test_a_bolt_without_input_is_answered_with_the_line_to_type() -> None:
    topology = builder()
    topology.set_bolt("lonely", NotingBolt())
    assert (
        only_problem_of(topology)
        == "bolt 'lonely' listens to no component. Add a grouping, for example .shuffle_grouping('spout')"
    )


def test_a_duplicate_id_is_named() -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).shuffle_grouping("spout")
    topology.set_bolt("count", NotingBolt()).shuffle_grouping("spout")
    assert (
        only_problem_of(topology)
        == "component 'count' is set twice. Give each spout and bolt its own id"
    )


def test_a_bolt_with_the_id_of_the_spout_is_a_duplicate() -> None:
    topology = builder()
    topology.set_bolt("spout", NotingBolt()).shuffle_grouping("spout")
    assert "component 'spout' is set twice. Give each spout and bolt its own id" in problems_of(
        topology
    )


@pytest.mark.parametrize(
    "id", ["__acker", "", "  ", "a/b", "a\\b", "a:b", "a\nb", "a ", " a", ".", "..", None, 7]
)
def test_an_id_that_cannot_be_a_znode_or_is_reserved_is_refused(id: Any) -> None:
    topology = builder()
    topology.set_bolt(id, NotingBolt()).shuffle_grouping("spout")
    problem = only_problem_of(topology)
    assert problem.startswith(f"component id {id!r}: ")


def test_a_bad_topology_id_is_refused() -> None:
    topology = TransactionalTopologyBuilder("a/b", "spout", RowsSpout())
    assert only_problem_of(topology).startswith("topology id 'a/b': an id may not be")


def test_a_cycle_names_its_members_only() -> None:
    topology = builder()
    topology.set_bolt("a", NotingBolt()).shuffle_grouping("spout").shuffle_grouping("c")
    topology.set_bolt("b", NotingBolt()).shuffle_grouping("a")
    topology.set_bolt("c", NotingBolt()).shuffle_grouping("b")
    topology.set_bolt("after", NotingBolt()).shuffle_grouping("c")
    assert (
        only_problem_of(topology)
        == "a cycle among 'a', 'b', 'c'. A batch must end, so tuples may not go round"
    )


def test_a_bolt_that_listens_to_itself_is_a_cycle() -> None:
    topology = builder()
    topology.set_bolt("a", NotingBolt()).shuffle_grouping("spout").shuffle_grouping("a")
    assert only_problem_of(topology).startswith("a cycle among 'a'.")


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, True, None, "2"])
def test_parallelism_is_a_whole_number_of_at_least_one(parallelism: Any) -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt(), parallelism).shuffle_grouping("spout")
    assert (
        only_problem_of(topology)
        == f"component 'count': parallelism is {parallelism!r}. Give a whole number, at least 1"
    )


def test_parallelism_of_the_spout_is_checked_too() -> None:
    assert "component 'spout': parallelism is 0" in only_problem_of(builder(parallelism=0))


class CommittingBasicBolt(NotingBasicBolt, ICommitter):
    """What cannot be."""


@pytest.mark.rule(15)
def test_a_basic_bolt_cannot_be_a_committer() -> None:
    topology = builder()
    topology.set_bolt("marked", CommittingBasicBolt()).shuffle_grouping("spout")
    topology.set_committer_bolt("set", NotingBasicBolt()).shuffle_grouping("spout")
    cure = "a basic bolt cannot be a committer, because it has no batch to commit. Subclass BaseTransactionalBolt"
    assert problems_of(topology) == (f"bolt 'marked': {cure}", f"bolt 'set': {cure}")


def _database(path: Path) -> Any:
    connection = sqlite3.connect(":memory:")
    connection.close()
    return connection


@pytest.mark.parametrize(
    "make",
    [lambda path: threading.Lock(), lambda path: (n for n in range(3)), _database],
    ids=["lock", "generator", "connection"],
)
def test_an_attribute_that_cannot_be_pickled_is_named_with_the_cure(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    bolt = NotingBolt()
    bolt.harmless, bolt.culprit = 1, make(tmp_path)  # type: ignore[attr-defined]
    topology = builder()
    topology.set_bolt("count", bolt).shuffle_grouping("spout")
    problem = only_problem_of(topology)
    assert problem.startswith("component 'count': its attribute 'culprit' cannot be pickled (")
    assert "context.resource(name, factory)" in problem


def test_an_open_file_in_a_bolt_is_named(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        bolt = NotingBolt()
        bolt.out = file  # type: ignore[attr-defined]
        topology = builder()
        topology.set_bolt("count", bolt).shuffle_grouping("spout")
        assert only_problem_of(topology).startswith(
            "component 'count': its attribute 'out' cannot be pickled ("
        )


def test_a_lambda_in_a_bolt_is_fine() -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt(on_execute=lambda bolt, tup: None)).shuffle_grouping(
        "spout"
    )
    assert list(topology.build_topology().components) == ["spout", "count"]


def test_a_spout_that_cannot_be_pickled_is_named() -> None:
    spout = RowsSpout()
    spout.lock = threading.Lock()  # type: ignore[attr-defined]
    assert only_problem_of(builder(spout)).startswith(
        "component 'spout': its attribute 'lock' cannot be pickled ("
    )


class Unloadable:
    """Pickles, and does not come back."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


def test_an_attribute_that_does_not_come_back_from_its_pickle_is_named() -> None:
    bolt = NotingBolt()
    bolt.odd = Unloadable()  # type: ignore[attr-defined]
    topology = builder()
    topology.set_bolt("count", bolt).shuffle_grouping("spout")
    assert only_problem_of(topology).startswith(
        "component 'count': its attribute 'odd' cannot be pickled (ValueError"
    )


def test_a_class_instead_of_an_instance_is_one_mistake() -> None:
    topology = builder(RowsSpout)
    topology.set_bolt("batch", NotingBolt).shuffle_grouping("spout")
    topology.set_bolt("committer", NotingCommitter).shuffle_grouping("batch")
    assert problems_of(topology) == (
        "spout 'spout': the class RowsSpout is not a transactional spout. Subclass BaseTransactionalSpout,"
        " BasePartitionedTransactionalSpout or BaseOpaquePartitionedTransactionalSpout",
        "bolt 'batch': the class NotingBolt is not a bolt. Subclass BaseBatchBolt or BaseBasicBolt, and pass an instance",
        "bolt 'committer': the class NotingCommitter is not a bolt. Subclass BaseBatchBolt or BaseBasicBolt, and pass an instance",
    )


def test_a_spout_is_no_bolt_and_a_bolt_no_spout() -> None:
    topology = builder(NotingBolt())
    topology.set_bolt("count", RowsSpout()).shuffle_grouping("spout")
    assert [problem.split(". ")[0] for problem in problems_of(topology)] == [
        "spout 'spout': a NotingBolt is not a transactional spout",
        "bolt 'count': a RowsSpout is not a bolt",
    ]


class DeclaringBolt(BaseBatchBolt):
    """Declares by calling ``how``."""

    def __init__(
        self, how: Callable[[OutputFieldsDeclarer], None], configuration: Any = None
    ) -> None:
        self.how, self.configuration = how, configuration

    def execute(self, tup: Tuple) -> None: ...

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        self.how(declarer)

    def get_component_configuration(self) -> dict[str, Any] | None:
        if isinstance(self.configuration, Exception):
            raise self.configuration
        return self.configuration  # type: ignore[no-any-return]


def _twice(declarer: OutputFieldsDeclarer) -> None:
    declarer.declare(Fields("tx"))
    declarer.declare(Fields("tx", "value"))


def _raise(declarer: OutputFieldsDeclarer) -> None:
    raise RuntimeError("no idea what I emit")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            lambda declarer: declarer.declare(Fields("tx", "word", "word")),
            "ValueError: duplicate field 'word'",
        ),
        (
            lambda declarer: declarer.declare(["tx", "word", "word"]),
            "ValueError: duplicate field 'word'",
        ),
        (_twice, "ValueError: stream 'default' is declared twice"),
        (lambda declarer: declarer.declare(Fields()), "ValueError: stream 'default' has no fields"),
        (
            lambda declarer: declarer.declare("tx", "word"),
            "ValueError: direct is True or False, not 'word'",
        ),
        (_raise, "RuntimeError: no idea what I emit"),
    ],
    ids=[
        "duplicate in Fields",
        "duplicate in a list",
        "stream twice",
        "no fields",
        "names one by one",
        "raises",
    ],
)
def test_a_mistake_in_declare_output_fields_is_one_problem_of_that_component(
    how: Callable[[OutputFieldsDeclarer], None], why: str
) -> None:
    topology = builder()
    topology.set_bolt("wrong", DeclaringBolt(how)).shuffle_grouping("spout")
    topology.set_bolt("after", NotingBolt()).shuffle_grouping("wrong").shuffle_grouping(
        "wrong", "side"
    )
    assert only_problem_of(topology).startswith(
        f"component 'wrong': declaring its streams failed: {why}"
    )


def test_a_component_configuration_that_raises_is_a_problem_of_that_component() -> None:
    topology = builder()
    topology.set_bolt(
        "wrong", DeclaringBolt(lambda declarer: None, RuntimeError("no idea"))
    ).shuffle_grouping("spout")
    problem = only_problem_of(topology)
    assert problem.startswith("component 'wrong': ")
    assert "RuntimeError: no idea" in problem


def test_a_setting_that_cannot_travel_to_the_executors_is_named() -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).shuffle_grouping("spout").add_configuration(
        "fine", 1
    ).add_configuration("lock", threading.Lock())
    problem = only_problem_of(topology)
    assert problem.startswith("component 'count': its setting 'lock' cannot be pickled (")


def test_every_mistake_is_reported_at_once() -> None:
    topology = TransactionalTopologyBuilder("__topology", "spout", RowsSpout(), 0)
    topology.set_bolt("a/b", NotingBolt()).shuffle_grouping("spout")
    topology.set_bolt("count", NotingBolt(), -1).fields_grouping("spuot", Fields("value"))
    topology.set_bolt("count", NotingBolt()).shuffle_grouping("spout", "side")
    topology.set_bolt("class", NotingBolt).shuffle_grouping("spout")
    topology.set_bolt("lonely", CommittingBasicBolt())
    topology.set_bolt("x", NotingBolt()).shuffle_grouping("y")
    topology.set_bolt("y", NotingBolt()).fields_grouping("x", Fields("valeu"))
    problems = problems_of(topology)
    expected = [
        "topology id '__topology': ids that begin with __ are reserved",
        "component id 'a/b': an id may not be",
        "component 'count' is set twice",
        "component 'spout': parallelism is 0",
        "component 'count': parallelism is -1",
        "bolt 'class': the class NotingBolt is not a bolt",
        "bolt 'lonely': a basic bolt cannot be a committer",
        "bolt 'lonely' listens to no component",
        "bolt 'count': fields grouping on unknown component 'spuot'; did you mean 'spout'?",
        "bolt 'count': shuffle grouping on stream 'side', but 'spout' declares 'default'",
        "bolt 'y': fields grouping on field 'valeu'",
        "a cycle among 'x', 'y'",
    ]
    missing = [
        start for start in expected if not any(problem.startswith(start) for problem in problems)
    ]
    assert (missing, len(problems)) == ([], len(expected)), problems


def test_the_error_lists_every_problem_on_a_line_of_its_own() -> None:
    topology = builder()
    topology.set_bolt("a", NotingBolt(), 0)
    with pytest.raises(InvalidTopologyError) as refused:
        topology.build_topology()
    lines = str(refused.value).splitlines()
    assert lines[0].endswith("is not valid:")
    assert [line[:4] for line in lines[1:]] == ["  - ", "  - "]


def test_a_topology_can_be_mended_and_built_again() -> None:
    topology = builder()
    bolt = topology.set_bolt("count", NotingBolt())
    assert len(problems_of(topology)) == 1
    bolt.shuffle_grouping("spout")
    assert list(topology.build_topology().components) == ["spout", "count"]


class UnmadeBasicBolt(BaseBasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None: ...


def test_a_bolt_without_outputs_need_not_declare_any() -> None:
    topology = builder()
    topology.set_bolt("end", UnmadeBasicBolt()).shuffle_grouping("spout")
    graph = topology.build_topology()
    assert dict(graph.components["end"].outputs) == {}
    assert journals[graph.id] == []


class SlottedBolt(NotingBolt):
    __slots__ = ("slotted",)
    slotted: Any


def test_a_slot_that_cannot_be_pickled_is_named_too() -> None:
    bolt = SlottedBolt()
    bolt.slotted = threading.Lock()
    topology = builder()
    topology.set_bolt("count", bolt).shuffle_grouping("spout")
    assert only_problem_of(topology).startswith(
        "component 'count': its attribute 'slotted' cannot be pickled ("
    )


class LeavingOut(NotingBolt):
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}


def test_an_attribute_that_getstate_leaves_out_is_not_blamed() -> None:
    bolt = LeavingOut()
    bolt.lock, bolt.culprit = threading.Lock(), threading.Lock()  # type: ignore[attr-defined]
    topology = builder()
    topology.set_bolt("count", bolt).shuffle_grouping("spout")
    assert only_problem_of(topology).startswith(
        "component 'count': its attribute 'culprit' cannot be pickled ("
    )


class CountingGrouping:
    """Chooses tasks in turn."""

    def __init__(self, start: Any = 0) -> None:
        self.next = start

    def choose_tasks(self, task_index: int, values: Any) -> list[int]:
        return [0]


def test_a_custom_grouping_that_cannot_be_pickled_is_named_with_its_attribute() -> None:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).custom_grouping(
        "spout", CountingGrouping(threading.Lock())
    )
    problem = only_problem_of(topology)
    assert problem.startswith(
        "bolt 'count': custom grouping on 'spout': its attribute 'next' cannot be pickled ("
    )


def test_a_custom_grouping_is_copied_when_the_topology_is_built() -> None:
    grouping = CountingGrouping()
    topology = builder()
    topology.set_bolt("count", NotingBolt()).custom_grouping("spout", grouping)
    graph = topology.build_topology()
    grouping.next = 5
    copied = graph.components["count"].inputs[0].grouping.custom
    assert isinstance(copied, CountingGrouping)
    assert copied.next == 0


def test_a_second_spout_is_told_that_the_one_spout_is_given_to_the_constructor() -> None:
    topology = builder()
    topology.set_spout("logs", RowsSpout(), 2).add_configuration("a", 1)
    assert only_problem_of(topology) == (
        "spout 'logs': a topology has one spout, and there is no set_spout. Give the spout to the constructor:"
        f" TransactionalTopologyBuilder({topology._id!r}, 'logs', spout, 2)"
    )
