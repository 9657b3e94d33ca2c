"""Committers that count clicks by the current minute, hour, day or month, read from the clock in
every possible way; and a right committer."""

from __future__ import annotations

import datetime
import datetime as dt
import time
from collections.abc import Callable
from datetime import date
from datetime import datetime as Moment
from time import localtime, time_ns
from time import time as now
from typing import Any

from tests.wrong import clock_helper
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology.graph import TopologyGraph


def _imported_inside() -> str:
    import datetime as inner
    from time import strftime

    return f"{inner.datetime.now():%H:%M} {strftime('%d')}"


def _from_inside() -> str:
    from datetime import date as inner

    return inner.today().isoformat()


WAYS: dict[str, Callable[[TopologyContext], str]] = {
    "time.time": lambda context: str(int(time.time()) // 60),
    "time": lambda context: str(int(now()) // 3600),
    "time_ns": lambda context: str(time_ns() // 86_400_000_000_000),
    "localtime": lambda context: str(localtime().tm_mon),
    "gmtime": lambda context: str(time.gmtime()[:5]),
    "ctime": lambda context: time.ctime()[:16],
    "strftime": lambda context: time.strftime("%H:%M"),
    "datetime.datetime.now": lambda context: f"{datetime.datetime.now():%Y-%m-%d %H:%M}",
    "now with a zone": lambda context: f"{dt.datetime.now(dt.UTC):%Y-%m}",
    "utcnow": lambda context: f"{Moment.utcnow():%H:%M}",
    "datetime": lambda context: f"{Moment.today():%A}",
    "date": lambda context: date.today().isoformat(),
    "imported inside": lambda context: _imported_inside(),
    "from inside": lambda context: _from_inside(),
    "a module's": lambda context: clock_helper.minute(),
}
"""How a wrong committer asks for the time."""

RIGHT: dict[str, Callable[[TopologyContext], str]] = {
    "opened_at": lambda context: f"{context.opened_at:%Y-%m-%d %H:%M}",
    "a given time": lambda context: (
        f"{time.strftime('%H', time.gmtime(0))} {Moment(2026, 1, 2):%d} {Moment.fromtimestamp(0, dt.UTC)}"
    ),
    "monotonic": lambda context: str(time.monotonic() > 0 and time.perf_counter() >= 0),
}
"""A value independent of the clock."""


class ByTime(BaseTransactionalBolt, ICommitter):
    """Counts tuples by ``WAYS[way]`` of the moment at which it finishes."""

    def __init__(self, way: str) -> None:
        self.way, self.store = way, SqliteStore("/nowhere/clicks.db", "clicks")

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt, self.count = context, attempt, 0

    def execute(self, tup: Tuple) -> None:
        self.count += 1

    def finish_batch(self) -> None:
        key = ({**WAYS, **RIGHT})[self.way](self.context)
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update(key, lambda old: (old or 0) + self.count)


class Last:
    """The time of this process's last deed."""

    def __init__(self) -> None:
        self.at = time.time()


class Impatient(ByTime):
    """Drops clicks that come an hour after the last in its process: right, as long as no failure
    lasts an hour."""

    def finish_batch(self) -> None:
        last: Any = self.context.resource("last", Last)
        is_late, last.at = time.time() - last.at > 3600, time.time()
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update("clicks", lambda old: (old or 0) + (0 if is_late else self.count))


def topology(bolt: Any) -> TopologyGraph:
    """Three clicks, one in each transaction."""
    builder = TransactionalTopologyBuilder(
        "clicks", "spout", MemoryTransactionalSpout({0: [(1,), (2,), (3,)]}, ["n"], 1)
    )
    builder.set_bolt("clicks", bolt).global_grouping("spout")
    return builder.build_topology()
