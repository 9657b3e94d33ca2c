"""Requests of a transaction to ZooKeeper. Counted where the requests leave the process,
by thread.

This contender looks inside a run: the run's session with ZooKeeper keeps the count. Requests that
renew the lease, once a second, are counted apart, because they belong to no transaction.
"""

from __future__ import annotations

import collections
import threading
from typing import Any

from bench import spouts, topologies
from bench.contenders.txtopo_runs import Runs
from bench.line import check
from txtopo import Config

_TIMEOUT_S = 240.0
_RENEWING = "txtopo-renew"


class RoundTrips(Runs):
    """GlobalCount over a spout with many partitions, all of which move in every transaction."""

    def block(self, transactions: int, partitions: int, pending: int) -> dict[str, Any]:
        """``per_transaction``: requests in the middle of the run, divided by transactions;
        ``renewing``: requests that only renew the lease."""
        id, store = self.fresh()
        warm = pending + 3
        count = warm + transactions + pending
        spout = spouts.RateSpout(partitions, count, partitions)
        topology = topologies.global_count(id, spout, store)
        run = self.cluster.submit_topology(
            id, Config(max_spout_pending=pending, max_transactions=count), topology
        )
        counts = _counting_by_thread(run._store)
        run.wait_for_txid(warm, _TIMEOUT_S)
        before = dict(counts)
        run.wait_for_txid(warm + transactions, _TIMEOUT_S)
        after = dict(counts)
        run.join(_TIMEOUT_S)
        check(topologies.total(store), count * partitions)
        gained = {name: total - before.get(name, 0) for name, total in after.items()}
        renewing = sum(gain for name, gain in gained.items() if name.startswith(_RENEWING))
        return {
            "seconds": 0.0,
            "per_transaction": (sum(gained.values()) - renewing) / transactions,
            "renewing": renewing,
        }


def _counting_by_thread(session: Any) -> collections.Counter[str]:
    """The requests of ``session`` from now on, by the name of the thread that made them."""
    counts: collections.Counter[str] = collections.Counter()
    request = session._request

    def counted() -> None:
        counts[threading.current_thread().name] += 1
        request()

    session._request = counted
    return counts
