"""Foundations of every run: an empty Spark job, with a Python task or without, and one write to
ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench import znodes
from bench.contenders.txtopo_runs import drained
from txtopo import LocalCluster


class Floor:
    """Empty jobs in Spark as txtopo sets it up, and multis of two operations in its embedded
    ZooKeeper."""

    def __init__(self, directory: str) -> None:
        self._cluster = LocalCluster(data_dir=f"{directory}/zookeeper")
        source = self._cluster.context.parallelize([0], 1)
        java = source._jrdd
        self._client = znodes.client(self._cluster.zookeeper)
        self._client.start(timeout=20)
        for path in ("/bench/a", "/bench/b"):
            self._client.create(path, b"0", makepath=True)
        self._kinds: dict[str, Callable[[], Any]] = {
            "python-job": lambda: source.mapPartitions(drained).collect(),
            "jvm-job": java.count,
            "zk-multi": self._multi,
        }

    def block(self, kind: str, times: int) -> dict[str, Any]:
        """``kind``, so many times in a row."""
        call = self._kinds[kind]
        latencies = []
        for _ in range(times):
            began = time.perf_counter()
            call()
            latencies.append(time.perf_counter() - began)
        return {"seconds": sum(latencies), "latencies": latencies}

    def _multi(self) -> None:
        transaction = self._client.transaction()
        transaction.set_data("/bench/a", b"x" * 100)
        transaction.set_data("/bench/b", b"x" * 100)
        transaction.commit()

    def close(self) -> None:
        """End the cluster."""
        self._client.stop()
        self._client.close()
        self._cluster.shutdown()
