"""The groupings by which the sender has a say: direct, partial key, custom; and fields grouping on
the attempt itself."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import pytest

from txtopo import Fields, StreamSpec, TransactionAttempt
from txtopo.dataplane import collector as emit
from txtopo.dataplane import route
from txtopo.topology import grouping
from txtopo.topology.grouping import Grouping

FIELDS = Fields("tx", "word")
ATTEMPT = TransactionAttempt(3, 0)


class Lanes:
    """Receiving tasks with lists of all tuples."""

    def __init__(self, tasks: int) -> None:
        self.got: list[list[Any]] = [[] for _ in range(tasks)]
        self.sends = [rows.append for rows in self.got]


def send_all(
    kind: Grouping, words: Sequence[str], tasks: int = 4, sender: int = 0
) -> list[list[str]]:
    lanes = Lanes(tasks)
    memory = route.SenderMemory(kind, sender, ATTEMPT.txid, tasks)
    send = route.make_send(kind, FIELDS, sender, lanes.sends, memory)
    for word in words:
        send((ATTEMPT, word))
    return [[row[1] for row in rows] for rows in lanes.got]


@pytest.mark.rule(16, 17)
def test_partial_key_spreads_one_key_over_its_two_tasks_and_no_more() -> None:
    partial_key = Grouping("partial_key", Fields("word"))
    got = send_all(partial_key, ["cat"] * 100)
    assert sorted(map(len, got)) == [0, 0, 50, 50]
    assert {task for task, rows in enumerate(got) if rows} == set(
        grouping.two_tasks_for_key(("cat",), 4)
    )
    assert got == send_all(partial_key, ["cat"] * 100), "a sender computed again routes differently"


@pytest.mark.rule(16)
def test_partial_key_takes_the_less_loaded_task_by_this_senders_count() -> None:
    words = [f"w{n % 50}" for n in range(2000)]
    got = send_all(Grouping("partial_key", Fields("word")), words, tasks=5)
    for word in set(words):
        assert {task for task, rows in enumerate(got) if word in rows} <= set(
            grouping.two_tasks_for_key((word,), 5)
        )
    plain = send_all(Grouping("fields", Fields("word")), words, tasks=5)
    assert max(map(len, got)) - min(map(len, got)) < max(map(len, plain)) - min(map(len, plain)), (
        "no better balanced than fields grouping"
    )


@pytest.mark.rule(16)
def test_the_two_tasks_of_a_key_differ_and_are_pinned() -> None:
    assert all(len(set(grouping.two_tasks_for_key((n,), 3))) == 2 for n in range(200))
    assert grouping.two_tasks_for_key(("cat",), 1) == (0, 0)
    assert [grouping.two_tasks_for_key((word,), 7) for word in ("cat", "dog", "")] == PINNED


PINNED = [(3, 4), (1, 0), (2, 1)]


@pytest.mark.rule(14, 16)
def test_fields_grouping_on_the_attempt_routes_every_attempt_of_a_batch_alike() -> None:
    assert (
        grouping.encode_value(TransactionAttempt(3, 0))
        == grouping.encode_value(TransactionAttempt(3, 1_000_000))
        == b"a3"
    )
    assert (
        len({grouping.task_for_key((TransactionAttempt(txid, 0),), 5) for txid in range(1, 40)})
        == 5
    )


class EveryOther:
    """Sends to none, one and two tasks in turn."""

    def __init__(self) -> None:
        self.count = 0

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        self.count += 1
        return [[], [task_index], [0, 3]][self.count % 3]


@pytest.mark.rule(16, 17)
def test_custom_groupings_choose_none_one_or_many_tasks_afresh_for_every_sender_and_attempt() -> (
    None
):
    every_other = Grouping("custom", custom=EveryOther())
    expected = [["b", "e"], ["a", "d"], [], ["b", "e"]]
    assert send_all(every_other, "abcdef", sender=1) == expected
    assert send_all(every_other, "abcdef", sender=1) == expected, (
        "the grouping kept what another attempt had counted"
    )


def test_a_custom_grouping_that_names_a_task_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        route.WrongTaskError,
        match=r"EveryOther.choose_tasks chose task 3, but 'receiver' has tasks 0 … 1",
    ):
        send_all(Grouping("custom", custom=EveryOther()), "ab", tasks=2)


@pytest.fixture
def collector() -> emit.Collector:
    outputs = {"default": StreamSpec(FIELDS), "named": StreamSpec(FIELDS, direct=True)}
    return emit.Collector("bolt", ATTEMPT, outputs, "run")


@pytest.mark.rule(14, 16)
def test_emit_direct_reaches_the_task_named_of_every_direct_receiver(
    collector: emit.Collector,
) -> None:
    first, second = Lanes(3), Lanes(2)
    collector.connect_direct("named", "first", first.sends)
    collector.connect_direct("named", "second", second.sends)
    words = ["x"]
    collector.emit_direct(1, [ATTEMPT, words], stream="named")
    words.append("y")
    assert first.got == [[], [(ATTEMPT, ["x"])], []]
    assert second.got == [[], [(ATTEMPT, ["x"])]]
    assert first.got[1][0][1] is not second.got[1][0][1], "two receivers share a list"
    with pytest.raises(
        emit.EmitMistakeError, match=r"to task 2, but its receiver 'second' has tasks 0 … 1"
    ):
        collector.emit_direct(2, [ATTEMPT, "x"], stream="named")
    assert collections.Counter(map(len, first.got)) == {0: 2, 1: 1}, (
        "a refused emit was delivered to one receiver"
    )


@pytest.mark.rule(14)
def test_emitting_on_the_wrong_kind_of_stream_is_refused(collector: emit.Collector) -> None:
    with pytest.raises(
        emit.EmitMistakeError,
        match=r"emits on stream 'named', which is a direct stream\n  Use emit_direct\(task_index, values\)",
    ):
        collector.emit([ATTEMPT, "x"], stream="named")
    with pytest.raises(
        emit.EmitMistakeError,
        match=r"emits directly on stream 'default', which is not a direct stream\n  Declare it with direct=True",
    ):
        collector.emit_direct(0, [ATTEMPT, "x"])
