"""Tasks that die by SIGKILL at every statement of a transaction of a store: before the statement,
and after its effect.

``python -m tests.processes.store_crashes ADDRESS KIND WAY`` forks a process for every such moment
of attempt 2:1, each in a store of its own, and once more without a kill; then the transaction is
replayed, and the next transaction comes. Where a batch may change, attempt 2:0 has written a
different batch before, and 2:1 takes the old batch back or overwrites it. One JSON line per moment.
The program forks, and so has one thread.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from tests.patience import PATIENCE_S
from tests.processes import kills
from txtopo.stores import ADD, RedisStore, SqliteStore, SqlStore, Store, StoreTransaction, stamps
from txtopo.testing.contracts.store_subject import add, block
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.transaction import ATTEMPTS_PER_EPOCH

ROOT = Path(__file__).parents[2]
MOMENTS_MAX = 200

Batch = dict[str, int]
Way = Literal["updated", "merged"]
"""How a task adds: by the only task of its component, by a function; or by one of two, in the
database."""


def crash_everywhere(address: str, kind: stamps.Kind, way: Way) -> list[dict[str, Any]]:
    """Run it; what came of every moment."""
    command = [sys.executable, "-m", "tests.processes.store_crashes", address, kind, way]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def open_store(address: str, name: str, kind: stamps.Kind) -> Store:
    """The store ``name`` at ``address``."""
    opaque, plain = kind == "opaque", kind == "plain"
    if address.startswith("redis"):
        return RedisStore(address, name, opaque=opaque, plain=plain)
    if "://" in address:
        return SqlStore(address, name, opaque=opaque, plain=plain)
    return SqliteStore(address, name, opaque=opaque, plain=plain)


def attempt(
    store: Store, way: Way, txid: int, attempt_id: int, batch: Batch, *removed: str
) -> None:
    """One task: plain values are set to those of ``batch``, others are added to."""

    def write(opened: StoreTransaction) -> None:
        if store.plain:
            opened.put_many(batch)
        elif way == "merged":
            opened.merge_many(batch, ADD)
        else:
            opened.update_many(batch, add)
        opened.delete_many(removed)

    process = WorkerProcess()
    block(store, process.task(num_tasks=2 if way == "merged" else 1), txid, attempt_id, write)
    process.close()


def run(address: str, kind: stamps.Kind, way: Way) -> None:
    """Every moment."""
    batch, removed = {"dog": 100, "owl": 100}, ["cat"]
    for moment in range(MOMENTS_MAX):
        store = open_store(address, f"moment_{moment}", kind)
        attempt(store, way, 1, 0, {"ant": 1, "cat": 1, "dog": 1})
        if kind != "transactional":
            attempt(store, way, 2, 0, {"dog": 7, "fox": 7})
        status = kills.die(
            address, moment, functools.partial(attempt, store, way, 2, 1, batch, *removed)
        )
        left = dict(store.items())
        if kind == "transactional":
            attempt(store, way, 2, ATTEMPTS_PER_EPOCH, batch, *removed)
        else:
            attempt(store, way, 2, ATTEMPTS_PER_EPOCH, {"bee": 10, "dog": 10})
        replayed = dict(store.items())
        attempt(store, way, 3, ATTEMPTS_PER_EPOCH, {"dog": 1000})
        print(
            json.dumps(
                {
                    "moment": moment,
                    "status": status,
                    "left": left,
                    "replayed": replayed,
                    "ended": dict(store.items()),
                }
            ),
            flush=True,
        )
        if status == 0:
            return
    raise RuntimeError(f"a task has more than {MOMENTS_MAX} moments")


if __name__ == "__main__":
    chosen: dict[str, stamps.Kind] = {
        "plain": "plain",
        "transactional": "transactional",
        "opaque": "opaque",
    }
    run(sys.argv[1], chosen[sys.argv[2]], "merged" if sys.argv[3] == "merged" else "updated")
