"""Contenders of the benchmark run in processes of their own, which end with the line, and a wrong
or dead one fails its line and no other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

from bench import counting, rows, run
from bench.contenders import file_writes, keyed_updates
from bench.line import Figure, Line, Measured, Stage, WrongResultError, check
from bench.process import BlockFailedError, ContenderProcess
from txtopo.connectors.files import FileSink


class Echo:
    """A contender that reports arguments and requests."""

    def __init__(self, directory: str, greeting: str = "") -> None:
        self._greeting, self._directory = greeting, directory

    def block(self, **arguments: Any) -> dict[str, Any]:
        print("this goes to the log")
        if arguments.get("die"):
            os._exit(3)
        if arguments.get("wrong"):
            raise WrongResultError("2 + 2 = 5")
        return {
            "seconds": 0.0,
            "greeting": self._greeting,
            "directory": self._directory,
            "pid": os.getpid(),
            **arguments,
        }

    def close(self) -> None:
        Path(self._directory, "closed").touch()


def started(directory: Path, **settings: Any) -> ContenderProcess:
    return ContenderProcess(f"{__name__}:Echo", settings, directory)


def test_a_contender_answers_from_a_process_of_its_own_beside_any_other_output(
    tmp_path: Path,
) -> None:
    with started(tmp_path, greeting="hello") as contender:
        said = contender.block(n=1)
        assert (said["greeting"], said["n"], said["directory"]) == ("hello", 1, str(tmp_path))
        assert said["pid"] == contender.pid != os.getpid()
        assert contender.block(n=2)["n"] == 2
    assert (tmp_path / "closed").exists()
    assert "this goes to the log" in (tmp_path / "log.txt").read_text()
    assert not Path(f"/proc/{contender.pid}").exists()


def test_a_contender_that_counts_wrong_says_so_and_one_that_dies_is_noticed(tmp_path: Path) -> None:
    with started(tmp_path) as contender:
        with pytest.raises(BlockFailedError, match="WrongResultError: 2 \\+ 2 = 5"):
            contender.block(wrong=True)
        with pytest.raises(BlockFailedError, match="died"):
            contender.block(die=True)


def test_processes_of_a_stage_end_with_the_stage(tmp_path: Path) -> None:
    with Stage(tmp_path, is_quick=True) as stage:
        assert stage.pick(full=100, quick=1) == 1
        contender = stage.start("bare_loop:BareLoop")
        assert Path(f"/proc/{contender.pid}").exists()
    assert not Path(f"/proc/{contender.pid}").exists()


def test_a_line_that_fails_is_reported_and_the_others_still_run() -> None:
    def fails(stage: Stage) -> Measured:
        raise WrongResultError("counted 3; the truth is 4")

    def works(stage: Stage) -> Measured:
        return Measured(figures=(Figure("answer", 42.0, ""),))

    measures: list[Callable[[Stage], Measured]] = [fails, works]
    said: list[str] = []
    results = run.run(
        [Line(f"line.{each.__name__}", "?", each) for each in measures],
        is_quick=False,
        say=said.append,
    )
    assert [result.error is None for result in results] == [False, True]
    assert "the truth is 4" in str(results[0].error)
    assert "FAILED" in said[0]
    assert "42" in said[1]


# -- the rows, and plain Python over them --------------------------------------------------------


def test_rows_are_the_same_every_time_and_files_of_a_batch_have_equal_sizes(tmp_path: Path) -> None:
    assert rows.words(50) == rows.words(50)
    batches = rows.write_batches(tmp_path, batches=2, rows_per_batch=100, files_per_batch=2)
    assert len({Path(path).stat().st_size for batch in batches for path in batch}) == 1
    assert rows.counted(batches[0]) == rows.counted(batches[1])
    assert rows.counted(batches[0]).total() == 100


@pytest.mark.thorough
@pytest.mark.parametrize("shape", ["none", "words"])
def test_the_bare_loop_counts_all_rows(tmp_path: Path, shape: str) -> None:
    batches = rows.write_batches(
        tmp_path / "rows", batches=2, rows_per_batch=100, files_per_batch=2
    )
    with Stage(tmp_path, is_quick=True) as stage:
        assert (
            stage.start("bare_loop:BareLoop").block(batches=batches, shape=shape)["transactions"]
            == 2
        )


def test_a_wrong_count_is_refused() -> None:
    with pytest.raises(WrongResultError, match="counted 3; the truth is 4"):
        check(3, 4)


@pytest.mark.parametrize(
    "how",
    [
        "merge transactional",
        "merge opaque",
        "update transactional",
        "update opaque",
        "add",
        "update",
    ],
)
def test_updates_by_a_store_and_by_hand_come_to_the_same_counts(tmp_path: Path, how: str) -> None:
    updates = keyed_updates.Updates(str(tmp_path), "sqlite")
    for _ in range(2):
        sample = updates.block(how, batches=6, keys=5, of=10)
        assert sample["updates_per_second"] == pytest.approx(10 / sample["seconds"])


def test_updates_that_are_lost_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_updates, "_added", lambda count, more: more)
    with pytest.raises(
        WrongResultError,
        match="sqlite, update transactional: 10 keys, not what a plain loop counts",
    ):
        keyed_updates.Updates(str(tmp_path), "sqlite").block(
            "update transactional", batches=6, keys=5, of=10
        )


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_files_by_a_sink_and_by_hand_have_the_same_bytes(
    tmp_path: Path, format: Literal["json", "parquet"]
) -> None:
    writes = file_writes.Writes(str(tmp_path))
    samples = [writes.block(by, format, rows=10, batches=2) for by in ("sink", "hand")]
    assert samples[0]["contents"] == samples[1]["contents"]


def test_rows_that_are_lost_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = FileSink.execute
    monkeypatch.setattr(
        FileSink, "execute", lambda sink, tup: tup.values[1] % 2 and execute(sink, tup)
    )
    with pytest.raises(WrongResultError, match="15 json rows, not those that were given"):
        file_writes.Writes(str(tmp_path)).block("sink", "json", rows=10, batches=2)


def test_calls_of_the_storage_are_counted_by_name(tmp_path: Path) -> None:
    calls = file_writes.Calls(str(tmp_path)).block(transactions=3)["calls"]
    assert calls == dict.fromkeys(("create", "entries", "open", "put", "rename"), 1)


def test_round_trips_are_counted_however_the_packets_fall() -> None:
    with (
        contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener,
        ThreadPoolExecutor(1) as threads,
    ):
        served = threads.submit(lambda: listener.accept()[0])
        with counting.CountingProxy("127.0.0.1", listener.getsockname()[1]) as proxy:
            with (
                contextlib.closing(socket.create_connection(("127.0.0.1", proxy.port))) as client,
                contextlib.closing(served.result()) as server,
            ):
                for _ in range(3):
                    client.sendall(b"ques")
                    assert server.recv(4) == b"ques"
                    client.sendall(b"tion")
                    assert server.recv(4) == b"tion"
                    server.sendall(b"answer")
                    assert client.recv(6) == b"answer"
            assert (proxy.round_trips, proxy.connections) == (3, 1)
