"""The floor of the per-tuple path: plain Python, one process per core, no framework.

Each process reads its files, cuts them into lines, makes of every line the tuple object that bolts
take, and calls ``execute`` on the same bolts, then ``finish_batch``. No tuple goes from process to
process: a framework would begin there. The same committer adds up and stores the partial results,
once per batch, in the process that waits for all.

The processes are started and warm before time is taken, as Spark's are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from bench import topologies
from bench.contenders.txtopo_runs import check_counts
from bench.process import ROOT
from starter.transactional_global_count import BatchCount, UpdateGlobalCount
from starter.transactional_words import KeyedCountUpdater
from txtopo import (
    BatchOutputCollector,
    Fields,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
    Tuple,
)
from txtopo.topology.stream import TupleSource

_CONF = TopologyConf({})
_FIELDS = Fields("tx", "line")


class Collected(BatchOutputCollector):
    """A collector that keeps the emitted tuples."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def emit(self, values: Any, stream: str = "default") -> None:
        self.rows.append(values)

    def emit_direct(self, task_index: int, values: Any, stream: str = "default") -> None:
        raise NotImplementedError("no bolt here emits directly")


def context(component: str, phase: Any, resources: dict[str, Any]) -> TopologyContext:
    """The surroundings of a bolt; a bolt keeps things for its process in ``resources``."""

    def resource(name: str, make: Callable[[], Any]) -> Any:
        if name not in resources:
            resources[name] = make()
        return resources[name]

    return TopologyContext("bare", "bare", component, 0, {component: 1}, phase, resource)


def execute_lines(bolt: Any, paths: list[str], attempt: TransactionAttempt) -> None:
    """Every line of ``paths``, as a tuple, into ``bolt``."""
    source = TupleSource("spout", 0, "default", _FIELDS)
    execute = bolt.execute
    for path in paths:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in file:
                execute(Tuple((attempt, line.rstrip("\n")), source))


def work(paths: list[str], txid: int, is_words: bool) -> Any:
    """A process's part of a batch: the partial count, or the count of each word."""
    attempt = TransactionAttempt(txid, 0)
    collector = Collected()
    if is_words:
        words = KeyedCountUpdater(cast(Any, None))  # No commit here.
        words.prepare(_CONF, context("count", "processing", {}), collector, attempt)
        execute_lines(words, paths, attempt)
        return words.counts
    partial = BatchCount()
    partial.prepare(_CONF, context("partial-count", "processing", {}), collector, attempt)
    execute_lines(partial, paths, attempt)
    partial.finish_batch()
    return collector.rows[0][1]


class BareLoop:
    """Two processes; a contender like any other."""

    def __init__(self, directory: str, processes: int = 2) -> None:
        self._directory = Path(directory)
        command = [sys.executable, "-m", "bench.contenders.bare_loop"]
        self._workers = [
            subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(processes)
        ]
        self._made = 0

    def block(self, batches: list[list[str]], shape: str = "none") -> dict[str, Any]:
        """All of ``batches``, in turn. ``shape`` is words, or anything else for a global count;
        there is no shuffle."""
        self._made += 1
        store = topologies.store_of(self._directory / f"store-{self._made}.db")
        resources: dict[str, Any] = {}
        is_words = shape == "words"
        began = time.perf_counter()
        for txid, batch in enumerate(batches, 1):
            self._batch(batch, txid, is_words, store, resources)
        seconds = time.perf_counter() - began
        for resource in resources.values():
            resource.close()
        check_counts(store, batches, is_words)
        return {"seconds": seconds, "transactions": len(batches)}

    def _batch(
        self, batch: list[str], txid: int, is_words: bool, store: Any, resources: dict[str, Any]
    ) -> None:
        for number, worker in enumerate(self._workers):
            assert worker.stdin is not None
            worker.stdin.write(
                json.dumps([batch[number :: len(self._workers)], txid, is_words]) + "\n"
            )
            worker.stdin.flush()
        answers = [
            json.loads(worker.stdout.readline())
            for worker in self._workers
            if worker.stdout is not None
        ]
        attempt = TransactionAttempt(txid, 0)
        committer: Any = KeyedCountUpdater(store) if is_words else UpdateGlobalCount(store)
        committer.prepare(_CONF, context("committer", "commit", resources), Collected(), attempt)
        for part in answers:
            if is_words:
                committer.counts.update(Counter(part))
            else:
                committer.execute(
                    Tuple(
                        (attempt, part),
                        TupleSource("partial-count", 0, "default", Fields("tx", "count")),
                    )
                )
        committer.finish_batch()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait(10)


if __name__ == "__main__":
    for question in sys.stdin:
        print(json.dumps(work(*json.loads(question))), flush=True)
