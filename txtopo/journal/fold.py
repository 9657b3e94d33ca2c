"""Folds a journal's records into a view: runs, transactions, and counts. Pure: records in, a view
out.

Invariants: *failed* attempts and attempts *behind* are two numbers. A committed transaction without
a record is in a hole, and never invented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from txtopo.journal.records import Record

NOT_FAILED = frozenset({"committed", "behind", "abandoned", "outgrown"})
"""Outcomes that are no failure."""


@dataclass(slots=True)
class Transaction:
    """A transaction's ``attempts``, in the order in which they ended."""

    txid: int
    attempts: list[Record] = field(default_factory=list)

    @property
    def committed(self) -> Record | None:
        return next((each for each in self.attempts if each["outcome"] == "committed"), None)

    @property
    def failed(self) -> list[Record]:
        return [each for each in self.attempts if each["outcome"] not in NOT_FAILED]

    @property
    def behind(self) -> list[Record]:
        """The attempts that were discarded with an earlier transaction's failed attempt."""
        return [each for each in self.attempts if each["outcome"] == "behind"]


@dataclass(slots=True)
class View:
    """A journal of one generation, or the part that was read."""

    generation: str | None = None
    current: int = 1
    """The next txid to commit."""
    begins_at: int | None = None
    """The first txid from which the whole journal has the records of commits."""
    runs: list[Record] = field(default_factory=list)
    """The beginnings of runs. ``taken_from`` is the record of the lease before, if the
    topology was taken over. ``ended`` is the record of the run's end, if the run has ended in
    order, and ``dropped`` counts records that the disk was too slow for."""
    transactions: dict[int, Transaction] = field(default_factory=dict)
    notices: list[tuple[int, Record]] = field(default_factory=list)
    """Requests to runs, and outages of ZooKeeper. Each comes with the next txid to commit then, as
    far as the records tell it."""

    def holes(self, first: int, last: int) -> list[tuple[int, int]]:
        """Committed transactions without a record, from ``first`` to ``last``: the first and the
        last of each range."""
        missing = []
        end = min(last + 1, self.current)
        recorded = (txid for txid, each in self.transactions.items() if each.committed is not None)
        for txid in [*sorted(recorded), end]:
            if first < min(txid, end):
                missing.append((first, min(txid, end) - 1))
            first = max(first, txid + 1)
        return missing


def fold(
    records: Sequence[Record], generation: str | None = None, current: int | None = None
) -> View:
    """The view for ``records``, in the reader's order. ``generation`` and ``current``
    are ZooKeeper's, if known. Without a ``generation``, the newest counts."""
    begins = [record for record in records if record["kind"] == "began"]
    view = View(generation or (begins[-1]["generation"] if begins else None))
    ours, runs = True, dict[tuple[int, str, int], Record]()
    for record in records:
        if record["kind"] == "began":
            ours = record["generation"] == view.generation
            if ours:
                run = runs.setdefault(
                    (record["epoch"], record["host"], record["pid"]),
                    {**record, "taken_from": None, "ended": None, "dropped": 0},
                )
                view.current = max(view.current, record["current"])
        elif not ours:
            continue
        elif record["kind"] == "attempt":
            txid = record["txid"]
            view.transactions.setdefault(txid, Transaction(txid)).attempts.append(record)
            if record["outcome"] == "committed":
                view.current = max(view.current, txid + 1)
        elif record["kind"] in ("request", "zookeeper"):
            view.notices.append((view.current, record))
        elif record["kind"] == "lease" and runs:
            run["taken_from"] = record
        elif record["kind"] == "ended" and runs:
            run["ended"] = record
        elif record["kind"] == "dropped" and runs:
            run["dropped"] += record["records"]
    view.runs = [*runs.values()]
    view.current = max(view.current, current or 1)
    return view
