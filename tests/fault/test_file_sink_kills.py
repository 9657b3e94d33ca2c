"""Two hundred kills of the processes that write files and Delta tables, at random moments (R28, R31).

A process per task writes transactions as it is told, and is killed while it does: all tasks or one.
What was told is told again with the next attempt, until every task has answered, as the engine
does. From an opaque spout, each attempt has other rows.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import S3Server
from tests.topologies.file_sinks import Writing, seen
from txtopo import errors
from txtopo.connectors.delta import DeltaSink
from txtopo.connectors.files import FileSink

TASKS = 2
SEED = 31
KILLS = {"file": 60, "opaque file": 50, "delta": 20, "opaque delta": 20, "s3": 25, "hdfs": 25}


def sink_of(kind: str, root: str, client: dict[str, Any]) -> FileSink:
    """The sink for ``kind``."""
    if "delta" in kind:
        return DeltaSink(root, opaque="opaque" in kind, compact_every=5)
    form: Any = "parquet" if kind == "hdfs" else "json"
    return FileSink(root, format=form, opaque="opaque" in kind, client=client)


def rows_of(kind: str, txid: int, attempt: int, task: int) -> list[tuple[str, int]]:
    """A task's rows in an attempt: for a transactional spout those of every attempt."""
    count = (txid + task) % 3 if "opaque" not in kind else (txid + task + attempt) % 3
    mark = attempt if "opaque" in kind else 0
    return [(f"{txid}.{mark}.{task}.{n}", n) for n in range(count)]


def serve(kind: str, root: str, task: int, client: dict[str, Any]) -> None:
    """Write the transactions that standard input names, and answer each."""
    writing = Writing(sink_of(kind, root, client), tasks=TASKS)
    print("ready", flush=True)
    for line in sys.stdin:
        txid, attempt = map(int, line.split())
        try:
            writing.write(txid, attempt, rows_of(kind, txid, attempt, task), task=task)
        except errors.FailedException as error:
            print(f"failed {error}".splitlines()[0], flush=True)
        else:
            print("done", flush=True)


class Task:
    """A task's process."""

    def __init__(self, kind: str, root: str, task: int, client: dict[str, Any]) -> None:
        program = f"from {__name__} import serve; serve({kind!r}, {root!r}, {task}, {client!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def tell(self, txid: int, attempt: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{txid} {attempt}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """The next answer. Empty if the process was killed."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.thorough
@pytest.mark.rule(28, 31)
@pytest.mark.parametrize("kind", KILLS)
def test_committed_rows_are_the_last_attempts_rows(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root, client = str(tmp_path / "root"), {}
    if kind == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        root, client = s3.new_root(), s3.client
    if kind == "hdfs":
        hdfs: HdfsServer = request.getfixturevalue("hdfs")
        root = hdfs.new_root()
    chance, expected = random.Random(SEED), dict[int, list[tuple[str, int]]]()
    with contextlib.ExitStack() as stack:

        def started(task: int) -> Task:
            process = Task(kind, root, task, client)
            stack.callback(process.kill)
            return process

        tasks = [started(task) for task in range(TASKS)]
        killed = txid = 0
        took_s = 0.05
        while killed < KILLS[kind] or txid % 5:
            txid += 1
            for attempt in range(1000):
                dying = [] if chance.random() < 0.3 else chance.sample(tasks, chance.choice((1, 2)))
                began = time.monotonic()
                for process in tasks:
                    process.tell(txid, attempt)
                if dying:
                    threading.Event().wait(chance.random() * took_s)
                    for process in dying:
                        process.kill()
                        killed += 1
                answers = [process.answer() if process not in dying else "" for process in tasks]
                tasks = [
                    started(task) if process in dying else process
                    for task, process in enumerate(tasks)
                ]
                if not dying:
                    took_s = min(time.monotonic() - began, 1.0)
                if answers == ["done"] * TASKS:
                    break
            expected[txid] = sorted(
                row for task in range(TASKS) for row in rows_of(kind, txid, attempt, task)
            )
        if "delta" in kind:
            read = deltalake.DeltaTable(root).to_pyarrow_table().to_pylist()
            rows = sorted(tuple(row.values()) for row in read)
            assert rows == sorted(row for each in expected.values() for row in each)
        else:
            by_transaction = seen(root, client=client, isolation="read_all")
            assert dict(by_transaction) == expected
            assert [each for each, _ in by_transaction] == sorted(expected)
