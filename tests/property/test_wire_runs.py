"""Rows of any kind, in pieces of any size, arrive as they were sent."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from txtopo import BatchTooLargeError, TransactionAttempt
from txtopo.dataplane import receive, wire
from txtopo.dataplane.job import Job, Limits
from txtopo.dataplane.outbox import Outbox
from txtopo.dataplane.outcome import Report
from txtopo.dataplane.row_encoding import Runs
from txtopo.dataplane.spill import SpillBuffer
from txtopo.dataplane.wire import Frame

QUICK = examples(75)

ATTEMPT = TransactionAttempt(1, 0)
JOB = Job("run", "processing", ATTEMPT, {})

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
runs = st.lists(
    st.tuples(
        st.sampled_from(["default", "side"]),
        st.lists(st.tuples(st.just(ATTEMPT), values), min_size=1, max_size=5),
    ),
    max_size=6,
)


def flat(runs: Sequence[tuple[str, Iterable[Any]]]) -> list[tuple[str, Any]]:
    return [(stream, row) for stream, rows in runs for row in rows]


@QUICK
@given(sent=runs, bound=st.integers(300, 3000))
def test_runs_cut_to_any_bound_are_the_runs(sent: Runs, bound: int) -> None:
    payloads = wire.dump_runs(sent, "run", bound, "a sender")
    assert all(len(payload) <= bound for payload in payloads)
    assert [row for payload in payloads for row in flat(wire.unpack_runs(payload))] == flat(sent)


@QUICK
@given(sent=runs.filter(lambda sent: len(flat(sent)) > 1))
def test_halves_of_runs_are_the_runs_and_neither_is_empty(sent: Runs) -> None:
    first, second = wire.split_runs(sent)
    assert flat(first) + flat(second) == flat(sent)
    assert flat(first)
    assert flat(second)
    assert all(rows for _, rows in first + second)


@QUICK
@given(sent=runs.filter(bool), bound=st.integers(0, 60))
def test_a_bound_that_a_single_row_exceeds_is_an_error_and_no_endless_cutting(
    sent: Runs, bound: int
) -> None:
    with pytest.raises(BatchTooLargeError, match="one tuple from a sender"):
        wire.dump_runs(sent, "run", bound, "a sender")


@QUICK
@given(
    written=st.lists(st.binary(max_size=100), max_size=8),
    bound=st.integers(1, 50),
    read=st.integers(1, 70),
)
def test_pieces_make_the_whole_again(written: list[bytes], bound: int, read: int) -> None:
    pieces: list[bytes] = []
    writer = wire.PieceWriter(bound, pieces.append)
    for data in written:
        writer.write(data)
    writer.close()
    assert b"".join(pieces) == b"".join(written)
    assert pieces
    assert all(len(piece) <= bound for piece in pieces)
    file = io.BufferedReader(wire.PieceReader(pieces), 16)
    assert b"".join(iter(lambda: file.read(read), b"")) == b"".join(written)


Lane = tuple[int, int]


@pytest.mark.rule(17, 33)
@QUICK
@given(
    sent=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 4),
            st.integers(0, 2),
            st.sampled_from(["default", "side"]),
            values,
        ),
        max_size=60,
    ),
    receiving=st.integers(1, 3),
    blob=st.sampled_from([400, 1000, 1 << 20]),
    spill=st.sampled_from([0, 500, 1 << 20]),
    pack_every=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_chunks_of_any_slots_arrive_lane_by_lane_in_order(
    sent: list[tuple[int, int, int, str, Any]],
    receiving: int,
    blob: int,
    spill: int,
    pack_every: int,
    seed: int,
) -> None:
    """Three sending slots with lanes (source task, receiving task), packed now and then, chunks in
    any order."""
    expected: dict[Lane, list[tuple[str, Any]]] = {}
    arriving: list[list[bytes]] = [[] for _ in range(receiving)]
    for slot in range(3):
        outbox = Outbox(JOB.name, 0, slot, 100 + slot, receiving, "run", Limits(blob, spill))
        lanes: dict[Lane, Any] = {}
        for i, (on, task, source_task, stream, value) in enumerate(sent):
            if on != slot:
                continue
            key = (source_task * 3 + slot, task)
            if key not in lanes:
                lanes[key] = outbox.lane("count", task, "split", key[0])
            lanes[key].sender(stream)((ATTEMPT, value))
            expected.setdefault(key, []).append((stream, (ATTEMPT, value)))
            if i % pack_every == 0:
                outbox.pack()
        outbox.add(Frame("held", "sum", slot, "", -1, bytes([slot]) * 30))
        for to, data in outbox.chunks(Report(JOB.name, slot, 100 + slot)):
            arriving[to].append(data)
    got: dict[Lane, list[tuple[str, Any]]] = {}
    held: dict[int, bytes] = {}
    for slot, chunks in enumerate(arriving):
        random.Random(seed).shuffle(chunks)
        buffer = SpillBuffer(spill)
        received = receive.receive(JOB, 1, 3, None, iter(chunks), buffer)
        assert received.lineage == {(0, sender): 100 + sender for sender in range(3)}
        for (_, task), of_task in received.lanes.items():
            assert task % receiving == slot
            for (_, source_task), handles in of_task.items():
                got[source_task, task] = [
                    row for handle in handles for row in flat(wire.unpack_runs(buffer.read(handle)))
                ]
        held.update(
            {
                task: file.read()
                for _, task in received.held
                if (file := received.held_file("sum", task))
            }
        )
        buffer.close()
    assert got == expected
    assert held == {slot: bytes([slot]) * 30 for slot in range(3)}


@QUICK
@given(rows=st.integers(1, 400), width=st.integers(1, 400))
def test_chunks_keep_their_bound(rows: int, width: int) -> None:
    outbox = Outbox(JOB.name, 0, 0, 1, 2, "run", Limits(2000, 0))
    lane = outbox.lane("count", 1, "split", 0).sender("default")
    for i in range(rows):
        lane((ATTEMPT, f"{i:0{width}}"))
    chunks = list(outbox.chunks(Report(JOB.name, 0, 1)))
    assert max(len(data) for _, data in chunks) <= 2000 + 500, (
        "the header and the last chunk's report come on top"
    )
