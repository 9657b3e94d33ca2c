"""Trials in numbers, and a violation with all that it takes to look into it."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Sequence

from tests.soak.trial import Outcome, Plan

HISTORY_SHOWN_MAX = 200


def described(plan: Plan) -> str:
    """The parts of a plan, in a line."""
    zookeeper = "ZooKeeper outside" if plan.outside else "ZooKeeper inside"
    broken = f", broken on purpose: {plan.world.sabotage}" if plan.world.sabotage else ""
    who, whom = "+".join(plan.nemeses), "+".join(plan.world.workloads)
    return f"seed {plan.world.seed}, {who} against {whom}, {plan.world.store}, {zookeeper}, {plan.world.master}{broken}"


def in_a_line(outcome: Outcome) -> str:
    """How one trial went."""
    struck = ", ".join(f"{deed} {count}" for deed, count in sorted(outcome.tally.items()) if count)
    verdict = (
        f"{len(outcome.violations)} VIOLATIONS"
        if outcome.violations
        else "NOTHING WAS STRUCK"
        if outcome.is_idle
        else "ok"
    )
    return (
        f"{verdict}: {sum(outcome.transactions.values())} transactions, {outcome.replays} replays, {outcome.reads} reads, "
        f"{outcome.seconds:.0f} s; {struck}"
    )


def violation(outcome: Outcome, again: str) -> str:
    """The violation, the strikes, the place of the files, and the command to type."""
    history = outcome.history[-HISTORY_SHOWN_MAX:]
    lines = [
        f"VIOLATION with {described(outcome.plan)}",
        *(f"  {sentence}" for sentence in outcome.violations),
        f"what was done ({len(outcome.history)} events{', the last of them' if len(history) < len(outcome.history) else ''}):",
        *(f"  {event}" for event in history),
        f"all files: {outcome.directory}",
        f"again: {again}",
    ]
    return "\n".join(lines)


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each trial, a column for each workload: transactions committed, or the violation."""
    workloads = sorted({name for outcome in outcomes for name in outcome.plan.world.workloads})
    head = ["nemesis", "store", *workloads, "replays", "reads", "struck", "seconds"]
    rows = [head]
    for outcome in outcomes:
        cells = [_cell(outcome, workload) for workload in workloads]
        numbers = [
            str(outcome.replays),
            str(outcome.reads),
            str(_strikes(outcome)),
            f"{outcome.seconds:.0f}",
        ]
        rows.append(["+".join(outcome.plan.nemeses), outcome.plan.world.store, *cells, *numbers])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _cell(outcome: Outcome, workload: str) -> str:
    if workload not in outcome.plan.world.workloads:
        return "-"
    return "VIOLATED" if outcome.violations else str(outcome.transactions.get(workload, 0))


def _strikes(outcome: Outcome) -> int:
    return sum(
        count
        for deed, count in outcome.tally.items()
        if deed.endswith(("killed", "paused", "started")) and deed != "drivers started"
    )


def totals(outcomes: Sequence[Outcome]) -> str:
    """Everything added up."""
    tally: Counter[str] = Counter()
    transactions: Counter[str] = Counter()
    for outcome in outcomes:
        tally.update(outcome.tally)
        transactions.update(outcome.transactions)
    lines = [
        ("date", f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"),
        ("cores", str(len(os.sched_getaffinity(0)))),
        ("trials", f"{len(outcomes)}, in {sum(outcome.seconds for outcome in outcomes):.0f} s"),
        *((label, str(count)) for label, count in sorted(tally.items()) if count),
        (
            "transactions committed",
            f"{transactions.total()} ({', '.join(f'{name} {count}' for name, count in sorted(transactions.items()))})",
        ),
        ("replays", f"{sum(outcome.replays for outcome in outcomes)} at least"),
        ("reads checked", str(sum(outcome.reads for outcome in outcomes))),
        ("trials without a strike", str(sum(outcome.is_idle for outcome in outcomes))),
        ("violations", str(sum(len(outcome.violations) for outcome in outcomes))),
    ]
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"  {label.ljust(width)}  {value}" for label, value in lines)
