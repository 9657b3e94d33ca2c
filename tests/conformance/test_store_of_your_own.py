"""The store that the documentation shows keeps the contract of every store, clause by clause."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import store_clauses
from tests.starter.test_snippets import ROOT, snippets
from txtopo.stores import Store, stamps
from txtopo.testing.contracts import store as contract

PAGE = ROOT / "docs" / "stores" / "your-own.md"
CLAUSES = [
    pytest.param(kind, clause, id=f"{kind}: {clause.claim}")
    for kind in contract.KINDS
    for clause in store_clauses.clauses_for(kind)
]


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    """The classes of the page, in a module, so that a store pickles."""
    module = types.ModuleType("store_of_your_own")
    sys.modules[module.__name__] = module
    next(iter(snippets(PAGE))).run(vars(module))
    yield vars(module)
    del sys.modules[module.__name__]


@pytest.mark.usefixtures("few_rows")
@pytest.mark.in_gate("opaque*")
@pytest.mark.rule(27, 28, 29, 30, 31, 32, 34)
@pytest.mark.parametrize(("kind", "clause"), CLAUSES)
def test_it_keeps_the_contract(
    kind: stamps.Kind, clause: Any, names: dict[str, Any], tmp_path: Path
) -> None:
    def make(name: str, **form: Any) -> Store:
        store: Store = names["JsonStore"](tmp_path, name, **form)
        return store

    contract.check_clause(clause, make, kind=kind, prefix="contract")
