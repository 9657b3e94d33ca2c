"""Results of ``set_aggregate``: its bolts and their groupings; and its refusals."""

from __future__ import annotations

import enum
import itertools
import math
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

from tests.topologies import recording
from tests.topologies.aggregates import BY_NAME, FIELDS, ROWS, aggregated
from tests.topologies.recording import FIRST, InProcessTopology, RowsSpout, planned
from tests.wrong.circles import CIRCLES
from txtopo import (
    CombinerAggregator,
    Count,
    Fields,
    InvalidTopologyError,
    Max,
    Min,
    ReducerAggregator,
    Sum,
    TopologyConf,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
    UsageError,
)
from txtopo.dataplane.outcome import Failure
from txtopo.plan import compiler
from txtopo.stores import ADD, SqliteStore
from txtopo.testing import MemoryStore, MemoryTransactionalSpout, simulate
from txtopo.testing import stores as memory
from txtopo.topology.aggregate import CombiningCommitter, KeyOf, PartialAggregate
from txtopo.topology.aggregator import ValueRefusedError
from txtopo.topology.grouping import UnsupportedKeyError
from txtopo.topology.stream import TupleSource


def builder(parallelism: int = 3) -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder(
        "aggregates", "rows", MemoryTransactionalSpout(ROWS, FIELDS, 2), parallelism
    )


def store(opaque: bool = False) -> SqliteStore:
    return SqliteStore("values.db", "kept", opaque=opaque)


def problems_of(topology: TransactionalTopologyBuilder) -> str:
    with pytest.raises(InvalidTopologyError) as refused:
        topology.build_topology()
    return "\n".join(refused.value.problems)


def test_tuples_are_combined_in_the_process_that_makes_them_and_only_then_travel() -> None:
    topology = builder()
    topology.set_aggregate("kept", Count(), store(), 5).group_by("rows", Fields("word"))
    graph = topology.build_topology()
    assert graph.task_counts == {"rows": 3, "kept-of-rows": 3, "kept": 5}
    [[into], [across]] = [graph.components[id].inputs for id in ("kept-of-rows", "kept")]
    assert (into.source, str(into.grouping)) == ("rows", "none")
    assert (across.source, str(across.grouping)) == ("kept-of-rows", "fields(word)")
    assert ("rows", "default", "kept-of-rows") in compiler.compile_plan(graph, 2).processing.fused
    assert graph.components["kept"].committer


@pytest.mark.in_gate("sum-*")
@pytest.mark.parametrize("is_heard", [False, True], ids=["nobody listens", "somebody listens"])
@pytest.mark.parametrize("name", ["count", "sum", "min", "max", "mean"])
def test_values_without_a_listener_are_combined_by_the_database(
    name: str, is_heard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[str] = []
    merge_rows = memory._Session.merge_rows

    def noting(self: Any, deltas: Any, how: Any, *of: Any) -> Any:
        merged.append(how.operator)
        return merge_rows(self, deltas, how, *of)

    monkeypatch.setattr(memory._Session, "merge_rows", noting)
    topology = aggregated(tmp_path, BY_NAME[name], history=is_heard)
    for _ in range(2):  # the addressees are determined anew each time
        graph = topology.build_topology()
    assert simulate(graph, seeds=1).violation is None
    assert set(merged) == (
        set() if is_heard or name == "mean" else {{"count": "add", "sum": "add"}.get(name, name)}
    )


def test_the_combining_of_a_subclass_is_left_to_the_subclass() -> None:
    class Product(Sum):
        def combine(self, left: Any, right: Any) -> Any:
            return left * right

    assert CombiningCommitter(Sum("cents"), store()).merge is ADD
    assert CombiningCommitter(Product("cents"), store()).merge is None


def test_it_emits_the_key_and_its_value_before_and_now(tmp_path: Path) -> None:
    graph = aggregated(tmp_path, Count(), ("word", "day")).build_topology()
    assert graph.components["kept"].outputs["default"].fields == Fields(
        "tx", "word", "day", "prev", "curr"
    )


def test_a_reducer_is_given_the_tuples_themselves(tmp_path: Path) -> None:
    graph = aggregated(tmp_path, Count()).build_topology()
    [edge] = graph.components["changes"].inputs
    assert (edge.source, str(edge.grouping)) == ("kept", "fields(word)")


def test_several_sources_may_name_the_same_key_differently() -> None:
    topology = builder()
    topology.set_aggregate("first", Sum("cents"), store()).group_by("rows", "word")
    topology.set_aggregate("kept", Max("curr"), SqliteStore("values.db", "both")).group_by(
        "first", "word"
    ).group_by("rows-of", "term")
    assert "unknown component 'rows-of'; did you mean 'rows'" in problems_of(topology)
    topology = builder()
    topology.set_aggregate("first", Count(), store()).group_by("rows", "word")
    both = topology.set_aggregate("kept", Count(), SqliteStore("values.db", "both"), 2)
    both.group_by("first", "word").group_by("rows", "day").add_configuration("own", 1)
    graph = topology.build_topology()
    assert {
        subscription.source: str(subscription.grouping)
        for subscription in graph.components["kept"].inputs
    } == {
        "kept-of-first": "fields(word)",
        "kept-of-rows": "fields(word)",
    }
    assert graph.components["kept"].config == {"own": 1}


def test_a_component_that_is_set_later_gets_as_many_tasks_before_it_as_the_aggregate_has() -> None:
    topology = builder()
    topology.set_aggregate("kept", Count(), store(), 4).group_by("later", "word")
    topology.set_aggregate("later", Count(), SqliteStore("values.db", "later")).group_by(
        "rows", "word"
    )
    assert topology.build_topology().task_counts["kept-of-later"] == 4


@pytest.mark.parametrize(
    ("aggregator", "into", "fields", "problem"),
    [
        (Count, store(), "word", "aggregates nothing. Give Count(), Sum('field')"),
        (
            Count(),
            "counts.db",
            "word",
            "bolt 'kept': 'counts.db' is no store. Give a store from txtopo.stores",
        ),
        (
            Count(),
            SqliteStore("values.db", "kept", plain=True),
            "word",
            "plain> keeps plain values, which are set and not updated",
        ),
        (
            Count(),
            store(),
            "wrod",
            "needs the field 'wrod', but stream 'default' of 'rows' has tx, word, day, cents; did you mean 'word'?",
        ),
        (Sum("price"), store(), "word", "bolt 'kept-of-rows' needs the field 'price', but stream"),
        (Count(), store(), (), "bolt 'kept': group_by on 'rows' names no field"),
        (Count(), store(), 7, "bolt 'kept': group_by on 'rows': "),
        (
            Count(),
            store(),
            ("word", "word"),
            "bolt 'kept': group_by on 'rows': duplicate field 'word'",
        ),
    ],
    ids=[
        "a class",
        "no store",
        "plain",
        "no such key",
        "no such field",
        "no key",
        "a number",
        "twice",
    ],
)
def test_a_mistake_is_found_when_the_topology_is_built(
    aggregator: Any, into: Any, fields: Any, problem: str
) -> None:
    topology = builder()
    topology.set_aggregate("kept", aggregator, into).group_by("rows", fields)
    assert problem in problems_of(topology)


def test_keys_of_several_sources_have_as_many_fields() -> None:
    topology = builder()
    topology.set_aggregate("first", Count(), store()).group_by("rows", "word")
    topology.set_aggregate("kept", Count(), SqliteStore("values.db", "both")).group_by(
        "first", "word"
    ).group_by("rows", ("word", "day"))
    assert (
        "bolt 'kept': its keys have the fields word, but on 'rows' word, day. Name as many"
        in problems_of(topology)
    )


@pytest.mark.rule(31)
def test_an_opaque_spout_needs_an_opaque_store_here_too(tmp_path: Path) -> None:
    topology = aggregated(tmp_path, Count(), opaque=True)
    assert topology.build_topology().spout.spout_kind == "opaque"
    wrong = aggregated(tmp_path, Count(), opaque=True, history=False)
    wrong.set_aggregate("other", Count(), store()).group_by("rows", "word")
    assert "component 'other': SqliteStore" in problems_of(wrong)


def test_of_equal_values_the_least_and_the_greatest_is_the_first() -> None:
    assert [
        type(chosen)
        for chosen in (
            Min("n").combine(1, 1.0),
            Min("n").combine(1.0, 1),
            Max("n").combine(1, 1.0),
            Max("n").combine(1.0, 1),
        )
    ] == [
        int,
        float,
        int,
        float,
    ]
    assert (
        Min("n").combine(3, 2),
        Max("n").combine(3, 2),
        Sum("n").combine(3, 2),
        Count().combine(3, 2),
    ) == (2, 3, 5, 5)


class Sent:
    """What a partial aggregate emits."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def emit_all(self, rows: Any) -> None:
        self.rows.extend(list(row)[1:] for row in rows)


@pytest.mark.parametrize(
    ("key_of", "sent"),
    [
        (KeyOf(("a",)), [[(1, ("x",)), 2], ["y", 1]]),
        (KeyOf(("a", "b")), [[(1, ("x",)), None, 2], ["y", 0, 1]]),
        (KeyOf(constant=("all",)), [["all", 3]]),
    ],
    ids=["one field", "two fields", "none"],
)
def test_a_list_is_the_same_key_as_a_tuple_as_it_is_to_a_fields_grouping(
    key_of: KeyOf, sent: list[Any]
) -> None:
    partial, collector, source = (
        PartialAggregate(Count(), key_of, key_of.names),
        Sent(),
        TupleSource("rows", 0, "default", Fields("tx", "a", "b")),
    )
    partial.prepare(TopologyConf({}), cast(Any, None), cast(Any, collector), FIRST)
    for values in [(FIRST, [1, ["x"]], None), (FIRST, (1, ("x",)), None), (FIRST, "y", 0)]:
        partial.execute(Tuple(values, source))
    partial = pickle.loads(pickle.dumps(partial))
    partial.collector = cast(Any, collector)
    partial.finish_batch()
    assert collector.rows == sent


class LastCents(ReducerAggregator):
    """Wrong for a tuple without a price: None stands for a key without a value."""

    def init(self) -> int:
        return 0

    def reduce(self, value: Any, tup: Tuple) -> Any:
        return tup["value"]


class Page(enum.IntEnum):
    A = 1


class Word(enum.StrEnum):
    A = "1"


class Tuples(ReducerAggregator):
    """Right: how many tuples."""

    def init(self) -> int:
        return 0

    def reduce(self, value: Any, tup: Tuple) -> int:
        return int(value) + 1


class Cents(Sum):
    """A combiner of the user's."""

    def init(self, tup: Tuple) -> Any:
        return tup["value"] or None


def kept_of(aggregator: Any, batches: list[list[Any]], directory: Path) -> dict[Any, Any] | Failure:
    """The content of the store after ``batches``, or the failure of one."""
    topology = recording.builder(RowsSpout(streams={"default": ("tx", "key", "value")}))
    values = MemoryStore("kept", str(directory))
    topology.set_aggregate("kept", aggregator, values).group_by("spout", Fields("key"))
    with InProcessTopology(topology.build_topology()) as running:
        for number, batch in enumerate(batches, 1):
            failure = running.run(
                planned({0: [["default", list(row)] for row in batch]}),
                TransactionAttempt(number, 0),
            ).failure
            if failure is not None:
                return failure
    return dict(values.items())


@pytest.mark.in_gate("Sum-*", "LastCents-nan")
@pytest.mark.parametrize("bad", [None, float("nan"), float("-inf"), Decimal("nan")], ids=repr)
@pytest.mark.parametrize(
    "aggregator",
    [Sum("value"), Min("value"), Max("value"), Cents("value"), LastCents()],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.rule(17)
def test_a_value_that_is_none_or_not_finite_is_refused_in_every_order_and_every_cut_into_batches(
    aggregator: Any, bad: Any, tmp_path: Path
) -> None:
    for place, cut in itertools.product(range(3), repeat=2):
        rows = [("a", 5), ("a", 7.5)]
        rows.insert(place, ("a", bad))
        failure = kept_of(aggregator, [rows[:cut], rows[cut:]], tmp_path / f"{place}-{cut}")
        assert isinstance(failure, Failure)
        assert f"('a', {bad!r})" in failure.error
        assert isinstance(aggregator, LastCents) or "'value'" in failure.error, "the field is named"
        assert (
            f"in component 'kept{'' if isinstance(aggregator, LastCents) else '-of-spout'}', task 0, attempt"
            in str(failure.to_error())
        )
        assert "aggregate.py" not in str(failure.to_error())


@pytest.mark.parametrize("aggregator", [Count(), Tuples()], ids=lambda a: type(a).__name__)
def test_a_group_of_none_is_a_group_of_its_own(aggregator: Any, tmp_path: Path) -> None:
    """Also beside the groups of texts and lists that look like it."""
    rows = [
        (None, 1),
        ("None", 1),
        (None, 1),
        ("", 1),
        ([None], 1),
        ([[None]], 1),
        (["a"], 1),
        ([], 1),
    ]
    groups = {(None,): 2, "None": 1, "": 1, ((None,),): 1, (((None,),),): 1, ("a",): 1, (): 1}
    assert kept_of(aggregator, [rows[:1], rows[1:]], tmp_path) == groups


@pytest.mark.parametrize("aggregator", [Count(), Tuples()], ids=lambda a: type(a).__name__)
def test_keys_that_python_takes_for_equal_have_one_answer_in_every_order_and_every_cut(
    aggregator: Any, tmp_path: Path
) -> None:
    """The answer of the store, which keeps no float, no bool and no enum."""
    for number, (same, cut, nested) in enumerate(
        itertools.product([True, 1.0, Decimal(1), Page.A, Word.A], (0, 1), (False, True))
    ):
        for place in range(3):
            order: list[Any] = ["1", "1"] if same is Word.A else [1, 1]
            order.insert(place, same)
            rows = [(("a", [key]) if nested else key, 1) for key in order]
            kept = kept_of(aggregator, [rows[:cut], rows[cut:]], tmp_path / f"{number}-{place}")
            assert isinstance(kept, Failure), (rows, cut)
            assert f"a store key cannot hold {same!r} of type" in kept.error
            assert "from the tuple (" in kept.error


class Range(CombinerAggregator):
    """The least and the greatest value."""

    fields = ("value",)

    def init(self, tup: Tuple) -> Any:
        return {"of": [tup["value"], tup["value"]]}

    def combine(self, left: Any, right: Any) -> Any:
        return {"of": [min(left["of"][0], right["of"][0]), max(left["of"][1], right["of"][1])]}


class Values(CombinerAggregator):
    """All values."""

    fields = ("value",)

    def init(self, tup: Tuple) -> Any:
        return frozenset([tup["value"]])

    def combine(self, left: Any, right: Any) -> Any:
        return left | right


@pytest.mark.parametrize(
    ("aggregator", "value"),
    [
        (Range(), math.nan),
        (Range(), math.inf),
        (Values(), math.nan),
        (Sum("value"), Decimal("sNaN")),
        (Sum("value"), 1e308),
    ],
)
def test_nan_within_a_value_and_infinities_of_combine_are_refused_in_every_order(
    aggregator: Any, value: Any, tmp_path: Path
) -> None:
    rows = (
        [("a", 1e308), ("a", 1e308)]
        if isinstance(aggregator, Sum) and isinstance(value, float)
        else [("a", 1), ("a", value), ("a", 2)]
    )
    for number, order in enumerate(itertools.permutations(rows)):
        failure = kept_of(aggregator, [list(order)], tmp_path / str(number))
        assert isinstance(failure, Failure)
        assert "takes neither None nor NaN nor an infinity" in failure.error


@pytest.mark.parametrize("circle", CIRCLES.values(), ids=CIRCLES)
def test_a_value_or_a_key_that_contains_itself_is_refused(circle: Any) -> None:
    partial = PartialAggregate(Sum("n"), KeyOf(("a",)), ("a",))
    source = TupleSource("rows", 0, "default", Fields("tx", "a", "n"))
    partial.prepare(TopologyConf({}), cast(Any, None), cast(Any, Sent()), FIRST)
    with pytest.raises(ValueRefusedError, match=r"'n'(.|\n)*nor a value that contains itself"):
        partial.execute(Tuple((FIRST, "a", circle), source))
    with pytest.raises((UnsupportedKeyError, UsageError), match=r"cannot (route|hold .*{\.\.\.})"):
        partial.execute(Tuple((FIRST, circle, 1.5), source))


@pytest.mark.parametrize("aggregator", [Count(), Tuples()])
def test_the_attempt_is_no_key(aggregator: Any) -> None:
    topology = builder()
    topology.set_aggregate("kept", aggregator, store()).group_by("rows", ("word", "tx"))
    assert "group_by on 'rows' names 'tx', the attempt. Name fields" in problems_of(topology)
    assert KeyOf(("tx",)).reader(Fields("_tx", "tx"))((FIRST, 1)) == (1,), "a field of that name"


def test_a_combiner_that_fails_is_not_taken_for_a_key_that_cannot_be_hashed() -> None:
    partial, source = (
        PartialAggregate(Sum("n"), KeyOf(("a",)), ("a",)),
        TupleSource("rows", 0, "default", Fields("tx", "a", "n")),
    )
    partial.prepare(TopologyConf({}), cast(Any, None), cast(Any, Sent()), FIRST)
    partial.execute(Tuple((FIRST, "x", 1), source))
    with pytest.raises(TypeError, match="unsupported operand"):
        partial.execute(Tuple((FIRST, "x", "y"), source))
