"""One long run of small transactions, halted now and then to look at its leftovers."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

from bench import processes, spouts, topologies, znodes
from bench.contenders.txtopo_runs import Runs
from bench.line import check
from txtopo import Config, TopologyRun
from txtopo.spark import session

_TIMEOUT_S = 280.0
_SETTLES_S = 10.0
_LOOK_EVERY_S = 0.25


class Growth(Runs):
    """GlobalCount behind a gate: a block lets it go on to a txid and waits until it is idle, so
    that nothing in flight is counted."""

    def __init__(
        self,
        directory: str,
        last: int,
        rows_per_batch: int,
        pending: int,
        more: dict[str, Any] | None = None,
    ) -> None:
        self._local = Path(directory) / "local"
        self._local.mkdir()
        # A collection on request is then a full collection: objects left on the heap are alive.
        options = session.our_settings("local[2]")["spark.driver.extraJavaOptions"].replace(
            "-XX:+ExplicitGCInvokesConcurrent", ""
        )
        super().__init__(
            directory,
            spark_conf={
                "spark.local.dir": str(self._local),
                "spark.driver.extraJavaOptions": options,
            },
        )
        self._rows, self._last, self._reached = rows_per_batch, last, 0
        self._gate = Path(directory) / "gate"
        self._id, self._store = self.fresh()
        spouts.allow(self._gate, 0)
        spout = spouts.RateSpout(rows_per_batch, last, 2, gate=str(self._gate))
        conf = Config(max_spout_pending=pending, poll_interval_s=0.02, **(more or {}))
        self._run: TopologyRun = self.cluster.submit_topology(
            self._id, conf, topologies.global_count(self._id, spout, self._store, 2)
        )

    def block(self, timed_from: int, to: int) -> dict[str, Any]:
        """Go on to txid ``to``. ``seconds`` count from the commit of ``timed_from``; then the
        leftovers, once Spark has cleaned up."""
        spouts.allow(self._gate, to)
        marks = []
        began = time.perf_counter()
        for txid in range(self._reached + 100, to + 1, 100):
            self._run.wait_for_txid(txid, _TIMEOUT_S)
            marks.append([float(txid), time.perf_counter() - began])
            if txid == timed_from:
                timed = time.perf_counter()
        seconds = time.perf_counter() - timed
        self._run.wait_until_idle(_TIMEOUT_S)
        self._reached = to
        check(topologies.total(self._store), to * self._rows)
        return {"seconds": seconds, "marks": marks, "left": self._left()}

    def _left(self) -> dict[str, float]:
        """The leftovers, the least of several looks: Spark cleans up in the background, when a
        collection shows that a thing is unused."""
        looks = []
        deadline = time.monotonic() + _SETTLES_S
        while time.monotonic() < deadline:
            looks.append(self._look())
            time.sleep(_LOOK_EVERY_S)
        return {key: min(look[key] for look in looks) for key in looks[0]}

    def _look(self) -> dict[str, float]:
        gc.collect()
        context = self.cluster.context
        jvm = context._jvm
        jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        return {
            "driver memory, Python (MiB)": processes.own_memory(os.getpid()) / 2**20,
            "driver memory, live JVM heap (MiB)": (runtime.totalMemory() - runtime.freeMemory())
            / 2**20,
            "znodes": self._znodes(),
            "shuffle files": sum(
                "shuffle" in name for _, _, names in os.walk(self._local) for name in names
            ),
            "JVM threads": jvm.java.lang.management.ManagementFactory.getThreadMXBean().getThreadCount(),
            "Python threads": threading.active_count(),
            "cached blocks": context._jsc.sc().getPersistentRDDs().size(),
        }

    def _znodes(self) -> int:
        client = znodes.client(self.cluster.zookeeper)
        client.start(timeout=20)
        try:
            pending, count = [f"/txtopo/{self._id}"], 0
            while pending:
                path = pending.pop()
                count += 1
                pending += [f"{path}/{name}" for name in client.get_children(path)]
        finally:
            client.stop()
            client.close()
        return count

    def close(self) -> None:
        self._run.stop()
        super().close()
