"""Only the whole of one computation is accepted: a missing, doubled or foreign chunk, or a second
computation, fails the attempt."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from txtopo import TransactionAttempt
from txtopo.dataplane import receive, wire
from txtopo.dataplane.job import Job, Part
from txtopo.dataplane.outcome import Failure, Report, Tally
from txtopo.dataplane.receive import MixedEmissionsError, Received
from txtopo.dataplane.spill import SpillBuffer
from txtopo.dataplane.wire import ChunkHeader, Frame

pytestmark = pytest.mark.rule(33)

ATTEMPT = TransactionAttempt(1, 0)
JOB = Job("run", "processing", ATTEMPT, {"split": 2, "count": 2})
FAILURE = Failure("failed", "split", 0, ATTEMPT, "processing", "execute", "FailedException", "")


def frame(payload: bytes, source_task: int = 0, task: int = 0, receiver: str = "count") -> Frame:
    return Frame("rows", receiver, task, "split", source_task, payload)


def sent(
    slot: int,
    *payloads: bytes,
    task_attempt: int | None = None,
    report: Report | None = None,
    job: str = JOB.name,
    level: int = 0,
) -> list[bytes]:
    """All chunks of one sending slot: one payload each, the last with total and report."""
    made_by = slot + 100 if task_attempt is None else task_attempt
    headers = [ChunkHeader(job, level, slot, made_by, number) for number in range(len(payloads))]
    headers[-1] = headers[-1]._replace(
        total=len(payloads), report=report or Report(job, slot, made_by)
    )
    return [
        wire.pack_chunk(header, [frame(payload, slot)] if payload else [])
        for header, payload in zip(headers, payloads, strict=True)
    ]


_open: list[SpillBuffer] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


def received(
    incoming: Sequence[bytes],
    sending: int = 2,
    job: Job = JOB,
    level: int = 1,
    expected: int | None = None,
) -> Received:
    """The result of ``receive``, with every payload on disk."""
    _open.append(SpillBuffer(0))
    return receive.receive(job, level, sending, expected, iter(incoming), _open[-1])


def lanes(taken: Received) -> dict[tuple[str, int], list[bytes]]:
    return {
        key: list(map(taken.buffer.read, handles))
        for key, handles in taken.lanes[("count", 0)].items()
    }


@pytest.mark.rule(17, 33)
def test_chunks_are_put_in_order_after_any_order_of_arrival() -> None:
    chunks = [*sent(0, b"a", b"b", b"c"), *sent(1, b"d", b"e")]
    for seed in range(20):
        random.Random(seed).shuffle(chunks)
        taken = received(chunks)
        assert lanes(taken) == {("split", 0): [b"a", b"b", b"c"], ("split", 1): [b"d", b"e"]}
        assert taken.lineage == {(0, 0): 100, (0, 1): 101}


@pytest.mark.parametrize("missing", range(5))
def test_a_missing_chunk_is_noticed(missing: int) -> None:
    chunks = [*sent(0, b"a", b"b", b"c"), *sent(1, b"d", b"e")]
    del chunks[missing]
    with pytest.raises(MixedEmissionsError, match="slot"):
        received(chunks)


@pytest.mark.parametrize("doubled", range(5))
def test_a_duplicated_chunk_is_noticed(doubled: int) -> None:
    chunks = [*sent(0, b"a", b"b", b"c"), *sent(1, b"d", b"e")]
    with pytest.raises(
        MixedEmissionsError, match=f"slot {int(doubled > 2)} of level 0 sent chunks"
    ):
        received([*chunks, chunks[doubled]])


def test_silence_of_a_slot_that_had_nothing_to_say_is_noticed_too() -> None:
    assert lanes(received([*sent(0, b"a"), *sent(1, b"")])) == {("split", 0): [b"a"]}
    with pytest.raises(
        MixedEmissionsError, match=r"level 0 has 2 slots, but chunks came from \[0\]"
    ):
        received(sent(0, b"a"))


def test_a_chunk_of_a_slot_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(MixedEmissionsError, match=r"chunks came from \[0, 1, 2\]"):
        received([*sent(0, b"a"), *sent(1, b"b"), *sent(2, b"c")])


@pytest.mark.parametrize(
    "job",
    ["1:1:processing", "2:0:processing", "1:0:commit", "1:0:late"],
    ids=["attempt", "txid", "commit", "late"],
)
def test_a_chunk_of_another_attempt_or_job_is_noticed(job: str) -> None:
    with pytest.raises(MixedEmissionsError, match=f"a chunk of {job}, level 0, arrived"):
        received([*sent(0, b"a"), *sent(1, b"b", job=job)])


@pytest.mark.parametrize("level", [-1, 1, 2])
def test_a_chunk_of_another_level_is_noticed(level: int) -> None:
    with pytest.raises(MixedEmissionsError, match=f"level {level}, arrived"):
        received([*sent(0, b"a"), *sent(1, b"b", level=level)])


def test_two_computations_of_one_slot_do_not_mix() -> None:
    one, other = sent(0, b"a", b"b", task_attempt=7), sent(0, b"a", b"b", task_attempt=8)
    with pytest.raises(MixedEmissionsError, match="slot 0 of level 0 was computed more than once"):
        received([one[0], other[1], *sent(1, b"c")])


def test_two_whole_computations_of_one_slot_do_not_mix_either() -> None:
    with pytest.raises(MixedEmissionsError, match="computed more than once"):
        received([*sent(0, b"a", task_attempt=7), *sent(0, b"a", task_attempt=8), *sent(1, b"c")])


def test_senders_that_stem_from_different_computations_of_an_earlier_slot_do_not_mix() -> None:
    reports = [
        Report("", slot, 100 + slot, lineage={(0, 0): 50, (0, 1): 60 + slot}) for slot in range(2)
    ]
    with pytest.raises(
        MixedEmissionsError, match=r"level 0, slot 1 was computed twice: as task attempts 60 and 61"
    ):
        received(
            [
                *sent(0, b"a", report=reports[0], level=1),
                *sent(1, b"b", report=reports[1], level=1),
            ],
            level=2,
        )


def test_lineage_is_the_union_of_the_senders_and_their_lineages() -> None:
    reports = [Report("", slot, 100 + slot, lineage={(0, 0): 50, (0, 1): 60}) for slot in range(2)]
    taken = received(
        [*sent(0, b"a", report=reports[0], level=1), *sent(1, b"b", report=reports[1], level=1)],
        level=2,
    )
    assert taken.lineage == {(0, 0): 50, (0, 1): 60, (1, 0): 100, (1, 1): 101}


def test_a_first_level_takes_seeds_and_no_chunks() -> None:
    assert lanes(
        received([wire.pack_frames([frame(b"a"), frame(b"b")], wire.SEED)], sending=0, level=0)
    ) == {("split", 0): [b"a", b"b"]}
    assert received([b""], sending=0, level=0).lanes == {}
    with pytest.raises(MixedEmissionsError, match="chunks came from"):
        received(sent(0, b"a", level=-1), sending=0, level=0)


def pinned(task_attempt: int) -> list[bytes]:
    return [
        wire.pack_report(Report("1:0:processing", 0, task_attempt)),
        wire.pack_frames([frame(b"a")]),
    ]


def test_a_pinned_result_is_taken_if_the_task_attempt_that_was_promised_made_it() -> None:
    commit = Job("run", "commit", ATTEMPT, JOB.task_counts, expected=(7,))
    assert lanes(received(pinned(7), sending=0, job=commit, level=0, expected=7)) == {
        ("split", 0): [b"a"]
    }


@pytest.mark.parametrize(
    "incoming",
    [pinned(8), [], [wire.pack_frames([frame(b"a")])], [*pinned(7), *pinned(7)]],
    ids=["other", "lost", "no report", "twice"],
)
def test_a_pinned_result_made_by_another_task_attempt_or_lost_is_noticed(
    incoming: list[bytes],
) -> None:
    commit = Job("run", "commit", ATTEMPT, JOB.task_counts, expected=(7,))
    with pytest.raises(MixedEmissionsError):
        received(incoming, sending=0, job=commit, level=0, expected=7)


@pytest.mark.parametrize("arrived", range(3))
def test_a_pinned_result_that_breaks_off_is_noticed(arrived: int) -> None:
    """PySpark's workers take an input that breaks off for one that has ended."""
    whole = [
        *[wire.pack_frames([frame(payload)]) for payload in (b"a", b"b")],
        wire.pack_report(Report("1:0:processing", 0, 7)),
    ]
    commit = Job("run", "commit", ATTEMPT, JOB.task_counts, expected=(7,))
    assert lanes(received(whole, sending=0, job=commit, level=0, expected=7)) == {
        ("split", 0): [b"a", b"b"]
    }
    with pytest.raises(MixedEmissionsError, match="0 reports with a pinned result"):
        received(whole[:arrived], sending=0, job=commit, level=0, expected=7)


@pytest.mark.parametrize("part", ["processing", "late", "commit"])
def test_input_from_the_driver_is_one_record_and_none_or_two_are_noticed(part: Part) -> None:
    """A killed driver, or a cancelled task, would otherwise leave a commit without the tuples and
    the held bolts it was to commit."""
    job, seed = (
        Job("run", part, ATTEMPT, JOB.task_counts),
        wire.pack_frames([frame(b"a")], wire.SEED),
    )
    for seeds in ([], [seed, seed], [b"", seed]):
        with pytest.raises(
            MixedEmissionsError, match=f"{len(seeds)} records came from the driver, not 1"
        ):
            received(seeds, sending=0, job=job, level=0)


def test_a_report_where_nothing_is_pinned_is_noticed() -> None:
    with pytest.raises(MixedEmissionsError, match="made by task attempt 7"):
        received(pinned(7), sending=0, level=0)


def test_counts_of_the_senders_are_added_up_and_earlier_counts_are_taken_once() -> None:
    before = Tally({"spout": 5}, {"spout": 9}, stores={"count/a": 4})
    own = [
        Tally({"split": slot + 1}, stores={f"split/{slot}": 1, "split/all": slot + 1})
        for slot in range(2)
    ]
    reports = [Report("", slot, 100 + slot, own=own[slot], before=before) for slot in range(2)]
    taken = received([*sent(0, b"", report=reports[0]), *sent(1, b"", report=reports[1])])
    assert taken.before == Tally(
        {"spout": 5, "split": 3},
        {"spout": 9},
        stores={"count/a": 4, "split/0": 1, "split/1": 1, "split/all": 3},
    )


@pytest.mark.rule(7)
def test_the_failure_of_one_sender_is_known_to_every_receiver() -> None:
    failed = Report("", 1, 101, failure=FAILURE)
    for order in itertools.permutations([*sent(0, b"a"), *sent(1, b"", report=failed)]):
        assert received(order).failure == FAILURE


def test_frames_for_other_levels_are_passed_on_lane_by_lane_in_order() -> None:
    held = Frame("held", "sum", 1, "", -1, b"half")
    frames = [
        frame(b"a"),
        frame(b"x", receiver="sum"),
        held,
        frame(b"y", receiver="sum"),
        held,
        frame(b"z", source_task=1, receiver="sum"),
    ]
    taken = received([wire.pack_frames(frames, wire.SEED)], sending=0, level=0)
    assert list(taken.frames_not_for(frozenset({"count"}))) == [
        frames[1],
        frames[3],
        frames[5],
        held,
        held,
    ]
    whole = taken.held_file("sum", 1)
    assert whole is not None
    assert whole.read() == b"halfhalf"
    assert taken.held_file("sum", 0) is None
