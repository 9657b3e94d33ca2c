"""A topology on Spark whose results are in a Redis server."""

from __future__ import annotations

import pytest

from tests.integration.test_topology_servers import WORDS, topology
from tests.patience import wait_until
from tests.servers.clusters import run_to_idle
from tests.servers.redis_server import RedisServer
from txtopo import LocalCluster
from txtopo.stores import RedisStore


@pytest.mark.in_gate("opaque")
@pytest.mark.rule(28, 29)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_a_global_count_in_a_server_counts_once_although_every_batch_is_written_twice(
    cluster: LocalCluster, redis_server: RedisServer, opaque: bool
) -> None:
    before = set(redis_server.connections())
    store = RedisStore(redis_server.url(), f"of_spark_{opaque}", opaque=opaque)
    run = run_to_idle(cluster, topology(store, f"redis-{opaque}"), max_spout_pending=3)
    assert dict(store.items()) == {"all": WORDS}
    committed = run.status().committed
    assert committed > 1
    [fence] = store.fences()
    assert (fence.component, fence.txid, fence.attempt) == ("sum", committed, 1)
    # One connection per worker process; those of failed tasks are being closed. After a minute
    # Spark would end the idle workers themselves.
    wait_until(
        lambda: len(set(redis_server.connections()) - before) <= 2,
        "the end of more connections than that",
        30.0,
    )
