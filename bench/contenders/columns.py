"""Columns: txtopo by column and by tuple over the same Parquet files, and the same by hand with
pyarrow in two processes."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench import column_rows, column_topologies, topologies
from bench.contenders import bare_loop
from bench.contenders.txtopo_runs import Runs
from bench.line import check
from bench.process import ROOT
from txtopo import Config, TopologyConf, TransactionAttempt

_ROWS_AT_ONCE = 1 << 16
_truth = functools.cache(column_rows.truth)


class Columns(Runs):
    """Blocks of transactions over Parquet files."""

    def block(
        self,
        paths: list[str],
        rows_per_file: int,
        files_per_batch: int,
        work: str,
        by: str,
        parallelism: int = 2,
        pending: int = 2,
    ) -> dict[str, Any]:
        """All of ``paths``, ``files_per_batch`` of them to a transaction."""
        id, store = self.fresh()
        rows_per_batch = files_per_batch // parallelism * rows_per_file
        spout = column_topologies.spout_of(paths, work, rows_per_batch, parallelism)
        topology = column_topologies.topology(id, spout, work, by, store, parallelism)
        count = len(paths) // files_per_batch
        sample = self.timed(
            topology, Config(max_spout_pending=pending, message_timeout_s=200.0), count, 0, 0
        )
        check(sample["tuples"], count * files_per_batch * rows_per_file)
        check_counts(store, paths, work)
        return {**sample, "rows_per_second": sample["tuples"] / sample["seconds"]}


class ByHand:
    """Two processes with pyarrow, each with its files, warm before time is taken. txtopo's
    committer stores the results."""

    def __init__(self, directory: str, processes: int = 2) -> None:
        self._directory = Path(directory)
        command = [sys.executable, "-m", "bench.contenders.columns"]
        self._workers = [
            subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(processes)
        ]
        self._made = 0

    def block(
        self, paths: list[str], rows_per_file: int, files_per_batch: int, work: str
    ) -> dict[str, Any]:
        """All of ``paths``, ``files_per_batch`` of them at a time."""
        self._made += 1
        store = topologies.store_of(self._directory / f"store-{self._made}.db")
        resources: dict[str, Any] = {}
        began = time.perf_counter()
        for start in range(0, len(paths), files_per_batch):
            self._batch(
                paths[start : start + files_per_batch],
                start // files_per_batch + 1,
                work,
                store,
                resources,
            )
        seconds = time.perf_counter() - began
        for resource in resources.values():
            resource.close()
        check_counts(store, paths, work)
        return {"seconds": seconds, "rows_per_second": len(paths) * rows_per_file / seconds}

    def _batch(
        self, paths: list[str], txid: int, work: str, store: Any, resources: dict[str, Any]
    ) -> None:
        for number, worker in enumerate(self._workers):
            assert worker.stdin is not None
            worker.stdin.write(json.dumps([paths[number :: len(self._workers)], work]) + "\n")
            worker.stdin.flush()
        answers = [
            json.loads(worker.stdout.readline())
            for worker in self._workers
            if worker.stdout is not None
        ]
        committer = column_topologies.StoreCounts(store)
        context = bare_loop.context("store", "commit", resources)
        committer.prepare(
            TopologyConf({}), context, bare_loop.Collected(), TransactionAttempt(txid, 0)
        )
        for part in answers:
            committer.counts.update(part)
        committer.finish_batch()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait(10)


def by_hand(paths: list[str], work: str) -> Counter[str]:
    """One process's part of a batch."""
    is_sums = work == "sums"
    names = list(column_topologies.NUMBERS) if is_sums else ["key"]
    counts: Counter[str] = Counter()
    for path in paths:
        with pq.ParquetFile(
            path, read_dictionary=[] if is_sums else names, pre_buffer=False
        ) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=names, use_threads=False):
                if is_sums:
                    counts["a"] += column_topologies.sum_of(batch.column(0))
                    counts["b"] += column_topologies.sum_of(batch.column(1))
                else:
                    column_topologies.add_counts(counts, batch.column(0))
    return counts


def check_counts(store: Any, paths: list[str], work: str) -> None:
    """Refuse a store that does not hold the truth about ``paths``, which all have the same
    contents."""
    check(
        dict(store.items()),
        {key: count * len(paths) for key, count in _truth(paths[0], work).items()},
    )


if __name__ == "__main__":
    pa.set_cpu_count(1)
    for question in sys.stdin:
        print(json.dumps(by_hand(*json.loads(question))), flush=True)
