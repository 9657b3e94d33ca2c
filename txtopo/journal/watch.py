"""Watches a run through its journal and its ``live.json``, from any process that can read them.

Changes nothing. A run may write meanwhile, or have died. ``docs/watching.md`` lists the fields of
the view.
"""

from __future__ import annotations

import collections
import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txtopo import version
from txtopo.journal import fold, live, reader, records, writer
from txtopo.journal.records import Record
from txtopo.state import liveness

TRANSACTIONS_MAX = 500
"""The view has so many transactions, the newest."""

ATTEMPTS_MAX = 100
"""Each transaction in the view has so many attempts, the newest."""

FAILURES_MAX = 100
"""The view has so many failed attempts, the newest."""

RATE_S = 10.0
"""Rates are over so many seconds."""

SILENCE_S = 15.0
"""A run on another machine counts as dead if its ``live.json`` is older."""

_DID = ("executed", "emitted")

Counts = dict[tuple[str, str], int]
"""Tuples, by one of ``_DID`` and component."""

_KEPT = ("attempt", "outcome", "at", "latency_s", "steps", "tuples", "because_of")


@dataclass(slots=True)
class _Segment:
    offset: int = 0
    is_torn: bool = False
    """The last line has no end yet."""
    run: tuple[str, int] = ("", 0)
    """Generation and epoch."""


class Watch:
    """The view of the newest run in the journal's directory ``path``, as JSON-able values.
    ``clock`` gives seconds since 1970."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._segments: dict[Path, _Segment] = {}
        self._malformed = self._other_versions = 0
        self._view: Record = {}
        self._changed: set[int] = set()
        self._forget()
        generation, _, current = reader.Reader(path).extent()
        self._floor = generation, current - TRANSACTIONS_MAX
        """The generation, and its first txid that the view may have. Earlier commits in the journal
        are not decoded."""

    def view(self) -> Record:
        """The whole view, as of the last :meth:`refresh`."""
        transactions = sorted(self._transactions.items())
        shown = [{"txid": txid, "attempts": attempts} for txid, attempts in transactions]
        return {**self._view, "transactions": shown}

    def refresh(self) -> Record:
        """Read the new records. Returns the view's fields that changed, with only those
        ``transactions`` that changed. If ``run`` has another generation, transactions known before
        are gone.

        :raises OSError: the journal cannot be read.
        """
        for path in (paths := writer.segments(self._path)):
            self._read(path)
        self._segments = {path: self._segments[path] for path in paths if path in self._segments}
        for txid in sorted(self._transactions)[:-TRANSACTIONS_MAX]:
            del self._transactions[txid]
        now, before = self._clock(), self._view
        self._view = self._fields(now)
        changes = {
            name: value
            for name, value in self._view.items()
            if name not in before or before[name] != value
        }
        if self._changed:
            changes["transactions"] = [
                {"txid": txid, "attempts": self._transactions[txid]}
                for txid in sorted(self._changed & self._transactions.keys())
            ]
        self._changed.clear()
        at = records.time_of(now)
        self._view["at"] = at
        return changes and {"at": at, **changes}

    # -- the journal ------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._head: Record | None = None
        self._ended: Record | None = None
        self._dropped = 0
        self._transactions: dict[int, list[Record]] = {}
        self._failures: collections.deque[Record] = collections.deque(maxlen=FAILURES_MAX)
        self._stores: dict[str, Record] = {}
        self._recent: collections.deque[tuple[float, Counts]] = collections.deque()
        self._sums: collections.Counter[tuple[str, str]] = collections.Counter()
        """The sums of ``_recent``: a refresh does not add up thousands of records."""

    def _read(self, path: Path) -> None:
        segment = self._segments.setdefault(path, _Segment())
        try:
            if path.stat().st_size == segment.offset:
                return
            with path.open("rb") as file:
                file.seek(segment.offset)
                data = file.read()
        except FileNotFoundError:  # removed meanwhile
            return
        end = data.rfind(b"\n") + 1
        segment.offset += end
        segment.is_torn = end < len(data)
        for line in data[:end].splitlines():
            committed = reader.COMMITTED.match(line)
            if committed is not None and self._is_old(segment.run[0], int(committed[1])):
                self._note_commit(int(committed[1]), int(committed[2]))
                continue
            try:
                record = records.decode(line)
            except records.OtherVersionError:
                self._other_versions += 1
            except ValueError:
                self._malformed += 1
            else:
                self._take(record, segment)

    def _is_old(self, generation: str, txid: int) -> bool:
        return generation == self._floor[0] and txid < self._floor[1]

    def _take(self, record: Record, segment: _Segment) -> None:
        head = self._head
        run = (head["generation"], head["epoch"]) if head else ("", 0)
        match record["kind"]:
            case "began":
                segment.run = (record["generation"], record["epoch"])
                if segment.run[0] != run[0]:
                    self._forget()
                if segment.run[0] != run[0] or segment.run[1] > run[1]:
                    record.pop("continued", None)
                    self._head, self._ended, self._dropped = record, None, 0
            case "attempt" if segment.run[0] == run[0]:
                self._take_attempt(record, run[0])
            case "ended" if segment.run == run:
                self._ended = record
            case "dropped" if segment.run == run:
                self._dropped += record["records"]

    def _take_attempt(self, record: Record, generation: str) -> None:
        txid, attempt_id, outcome = record["txid"], record["attempt"], record["outcome"]
        if not self._is_old(generation, txid):
            attempt = {name: record[name] for name in _KEPT if name in record}
            attempts = self._transactions.setdefault(txid, [])
            attempts.append(attempt)
            del attempts[:-ATTEMPTS_MAX]
            self._changed.add(txid)
        if outcome == "committed":
            self._note_commit(txid, attempt_id)
            at = seconds(record["at"])
            if self._recent and at < self._recent[-1][0]:  # the clock was set back
                self._recent.clear()
                self._sums.clear()
            counts = {(name, id): n for name in _DID for id, n in record[name].items()}
            self._recent.append((at, counts))
            self._sums.update(counts)
            recorded = {"recorded": f"{txid}:{attempt_id}", "at": record["at"]}
            self._stores.update(dict.fromkeys(record.get("stores", ()), recorded))
        elif outcome not in fold.NOT_FAILED:
            cause = record.get("cause")
            failure = {"txid": txid, "attempt": attempt_id, "outcome": outcome, "at": record["at"]}
            failure |= {"cause": cause, "committed_by": None}
            self._failures.appendleft(failure)

    def _note_commit(self, txid: int, attempt_id: int) -> None:
        for failure in self._failures:
            if failure["txid"] == txid:
                failure["committed_by"] = attempt_id

    # -- the view ---------------------------------------------------------------------------------

    def _fields(self, now: float) -> Record:
        head = self._head
        present = None if head is None else live.of_run(self._path, head)
        totals = {} if present is None else present.pop("totals")
        recorded = totals.get("stores", {}).items()
        rest = [segment.is_torn for segment in self._segments.values()]
        is_alive = head is not None and self._is_alive(head, present, now)
        return {
            "schema_version": version.SCHEMA_VERSION,
            "topology_id": head and head["topology_id"],
            "run": head and {**head, "is_alive": is_alive, "ended": self._ended},
            "plan": head and head.get("plan"),
            "live": present,
            "components": self._components(totals, now),
            "latency_s": self._latency(),
            "failures": [dict(failure) for failure in self._failures],
            "stores": {
                **{name: {"recorded": attempt, "at": None} for name, attempt in recorded},
                **self._stores,
            },
            "counts": {
                "torn": self._malformed + sum(rest[:-1] if is_alive else rest),
                "other_versions": self._other_versions,
                "dropped": self._dropped,
            },
        }

    def _is_alive(self, head: Record, present: Record | None, now: float) -> bool:
        process = head.get("started", "")
        if self._ended is not None or liveness.has_certainly_died(process):
            return False
        if liveness.can_tell(process):
            return True
        return present is not None and now - seconds(present["at"]) < SILENCE_S

    def _components(self, totals: Record, now: float) -> Record:
        while self._recent and self._recent[0][0] < now - RATE_S:
            self._sums -= self._recent.popleft()[1]
        components: Record = {}
        for id in self._head["tasks"] if self._head else ():
            sums = totals.get("components", {}).get(id, {})
            components[id] = {name: sums.get(name) for name in ("skew", "latency_s")}
            for name in _DID:
                rate = self._sums[name, id] / RATE_S
                components[id] |= {name: sums.get(name, 0), f"{name}_per_s": rate}
        return components

    def _latency(self) -> Record | None:
        newest = (attempts[-1] for attempts in self._transactions.values())
        lengths = sorted(each["latency_s"] for each in newest if each["outcome"] == "committed")
        count = len(lengths)
        return {"median": lengths[count // 2], "p95": lengths[count * 19 // 20]} if count else None


def seconds(at: Any) -> float:
    """The time ``at``, in ISO 8601, as seconds since 1970."""
    return datetime.datetime.fromisoformat(str(at)).timestamp()
