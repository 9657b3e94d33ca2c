"""Processes that die by SIGKILL at one of their statements to a database: before the statement, or
after its effect.

Apart from the written content, of a sink (``sink_crashes``) or of a store (``store_crashes``). A
caller must have one thread, since this module forks.
"""

from __future__ import annotations

import functools
import os
import signal
import sqlite3
from collections.abc import Callable
from typing import Any


class Killer:
    """Counts statements and ends the process at one of them: ``2n`` is before statement n, ``2n +
    1`` after it."""

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


def die(address: str, moment: int, deed: Callable[[], object]) -> int:
    """Do ``deed``, which writes to ``address``, in a child that dies at ``moment``; its status. 0:
    there is no such moment."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _arm(moment, address)
            deed()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _arm(moment: int, address: str) -> None:
    """Have this process die at ``moment``."""
    killer = Killer(moment)
    if "://" not in address:
        KilledConnection.killer = killer
        connect = sqlite3.connect
        driver: Any = sqlite3
        driver.connect = functools.partial(connect, factory=KilledConnection)
        return
    for owner, names in _redis() if address.startswith("redis") else _servers():
        for name in names:
            setattr(owner, name, killer.around(getattr(owner, name)))


def _servers() -> list[tuple[Any, tuple[str, ...]]]:
    import psycopg
    import pymysql.cursors
    import sqlalchemy as sa

    # A driver of MariaDB that is given many rows at once gives them to ``execute`` as well.
    return [
        (psycopg.Cursor, ("execute", "executemany", "copy")),
        (psycopg.Copy, ("finish",)),
        (pymysql.cursors.Cursor, ("execute",)),
        (sa.Connection, ("commit",)),
    ]


def _redis() -> list[tuple[Any, tuple[str, ...]]]:
    import redis.connection

    # A sent statement may take effect before its answer is read, or after the process is gone.
    return [(redis.connection.AbstractConnection, ("send_packed_command", "read_response"))]
