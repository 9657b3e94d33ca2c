"""A replica lags while its wire is held, lacks the writes it has not received when the primary is
killed, and serves at the primary's port from then on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.servers.owned import Server
from tests.servers.replication import KINDS, Replicated
from tests.soak.stores import open_store
from tests.soak.world import World
from txtopo.stores import Store
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.transaction import TransactionAttempt


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    process = WorkerProcess()
    yield process
    process.close()


def write(
    process: WorkerProcess, store: Store, txid: int, tasks: int = 2, attempt: int = 0
) -> None:
    for task in range(tasks):
        with store.transaction(
            process.task("ledger", task, num_tasks=2), TransactionAttempt(txid, attempt)
        ) as opened:
            opened.put(f"task {task}", txid)


def stands(store: Store) -> list[tuple[int, int | None]]:
    return [(fence.txid, fence.count) for fence in store.fences()]


@pytest.mark.thorough
@pytest.mark.rule(34)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_fail_over_lands_between_two_store_transactions_of_one_attempt_and_a_second_one_follows(
    kind: str, process: WorkerProcess
) -> None:
    with Replicated(kind) as servers:
        first = servers.primary
        world = World("", 1, (), store=servers.new_url())
        store = open_store(world, "lost")
        write(process, store, 1)
        write(process, store, 2, tasks=1)

        def elsewhere(server: Server) -> Store:
            opened: Store = open_store(
                dataclasses.replace(
                    world, store=world.store.replace(f":{first_port}/", f":{server.port}/")
                ),
                "lost",
            )
            return opened

        first_port = first.port
        servers.catch_up()
        assert stands(elsewhere(servers.replica)) == [(2, 1)]
        servers.stop_replica()
        write(process, store, 2)
        assert stands(store) == [(2, 2)]
        assert stands(elsewhere(servers.replica)) == [(2, 1)]
        old = servers.fail_over()
        assert servers.primary.port == first_port
        assert dict(store.items()) == {"task 0": 2, "task 1": 1}
        assert stands(store) == [(2, 1)]
        old.start()
        assert stands(elsewhere(old)) == [(2, 2)]
        old.stop()
        servers.renew()
        process.close()
        fresh = WorkerProcess()
        write(fresh, store, 2, attempt=1)
        write(fresh, store, 3)
        servers.stop_replica()
        fresh.close()
        servers.fail_over()
        assert stands(store)[0][0] in (2, 3)
    assert not any(server.is_running for server in (first, servers.primary))
