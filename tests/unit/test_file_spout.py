"""The file spout: the bytes of a batch, and the lines in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.planned_spouts import Drive
from txtopo.connectors.files import FileTransactionalSpout, blocks, ranges
from txtopo.errors import ConfigError
from txtopo.topology import pickling
from txtopo.topology.stream import Fields, OutputFieldsDeclarer

Batches = list[dict[int, list[Any]]]


def lines_of(drive: Drive) -> Batches:
    """Batches of a spout with one field: the lines by partition."""
    return [
        {partition: [row[0] for row in rows] for partition, rows in batch.items()}
        for batch in drive.run()
    ]


@pytest.mark.rule(20)
def test_batches_hold_whole_lines_up_to_bytes_per_batch(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\nthree\nfour\n")
    assert lines_of(Drive(FileTransactionalSpout(tmp_path / "a.txt", bytes_per_batch=8))) == [
        {0: ["one", "two"]},
        {0: ["three"]},
        {0: ["four"]},
    ]


def test_a_line_longer_than_bytes_per_batch_is_a_batch_by_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\n" + b"y" * 50 + b"\nz\n")
    (tmp_path / "b.txt").write_bytes(b"w" * 50)
    assert lines_of(Drive(FileTransactionalSpout(f"{tmp_path}/*", bytes_per_batch=10))) == [
        {0: ["x"]},
        {0: ["y" * 50]},
        {0: ["z"]},
        {0: ["w" * 50]},
    ]


def test_a_batch_spans_many_small_files_and_its_metadata_says_which_bytes(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_bytes(f"{name}1\n{name}2\n".encode())
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*", bytes_per_batch=16))
    assert lines_of(drive) == [{0: ["a1", "a2", "b1", "b2", "c1"]}, {0: ["c2", "d1", "d2"]}]
    first, second = drive.plans[0][0], drive.plans[1][0]
    assert {key: first[key] for key in ("file", "start", "end_file", "end", "sizes", "read")} == {
        "file": 0,
        "start": 0,
        "end_file": 2,
        "end": 3,
        "sizes": [6, 6],
        "read": 15,
    }
    assert {key: second[key] for key in ("file", "start", "end_file", "end", "sizes", "read")} == {
        "file": 2,
        "start": 3,
        "end_file": 3,
        "end": 6,
        "sizes": [6],
        "read": 24,
    }
    assert len(first["group"]) == 12


def test_a_batch_spans_a_bounded_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "FILES_PER_BATCH", 2)
    for name in "abcde":
        (tmp_path / name).write_text(f"{name}\n")
    assert lines_of(Drive(FileTransactionalSpout(f"{tmp_path}/*"))) == [
        {0: ["a", "b"]},
        {0: ["c", "d"]},
        {0: ["e"]},
    ]


@pytest.mark.rule(19, 21)
def test_sorted_files_are_dealt_out_to_partitions_and_a_finished_one_keeps_its_position(
    tmp_path: Path,
) -> None:
    for name in "cabed":
        (tmp_path / name).write_text(f"{name}\n" * (3 if name == "b" else 1))
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*", bytes_per_batch=4, partitions=2))
    assert lines_of(drive) == [{0: ["a", "c"], 1: ["b", "b"]}, {0: ["e"], 1: ["b", "d"]}]
    assert drive.plan() == {0: None, 1: None}


def test_more_partitions_than_files_leave_some_empty(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")
    assert lines_of(Drive(FileTransactionalSpout(tmp_path / "a", partitions=3))) == [
        {0: ["a"], 1: [], 2: []}
    ]


def test_empty_files_are_passed_over_and_only_empty_ones_make_no_transaction(
    tmp_path: Path,
) -> None:
    for name in "abcdef":
        (tmp_path / name).write_text("x\n" if name in "be" else "")
    assert lines_of(Drive(FileTransactionalSpout(f"{tmp_path}/*"))) == [{0: ["x", "x"]}]
    assert lines_of(Drive(FileTransactionalSpout([tmp_path / "a", tmp_path / "c"]))) == []


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (b"a\nb", ["a", "b"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"\n", [""]),
        (b"a\r\nb\r\r\nc\r", ["a", "b\r", "c"]),
        (b"a\n\r", ["a", ""]),
        (b"\ra\n", ["\ra"]),
        ("a\x0bb\x0c\x1c\x85c\u2028d\n".encode(), ["a\x0bb\x0c\x1c\x85c\u2028d"]),
        (b"a\0b\n", ["a\0b"]),
    ],
)
def test_a_line_ends_with_a_newline_and_nothing_else(
    tmp_path: Path, contents: bytes, expected: list[str]
) -> None:
    (tmp_path / "a").write_bytes(contents)
    assert [
        line
        for batch in lines_of(Drive(FileTransactionalSpout(tmp_path / "a")))
        for line in batch[0]
    ] == expected


def test_blocks_are_cut_between_lines_and_a_line_longer_than_a_block_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 7)
    monkeypatch.setattr(blocks, "PROBE_BYTES", 3)
    expected = ["x" * n for n in (1, 30, 2, 0, 6, 7, 8, 3)]
    (tmp_path / "a").write_text("\n".join(expected))
    assert [
        line
        for batch in lines_of(Drive(FileTransactionalSpout(tmp_path / "a", bytes_per_batch=20)))
        for line in batch[0]
    ] == expected


@pytest.mark.rule(18)
def test_a_replay_emits_the_same_lines_although_the_files_have_grown(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*"))
    plan = drive.plan()
    before = drive.emitted(plan)
    for name in "abc":
        with open(tmp_path / name, "a") as file:
            file.write("late\n")
    assert drive.emitted(plan, attempt_id=1) == before


def test_planning_reads_only_around_the_end_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"a line of text\n" * 100_000)
    asked: list[int] = []
    reading: Callable[..., bytes] = blocks._read

    def counted(file: Any, path: str, start: int, amount: int) -> bytes:
        asked.append(amount)
        return reading(file, path, start, amount)

    monkeypatch.setattr(blocks, "_read", counted)
    drive = Drive(FileTransactionalSpout(tmp_path / "a", bytes_per_batch=400_000))
    while drive.coordinator.is_ready():
        drive.plan()
    assert len(drive.plans) == 4
    assert sum(asked) <= 3 * blocks.PROBE_BYTES + 7 * blocks.TAIL_BYTES


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["1", "2"]),
        ("**/*.txt", ["1", "2", "3"]),
        ("a*", ["1"]),
        ("**", ["1", "2", "3", "4"]),
        ("lit[e]ral.log", ["4"]),
    ],
)
def test_patterns_match_files_and_not_directories(
    tmp_path: Path, pattern: str, expected: list[str]
) -> None:
    (tmp_path / "d.txt").mkdir()
    for name, line in [
        ("a.txt", "1"),
        ("b.txt", "2"),
        ("d.txt/c.txt", "3"),
        ("lit[e]ral.log", "4"),
    ]:
        (tmp_path / name).write_text(line)
    batches = lines_of(Drive(FileTransactionalSpout(os.path.join(tmp_path, pattern))))
    assert sorted(line for batch in batches for line in batch[0]) == expected


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")
    (tmp_path / "b").write_text("b\n")
    named: list[str | Path] = [tmp_path / "b", f"{tmp_path}/*", str(tmp_path / "x" / ".." / "a")]
    assert lines_of(Drive(FileTransactionalSpout(named))) == [{0: ["a", "b"]}]


def test_relative_paths_are_fixed_when_the_spout_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    spout = FileTransactionalSpout("*")
    monkeypatch.chdir("/")
    assert lines_of(Drive(spout)) == [{0: ["a"]}]


def test_the_list_of_files_is_frozen_when_the_topology_is_built_and_not_when_the_spout_is_made(
    tmp_path: Path,
) -> None:
    spout = FileTransactionalSpout(f"{tmp_path}/*")
    (tmp_path / "b").write_text("b\n")
    drive = Drive(spout)
    (tmp_path / "a").write_text("a\n")
    assert lines_of(drive) == [{0: ["b"]}]


def test_names_that_are_not_text_are_read_like_others(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xfe"
    with open(name, "w") as file:
        file.write("strange\n")
    assert lines_of(Drive(FileTransactionalSpout(f"{tmp_path}/*"))) == [{0: ["strange"]}]


def test_a_packed_list_of_thousands_of_files_is_small(tmp_path: Path) -> None:
    spout = FileTransactionalSpout(
        [tmp_path / f"directory-{n // 100}" / f"file-{n}.txt" for n in range(10_000)]
    )
    template = pickling.dumps(spout)
    assert len(template) < 100_000
    assert len(pickling.loads(pickling.dumps(pickling.loads(template))).groups()[0].paths) == 10_000


def test_json_objects_give_their_fields_in_the_order_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(
        '{"a": 1, "b": [2, null], "c": 3}\n\n  \n{"b": "ü", "a": null}', encoding="utf-8"
    )
    drive = Drive(FileTransactionalSpout(tmp_path / "a", fields=["b", "a"], format="json"))
    assert drive.run() == [{0: [([2, None], 1), ("ü", None)]}]


def test_a_missing_json_field_is_none_under_replace(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"a": 1}\n{"b": 2}\n')
    assert Drive(
        FileTransactionalSpout(tmp_path / "a", fields=["a", "b"], format="json", errors="replace")
    ).run() == [{0: [(1, None), (None, 2)]}]


@pytest.mark.parametrize(
    ("contents", "encoding", "errors", "expected"),
    [
        (b"caf\xe9\n", "latin-1", "strict", "café"),
        (b"caf\xe9\n", "utf-8", "replace", "caf\ufffd"),
        ("café\n".encode(), "UTF8", "strict", "café"),
        (b"\xef\xbb\xbfa\n", "utf-8-sig", "strict", "a"),
        (b"\xef\xbb\xbfa\n", "utf-8", "strict", "a"),
    ],
)
def test_lines_are_decoded_as_asked(
    tmp_path: Path, contents: bytes, encoding: str, errors: Any, expected: str
) -> None:
    (tmp_path / "a").write_bytes(contents)
    assert lines_of(
        Drive(FileTransactionalSpout(tmp_path / "a", encoding=encoding, errors=errors))
    ) == [{0: [expected]}]


def test_a_byte_order_mark_within_a_file_is_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
    batches = lines_of(
        Drive(FileTransactionalSpout(tmp_path / "a", encoding="utf-8-sig", bytes_per_batch=5))
    )
    assert batches == [{0: ["a"]}, {0: ["\ufeffb"]}]


def test_executors_need_neither_pydantic_nor_kazoo_nor_pyspark_to_emit() -> None:
    program = "import sys, txtopo.connectors.files, txtopo.testing; print(sorted({'pydantic', 'kazoo', 'pyspark'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_it_declares_the_attempt_before_its_fields(tmp_path: Path) -> None:
    declarer = OutputFieldsDeclarer()
    FileTransactionalSpout("any", fields=("text",)).declare_output_fields(declarer)
    assert declarer.streams["default"].fields == Fields("tx", "text")


def test_a_spout_may_be_made_and_pickled_without_its_files() -> None:
    spout = pickling.loads(pickling.dumps(FileTransactionalSpout("/no/such/directory/*.txt")))
    assert spout.patterns == ("/no/such/directory/*.txt",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bytes_per_batch": 0}, "bytes_per_batch is 0"),
        ({"partitions": 0}, "partitions is 0"),
        ({"partitions": True}, "partitions is True"),
        ({"format": "csv"}, "format is 'csv'; it is one of 'lines', 'json'"),
        ({"errors": "ignore"}, "errors is 'ignore'; it is one of 'strict', 'replace'"),
        ({"fields": ("a", "b")}, r"fields are \['a', 'b'\].*\n.*format='json'"),
        ({"fields": ()}, r"fields are \[\]"),
        ({"encoding": "utf-16"}, "text in utf-16 cannot be cut"),
        ({"encoding": "cp037"}, "text in cp037 cannot be cut"),
        ({"encoding": "iso2022_kr"}, "text in iso2022_kr cannot be cut"),
        ({"encoding": "iso-2022-jp"}, "text in iso-2022-jp cannot be cut"),
        ({"encoding": "utf-7"}, "text in utf-7 cannot be cut"),
        ({"encoding": "idna"}, "text in idna cannot be cut"),
        ({"encoding": "undefined"}, "text in undefined cannot be cut"),
        ({"encoding": "base64"}, "no text encoding 'base64'"),
        ({"encoding": "klingon"}, "no text encoding 'klingon'"),
    ],
)
def test_an_impossible_argument_is_refused_with_the_cure(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        FileTransactionalSpout("any", **arguments)


@pytest.mark.parametrize("paths", ["", [""], [7], [b"bytes"]])
def test_an_object_that_is_no_path_is_refused(paths: Any) -> None:
    with pytest.raises(ConfigError, match="is not a path"):
        FileTransactionalSpout(paths)


def test_the_coordinator_says_how_much_of_the_bytes_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\nthree\nfour\n")
    (tmp_path / "b").write_bytes(b"5678901\n" * 10 + b"no end")
    (tmp_path / "empty").write_bytes(b"")
    drive = Drive(FileTransactionalSpout(f"{tmp_path}/*", bytes_per_batch=8, partitions=2))
    total = 19 + 86
    assert drive.coordinator.fraction_done({}) == 0
    drive.run()
    assert drive.coordinator.fraction_done(drive.plans[0]) == (8 + 8) / total
    assert drive.coordinator.fraction_done({0: drive.plans[2][0]}) == 19 / total
    assert drive.coordinator.fraction_done(drive.positions) == 1


def test_of_empty_files_nothing_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert Drive(FileTransactionalSpout(tmp_path / "a")).coordinator.fraction_done({}) is None
