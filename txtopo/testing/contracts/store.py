"""The contract of stores: fenced, stamped, exactly once (R27 to R32)."""

from __future__ import annotations

from txtopo.testing.contracts import clauses, store_fences, store_late, store_reading, store_subject, store_values, store_writers

StoreClause = clauses.Clause[store_subject.Subject]
STORE_CLAUSES: tuple[StoreClause, ...] = (
    *store_reading.CONTRACT.clauses,
    *store_fences.CONTRACT.clauses,
    *store_late.CONTRACT.clauses,
    *store_values.CONTRACT.clauses,
    *store_writers.CONTRACT.clauses,
)
"""Every promise of a store; ``only`` says whether it is one of transactional, of opaque, or of concurrent stores."""


def check_store(make_store: store_subject.MakeStore, *, opaque: bool | None = None, concurrent: bool = True, prefix: str = "contract") -> int:
    """Run a store through its whole contract; returns how many clauses were checked.

    ``make_store(name, opaque=...)`` gives the store called ``name``: empty the first time, afterwards with what was written under that name.
    It is called with many names, all beginning with ``prefix`` and made of letters, digits and ``_``; give them an empty place, or a new
    ``prefix`` each time. ``opaque`` limits the check to opaque stores, or to transactional ones; by default both are checked.
    ``concurrent=False``: the store is for one thread of one process, so do not ask what happens when several write at once.

    :raises ContractError: the first clause that is broken, with the number of its rule.
    """
    checked = 0
    for flavour in (False, True) if opaque is None else (opaque,):
        for number, clause in enumerate(clauses_for(flavour, concurrent)):
            check_clause(clause, make_store, opaque=flavour, prefix=f"{prefix}_{'opaque' if flavour else 'plain'}_{number}")
            checked += 1
    return checked


def clauses_for(opaque: bool, concurrent: bool = True) -> list[StoreClause]:
    """The clauses of opaque stores, or of transactional ones."""
    kinds = {None, "opaque" if opaque else "transactional", "concurrent" if concurrent else None}
    return [clause for clause in STORE_CLAUSES if clause.only in kinds]


def check_clause(clause: StoreClause, make_store: store_subject.MakeStore, *, opaque: bool, prefix: str) -> None:
    """Check one clause, for suites that make a test of each."""
    subject = store_subject.Subject(make_store, opaque, prefix)
    try:
        clause.run(subject)
    finally:
        subject.process.close()
