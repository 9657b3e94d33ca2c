"""The stores' contract: fenced, stamped, exactly once, and complete (R27 to R32, R34)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from txtopo.stores import stamps
from txtopo.testing.contracts import (
    clauses,
    store_counts,
    store_fences,
    store_forms,
    store_late,
    store_merges,
    store_plain,
    store_reading,
    store_subject,
    store_values,
    store_visible,
    store_writers,
)

StoreClause = clauses.Clause[store_subject.Subject]
STORE_CLAUSES: tuple[StoreClause, ...] = (
    *store_reading.CONTRACT.clauses,
    *store_fences.CONTRACT.clauses,
    *store_counts.CONTRACT.clauses,
    *store_late.CONTRACT.clauses,
    *store_values.CONTRACT.clauses,
    *store_writers.CONTRACT.clauses,
    *store_merges.CONTRACT.clauses,
    *store_forms.CONTRACT.clauses,
    *store_plain.CONTRACT.clauses,
    *store_visible.CONTRACT.clauses,
)
"""Every promise that a store's database must help to keep. What txtopo decides for every store alike
is checked by txtopo's own tests. ``only`` limits a promise to transactional, opaque, plain or
concurrent stores. Plain stores make only promises whose ``only`` or ``also`` is plain, because the
rest are about the value before a transaction."""

KINDS: tuple[stamps.Kind, ...] = ("transactional", "opaque", "plain")


def check_store(
    make_store: store_subject.MakeStore,
    *,
    kinds: tuple[stamps.Kind, ...] = KINDS,
    concurrent: bool = True,
    prefix: str = "contract",
) -> int:
    """Run a store through its whole contract. Returns how many clauses were checked.

    ``make_store(name, **form)`` gives the store called ``name``: empty the first time, afterwards
    with the earlier contents. ``form`` is for the constructor: always ``opaque=``, sometimes
    ``plain=`` or ``codec=``. The names all begin with ``prefix`` and consist of letters, digits and
    ``_``. Give the stores an empty place, or a new ``prefix`` each time. ``kinds`` limits the check
    to some kinds of values. ``concurrent=False``: the store is for one thread in one process, so do
    not check concurrent writers.

    :raises ContractError: the first broken clause, with its rule's number.
    """
    checked = 0
    for kind in kinds:
        for number, clause in enumerate(clauses_for(kind, concurrent)):
            check_clause(clause, make_store, kind=kind, prefix=f"{prefix}_{kind}_{number}")
            checked += 1
    return checked


def clauses_for(
    kind: stamps.Kind, concurrent: bool = True, among: Sequence[StoreClause] = STORE_CLAUSES
) -> list[StoreClause]:
    """The clauses for one kind of store, ``among`` these."""
    clauses = (each for each in among if concurrent or each.only != "concurrent")
    if kind == "plain":
        return [clause for clause in clauses if kind in (clause.only, clause.also)]
    return [clause for clause in clauses if clause.only in (None, kind, "concurrent")]


def check_clause(
    clause: StoreClause, make_store: store_subject.MakeStore, *, kind: stamps.Kind, prefix: str
) -> None:
    """Check one clause, for suites that make a test for each."""
    subject = store_subject.Subject(make_store, kind, prefix)
    with contextlib.closing(subject.process):
        clause.run(subject)
