"""Commit latency of a transaction whose turn has come, alone and while all cores are busy
with the processing of later ones."""

from __future__ import annotations

import statistics
import time
from typing import Any

from bench import spouts, topologies
from bench.contenders.txtopo_runs import Runs
from bench.line import check
from txtopo import Config, TopologyRun

_TIMEOUT_S = 240.0
_LOOK_EVERY_S = 0.001
_BEFORE_ITS_TURN = frozenset({"emitting", "processing"})


class CommitLatency(Runs):
    """GlobalCount whose processing takes a while. A turn has come when every earlier transaction is
    committed and this one is processed."""

    def block(self, transactions: int, pending: int, wait_s: float) -> dict[str, Any]:
        """So many transactions, after a window that does not count."""
        id, store = self.fresh()
        count = pending + transactions + pending
        topology = topologies.global_count(id, spouts.RateSpout(1, count), store, wait_s=wait_s)
        began = time.perf_counter()
        run = self.cluster.submit_topology(
            id, Config(max_spout_pending=pending, max_transactions=count), topology
        )
        latencies = turns(run, pending + 1, pending + transactions)
        run.join(_TIMEOUT_S)
        check(topologies.total(store), count)
        return {
            "seconds": time.perf_counter() - began,
            "latencies": latencies,
            "median": statistics.median(latencies),
            "worst": max(latencies),
        }


def turns(run: TopologyRun, first: int, last: int) -> list[float]:
    """Of the transactions ``first`` … ``last``: from its turn to its commit, as the status of the
    run tells."""
    deadline = time.perf_counter() + _TIMEOUT_S
    began: dict[int, float] = {}
    latencies: dict[int, float] = {}
    while len(latencies) < last - first + 1:
        status, now = run.status(), time.perf_counter()
        if now > deadline or not run.is_alive:
            break
        for txid, since in began.items():
            if txid < status.current and txid not in latencies:
                latencies[txid] = now - since
        head = next((state for txid, _, state in status.active if txid == status.current), None)
        if head is not None and head not in _BEFORE_ITS_TURN and first <= status.current <= last:
            began.setdefault(status.current, now)
        time.sleep(_LOOK_EVERY_S)
    return [latencies[txid] for txid in sorted(latencies)]
