"""Columns are routed like the rows in them: to the same tasks, in the same order, for keys of any
types."""

from __future__ import annotations

import datetime
import decimal
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from txtopo import Fields, TransactionAttempt
from txtopo.dataplane import route
from txtopo.dataplane.columns import batches as column_batches
from txtopo.dataplane.columns import routing
from txtopo.topology.grouping import Grouping, UnsupportedKeyError

QUICK = examples(150)
ATTEMPT = TransactionAttempt(3, 1)

BERLIN = "Europe/Berlin"


def _integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return (
        st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if signed
        else st.integers(0, 2**bits - 1)
    )


def _instants(zone: Any) -> st.SearchStrategy[datetime.datetime]:
    return st.datetimes(
        datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(zone)
    )


TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{getattr(pa, f"int{bits}")(): _integers(bits, True) for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): _integers(bits, False) for bits in (8, 16, 32, 64)},
    pa.bool_(): st.booleans(),
    pa.float16(): st.floats(width=16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    pa.large_string(): st.text("ab", max_size=2),
    pa.binary(): st.binary(max_size=3),
    pa.large_binary(): st.binary(max_size=3),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.decimal128(20, 3): st.decimals(-(10**6), 10**6, places=3),
    pa.decimal256(40, 5): st.decimals(-(10**6), 10**6, places=5),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.timestamp("s"): st.just(datetime.datetime(2026, 3, 1, 12))
    | st.just(datetime.datetime(1969, 1, 1)),
    pa.timestamp("us"): _instants(None),
    pa.timestamp("ns"): st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
    pa.timestamp("us", "UTC"): _instants(datetime.UTC),
    pa.timestamp("ms", BERLIN): st.sampled_from(
        [datetime.datetime(2025, 10, 26, hour, tzinfo=datetime.UTC) for hour in range(4)]
    ),
    pa.null(): st.none(),
    pa.list_(pa.int64()): st.lists(st.integers(-5, 5), max_size=2),
    pa.list_view(pa.int64()): st.lists(st.integers(-5, 5), max_size=2),
    pa.list_(pa.string_view()): st.lists(st.text("ab"), max_size=2),
    pa.decimal32(9, 3): st.decimals(-(10**5), 10**5, places=3),
    pa.decimal64(18, 5): st.decimals(-(10**6), 10**6, places=5),
    pa.string_view(): st.text("ab", max_size=20),
    pa.binary_view(): st.binary(max_size=20),
}
"""Every type of Arrow's that becomes something fields grouping can route on."""
NOT_ENCODED = {pa.null(), pa.float16(), pa.decimal32(9, 3), pa.decimal64(18, 5)}
"""Types that Arrow makes no dictionary of."""
RUN_END_ENCODED = {
    pa.int64(),
    pa.float64(),
    pa.string(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ms", BERLIN),
    pa.timestamp("ns"),
    pa.decimal128(20, 3),
}


@st.composite
def columns(draw: st.DrawFn, length: int) -> pa.Array:
    type = draw(st.sampled_from(list(TYPES)))
    pool = draw(st.lists(st.none() | TYPES[type], min_size=1, max_size=6))
    array = pa.array(draw(st.lists(st.sampled_from(pool), min_size=length, max_size=length)), type)
    if type in RUN_END_ENCODED and draw(st.booleans()):
        return pc.run_end_encode(pa.concat_arrays([pa.array(pool, type), array])).slice(len(pool))
    if type not in NOT_ENCODED and not pa.types.is_nested(type) and draw(st.booleans()):
        whole = pa.concat_arrays([pa.array(pool, type), array])
        # A slice has the dictionary of the whole.
        return whole.dictionary_encode(
            null_encoding=draw(st.sampled_from(["mask", "encode"]))
        ).slice(len(pool))
    return array


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    length = draw(st.integers(0, 30))
    arrays = [draw(columns(length)) for _ in range(draw(st.integers(1, 3)))]
    return pa.RecordBatch.from_arrays(
        [*arrays, pa.array(range(length), pa.int64())], names=[*"abc"[: len(arrays)], "i"]
    )


def delivered_rows(
    grouping: Grouping, fields: Fields, parts: Sequence[pa.RecordBatch], tasks: int, sender: int
) -> list[list[int]]:
    got: list[list[Any]] = [[] for _ in range(tasks)]
    memory = route.SenderMemory(grouping, sender, ATTEMPT.txid, tasks)
    send = route.make_send(grouping, fields, sender, [task.append for task in got], memory)
    for batch in parts:
        for row in column_batches.rows(batch, ATTEMPT):
            send(row)
    return [[row[-1] for row in task] for task in got]


def delivered_columns(
    grouping: Grouping, fields: Fields, parts: Sequence[pa.RecordBatch], tasks: int, sender: int
) -> list[list[int]]:
    got: list[list[int]] = [[] for _ in range(tasks)]

    def lane(task: int) -> Callable[[pa.RecordBatch], None]:
        def deliver(batch: pa.RecordBatch) -> None:
            assert batch.num_rows, "nobody is sent nothing"
            got[task].extend(batch.column("i").to_pylist())

        return deliver

    memory = route.SenderMemory(grouping, sender, ATTEMPT.txid, tasks)
    send = routing.make_send(
        grouping, fields, sender, ATTEMPT, [lane(task) for task in range(tasks)], memory
    )
    for batch in parts:
        if batch.num_rows:
            send(batch)
    return got


class Remembering:
    """Chooses by the values before, at times no task or two tasks."""

    def __init__(self) -> None:
        self.count = 0

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        assert values[0] == ATTEMPT
        self.count += 1
        return (
            []
            if self.count % 5 == 0
            else [0, 0]
            if self.count % 7 == 0
            else [(values[-1] + task_index) % 2]
        )


@pytest.mark.rule(16, 17)
@QUICK
@given(
    first=batches(),
    again=st.integers(0, 2),
    tasks=st.integers(1, 5),
    sender=st.integers(0, 4),
    data=st.data(),
)
def test_columns_go_where_their_rows_would_go(
    first: pa.RecordBatch, again: int, tasks: int, sender: int, data: st.DataObject
) -> None:
    names = first.schema.names
    fields = Fields("tx", names)
    keys = data.draw(
        st.lists(st.sampled_from(["tx", *names]), min_size=1, max_size=3, unique=True), label="keys"
    )
    sent = [first, *(first.slice(i) for i in range(again))]
    groupings = [
        Grouping("fields", Fields(keys)),
        Grouping("partial_key", Fields(keys)),
        Grouping("all"),
        Grouping("global"),
        Grouping("none"),
        Grouping("local_or_shuffle"),
    ]
    if tasks >= 2:
        groupings.append(Grouping("custom", custom=Remembering()))
    for grouping in groupings:
        assert delivered_columns(grouping, fields, sent, tasks, sender) == delivered_rows(
            grouping, fields, sent, tasks, sender
        ), str(grouping)


@pytest.mark.rule(16, 17)
def test_the_two_hours_that_a_clock_shows_twice_are_two_keys_beside_any_column() -> None:
    instants = [
        datetime.datetime(2025, 10, 26, hour, minute, tzinfo=datetime.UTC)
        for minute in range(20)
        for hour in (0, 1)
    ]
    hours = pa.array(instants, pa.timestamp("us", BERLIN))
    rows, same = (
        pa.array(range(len(instants)), pa.int64()),
        pa.array(["x"] * len(instants), pa.string_view()),
    )
    for column in (hours, hours.dictionary_encode(), pc.run_end_encode(hours)):
        batch = pa.RecordBatch.from_arrays([column, same, rows], names=["a", "b", "i"])
        for keys in (["a"], ["a", "b"], ["b", "a"]):
            grouping = Grouping("fields", Fields(keys))
            assert delivered_columns(
                grouping, Fields("tx", "a", "b", "i"), [batch], 7, 0
            ) == delivered_rows(grouping, Fields("tx", "a", "b", "i"), [batch], 7, 0)


def _take_row(numbers: list[int], row: Any) -> None:
    numbers.append(row[1])


def _take_batch(numbers: list[int], batch: pa.RecordBatch) -> None:
    numbers.extend(batch.column(0).to_pylist())


@pytest.mark.rule(16, 17)
@QUICK
@given(
    sizes=st.lists(st.integers(0, 20), max_size=6),
    tasks=st.integers(1, 5),
    sender=st.integers(0, 4),
    as_rows=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_shuffled_columns_are_spread_evenly_also_when_rows_come_between(
    sizes: list[int], tasks: int, sender: int, as_rows: list[bool]
) -> None:
    fields = Fields("tx", "i")
    runs = []
    for _ in range(2):
        got: list[list[int]] = [[] for _ in range(tasks)]
        memory = route.SenderMemory(Grouping("shuffle"), sender, ATTEMPT.txid, tasks)
        row_lanes = [functools.partial(_take_row, numbers) for numbers in got]
        batch_lanes = [functools.partial(_take_batch, numbers) for numbers in got]
        send_row = route.make_send(Grouping("shuffle"), fields, sender, row_lanes, memory)
        send_batch = routing.make_send(
            Grouping("shuffle"), fields, sender, ATTEMPT, batch_lanes, memory
        )
        begin = 0
        for size, by_row in zip(sizes, as_rows, strict=False):
            numbers = list(range(begin, begin + size))
            begin += size
            if by_row:
                for number in numbers:
                    send_row((ATTEMPT, number))
            else:
                send_batch(pa.record_batch({"i": pa.array(numbers, pa.int64())}))
        runs.append(got)
    assert runs[0] == runs[1], "computed again, it is the same"
    assert sorted(number for task in runs[0] for number in task) == list(range(sum(sizes)))
    assert all(task == sorted(task) for task in runs[0]), "in the order of emission"
    assert max(map(len, runs[0])) - min(map(len, runs[0])) <= 1


@pytest.mark.rule(16)
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize(
    "column",
    [pa.array([{"a": 1}]), pa.array([datetime.timedelta(1)]), pa.array([datetime.time(1)])],
)
def test_a_column_that_cannot_be_a_key_is_refused_like_its_rows(
    column: pa.Array, tasks: int
) -> None:
    batch = pa.record_batch([column, pa.array([0])], names=["a", "i"])
    grouping = Grouping("fields", Fields("a"))
    said = []
    for deliver in (delivered_rows, delivered_columns):
        with pytest.raises(UnsupportedKeyError) as raised:
            deliver(grouping, Fields("tx", "a", "i"), [batch], tasks, 0)
        said.append(str(raised.value))
    assert said[0] == said[1]


@pytest.mark.rule(16)
def test_one_number_in_columns_of_any_type_is_one_key() -> None:
    types = [
        pa.int8(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(5, 2),
        pa.dictionary(pa.int8(), pa.int64()),
    ]
    for number in range(20):
        sent = [
            pa.record_batch(
                {
                    "a": pa.array(
                        [decimal.Decimal(number) if pa.types.is_decimal(t) else number], t
                    ),
                    "i": [0],
                }
            )
            for t in types
        ]
        for batch in sent:
            assert delivered_columns(
                Grouping("fields", Fields("a")), Fields("tx", "a", "i"), [*sent, batch], 7, 0
            ) == delivered_columns(
                Grouping("fields", Fields("a")),
                Fields("tx", "a", "i"),
                [batch] * (len(sent) + 1),
                7,
                0,
            )


def test_keys_are_remembered_up_to_a_bound_and_long_ones_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route, "KEYS_REMEMBERED_MAX", 3)
    remembered: dict[Any, int] = {}
    looked_up: list[Any] = []
    keys = [("a",), ("b",), ("a",), ("x" * 100,), ("c",), ("d",), ("a",)]

    def look_up(key: Any) -> int:
        looked_up.append(key)
        return len(looked_up)

    numbers = routing._find_all(keys, remembered, look_up)
    assert looked_up == [("a",), ("b",), ("x" * 100,), ("c",), ("d",), ("a",)]
    assert numbers == [1, 2, 1, 3, 4, 5, 6]
    assert len(remembered) <= 3


@pytest.mark.rule(16)
def test_the_hour_that_a_clock_shows_twice_is_two_keys_also_in_columns() -> None:
    instants = [datetime.datetime(2025, 10, 26, hour, tzinfo=datetime.UTC) for hour in range(4)]
    batch = pa.record_batch(
        {"a": pa.array(instants, pa.timestamp("us", BERLIN)), "i": pa.array(range(4))}
    )
    for tasks in range(2, 9):
        of_rows = delivered_rows(
            Grouping("fields", Fields("a")), Fields("tx", "a", "i"), [batch], tasks, 0
        )
        assert (
            delivered_columns(
                Grouping("fields", Fields("a")), Fields("tx", "a", "i"), [batch], tasks, 0
            )
            == of_rows
        )
