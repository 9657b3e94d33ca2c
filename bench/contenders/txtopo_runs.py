"""txtopo, as its users run it: ``LocalCluster``, a topology, a ``SqliteStore``; engine settings are
the defaults unless a line names others.

Every block is a run of a topology with an id and a store of its own. For many small transactions,
time is taken between two commits in the middle of the run, so that starting and draining a topology
is not counted; a run goes on behind the last one that counts for as long as its window is wide. For
few large ones it is taken from when the first is opened to when the last is committed: between two
commits, there may be work of others.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench import rows, spouts, topologies
from bench.line import WrongResultError, check
from txtopo import Config, LocalCluster, TopologyRun
from txtopo.connectors.files import FileTransactionalSpout
from txtopo.stores import SqliteStore

_TIMEOUT_S = 240.0
_LOOK_EVERY_S = 0.0005
DIFFERENT_WORDS = 20
"""How many keys the small transactions with a fields grouping have."""


class Runs:
    """Blocks on one cluster. A contender (see :class:`bench.process.Contender`), and the base of
    more special contenders."""

    def __init__(
        self, directory: str, master: str = "local[2]", spark_conf: dict[str, str] | None = None
    ) -> None:
        self.directory = Path(directory)
        self.cluster = LocalCluster(
            master=master, data_dir=self.directory / "zookeeper", spark_conf=spark_conf
        )
        self._made = 0

    def fresh(self) -> tuple[str, SqliteStore]:
        """An id and a store that no block has used."""
        self._made += 1
        return f"block-{self._made}", topologies.store_of(self.directory / f"store-{self._made}.db")

    def timed(
        self, topology: Any, conf: Config, transactions: int, warm: int, tail: int
    ) -> dict[str, Any]:
        """Run ``topology`` and take the time of ``transactions`` transactions, after ``warm`` and
        before ``tail`` others.

        Where ``warm`` is 0, the time begins when the first one is opened.
        """
        run = self.cluster.submit_topology(
            topology.id, conf.replaced(max_transactions=warm + transactions + tail), topology
        )
        if warm:
            run.wait_for_txid(warm, _TIMEOUT_S)
        else:
            _wait_until_opened(run)
        began = time.perf_counter()
        run.wait_for_txid(warm + transactions, _TIMEOUT_S)
        seconds = time.perf_counter() - began
        status = run.join(_TIMEOUT_S)
        if status.replays:
            raise WrongResultError(f"{status.replays} attempts failed: {status.last_error}")
        return {
            "seconds": seconds,
            "tuples": status.tuples // status.committed * transactions,
            "transactions": transactions,
        }

    def close(self) -> None:
        """End the cluster."""
        self.cluster.shutdown()


def _wait_until_opened(run: TopologyRun) -> None:
    deadline = time.perf_counter() + _TIMEOUT_S
    while run.is_alive and not run.status().active and run.status().current == 1:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"nothing was opened: {run.status()}")
        time.sleep(_LOOK_EVERY_S)


class Rate(Runs):
    """GlobalCount of small batches that are made up where they are emitted."""

    def block(
        self,
        transactions: int,
        rows_per_batch: int,
        pending: int,
        parallelism: int = 1,
        wait_s: float = 0.0,
        more: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """``transactions`` transactions, ``pending`` of them in flight; the processing of each
        takes at least ``wait_s``. ``more``: other settings."""
        id, store = self.fresh()
        warm, tail = (pending, pending) if wait_s else (2 * pending + 5, pending)
        count = warm + transactions + tail
        topology = topologies.global_count(
            id,
            spouts.RateSpout(rows_per_batch, count, parallelism),
            store,
            parallelism,
            wait_s=wait_s,
        )
        conf = Config(max_spout_pending=pending, **(more or {}))
        sample = self.timed(topology, conf, transactions, warm, tail)
        check(topologies.total(store), count * rows_per_batch)
        return sample


class Files(Runs):
    """Counting the lines of text files, of any size."""

    def block(
        self,
        batches: list[list[str]],
        shape: str = "none",
        pending: int = 1,
        warm: int = 0,
        tail: int = 0,
        parallelism: int = 2,
        more: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """All of ``batches``; each has as many files for every spout task, and all files have the
        same size. ``shape``: none, shuffle, words. ``more``: other settings."""
        id, store = self.fresh()
        paths = [path for batch in batches for path in batch]
        bytes_per_batch = len(batches[0]) // parallelism * Path(paths[0]).stat().st_size
        spout = FileTransactionalSpout(
            paths, bytes_per_batch=bytes_per_batch, partitions=parallelism
        )
        is_words = shape == "words"
        if is_words:
            topology = topologies.words(id, spout, "line", store, parallelism)
        else:
            topology = topologies.global_count(id, spout, store, parallelism, shape)
        sample = self.timed(
            topology,
            Config(max_spout_pending=pending, message_timeout_s=120.0, **(more or {})),
            len(batches) - warm - tail,
            warm,
            tail,
        )
        check_counts(store, batches, is_words)
        return sample


def check_counts(store: SqliteStore, batches: list[list[str]], is_words: bool) -> None:
    """Refuse a store that does not hold the truth about ``batches``, which all have the same
    contents."""
    truth = rows.counted(batches[0])
    if is_words:
        check(dict(store.items()), {word: count * len(batches) for word, count in truth.items()})
    else:
        check(topologies.total(store), truth.total() * len(batches))


class Latency(Runs):
    """One transaction after the other, and empty Spark jobs of one Python task in the same Spark,
    in alternating blocks.

    The latency of a transaction comes from the run's own status: from opening to commit. ``period``
    is elapsed time per transaction, including the time between a commit and the next opening.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._source = self.cluster.context.parallelize([0], 1)

    def block(
        self,
        transactions: int,
        rows_per_batch: int,
        shape: str,
        parallelism: int,
        more: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """``shape``: empty-job, global-count, words. ``more`` are settings of the run."""
        if shape == "empty-job":
            latencies = [self._empty_job() for _ in range(transactions)]
            return {
                "seconds": sum(latencies),
                "latencies": latencies,
                "period": sum(latencies) / transactions,
            }
        id, store = self.fresh()
        warm = 5
        spout = spouts.RateSpout(rows_per_batch, warm + transactions, different=DIFFERENT_WORDS)
        if shape == "words":
            topology = topologies.words(id, spout, "value", store, parallelism)
        else:
            topology = topologies.global_count(id, spout, store, parallelism)
        run = self.cluster.submit_topology(
            id, Config(max_transactions=warm + transactions, **(more or {})), topology
        )
        run.wait_for_txid(warm, _TIMEOUT_S)
        began = time.perf_counter()
        latencies = [_latency(run, txid) for txid in range(warm + 1, warm + transactions + 1)]
        seconds = time.perf_counter() - began
        run.join(_TIMEOUT_S)
        check(sum(count for _, count in store.items()), (warm + transactions) * rows_per_batch)
        return {"seconds": seconds, "latencies": latencies, "period": seconds / transactions}

    def _empty_job(self) -> float:
        began = time.perf_counter()
        if self._source.mapPartitions(drained).collect():
            raise WrongResultError("an empty job has a result")
        return time.perf_counter() - began


def _latency(run: TopologyRun, txid: int) -> float:
    latency = run.wait_for_txid(txid, _TIMEOUT_S).last_commit_latency_s
    assert latency is not None
    return latency


def drained(records: Any) -> list[Any]:
    """An empty task: reads its input, as a Python task of Spark must, and returns nothing."""
    for _ in records:
        pass
    return []
