"""A journal's transactions as JSON-able documents: for the commands' ``--json``, and for the page.
``docs/watching.md`` lists the fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txtopo.journal import fold, reader
from txtopo.journal.fold import Transaction, View
from txtopo.journal.records import Record

LAST = 20
"""How many transactions are listed by default."""


def read(
    journal: reader.Reader, last: int, first: int | None = None, failed: bool = False
) -> list[Record]:
    """The records about the ``last`` newest transactions, or about the first ones from ``first``
    on. ``failed``: only about transactions with failed attempts."""
    if failed:
        return journal.failed(last)
    if first is None:
        return journal.recent(last)
    # The commit before ``first`` shows which notices come before it.
    return journal.about(range(first - 1, first + last))


def view_of(
    journal: reader.Reader,
    read: Callable[[], list[Record]],
    generation: str | None = None,
    current: int | None = None,
) -> View:
    """The view of what ``read`` gives, with the whole journal's ``current``."""
    # Before the read: a commit that comes meanwhile would look like one without a record.
    _, begins_at, recorded = journal.extent(generation)
    view = fold.fold(read(), generation, current)
    view.begins_at, view.current = begins_at, max(view.current, recorded)
    return view


def listed(
    view: View, last: int, first: int | None = None, failed: bool = False
) -> tuple[list[Transaction], list[tuple[int, int]]]:
    """Of what was :func:`read`: the transactions and the holes."""
    txids = [
        txid
        for txid, each in sorted(view.transactions.items())
        if txid >= (first or 1) and (each.failed or not failed)
    ]
    txids = txids[:last] if first is not None else txids[-last:]
    holes = []
    if not failed and view.begins_at is not None:
        begin = max(view.begins_at, first or (txids or [1])[0])
        holes = view.holes(begin, first + last - 1 if first else view.current)
    return [view.transactions[txid] for txid in txids], holes


def status(view: Mapping[str, Any]) -> Record:
    """How far the run has come, from a :mod:`watch`'s view: the fields that ``txtopo status --json``
    has, as far as the journal knows them, and the view's parts about the run."""
    run, present = view["run"] or {}, view["live"]
    recorded = [
        each["txid"]
        for each in view["transactions"]
        if any(attempt["outcome"] == "committed" for attempt in each["attempts"])
    ]
    current = max([run.get("current", 1), *(txid + 1 for txid in recorded[-1:])])
    if present:
        current = max(current, present["status"]["current"])
    return {
        "running": bool(run.get("is_alive")),
        "current": current,
        "committed": current - 1,
        "generation": run.get("generation"),
        "epoch": run.get("epoch"),
        "ended": run.get("ended"),
        **{name: view[name] for name in ("at", "run", "live", "latency_s", "counts")},
    }


def plan(view: Mapping[str, Any]) -> Record:
    """The plan, and what each component did, from a :mod:`watch`'s view."""
    plan = view["plan"] or {"components": []}
    return {"components": plan["components"], "at_work": view["components"]}


def history(
    topology_id: str,
    journal: reader.Reader,
    view: View,
    shown: tuple[list[Transaction], list[tuple[int, int]]],
) -> Record:
    """What ``txtopo history --json`` prints of what is :func:`listed`."""
    transactions, holes = shown
    return {
        **_head(topology_id, journal, view),
        "begins_at": view.begins_at,
        "transactions": [_transaction(each, view.current) for each in transactions],
        "holes": [list(hole) for hole in holes],
        "runs": view.runs,
        "notices": [record for _, record in view.notices],
    }


def why(topology_id: str, journal: reader.Reader, view: View, txid: int) -> Record:
    """What ``txtopo why --json`` prints of the transaction ``txid``."""
    return {
        **_head(topology_id, journal, view),
        **_transaction(view.transactions[txid], view.current),
        "discarded_with_it": discarded_with(view, txid),
    }


def discarded_with(view: View, txid: int) -> list[Record]:
    """The attempts that were discarded with failed attempts of ``txid``."""
    return [
        record
        for each in view.transactions.values()
        for record in each.behind
        if record["because_of"].startswith(f"{txid}:")
    ]


def _head(topology_id: str, journal: reader.Reader, view: View) -> dict[str, Any]:
    return {
        "topology_id": topology_id,
        "generation": view.generation,
        "current": view.current,
        "torn_lines": journal.torn,
        "other_versions": sorted(journal.other_versions),
    }


def _transaction(transaction: Transaction, current: int) -> dict[str, Any]:
    return {
        "txid": transaction.txid,
        "committed": transaction.txid < current,
        "failed": len(transaction.failed),
        "behind": len(transaction.behind),
        "attempts": transaction.attempts,
    }
