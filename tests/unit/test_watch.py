"""A run that is watched from outside: its ``live.json``, and the view made from it and the journal."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import patience
from tests.local_engine import run_to_idle
from tests.unit.test_journal import AT, attempt, write
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Config,
    FailedException,
    Fields,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.dataplane.outcome import Failure
from txtopo.engine import observer
from txtopo.engine.attempts import AttemptFailedError
from txtopo.engine.observer import EndedAttempt
from txtopo.engine.status import RunStatus, StatusBoard
from txtopo.journal import fold, live, reader, recording, records, watch, writer
from txtopo.journal.records import Record
from txtopo.spark.machine import Machine
from txtopo.state import liveness
from txtopo.state.memory import MemoryStateStore
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology.graph import TopologyGraph

ELSEWHERE = "another-boot/4026531836/7/12345"


def head(epoch: int = 1, generation: str = "first", started: str = ELSEWHERE) -> Record:
    """The record of a run's beginning."""
    facts = {"topology_id": "words", "host": "alpha", "pid": 7, "started": started}
    more = {"tasks": {"split": 2, "count": 2}, "plan": {"components": []}}
    versions = {"txtopo": "0.1.0", "spark": "4.3.0"}
    return records.run_began(facts | more | versions, AT, generation, epoch, 1, False)


def ended(txid: int, n: int = 0, outcome: Any = "committed", **more: Any) -> EndedAttempt:
    return EndedAttempt(TransactionAttempt(txid, n), outcome, **more)


def failure(text: str, component: str = "split") -> AttemptFailedError:
    failure = Failure(
        "error", component, 0, TransactionAttempt(1, 0), "commit", "execute", text, "traceback"
    )
    return AttemptFailedError("failed", str(failure), failure=failure)


class FailsOnce(BaseTransactionalBolt):
    """Fails the first attempt at transaction 1."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        if attempt == TransactionAttempt(1, 0):
            raise FailedException("not yet")

    def execute(self, tup: Tuple) -> None: ...

    def finish_batch(self) -> None: ...

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None: ...


def failing_once() -> TopologyGraph:
    """A topology with three transactions."""
    spout = MemoryTransactionalSpout({0: [(n,) for n in range(3)]}, Fields("n"), 1)
    builder = TransactionalTopologyBuilder("words", "spout", spout, 1)
    builder.set_bolt("once", FailsOnce(), 1).none_grouping("spout")
    return builder.build_topology()


class Run:
    """A run whose moments a test sets, with its ``live.json``."""

    def __init__(self, path: Path, fullness: records.Fullness = "full", **more: Any) -> None:
        self.path, self.now_s = path, 0.0
        self.moment = live.Moment(AT, RunStatus("words", "words"), AT, False, 0)
        self.live = live.Live(path, head(**more), self.look, fullness, lambda: self.now_s)

    def look(self) -> live.Moment:
        return self.moment

    def write(self, after_s: float = 1.0, is_last: bool = False, **changes: Any) -> Record:
        """The file after ``after_s``, with changes in the status."""
        self.now_s += after_s
        status = dataclasses.replace(self.moment.status, **changes)
        self.moment = dataclasses.replace(self.moment, status=status)
        self.live.write(0, is_last)
        return live.read(self.path) or {}


# -- live.json -----------------------------------------------------------------------------------


def test_the_file_says_what_is_in_flight_and_for_how_long(tmp_path: Path) -> None:
    for epoch in (0, 1):  # left by runs that were killed
        (tmp_path / f"{live.NAME}.{epoch}").write_bytes(b"x" * 99_999)
    copy = tmp_path / f"{live.NAME}.2026-11-28"
    copy.touch()
    run = Run(tmp_path)
    run.write(active=((5, 2, "processing"),))
    run.write(2.0, active=((5, 2, "processed"), (6, 0, "processing")))
    written = run.write(0.5, is_last=True)
    assert written["active"] == [
        {"txid": 5, "attempt": 2, "steps": {"processing": 2.0, "processed": 0.5}},
        {"txid": 6, "attempt": 0, "steps": {"processing": 0.5}},
    ]
    assert (written["v"], written["topology_id"], written["epoch"]) == (1, "words", 1)
    assert sorted(os.listdir(tmp_path)) == [live.NAME, copy.name]
    assert (tmp_path / live.NAME).stat().st_mode & 0o777 == 0o600


def test_the_file_is_replaced_when_something_changes_and_to_show_life(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def inode_after(after_s: float, **changes: Any) -> int:
        run.write(after_s, **changes)
        return (tmp_path / live.NAME).stat().st_ino

    first = inode_after(1.0)
    held = (tmp_path / live.NAME).open()  # its inode is not used again
    assert inode_after(1.0, tuples_per_s=3.0, asked=7) == first
    assert inode_after(live.PAUSE_S / 2, committed=1) == first  # too soon
    second = inode_after(live.PAUSE_S, committed=1)
    assert second != first
    held.close()
    held = (tmp_path / live.NAME).open()
    assert inode_after(live.BEAT_S) != second
    held.close()


def test_totals_count_committed_attempts_and_failures_by_component(tmp_path: Path) -> None:
    run = Run(tmp_path)
    committed = ended(
        1,
        latency_s=0.3,
        steps=(("processing", 0.2), ("applying", 0.1)),
        tasks={"lines": 1, "split": 2},
        executed={"lines": 0, "split": 4},
        emitted={"lines": 4, "split": 12},
        widest={"split": (9, 1)},
        work_s={"lines": 0.02, "split": 0.02},
        stores={"count/counts": 2},
        counters={"split": {"late": 2}},
    )
    run.live.add(committed, "2026-11-28T04:00:00.000Z")
    run.live.add(dataclasses.replace(committed, latency_s=400.0), "2026-11-28T04:00:01.000Z")
    failed = ended(
        2, 0, "failed", failure=failure("ValueError: x"), counters={"split": {"late": 9}}
    )
    for each in (failed, failed, ended(2, 1, "timeout"), ended(3, 0, "behind")):
        run.live.add(each, "2026-11-28T04:00:02.000Z")
    run.live.add(ended(3, 1, "outgrown"), "2026-11-28T04:00:02.000Z")
    written = run.write(committed=2, behind=1, tuples=8)
    totals = written["totals"]
    assert (totals["committed"], totals["behind"], totals["tuples"]) == (2, 1, 8)
    assert totals["failed"] == [["failed", "split", 2], ["timeout", "", 1]]
    assert totals["latency_s"]["count"] == 2
    assert totals["latency_s"]["sum"] == 400.3
    buckets = dict(totals["latency_s"]["buckets"])
    assert (buckets[0.25], buckets[0.5], buckets[300.0]) == (0, 1, 1)
    assert totals["steps_s"]["applying"]["count"] == 2
    assert totals["components"] == {
        "lines": {"executed": 0, "emitted": 8, "latency_s": 0.005},
        "split": {"executed": 8, "emitted": 24, "skew": 1.5, "latency_s": 0.005},
    }
    assert totals["user"] == {"split": {"late": 4}}
    assert totals["stores"] == {"count/counts": "1:0"}
    assert written["status"]["last_commit_at"] == "2026-11-28T04:00:01.000Z"


def test_the_file_shows_no_secret_and_a_lean_one_no_text_from_user_code(tmp_path: Path) -> None:
    text = "ValueError: row 7, password=hunter2\n  in component 'split'"
    (tmp_path / "lean").mkdir()
    full, lean = Run(tmp_path), Run(tmp_path / "lean", "lean")
    shown = full.write(last_error=text)["status"]["last_error"]
    assert "row 7" in shown
    assert "hunter2" not in shown
    assert lean.write(last_error=text)["status"]["last_error"] == "ValueError"
    assert lean.write(last_error=None)["status"]["last_error"] is None


def test_a_replaced_coordinator_leaves_its_successors_file_alone(tmp_path: Path) -> None:
    old, new = Run(tmp_path), Run(tmp_path, epoch=2)
    old.write()
    new.write()
    assert old.write(committed=1, is_last=True)["epoch"] == 2
    # After a reset, epochs begin again.
    assert Run(tmp_path, generation="second").write()["epoch"] == 1


def test_a_loop_that_waits_turns_and_one_that_is_busy_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [7.0]
    monkeypatch.setattr("txtopo.spark.machine.time.time", lambda: now[0])
    machine = Machine("words")

    def turned_later() -> float:
        now[0] += 1.0
        return machine.turned_at()

    assert turned_later() == 8.0
    machine.post(lambda: None)
    machine.post(lambda: None)
    machine.next()
    assert [turned_later(), turned_later()] == [9.0, 9.0]  # since then it is busy
    machine.next()
    assert turned_later() == 11.0
    waits: list[float] = []

    def now_s() -> float:
        waits.append(turned_later())
        return 0.0

    monkeypatch.setattr(machine, "now", now_s)
    machine.post(lambda: None)
    machine.next()
    assert waits == [12.0]


def test_a_real_engines_run_is_seen_with_its_commits_failures_and_end(tmp_path: Path) -> None:
    graph = failing_once()
    board, machine = StatusBoard(RunStatus("words", "words")), Machine("words")

    def look() -> live.Moment:
        return live.Moment(AT, board.snapshot(), machine.turned_at(), False, 0)

    facts = records.facts(graph, "words", Config(), "local[2]", "4.3.0")
    kept = recording.Recording("words", tmp_path, 1 << 20, "full", facts, look)
    run_to_idle(graph, MemoryStateStore(), machine, [board, kept], max_spout_pending=2)
    observer.tell([board, kept], lambda each: each.ended(None))  # as TopologyRun does
    watched = watch.Watch(recording.place(tmp_path, "words"))
    view = watched.refresh()
    outcomes = [[n["outcome"] for n in each["attempts"]] for each in view["transactions"]]
    assert outcomes[0] == ["failed", "committed"]
    assert {each[-1] for each in outcomes} == {"committed"}
    assert [(each["txid"], each["committed_by"]) for each in view["failures"]] == [(1, 1)]
    assert (view["live"]["status"]["state"], view["live"]["active"]) == ("stopped", [])
    assert view["live"]["status"]["committed"] == len(outcomes) == 3
    assert view["components"]["once"]["executed"] == 3
    assert view["run"]["ended"]["exit_code"] == 0
    assert [each["id"] for each in view["plan"]["components"]] == ["spout", "once"]
    totals = (live.read(recording.place(tmp_path, "words")) or {})["totals"]
    assert totals["failed"] == [["failed", "once", 1]]
    assert totals["latency_s"]["count"] == 3


# -- the view ------------------------------------------------------------------------------------


def test_a_refresh_gives_the_changes_alone(tmp_path: Path) -> None:
    watched = watch.Watch(tmp_path, lambda: AT)
    assert watched.refresh()["run"] is None
    write(
        tmp_path,
        attempt(1),
        attempt(2, 0, "failed", failure=failure("ValueError: x")),
        first=head(),
    )
    first = watched.refresh()
    assert [each["txid"] for each in first["transactions"]] == [1, 2]
    assert watched.refresh() == {}
    segment = writer.segments(tmp_path)[-1]
    line = records.encode(attempt(2, 1, latency_s=3.0, stores={"count/counts": 1}))
    with segment.open("ab") as file:
        file.write(line[:20])
        file.flush()
        assert watched.refresh().keys() == {"at", "counts"}  # torn: its writer has died
        file.write(line[20:])
    changes = watched.refresh()
    news = {"at", "transactions", "failures", "stores", "latency_s", "counts"}
    assert changes.keys() == news
    (changed,) = changes["transactions"]
    assert [each["outcome"] for each in changed["attempts"]] == ["failed", "committed"]
    (failed,) = changes["failures"]
    assert (failed["committed_by"], failed["cause"]["component"]) == (1, "split")
    assert changes["stores"]["count/counts"]["recorded"] == "2:1"
    assert json.loads(json.dumps(watched.view())) == watched.view()
    assert [each["txid"] for each in watched.view()["transactions"]] == [1, 2]


def test_a_refresh_after_an_error_has_the_changes_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> Any:
        raise OSError(5, "the disk is broken")

    watched = watch.Watch(tmp_path, lambda: AT)
    write(tmp_path, attempt(1), first=head())
    with monkeypatch.context() as patch:
        patch.setattr(live, "read", refuse)
        with pytest.raises(OSError, match="broken"):
            watched.refresh()
    assert [each["txid"] for each in watched.refresh()["transactions"]] == [1]


def test_a_watch_that_begins_late_has_the_view_of_one_that_was_there_from_the_beginning(
    tmp_path: Path,
) -> None:
    early = watch.Watch(tmp_path, lambda: AT)
    failed = attempt(3, 0, "failed", failure=failure("ValueError: x"))
    again = [attempt(899, n, "timeout") for n in range(200)]
    write(
        tmp_path,
        failed,
        *(attempt(txid, metadata="x" * 900) for txid in range(1, 900)),
        first=head(),
    )
    early.refresh()
    late = watch.Watch(tmp_path, lambda: AT)
    late.refresh()
    assert late.view() == early.view()
    assert [(each["txid"], each["committed_by"]) for each in late.view()["failures"]] == [(3, 0)]
    write(tmp_path, *again, first=head(2))
    assert len(writer.segments(tmp_path)) > 2
    early.refresh()
    late = watch.Watch(tmp_path, lambda: AT)
    late.refresh()
    assert late.view() == early.view()
    transactions = late.view()["transactions"]
    assert (transactions[0]["txid"], len(transactions)) == (400, watch.TRANSACTIONS_MAX)
    assert len(transactions[-1]["attempts"]) == watch.ATTEMPTS_MAX
    assert len(late.view()["failures"]) == watch.FAILURES_MAX


def test_a_new_generation_and_a_new_run_begin_the_view_anew(tmp_path: Path) -> None:
    watched = watch.Watch(tmp_path, lambda: AT)
    write(tmp_path, *(attempt(txid) for txid in range(1, 900)), first=head())
    late = watch.Watch(tmp_path, lambda: AT)
    watched.refresh()
    late.refresh()
    write(tmp_path, attempt(1), first=head(generation="second"))
    for each in (watched, late, watch.Watch(tmp_path, lambda: AT)):
        each.refresh()
        assert [transaction["txid"] for transaction in each.view()["transactions"]] == [1]
    stopped = records.run_ended(None, AT, "full")
    write(tmp_path, attempt(2), stopped, first=head(2, "second"))
    changes = watched.refresh()
    assert (changes["run"]["epoch"], changes["run"]["ended"]["exit_code"]) == (2, 0)
    # The words of a replaced run are not the new run's.
    write(tmp_path, first=head(3, "second"))
    watched.refresh()
    with writer.segments(tmp_path)[-2].open("ab") as file:
        file.write(records.encode(records.run_ended(ValueError("x"), AT, "full")))
    assert "run" not in watched.refresh()


def test_cut_lines_and_other_formats_are_counted(tmp_path: Path) -> None:
    write(tmp_path, attempt(1), {"kind": "dropped", "records": 3}, first=head())
    with writer.segments(tmp_path)[-1].open("ab") as file:
        file.write(b'{"v":9}\n{"v":1,"ki\n{"v":1,"kin')
    watched = watch.Watch(tmp_path, lambda: AT)
    assert watched.refresh()["counts"] == {"torn": 2, "other_versions": 1, "dropped": 3}


def test_a_damaged_live_file_and_an_earlier_runs_are_not_shown(tmp_path: Path) -> None:
    write(tmp_path, first=head(2))
    watched = watch.Watch(tmp_path, lambda: AT)
    Run(tmp_path, epoch=1).write()
    assert watched.refresh()["live"] is None
    Run(tmp_path, epoch=2).write()
    assert watched.refresh()["live"]["epoch"] == 2
    for data in (b"", b'{"v":9}', b"{"):
        (tmp_path / live.NAME).write_bytes(data)
        watched.refresh()
        assert watched.view()["live"] is None


def test_rates_are_over_the_last_ten_seconds_and_sums_are_the_runs(tmp_path: Path) -> None:
    write(tmp_path, attempt(1, executed={"split": 50}, emitted={"split": 90}), first=head())
    run = Run(tmp_path)
    run.live.add(ended(1, executed={"split": 50}, emitted={"split": 90}), "")
    run.write()
    now = [AT + 1]
    watched = watch.Watch(tmp_path, lambda: now[0])
    split = watched.refresh()["components"]["split"]
    assert (split["executed"], split["executed_per_s"], split["emitted_per_s"]) == (50, 5.0, 9.0)
    now[0] += watch.RATE_S
    assert watched.refresh()["components"]["split"]["executed_per_s"] == 0.0


def test_rates_hold_although_the_clock_is_set_back(tmp_path: Path) -> None:
    later = records.attempt(ended(2, executed={"split": 20}), AT - 3600, "full")
    write(tmp_path, attempt(1, executed={"split": 50}), later, first=head())
    now = [AT - 3599]
    watched = watch.Watch(tmp_path, lambda: now[0])
    assert watched.refresh()["components"]["split"]["executed_per_s"] == 2.0
    now[0] += watch.RATE_S
    assert watched.refresh()["components"]["split"]["executed_per_s"] == 0.0


def test_a_run_is_alive_until_its_process_has_died_or_its_end_is_written(tmp_path: Path) -> None:
    own = liveness.process_identity()
    write(tmp_path, first=head(1, started=own))
    watched = watch.Watch(tmp_path, lambda: AT + 1e6)
    assert watched.refresh()["run"]["is_alive"]
    command = "from txtopo.state import liveness; print(liveness.process_identity())"
    dead = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    write(tmp_path, first=head(2, started=dead.stdout.strip()))
    assert not watched.refresh()["run"]["is_alive"]
    write(tmp_path, records.run_ended(None, AT, "full"), first=head(3, started=own))
    assert not watched.refresh()["run"]["is_alive"]


def test_a_run_on_another_machine_is_alive_while_its_live_file_is_new(tmp_path: Path) -> None:
    write(tmp_path, first=head())
    now = [0.0]
    watched = watch.Watch(tmp_path, lambda: now[0])
    assert not watched.refresh()["run"]["is_alive"]
    now[0] = AT
    Run(tmp_path).write()
    assert watched.refresh()["run"]["is_alive"]
    now[0] += watch.SILENCE_S
    assert watched.refresh()["run"]["is_alive"] is False


def test_a_live_file_that_cannot_be_written_costs_no_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "AGAIN_S", 2 * patience.PATIENCE_S)
    run, refused = Run(tmp_path), threading.Event()

    def refuse(dropped: int, is_last: bool) -> None:
        refused.set()
        run.live.write(dropped, is_last)

    (tmp_path / live.NAME).mkdir()
    written = writer.Writer("words", tmp_path, 1 << 20, head(), refuse)
    assert refused.wait(patience.PATIENCE_S)
    written.put(functools.partial(attempt, 1))
    journal = reader.Reader(tmp_path)
    patience.wait_until(lambda: bool(fold.fold(journal.about([1])).transactions), "the record")
    written.close()
    (warning,) = caplog.messages
    assert "cannot write all of its journal now, but the run goes on" in warning
