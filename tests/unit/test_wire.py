"""Data between tasks: rows, frames, chunks, and classes that cannot be imported where they
arrive."""

from __future__ import annotations

import dataclasses
import enum
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from txtopo import BatchTooLargeError, TransactionAttempt
from txtopo.dataplane import wire
from txtopo.dataplane.outcome import Report, Tally
from txtopo.dataplane.row_encoding import Runs
from txtopo.dataplane.wire import ChunkHeader, Frame

ATTEMPT = TransactionAttempt(1, 0)
FRAMES = [Frame("rows", "count", 3, "split", 1, b"payload"), Frame("held", "count", 2, "", -1, b"")]


def test_a_chunk_comes_back_as_it_was_packed() -> None:
    header = ChunkHeader(
        "1:0:processing",
        2,
        1,
        77,
        number=4,
        total=5,
        report=Report("1:0:processing", 1, 77, own=Tally({"count": 3})),
    )
    packed = wire.pack_chunk(header, FRAMES)
    assert packed[:1] == wire.CHUNK
    assert wire.unpack_chunk(packed) == (header, FRAMES)


def test_frames_and_reports_come_back_as_they_were_packed() -> None:
    report = Report("1:0:commit", 0, 5, lineage={(0, 1): 3}, result_bytes=12)
    assert wire.pack_frames(FRAMES)[:1] == wire.FRAMES
    assert wire.pack_frames(FRAMES, wire.SEED)[:1] == wire.SEED
    assert wire.unpack_frames(wire.pack_frames(FRAMES)) == FRAMES
    assert wire.unpack_report(wire.pack_report(report)) == report


def test_arrived_bytes_may_be_a_view_of_a_larger_buffer() -> None:
    packed = memoryview(wire.pack_frames(FRAMES))
    assert wire.unpack_frames(packed) == FRAMES  # type: ignore[arg-type]


def test_the_attempt_is_stored_once_however_many_rows_there_are() -> None:
    few, many = ([("default", [(ATTEMPT, i) for i in range(n)])] for n in (1, 100))
    assert (
        wire.pack_runs(many, "run").count(b"attempt_id")
        == wire.pack_runs(few, "run").count(b"attempt_id")
        <= 1
    )
    assert len(wire.pack_runs(many, "run")) < len(wire.pack_runs(few, "run")) + 100 * 16


def test_runs_keep_the_order_of_emission_across_streams() -> None:
    runs: Runs = [("a", [(ATTEMPT, 1), (ATTEMPT, 2)]), ("b", [(ATTEMPT, 3)]), ("a", [(ATTEMPT, 4)])]
    first, second = wire.split_runs(runs)
    assert (first, second) == (
        [("a", [(ATTEMPT, 1), (ATTEMPT, 2)])],
        [("b", [(ATTEMPT, 3)]), ("a", [(ATTEMPT, 4)])],
    )


def test_rows_beyond_the_bound_travel_in_several_payloads_in_order() -> None:
    runs: Runs = [
        ("a", [(ATTEMPT, f"{i:0100}", i) for i in range(20)]),
        ("b", [(ATTEMPT, "y" * 100, 20)]),
    ]
    payloads = wire.dump_runs(runs, "run", 600, "component 'split'")
    assert len(payloads) > 1
    assert max(map(len, payloads)) <= 600
    numbers = [
        (stream, row[2])
        for payload in payloads
        for stream, rows in wire.unpack_runs(payload)
        for row in rows
    ]
    assert numbers == [("a", i) for i in range(20)] + [("b", 20)]


def test_one_tuple_beyond_the_bound_is_an_error_that_names_its_sender_and_the_setting() -> None:
    with pytest.raises(BatchTooLargeError) as refused:
        wire.dump_runs(
            [("a", [(ATTEMPT, "small"), (ATTEMPT, "x" * 5000)])], "run", 600, "component 'split'"
        )
    error = refused.value
    assert (error.what, error.bound, error.setting) == (
        "one tuple from component 'split'",
        600,
        "blob_bytes_max",
    )
    assert error.size > 5000
    assert "raise blob_bytes_max" in str(error)


def test_a_held_instance_is_cut_to_pieces_that_make_it_whole_again() -> None:
    assert pieces([b"ab", b"c", b"defg"], 3) == [b"abc", b"def", b"g"]
    assert pieces([b"abc"], 3) == [b"abc"]
    assert pieces([], 3) == [b""], "also an empty one arrives"


def pieces(written: list[bytes], bound: int) -> list[bytes]:
    taken: list[bytes] = []
    writer = wire.PieceWriter(bound, taken.append)
    assert [writer.write(data) for data in written] == [len(data) for data in written]
    writer.close()
    return taken


@dataclasses.dataclass(frozen=True)
class Point:
    x: int


class Colour(enum.Enum):
    RED = 1


@pytest.fixture
def local_class() -> Iterator[type]:
    """A class that no worker can import, known to the run by its place in the table."""

    @dataclasses.dataclass
    class Local:
        x: int

    wire.register_classes("run", (Point, Local))
    yield Local
    wire.forget_classes("run")


def test_an_instance_of_an_unimportable_class_travels_by_its_place_in_the_table(
    local_class: type,
) -> None:
    data = wire.dump_values([local_class(3), local_class(4)], "run")
    assert b"topology_class" in data
    assert b"__init__" not in data, "its code stays at home"
    loaded = wire.load_values(data)
    assert [value.x for value in loaded] == [3, 4]
    assert type(loaded[0]) is local_class


def test_a_class_that_is_not_in_the_table_travels_with_its_code() -> None:
    class Unknown:
        x = 5

    assert wire.load_values(wire.dump_values(Unknown(), "run")).x == 5


@pytest.mark.parametrize("value", [Point(1), Colour.RED, None, {"a": [1, (2,)]}, ATTEMPT], ids=repr)
def test_importable_values_travel_by_plain_pickle(value: Any) -> None:
    data = wire.dump_values(value, "run")
    assert data == pickle.dumps(value, wire.PROTOCOL)
    assert wire.load_values(data) == value


def test_an_object_that_cannot_be_pickled_at_all_raises() -> None:
    with pytest.raises(TypeError, match="lock"):
        wire.dump_values(threading.Lock(), "run")


def test_a_forgotten_run_has_no_classes() -> None:
    wire.register_classes("forgotten", (Point,))
    assert wire.topology_class("forgotten", 0) is Point
    wire.forget_classes("forgotten")
    wire.forget_classes("forgotten")
    with pytest.raises(KeyError):
        wire.topology_class("forgotten", 0)
