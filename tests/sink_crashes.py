"""Tasks of a sink that die by SIGKILL at every statement they give the database: before it, and after its effect.

``python -m tests.sink_crashes ADDRESS KIND`` forks a process for every such moment of one task's transaction, and once more without a kill; then the
transaction is replayed, and what is in the table is compared with what belongs there. One JSON line per moment. In a process of its own, with one
thread, since it forks.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.sinks import KINDS, LOOSE, SALES, Shop, WorkerProcess, write
from txtopo.topology.transaction import ATTEMPTS_PER_EPOCH

ROOT = Path(__file__).parent.parent
MOMENTS_MAX = 100

Rows = list[tuple[int, int]]


def crash_everywhere(address: str, kind: str) -> list[dict[str, Any]]:
    """Run it; what came of every moment."""
    command = [sys.executable, "-m", "tests.sink_crashes", address, kind]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Killer:
    """Counts statements and ends the process at one of them: ``2n`` is before statement n, ``2n + 1`` after it."""

    def __init__(self, moment: int) -> None:
        self.moment, self.count = moment, 0

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run``, counted."""

        def counted(*arguments: Any, **options: Any) -> Any:
            self.reach()
            result = run(*arguments, **options)
            self.reach()
            return result

        return counted

    def reach(self) -> None:
        """One more moment."""
        if self.count == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


class KilledConnection(sqlite3.Connection):
    """A connection to a file, whose statements are counted."""

    killer = Killer(-1)

    def execute(self, *arguments: Any) -> Any:
        return self.killer.around(super().execute)(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.killer.around(super().executemany)(*arguments)


def arm(moment: int, address: str) -> Killer:
    """Have this process die at ``moment`` of what it does at ``address``."""
    killer = Killer(moment)
    if "://" not in address:
        KilledConnection.killer = killer
        connect = sqlite3.connect
        driver: Any = sqlite3
        driver.connect = functools.partial(connect, factory=KilledConnection)
        return killer
    import psycopg
    import pymysql.cursors
    import sqlalchemy as sa

    # A driver that is given many rows at once gives them to ``execute`` as well.
    for owner, names in (
        (psycopg.Cursor, ("execute", "executemany", "copy")),
        (psycopg.Copy, ("finish",)),
        (pymysql.cursors.Cursor, ("execute",)),
        (sa.Connection, ("commit",)),
    ):
        for name in names:
            setattr(owner, name, killer.around(getattr(owner, name)))
    return killer


def die(shop: Shop, kind: str, known: Rows, moment: int) -> int:
    """One task of transaction 2, in a child that dies at ``moment``; its status. 0: it has no such moment."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            arm(moment, shop.address)
            write(shop.sink(kind), WorkerProcess().task(), 2, 0, known)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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
        status = die(shop, kind, second, moment)
        left = shop.sales
        replayed = other if shop.sink(kind).opaque else second
        process = WorkerProcess()
        written = write(shop.sink(kind), process.task(), 2, ATTEMPTS_PER_EPOCH, replayed)
        process.close()
        print(json.dumps({"moment": moment, "status": status, "left": left, "sales": shop.sales, "written": written}), flush=True)
        if status == 0:
            return
    raise RuntimeError(f"a task has more than {MOMENTS_MAX} moments")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
