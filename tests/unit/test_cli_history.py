"""``txtopo history`` and ``txtopo why``, from a journal without a ZooKeeper: lines, JSON, refusals."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from txtopo import TransactionAttempt, ZooKeeperUnavailableError
from txtopo.command import cli, history, whereabouts
from txtopo.dataplane.outcome import Failure
from txtopo.engine.attempts import AttemptFailedError
from txtopo.engine.observer import EndedAttempt
from txtopo.journal import fold, recording, records, writer

AT = 1_790_000_000.0
FAILURE = Failure(
    "failed",
    "split",
    1,
    TransactionAttempt(2, 0),
    "processing",
    "execute",
    "FailedException: not yet",
    "Traceback\n  line 7\n",
)


def ended(txid: int, n: int, outcome: Any = "committed", **more: Any) -> EndedAttempt:
    """An attempt with counts."""
    return EndedAttempt(
        TransactionAttempt(txid, n),
        outcome,
        tuples=4,
        latency_s=0.25,
        steps=(("processing", 0.125), ("sealing", 0.0625)),
        executed={"lines": 0, "split": 4},
        emitted={"lines": 4, "split": 12},
        **more,
    )


def request(want: str, by: str) -> records.Record:
    return {"kind": "request", "at": records.time_of(AT), "want": want, "by": by, "asked_at": ""}


def began(epoch: int, current: int) -> records.Record:
    facts = {"host": "alpha", "pid": 7, "name": "nightly", "tasks": {"lines": 2, "split": 2}}
    return records.run_began(facts, AT, "first", epoch, current, epoch == 2)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory with the journal of a topology that committed 1 and 2, and 4 in a second
    run. The record of 3 is lost, and the first run's last line is torn. The first run was paused
    after 1, and lost its ZooKeeper. The second one is asked to drain."""
    place = recording.place(tmp_path, "words")
    failed = AttemptFailedError("failed", str(FAILURE), failure=FAILURE)
    runs: list[list[Any]] = [
        [
            ended(1, 0, metadata={"begin": 0, "end": 4}),
            request("pause", "me@alpha"),
            {"kind": "zookeeper", "at": records.time_of(AT), "is_away": True, "lasted_s": None},
            {"kind": "zookeeper", "at": records.time_of(AT), "is_away": False, "lasted_s": 12.5},
            request("resume", ""),
            ended(3, 0, "behind", because_of=TransactionAttempt(2, 0)),
            ended(2, 0, "failed", failure=failed),
            ended(
                2,
                1,
                metadata={"num_partitions": 1, "partitions": {"0": {"index": 4}}},
                stores={"count/counts": 1, "count/totals": 2},
                widest={"split": (3, 1)},
            ),
        ],
        [
            ended(4, 1_000_000, metadata="a\n\x1b[2J"),
            request("drain", "me@alpha"),
            ended(5, 1_000_000, "abandoned"),
        ],
    ]
    for epoch, kept in enumerate(runs, 1):
        head = began(epoch, 1 if epoch == 1 else 4)
        journal = writer.Writer("words", place, 2**20, head)
        if epoch == 2:
            holder = {"host": "alpha", "pid": 7, "name": "nightly", "epoch": 1}
            lease = {"kind": "lease", "at": records.time_of(AT), **holder}
            journal.put(functools.partial(dict, lease))
        for each in kept:
            record = each if isinstance(each, dict) else records.attempt(each, AT, "full")
            journal.put(functools.partial(dict, record))
        journal.close()
        if epoch == 1:
            with writer.segments(place)[0].open("ab") as file:
                file.write(b'{"v":1,"kind":"att')
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main([*arguments]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def test_history_lists_transactions_failures_and_holes(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "history", "words", "--data-dir", str(data_dir)).splitlines() == [
        "topology words: the next transaction is 5, the journal begins at 1",
        "         1  2026-09-21 14:13:20  committed          4 tuples     0.250 s",
        "            2026-09-21 14:13:20  pause, asked by me@alpha",
        "            2026-09-21 14:13:20  ZooKeeper is away",
        "            2026-09-21 14:13:20  ZooKeeper is back, after 12.5 s",
        "            2026-09-21 14:13:20  resume",
        "         2  2026-09-21 14:13:20  committed          4 tuples     0.250 s  1 failed, FailedException: not yet",
        "         3  2026-09-21 14:13:20  committed                       0.250 s  1 behind, its commit has no record",
        "         4  2026-09-21 14:13:20  run taken over from 'nightly', pid 7 on alpha (epoch 1)",
        "         4  2026-09-21 14:13:20  committed          4 tuples     0.250 s",
        "            2026-09-21 14:13:20  drain, asked by me@alpha",
        "         5  2026-09-21 14:13:20  open                            0.250 s",
        "transactions: 5, failed attempts: 1, attempts behind: 1",
        "cut lines were skipped: 1. A killed run leaves a cut line",
    ]


@pytest.mark.parametrize(
    ("options", "txids", "holes"),
    [
        ([], [1, 2, 3, 4, 5], [[3, 3]]),
        (["--last", "2"], [4, 5], []),
        (["--from", "2", "--last", "2"], [2, 3], [[3, 3]]),
        (["--failed"], [2], []),
        (["--from", "9"], [], []),
    ],
)
def test_history_as_json_has_the_records(
    data_dir: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    txids: list[int],
    holes: list[list[int]],
) -> None:
    place = ["--data-dir", str(data_dir), "--json"]
    shown = json.loads(said(capsys, "history", "words", *options, *place))
    assert [each["txid"] for each in shown["transactions"]] == txids
    assert shown["holes"] == holes
    assert (shown["current"], shown["begins_at"], shown["generation"]) == (5, 1, "first")
    assert {run["ended"] for run in shown["runs"]} <= {None}
    kinds = [each["kind"] for each in shown["notices"]]
    assert kinds == ["request", "zookeeper", "zookeeper", "request", "request"]
    for each in shown["transactions"]:
        assert each["committed"] == (each["txid"] < 5)
        assert (each["failed"], each["behind"]) == (each["txid"] == 2, each["txid"] == 3)


def test_commits_without_a_record_are_a_line_and_the_journal_is_shown_without_zookeeper(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert history.history_lines(fold.View(current=9), [], [(3, 5), (7, 7)])[:2] == [
        "       3-5  committed, but without records",
        "         7  committed, but without records",
    ]

    def away(*arguments: Any, **more: Any) -> Any:
        raise ZooKeeperUnavailableError("ZooKeeper zk:2181 does not answer\n  Start it")

    monkeypatch.setattr(whereabouts, "look", away)
    told = said(capsys, "history", "words", "--data-dir", str(data_dir)).splitlines()
    assert told[0] == "topology words: the next transaction is 5, the journal begins at 1"
    assert (
        "ZooKeeper zk:2181 does not answer. The commits shown are the ones in the journal" in told
    )


@pytest.mark.parametrize(
    ("listed", "notices"),
    [("--from=5", ["drain"]), ("--from=1 --last=1", []), ("--from=3 --last=1", [])],
)
def test_what_happened_beside_the_listed_transactions_is_not_told(
    data_dir: Path, capsys: pytest.CaptureFixture[str], listed: str, notices: list[str]
) -> None:
    told = said(capsys, "history", "words", *listed.split(), "--data-dir", str(data_dir))
    assert ("taken over" in told) == ("=3" in listed)  # the run began with 4
    asked = [line for line in told.splitlines() if line.startswith(f"{'':12}2026")]
    assert [line.split()[2].rstrip(",") for line in asked] == notices


def test_a_run_after_one_that_left_no_word_says_so() -> None:
    end = records.run_ended(None, AT, "full")
    commit = records.attempt(ended(1, 0), AT, "full")

    def line(*lines: records.Record) -> list[str]:
        view = fold.fold(lines)
        return history.history_lines(view, [*view.transactions.values()], [])[1:-1]

    assert line(began(1, 1), commit, began(2, 2)) == [
        "         2  2026-09-21 14:13:20  the journal has no end of the run before, 'nightly', pid 7 on alpha (epoch 1)"
    ]
    assert line(began(1, 1), commit, end, began(2, 2)) == []
    assert line(began(1, 1), commit, began(3, 2)) == [], "the run between has no journal here"


def test_why_tells_a_transactions_story(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("why", "words", "2", "--tracebacks", "--data-dir", str(data_dir))
    assert said(capsys, *asked).splitlines() == [
        "transaction 2 of words committed at attempt 2 of 2, 2026-09-21 14:13:20.000Z",
        "  it contained   4 tuples",
        "                 partition 0: {'index': 4}",
        "  2:0          failed    processing 0.125 s, sealing 0.062 s",
        "                 split, task 1, processing phase, execute: FailedException: not yet",
        "                 lines executed 0, emitted 4",
        "                 split executed 4, emitted 12",
        "                 Traceback",
        "                   line 7",
        "  2:1          committed processing 0.125 s, sealing 0.062 s",
        "                 lines executed 0, emitted 4",
        "                 split executed 4, emitted 12 (most: task 1 with 3)",
        "  it wrote       count/counts: 1 store transaction, count/totals: 2 store transactions",
        "  behind it      3:0 discarded, and processed again",
        "cut lines were skipped: 1. A killed run leaves a cut line",
    ]
    shown = json.loads(said(capsys, *asked, "--json"))
    assert (shown["txid"], shown["committed"], len(shown["attempts"])) == (2, True, 2)
    assert [each["txid"] for each in shown["discarded_with_it"]] == [3]


@pytest.mark.parametrize(
    ("txid", "outcome"),
    [
        ("3", "transaction 3 of words is committed, but its commit has no record (1 attempt"),
        ("5", "transaction 5 of words is not committed (1 attempt ended)"),
    ],
)
def test_why_tells_of_a_missing_commit_and_of_an_open_transaction(
    data_dir: Path, capsys: pytest.CaptureFixture[str], txid: str, outcome: str
) -> None:
    assert outcome in said(capsys, "why", "words", txid, "--data-dir", str(data_dir))


def test_metadata_cannot_control_the_terminal(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(capsys, "why", "words", "4", "--data-dir", str(data_dir))
    assert "                 metadata 'a\\n\\x1b[2J'\n" in told


def test_what_the_journal_does_not_have_is_said_with_a_cure(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--data-dir", str(data_dir)]
    assert "transaction 9 has no attempt that ended" in said(
        capsys, "why", "words", "9", *asked, code=2
    )
    refused = said(capsys, "history", "wrds", *asked, code=2)
    assert "there is no journal of topology 'wrds' in" in refused
    assert "Name the runs' data directory" in refused
    segment, _ = writer.segments(recording.place(data_dir, "words"))
    segment.write_bytes(segment.read_bytes().replace(b'"v":1', b'"v":2'))
    assert "lines in format 2 were skipped: a different txtopo version has written them" in said(
        capsys, "history", "words", *asked
    )
    refused = said(capsys, "why", "words", "2", *asked, code=2)
    assert "transaction 2 is committed, but has no record in the journal" in refused
