"""``txtopo history`` and ``txtopo why``: show a topology's transactions, from the journal.

ZooKeeper says which transactions are committed. The journal has their attempts.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from txtopo import errors
from txtopo.command import options, output, whereabouts
from txtopo.engine import logged
from txtopo.journal import documents, reader, watch
from txtopo.journal.fold import Transaction, View
from txtopo.journal.records import Record
from txtopo.page import html
from txtopo.state import administration, opening

_CUT = 100
"""A line shows so many characters of an error or of a partition's metadata."""

_INDENT = " " * 17


def add(commands: Any) -> None:
    """Add both commands."""
    history = commands.add_parser(
        "history",
        help="list a topology's transactions, with their failed attempts",
        description="List transactions, with their failed attempts and errors, from the journal in the runs' data directory.",
    )
    history.add_argument("topology", metavar="TOPOLOGY_ID")
    history.add_argument(
        "--last",
        type=options.at_least_one,
        default=documents.LAST,
        metavar="N",
        help="show N transactions (default: %(default)s)",
    )
    history.add_argument(
        "--from",
        type=options.at_least_one,
        metavar="TXID",
        dest="first",
        help="show the first transactions from TXID on, and not the newest",
    )
    history.add_argument(
        "--failed", action="store_true", help="only transactions with failed attempts"
    )
    history.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help=f"write the page that `txtopo page` serves into FILE, with the newest {watch.TRANSACTIONS_MAX} transactions in it",
    )
    _add_where(history)
    history.set_defaults(do=_history)

    why = commands.add_parser(
        "why",
        help="show one transaction: batch, attempts, errors, stores",
        description="Show a transaction's batch, attempts, errors and written stores, from the journal in the runs' data directory.",
    )
    why.add_argument("topology", metavar="TOPOLOGY_ID")
    why.add_argument("txid", type=options.at_least_one, metavar="TXID")
    why.add_argument("--tracebacks", action="store_true", help="show the failures' tracebacks")
    _add_where(why)
    why.set_defaults(do=_why)


def _add_where(parser: argparse.ArgumentParser) -> None:
    output.add_json(parser)
    whereabouts.add_options(parser)


def _history(parsed: argparse.Namespace) -> int:
    if parsed.html is not None:
        return _write_page(parsed)
    asked = (parsed.last, parsed.first, parsed.failed)
    journal, view, notes = _opened(parsed, lambda journal: documents.read(journal, *asked))
    shown = transactions, holes = documents.listed(view, *asked)
    if parsed.json:
        output.print_json(documents.history(parsed.topology, journal, view, shown))
    else:
        begins = "" if view.begins_at is None else f", the journal begins at {view.begins_at}"
        print(f"topology {parsed.topology}: the next transaction is {view.current}{begins}")
        print("\n".join(history_lines(view, transactions, holes) + notes))
    return 0


def _write_page(parsed: argparse.Namespace) -> int:
    if parsed.json or parsed.failed or parsed.first is not None or parsed.last != documents.LAST:
        raise errors.UsageError(
            "--html goes with none of --json, --failed, --from and --last\n  Leave them out: the page shows the newest transactions."
        )
    watching = watch.Watch(whereabouts.journal(parsed))
    watching.refresh()
    try:
        parsed.html.write_text(html.whole(watching.view()), encoding="utf-8")
    except OSError as error:
        raise errors.UsageError(
            f"cannot write {parsed.html}: {error.strerror}\n  Name a file in a directory that exists."
        ) from error
    print(f"wrote {parsed.html}")
    return 0


def _why(parsed: argparse.Namespace) -> int:
    txid = parsed.txid
    journal, view, notes = _opened(parsed, lambda journal: journal.about([txid]))
    if txid not in view.transactions:
        raise errors.UsageError(_nothing_about(parsed.topology, txid, view))
    if parsed.json:
        output.print_json(documents.why(parsed.topology, journal, view, txid))
    else:
        behind = documents.discarded_with(view, txid)
        transaction = view.transactions[txid]
        lines = why_lines(parsed.topology, view, transaction, behind, parsed.tracebacks)
        print("\n".join(lines + notes))
    return 0


def _opened(
    parsed: argparse.Namespace, read: Callable[[reader.Reader], list[Record]]
) -> tuple[reader.Reader, View, list[str]]:
    """The journal, the view of what ``read`` finds there, and notes for people."""
    journal = reader.Reader(whereabouts.journal(parsed))

    def position(opened: opening.Opened | None) -> tuple[str | None, int | None]:
        return (
            (None, None)
            if opened is None
            else administration.position(opened.store, parsed.topology)
        )

    notes = []
    try:
        generation, current = whereabouts.look(parsed, position, with_data_dir=True)
    except errors.ZooKeeperUnavailableError as error:
        generation, current = None, None
        notes.append(
            f"{logged.first_line(str(error))}. The commits shown are the ones in the journal"
        )
    view = documents.view_of(journal, lambda: read(journal), generation, current)
    if journal.torn:
        notes.append(f"cut lines were skipped: {journal.torn}. A killed run leaves a cut line")
    if journal.other_versions:
        versions = ", ".join(sorted(journal.other_versions))
        notes.append(
            f"lines in format {versions} were skipped: a different txtopo version has written them"
        )
    return journal, view, notes


# -- as text -------------------------------------------------------------------------------------


def history_lines(
    view: View, transactions: list[Transaction], holes: list[tuple[int, int]]
) -> list[str]:
    """The transactions, one line each, between the lines about runs."""
    shown = {each.txid for each in transactions}
    first, end = min(shown, default=1), max(shown, default=0) + 1
    rows = [
        (run["current"], run["at"], line)
        for before, run in zip([None, *view.runs], view.runs, strict=False)
        if first <= run["current"] <= end and (line := _begin_line(before, run))
    ]
    # A notice at ``end`` may be about any later transaction, unless ``end`` is the newest one.
    rows += [
        (txid, record["at"], _notice_line(record))
        for txid, record in view.notices
        if first <= txid < end or txid == end == view.current
    ]
    rows += [
        (each.txid, (each.committed or each.attempts[-1])["at"], _history_line(each, view.current))
        for each in transactions
    ]
    rows += [
        (first, "", _hole_line(first, last))
        for first, last in holes
        if not shown.issuperset(range(first, last + 1))
    ]
    failed = sum(len(each.failed) for each in transactions)
    behind = sum(len(each.behind) for each in transactions)
    total = (
        f"transactions: {len(transactions)}, failed attempts: {failed}, attempts behind: {behind}"
    )
    return [*(line for *_, line in sorted(rows, key=lambda row: row[:2])), total]


def _history_line(transaction: Transaction, current: int) -> str:
    committed = transaction.committed
    newest = committed or transaction.attempts[-1]
    is_committed = transaction.txid < current
    state = "committed" if is_committed else "open"
    line = f"  {transaction.txid:>8}  {_time(newest)}  {state:<9}"
    tuples = f"{newest['tuples']:,} tuples" if committed else ""
    line += f"  {tuples:>16}  {newest['latency_s']:>8.3f} s"
    extra = [
        f"{len(attempts)} {name}"
        for attempts, name in ((transaction.failed, "failed"), (transaction.behind, "behind"))
        if attempts
    ]
    if is_committed and committed is None:
        extra.append("its commit has no record")
    if transaction.failed:
        extra.append(_error_of(transaction.failed[-1]))
    return line + ("  " + ", ".join(extra) if extra else "")


def _hole_line(first: int, last: int) -> str:
    txids = f"{first}" if first == last else f"{first}-{last}"
    return f"  {txids:>8}  committed, but without records"


def _begin_line(before: Record | None, run: Record) -> str:
    """How ``run`` came to the topology. Empty after an orderly end, and if that is not known."""
    holder, how = run["taken_from"], "run taken over from"
    if holder is None and before and not before["ended"] and before["epoch"] == run["epoch"] - 1:
        holder, how = before, "the journal has no end of the run before,"
    if holder is None:
        return ""
    name = f"{holder['name']!r}, pid {holder['pid']} on {holder['host']} (epoch {holder['epoch']})"
    return f"  {run['current']:>8}  {_time(run)}  {how} {name}"


def _notice_line(record: Record) -> str:
    if record["kind"] == "request":
        text = record["want"] + (f", asked by {record['by']}" if record["by"] else "")
    else:
        length_s = record["lasted_s"]
        text = (
            "ZooKeeper is away" if record["is_away"] else f"ZooKeeper is back, after {length_s} s"
        )
    return f"  {'':>8}  {_time(record)}  {text}"


def _time(record: Record) -> str:
    return str(record["at"]).replace("T", " ")[:19]


def _error_of(record: Record) -> str:
    return _shorten(logged.first_line(record.get("cause", {}).get("error", record["outcome"])))


def _shorten(text: str) -> str:
    return text if len(text) <= _CUT else text[: _CUT - 2] + " …"


def why_lines(
    topology_id: str,
    view: View,
    transaction: Transaction,
    behind: list[Record],
    with_tracebacks: bool,
) -> list[str]:
    """One transaction's story."""
    txid, committed, attempts = transaction.txid, transaction.committed, transaction.attempts
    newest = committed or attempts[-1]
    tasks = [id for run in view.runs for id in run["tasks"]]
    order = [*tasks, *(id for each in attempts for id in each["emitted"])]
    is_committed = txid < view.current
    lines = [f"transaction {txid} of {topology_id} {_outcome_text(transaction, is_committed)}"]
    lines.append(f"  it contained   {_content(newest)}")
    for attempt in attempts:
        lines += _attempt_lines(attempt, order, with_tracebacks)
    if committed is not None:
        stores = ", ".join(
            f"{name}: {output.counted(count, 'store transaction')}"
            for name, count in committed.get("stores", {}).items()
        )
        lines.append(f"  it wrote       {stores or 'nothing to a store'}")
    if behind:
        names = ", ".join(f"{record['txid']}:{record['attempt']}" for record in behind)
        lines.append(f"  behind it      {names} discarded, and processed again")
    return lines


def _outcome_text(transaction: Transaction, is_committed: bool) -> str:
    committed, count = transaction.committed, len(transaction.attempts)
    tried = output.counted(count, "attempt")
    if committed is None:
        return (
            f"is committed, but its commit has no record ({tried} before)"
            if is_committed
            else f"is not committed ({tried} ended)"
        )
    number = transaction.attempts.index(committed) + 1
    return f"committed at attempt {number} of {count}, {committed['at'].replace('T', ' ')}"


def _content(record: Record) -> str:
    tuples = [f"{record['tuples']:,} tuples"] if record["outcome"] == "committed" else []
    meta = record.get("meta")
    if meta is None:
        return f"\n{_INDENT}".join([*tuples, "(the journal has no metadata)"])
    partitions = meta.get("partitions") if isinstance(meta, dict) else None
    shown = (
        [f"partition {partition}: {_shorten(repr(each))}" for partition, each in partitions.items()]
        if isinstance(partitions, dict)
        else [f"metadata {_shorten(repr(meta))}"]
    )
    return f"\n{_INDENT}".join([*tuples, *shown])


def _attempt_lines(record: Record, order: list[str], with_tracebacks: bool) -> list[str]:
    cause = record.get("cause", {})
    steps = ", ".join(f"{status} {length_s:.3f} s" for status, length_s in record["steps"].items())
    head = f"  {record['txid']}:{record['attempt']:<10} {record['outcome']:<9} {steps}"
    lines = [head]
    if record.get("because_of"):
        lines[0] += f"; discarded with {record['because_of']}"
    if cause:
        lines.append(f"{_INDENT}{_place(cause)}{_error_of(record)}")
    ids = sorted(record["emitted"], key=order.index)
    counts = [
        f"{id} executed {record['executed'].get(id, 0):,}, emitted {record['emitted'].get(id, 0):,}"
        + (
            f" (most: task {record['widest'][id][1]} with {record['widest'][id][0]:,})"
            if id in record.get("widest", {})
            else ""
        )
        + (f", at work {record['work_s'][id]:.6f} s" if id in record.get("work_s", {}) else "")
        for id in ids
    ]
    counts += [
        f"{id} counted {', '.join(f'{name} {n:,}' for name, n in sums.items())}"
        for id, sums in record.get("counters", {}).items()
    ]
    lines += [f"{_INDENT}{count}" for count in counts]
    if with_tracebacks and "traceback" in cause:
        lines += [f"{_INDENT}{line}" for line in cause["traceback"].splitlines()]
    return lines


def _place(cause: Mapping[str, Any]) -> str:
    if "component" not in cause:
        return ""
    return f"{cause['component']}, task {cause['task']}, {cause['phase']} phase, {cause['hook']}: "


def _nothing_about(topology_id: str, txid: int, view: View) -> str:
    if txid >= view.current:
        return f"transaction {txid} has no attempt that ended\n  Transaction {view.current} commits next. `txtopo status` shows open ones."
    return (
        f"transaction {txid} is committed, but has no record in the journal\n"
        f"  The journal begins later, or has a hole there: `txtopo history {shlex.quote(topology_id)}` shows both.\n"
        "  Raise journal_bytes_max to keep more."
    )
