"""Tasks of a sink that die by SIGKILL at every statement to the database: before the statement, and
after its effect.

``python -m tests.processes.sink_crashes ADDRESS KIND`` forks a process for every such moment of one
task's transaction, and once more without a kill; then the transaction is replayed, and the table is
compared with the expected rows. One JSON line per moment. The program forks,
and so has one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from tests.processes import kills
from tests.topologies.sinks import KINDS, LOOSE, SALES, Shop, WorkerProcess, write
from txtopo.topology.transaction import ATTEMPTS_PER_EPOCH

ROOT = Path(__file__).parents[2]
MOMENTS_MAX = 100


def crash_everywhere(address: str, kind: str) -> list[dict[str, Any]]:
    """Run it; what came of every moment."""
    command = [sys.executable, "-m", "tests.processes.sink_crashes", address, kind]
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


def run(address: str, kind: str) -> None:
    """Every moment, in a table that is begun anew for each."""
    layout = SALES if KINDS[kind].get("key") or KINDS[kind].get("statement") else LOOSE
    shop = Shop(address, None)
    first, second, other = [(1, 10), (2, 20)], [(1, 11), (3, 30), (4, 40)], [(2, 21), (5, 50)]
    for moment in range(MOMENTS_MAX):
        shop.empty()
        shop.execute(layout)
        process = WorkerProcess()
        write(shop.sink(kind), process.task(), 1, 0, first)
        process.close()
        status = kills.die(
            address, moment, lambda: write(shop.sink(kind), WorkerProcess().task(), 2, 0, second)
        )
        left = shop.sales
        replayed = other if shop.sink(kind).opaque else second
        process = WorkerProcess()
        written = write(shop.sink(kind), process.task(), 2, ATTEMPTS_PER_EPOCH, replayed)
        process.close()
        print(
            json.dumps(
                {
                    "moment": moment,
                    "status": status,
                    "left": left,
                    "sales": shop.sales,
                    "written": written,
                }
            ),
            flush=True,
        )
        if status == 0:
            return
    raise RuntimeError(f"a task has more than {MOMENTS_MAX} moments")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
