"""A topology on Spark whose results are in a Redis server."""

from __future__ import annotations

import pytest

from tests.integration.test_topology_servers import WORDS, topology
from tests.servers.clusters import run_to_idle
from tests.servers.redis_server import RedisServer
from txtopo import LocalCluster
from txtopo.stores import RedisStore


@pytest.mark.rule(28, 29)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_a_global_count_in_a_server_counts_once_although_every_batch_is_written_twice(
    cluster: LocalCluster, redis_server: RedisServer, opaque: bool
) -> None:
    before = redis_server.clients()
    store = RedisStore(redis_server.url(), f"of_spark_{opaque}", opaque=opaque)
    run = run_to_idle(cluster, topology(store, f"redis-{opaque}"), max_spout_pending=3)
    assert dict(store.items()) == {"all": WORDS}
    committed = run.status().committed
    assert committed > 1
    [fence] = store.fences()
    assert (fence.component, fence.txid, fence.attempt) == ("sum", committed, 1)
    assert redis_server.clients() <= before + 2, "one connection per worker process"
