"""Every clause about stores: the package's clauses, which a user's store may break, and further
clauses about what txtopo does for every store. No mistake in a user's ``Backend`` breaks only a
further clause."""

from __future__ import annotations

from tests.conformance import store_readers, store_steps, store_writing
from txtopo.stores import stamps
from txtopo.testing.contracts import store

CLAUSES = (
    *store.STORE_CLAUSES,
    *store_writing.CONTRACT.clauses,
    *store_steps.CONTRACT.clauses,
    *store_readers.CONTRACT.clauses,
)


def clauses_for(kind: stamps.Kind, concurrent: bool = True) -> list[store.StoreClause]:
    """The clauses for one kind of store."""
    return store.clauses_for(kind, concurrent, CLAUSES)
