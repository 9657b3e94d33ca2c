"""Groupings: which tasks receive a tuple."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import pyarrow as pa
import pytest

from txtopo import BoltDeclarer, Fields, TransactionAttempt
from txtopo.dataplane import route
from txtopo.dataplane.columns import batches, routing
from txtopo.topology.grouping import (
    TRAITS,
    Grouping,
    GroupingKind,
    GroupingTraits,
    UnsupportedKeyError,
    task_for_key,
)

FIELDS = Fields("tx", "word", "count")
ATTEMPT = TransactionAttempt(1, 0)


class Tasks:
    """Receiving tasks with notes of all tuples."""

    def __init__(self, count: int) -> None:
        self.got: list[list[route.Row]] = [[] for _ in range(count)]

    def route_columns(
        self, grouping: Grouping, rows: list[route.Row], sending_task: int = 0, txid: int = 1
    ) -> list[list[Any]]:
        def lane(got: list[route.Row]) -> Callable[[pa.RecordBatch], None]:
            return lambda batch: got.extend(batches.rows(batch, ATTEMPT))

        memory = route.SenderMemory(grouping, sending_task, txid, len(self.got))
        send = routing.make_send(
            grouping, FIELDS, sending_task, ATTEMPT, [lane(got) for got in self.got], memory
        )
        _, words, counts = zip(*rows, strict=True)
        send(pa.record_batch({"word": pa.array(words), "count": pa.array(counts)}))
        return [[row[1] for row in got] for got in self.got]

    def route(
        self, grouping: Grouping, rows: list[route.Row], sending_task: int = 0, txid: int = 1
    ) -> list[list[Any]]:
        memory = route.SenderMemory(grouping, sending_task, txid, len(self.got))
        send = route.make_send(
            grouping, FIELDS, sending_task, [got.append for got in self.got], memory
        )
        for row in rows:
            send(row)
        return [[row[1] for row in got] for got in self.got]


def rows(*words: Any) -> list[route.Row]:
    return [(ATTEMPT, word, i) for i, word in enumerate(words)]


@pytest.mark.rule(16)
@pytest.mark.parametrize("tasks", [1, 2, 3, 7])
@pytest.mark.parametrize("sending_task", [0, 1, 9])
def test_shuffle_gives_every_task_equally_many_give_or_take_one(
    tasks: int, sending_task: int
) -> None:
    for count in range(3 * tasks + 2):
        got = Tasks(tasks).route(Grouping("shuffle"), rows(*range(count)), sending_task)
        counts = [len(of_task) for of_task in got]
        assert sum(counts) == count
        assert max(counts) - min(counts) <= 1


@pytest.mark.rule(16)
def test_small_batches_do_not_all_land_on_the_first_task() -> None:
    def only_receiver(sending_task: int, txid: int) -> int:
        return Tasks(3).route(Grouping("shuffle"), rows("a"), sending_task, txid).index(["a"])

    by_txid = Counter(only_receiver(0, txid) for txid in range(1, 31))
    by_sender = Counter(only_receiver(sender, 1) for sender in range(30))
    assert by_txid == by_sender == {0: 10, 1: 10, 2: 10}


@pytest.mark.rule(17)
@pytest.mark.parametrize("kind", ["shuffle", "fields", "global", "all", "none", "local_or_shuffle"])
def test_a_task_computed_again_sends_every_tuple_the_same_way(kind: GroupingKind) -> None:
    grouping = Grouping(kind, Fields("word") if kind == "fields" else None)
    emitted = rows("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog")
    assert Tasks(4).route(grouping, emitted, 2, 5) == Tasks(4).route(grouping, emitted, 2, 5)


@pytest.mark.rule(16)
def test_fields_sends_equal_values_to_the_same_task_and_to_the_one_the_encoding_names() -> None:
    words = ["cat", "dog", "cat", 1, True, 1.0, None, ("a", 1), ["a", 1], "dog", 2**70, "1"]
    got = Tasks(5).route(Grouping("fields", Fields("word")), rows(*words))
    assert got == [
        [word for word in words if task_for_key((word,), 5) == task] for task in range(5)
    ]


@pytest.mark.rule(16)
def test_remembered_keys_do_not_confuse_values_that_python_finds_equal() -> None:
    """1 == Number.ONE for a dict, but an enum is routed by name."""
    import enum

    class Number(enum.IntEnum):
        ONE = 1

    words = [1, Number.ONE, 1.0, True, "1", 1]
    got = Tasks(1000).route(Grouping("fields", Fields("word")), rows(*words))
    assert {task: of_task for task, of_task in enumerate(got) if of_task} == {
        task_for_key((1,), 1000): [1, 1.0, True, 1],
        task_for_key((Number.ONE,), 1000): [Number.ONE],
        task_for_key(("1",), 1000): ["1"],
    }


@pytest.mark.rule(16)
def test_fields_of_several_names_go_by_all_of_them_in_the_order_given() -> None:
    send_word_count = Tasks(7).route(
        Grouping("fields", Fields("word", "count")), rows("a", "a", "b")
    )
    send_count_word = Tasks(7).route(
        Grouping("fields", Fields("count", "word")), rows("a", "a", "b")
    )
    assert send_word_count == [
        [w for i, w in enumerate("aab") if task_for_key((w, i), 7) == task] for task in range(7)
    ]
    assert send_count_word == [
        [w for i, w in enumerate("aab") if task_for_key((i, w), 7) == task] for task in range(7)
    ]


@pytest.mark.rule(16)
def test_more_keys_than_are_remembered_are_routed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route, "KEYS_REMEMBERED_MAX", 3)
    words = [f"word-{i % 10}" for i in range(40)]
    got = Tasks(4).route(Grouping("fields", Fields("word")), rows(*words))
    assert got == [
        [word for word in words if task_for_key((word,), 4) == task] for task in range(4)
    ]


@pytest.mark.rule(16)
@pytest.mark.parametrize("tasks", [1, 3])
def test_fields_refuses_a_key_it_cannot_route_repeatably_also_when_there_is_one_task(
    tasks: int,
) -> None:
    with pytest.raises(UnsupportedKeyError, match=r"builtins\.set"):
        Tasks(tasks).route(Grouping("fields", Fields("word")), rows({1}))


@pytest.mark.rule(16)
def test_global_sends_everything_to_the_lowest_task() -> None:
    assert Tasks(3).route(Grouping("global"), rows("a", "b"), sending_task=2) == [
        ["a", "b"],
        [],
        [],
    ]


@pytest.mark.rule(16)
def test_all_sends_everything_to_every_task() -> None:
    assert Tasks(3).route(Grouping("all"), rows("a", "b")) == [["a", "b"]] * 3
    assert Tasks(1).route(Grouping("all"), rows("a")) == [["a"]]


@pytest.mark.rule(16)
@pytest.mark.parametrize("kind", ["none", "local_or_shuffle"])
def test_local_groupings_send_everything_to_one_task_given_by_the_sender(
    kind: GroupingKind,
) -> None:
    assert [
        Tasks(3).route(Grouping(kind), rows("a", "b"), sending_task=task).index(["a", "b"])
        for task in range(5)
    ] == [0, 1, 2, 0, 1]


@pytest.mark.rule(16)
def test_the_task_that_does_not_depend_on_the_row_is_known_beforehand() -> None:
    fixed = [
        route.fixed_task(Grouping(kind), 4, 3)
        for kind in ("global", "none", "local_or_shuffle", "shuffle", "all")
    ]
    assert fixed == [0, 1, 1, None, None]
    assert route.fixed_task(Grouping("shuffle"), 4, 1) == 0


@pytest.mark.parametrize("route_all", [Tasks.route, Tasks.route_columns], ids=["rows", "columns"])
@pytest.mark.parametrize(
    "kind", [kind for kind in get_args(GroupingKind) if not TRAITS[kind].sender_chooses]
)
@pytest.mark.rule(16)
def test_the_traits_of_a_grouping_agree_with_its_routing(
    kind: GroupingKind, route_all: Callable[..., list[list[Any]]]
) -> None:
    grouping = Grouping(kind, Fields("word") if TRAITS[kind].by_key else None)
    reached = [
        {
            task
            for task, got in enumerate(
                route_all(Tasks(3), grouping, rows("same", "same", "same"), sending_task=sender)
            )
            if got
        }
        for sender in (0, 1)
    ]
    traits = TRAITS[kind]
    assert (len(reached[0] | reached[1]) > 1) == traits.spreads_keys
    assert (sum(map(len, route_all(Tasks(3), grouping, rows("same")))) > 1) == traits.many_tasks
    if traits.stays_local or traits.one_task:
        assert [len(tasks) for tasks in reached] == [1, 1]


def test_every_kind_of_grouping_has_traits_and_a_method_of_the_declarer() -> None:
    assert set(TRAITS) == set(get_args(GroupingKind))
    assert {
        name.removesuffix("_grouping") for name in vars(BoltDeclarer) if name.endswith("_grouping")
    } == set(TRAITS)


@pytest.mark.rule(16)
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("route_all", [Tasks.route, Tasks.route_columns], ids=["rows", "columns"])
def test_a_kind_of_grouping_without_a_way_is_an_error_and_not_a_hash_of_the_key(
    tasks: int, route_all: Callable[..., list[list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: Any = "range"
    monkeypatch.setitem(TRAITS, forgotten, GroupingTraits(by_key=True))
    with pytest.raises(AssertionError, match=r"route\.Ways has no way for range\(word\) grouping"):
        route_all(Tasks(tasks), Grouping(forgotten, Fields("word")), rows("a"))


def test_a_grouping_prints_as_users_know_it() -> None:
    assert (str(Grouping("shuffle")), str(Grouping("fields", Fields("word", "count")))) == (
        "shuffle",
        "fields(word, count)",
    )
