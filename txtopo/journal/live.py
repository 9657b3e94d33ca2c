"""Keeps ``live.json`` beside a journal: a run's present state, and its totals.

Runs on: driver, on the journal's thread. The engine's loop does nothing for the file.

Invariants: readers see a whole file. A replaced coordinator leaves its successor's file alone.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txtopo.engine.observer import EndedAttempt
from txtopo.engine.status import RunStatus
from txtopo.engine.timelines import Timelines
from txtopo.journal import fold, records
from txtopo.topology import transaction

NAME = "live.json"

PAUSE_S = 0.25
"""The file is replaced no sooner than this after the last time."""

BEAT_S = 5.0
"""The file is replaced after so long, even if nothing has changed."""

BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds for the buckets in histograms."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A run's state at one moment."""

    at: float
    """When it was, in seconds since 1970."""
    status: RunStatus
    turned_at: float
    """When the engine's loop last turned, likewise."""
    is_away: bool
    """ZooKeeper is not connected."""
    outages: int
    """How often ZooKeeper's connection was lost."""
    standbys: int = 0
    """How many runs wait for the topology."""


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum = 0.0

    def add(self, value_s: float) -> None:
        self._counts[bisect.bisect_left(BOUNDS_S, value_s)] += 1
        self._sum += value_s

    def data(self) -> records.Record:
        *buckets, count = itertools.accumulate(self._counts)
        pairs = [list(pair) for pair in zip(BOUNDS_S, buckets, strict=True)]
        return {"buckets": pairs, "sum": round(self._sum, 6), "count": count}


class Live:
    """The file ``live.json`` in ``path``, for the run with the record ``head``. ``look`` gives the
    present moment, from any thread."""

    def __init__(
        self,
        path: Path,
        head: records.Record,
        look: Callable[[], Moment],
        fullness: records.Fullness,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._head, self._look = path / NAME, head, look
        names = ("generation", "epoch", "topology_id", "host", "pid", "started", "txtopo", "spark")
        plan = hashlib.sha256(records.encode({"plan": head.get("plan")})).hexdigest()
        self._run = {name: head.get(name) for name in names} | {"plan": plan[:8]}
        self._is_full, self._clock = fullness == "full", clock
        self._timelines = Timelines()
        self._next_at, self._beat_at = clock(), clock()
        self._written: Moment | None = None
        self._error: tuple[str | None, str | None] = (None, None)
        self._last_commit_at: str | None = None
        self._failed: collections.Counter[tuple[str, str]] = collections.Counter()
        self._latency = _Histogram()
        self._steps: dict[str, _Histogram] = collections.defaultdict(_Histogram)
        self._components: dict[str, dict[str, float]] = {}
        self._user: dict[str, collections.Counter[str]] = {}
        self._stores: dict[str, str] = {}
        self._tried: dict[int, int] = {}
        """By open txid: how many attempts have ended."""

    def add(self, ended: EndedAttempt, at: str) -> None:
        """Count ``ended``, which ended at ``at``."""
        txid = ended.attempt.txid
        self._tried[txid] = transaction.try_of(ended.attempt) + 1
        if ended.outcome == "committed":
            self._tried = {each: count for each, count in self._tried.items() if each > txid}
            self._last_commit_at = at
            self._latency.add(ended.latency_s)
            for status, length_s in ended.steps:
                self._steps[status].add(length_s)
            for name, counts in (("executed", ended.executed), ("emitted", ended.emitted)):
                for id, count in counts.items():
                    sums = self._components.setdefault(id, {"executed": 0, "emitted": 0})
                    sums[name] += count
            for id, counts in ended.counters.items():
                self._user.setdefault(id, collections.Counter()).update(counts)
            self._stores.update(dict.fromkeys(ended.stores, str(ended.attempt)))
            for id, (most, _) in ended.widest.items():
                tuples = max(ended.executed.get(id, 0), ended.emitted.get(id, 0))
                if tuples:
                    self._components[id]["skew"] = round(most * ended.tasks[id] / tuples, 3)
            for id, work_s in ended.work_s.items():
                if worked_on := ended.executed.get(id) or ended.emitted.get(id):
                    self._components[id]["latency_s"] = round(work_s / worked_on, 9)
        elif ended.outcome not in fold.NOT_FAILED:
            failure = ended.failure and ended.failure.failure
            self._failed[ended.outcome, failure.component if failure else ""] += 1

    def write(self, dropped: int, is_last: bool) -> None:
        """Replace the file if that is due. ``dropped``: how many records were dropped.

        :raises OSError: the file cannot be written.
        """
        now_s = self._clock()
        if now_s < self._next_at and not is_last:
            return
        self._next_at = now_s + PAUSE_S
        if self._written is None:
            for left in self._path.parent.glob(f"{NAME}.*"):  # by killed runs
                if left.suffix[1:].isdecimal():
                    with contextlib.suppress(OSError):
                        left.unlink()
        moment = self._look()
        self._timelines.note(moment.status.active, now_s)
        # Figures that change although nothing has happened.
        steady = dataclasses.replace(moment.status, tuples_per_s=0.0, asked=0, idle_at=0)
        kept = dataclasses.replace(moment, status=steady, at=0.0, turned_at=0.0)
        if kept != self._written or now_s >= self._beat_at or is_last:
            self._written, self._beat_at = kept, now_s + BEAT_S
            self._replace(records.encode(self._data(moment, dropped, now_s)))

    def _data(self, moment: Moment, dropped: int, now_s: float) -> records.Record:
        return {
            **self._run,
            "at": records.time_of(moment.at),
            "turned_at": records.time_of(moment.turned_at),
            "status": self._status(moment.status),
            "active": [
                {"txid": txid, "attempt": attempt_id, "steps": steps}
                for txid, attempt_id, steps in self._timelines.so_far(now_s)
            ],
            "tried": self._tried.get(moment.status.current, 0),
            "zookeeper": {"is_away": moment.is_away, "outages": moment.outages},
            "standbys": moment.standbys,
            "dropped": dropped,
            "totals": {
                **{
                    name: getattr(moment.status, name) for name in ("committed", "tuples", "behind")
                },
                "failed": [[*key, count] for key, count in self._failed.items()],
                "latency_s": self._latency.data(),
                "steps_s": {status: each.data() for status, each in self._steps.items()},
                "components": self._components,
                "user": self._user,
                "stores": self._stores,
            },
        }

    def _status(self, status: RunStatus) -> records.Record:
        error, at = status.last_error, status.last_error_at
        if error != self._error[0]:
            text = error if error is None or self._is_full else error.partition(":")[0]
            self._error = (error, text and records.shown(text))
        fields = {each.name: getattr(status, each.name) for each in dataclasses.fields(status)}
        del fields["active"]
        return {
            **fields,
            "lag": dict(status.lag),
            "lost": dict(status.lost),
            "last_error": self._error[1],
            "last_error_at": None if at is None else records.iso(at),
            "last_commit_at": self._last_commit_at,
        }

    def _replace(self, data: bytes) -> None:
        present, head = read(self._path.parent) or {}, self._head
        is_same = present.get("generation") == head["generation"]
        if is_same and present["epoch"] > head["epoch"]:
            return
        # A name of its own: a replaced coordinator may be writing, too.
        new = self._path.with_name(f"{NAME}.{self._head['epoch']}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600), "wb") as file:
            file.write(data)
        new.replace(self._path)


def of_run(path: Path, run: Mapping[str, Any]) -> records.Record | None:
    """The file in ``path``, if it is of the ``run`` with this ``generation`` and ``epoch``."""
    present = read(path)
    if present is None or any(present.get(name) != run[name] for name in ("generation", "epoch")):
        return None
    return present


def read(path: Path) -> records.Record | None:
    """The file in ``path``. None if there is no file, or only a damaged file, or a file in another
    format."""
    try:
        return records.decode((path / NAME).read_bytes())
    except (FileNotFoundError, ValueError, records.OtherVersionError):
        return None
