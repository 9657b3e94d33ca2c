"""For any files and any size of batch: every line exactly once, in order within its file, and the
same again on replay."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topologies.planned_spouts import Drive
from txtopo.connectors.files import FileTransactionalSpout, blocks, ranges

LINES = st.sampled_from(["", "a", "bc", "d" * 9, "é", "x" * 40, "\r", "y\rz", "\u2028", "e\r"])
CONTENTS = st.lists(st.lists(LINES, max_size=8), min_size=1, max_size=7)
VALUES = (
    st.none()
    | st.integers()
    | st.text('aé\u2028"\\{\n\r ', max_size=5)
    | st.lists(st.booleans(), max_size=2)
)
ENDS = st.sampled_from(["\n", "\r\n"])


def write_files(
    directory: Path, contents: list[list[str]], end: str, ends_last: list[bool]
) -> list[list[str]]:
    """Write one file per list of lines; return the lines each file then has."""
    expected = []
    for number, (lines, has_end) in enumerate(zip(contents, ends_last, strict=True)):
        data = end.join(lines) + (end if has_end and lines else "")
        (directory / f"{number:03}.txt").write_bytes(data.encode())
        whole = data.split("\n")
        if not whole[-1]:
            whole.pop()
        expected.append([line.removesuffix("\r") for line in whole])
    return expected


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Any:
    """Blocks so small that lines, ranges and blocks meet in every way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 5)
        patch.setattr(blocks, "PROBE_BYTES", 3)
        patch.setattr(ranges, "FILES_PER_BATCH", 4)
        yield


@pytest.mark.rule(18, 20, 21)
@given(
    contents=CONTENTS,
    end=ENDS,
    data=st.data(),
    bytes_per_batch=st.integers(1, 60),
    partitions=st.integers(1, 4),
)
def test_every_line_is_emitted_exactly_once_in_order_and_replays_are_equal(
    contents: list[list[str]], end: str, data: st.DataObject, bytes_per_batch: int, partitions: int
) -> None:
    ends_last = data.draw(st.lists(st.booleans(), min_size=len(contents), max_size=len(contents)))
    with tempfile.TemporaryDirectory() as directory:
        expected = write_files(Path(directory), contents, end, ends_last)
        drive = Drive(
            FileTransactionalSpout(
                f"{directory}/*.txt", bytes_per_batch=bytes_per_batch, partitions=partitions
            )
        )
        batches = drive.run()
        for partition in range(partitions):
            emitted = [line for batch in batches for (line,) in batch[partition]]
            assert emitted == [line for lines in expected[partition::partitions] for line in lines]
        assert all(any(batch.values()) for batch in batches), "a transaction without lines"
        again = Drive(
            FileTransactionalSpout(f"{directory}/*.txt", bytes_per_batch=1, partitions=partitions)
        )
        assert [again.emitted(plan) for plan in drive.plans] == batches


@pytest.mark.rule(20)
@given(contents=CONTENTS, end=ENDS, bytes_per_batch=st.integers(1, 60))
def test_a_batch_has_at_most_bytes_per_batch_unless_it_is_one_line(
    contents: list[list[str]], end: str, bytes_per_batch: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_files(Path(directory), contents, end, [True] * len(contents))
        drive = Drive(FileTransactionalSpout(f"{directory}/*.txt", bytes_per_batch=bytes_per_batch))
        read = 0
        for batch in drive.run():
            position = drive.plans[0][0]["read"]
            drive.plans.pop(0)
            assert position - read <= bytes_per_batch or len(batch[0]) == 1
            read = position


@pytest.mark.rule(20, 23)
@given(
    runs=st.lists(
        st.tuples(
            st.integers(1, 30),
            st.integers(1, 3),
            st.lists(st.sampled_from(["a", "bb", "ccc" * 5, ""]), max_size=5),
        ),
        max_size=6,
    ),
    first=st.lists(st.sampled_from(["x", "yy" * 9]), max_size=5),
)
def test_runs_stopped_anywhere_and_lines_added_between_them_lose_and_repeat_nothing(
    runs: list[tuple[int, int, list[str]]], first: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        path.write_text("".join(f"{line}\n" for line in first))
        expected, positions = list(first), dict[int, Any]()
        emitted: list[str] = []
        for bytes_per_batch, transactions, added in [*runs, (10, 10_000, [])]:
            drive = Drive(FileTransactionalSpout(path, bytes_per_batch=bytes_per_batch), positions)
            while transactions and drive.coordinator.is_ready():
                emitted.extend(line for (line,) in drive.emitted(drive.plan())[0])
                transactions -= 1
            positions = drive.positions
            with open(path, "a") as file:
                file.writelines(f"{line}\n" for line in added)
            expected.extend(added)
        assert emitted == expected


@pytest.mark.rule(18)
@given(
    rows=st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3), max_size=12),
    bytes_per_batch=st.integers(1, 200),
)
def test_json_objects_come_back_as_they_were_written(
    rows: list[dict[str, Any]], bytes_per_batch: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.json"
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
        )
        spout = FileTransactionalSpout(
            path,
            bytes_per_batch=bytes_per_batch,
            fields=("c", "a"),
            format="json",
            errors="replace",
        )
        assert [row for batch in Drive(spout).run() for row in batch[0]] == [
            (row.get("c"), row.get("a")) for row in rows
        ]
