"""The statements about a store's fence, its lists and its tombstones, each built once.

Apart from ``session``, which says when each is run: to build one takes longer than to run it,
and a transaction of few keys consists of them. A parameter whose name begins with ``of_`` says
which row is meant; the others have the names of the columns that are written. Needs SQLAlchemy.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sqlalchemy as sa


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """Of one store. ``total`` is part of others; each of these but the last two has ``of_topology``
    and ``of_component``."""

    total: sa.ScalarSelect[Any]
    """Of a fence that is selected: the sum of the numbers of store transactions of its attempt,
    NULL if there is none (R34)."""
    standing: sa.Select[Any]
    """Whether the attempt at ``of_generation``, ``of_txid`` and ``of_attempt`` lists its keys, if
    the fence is of this attempt. The lock is shared."""
    fence: sa.Select[Any]
    """Generation, txid and attempt of the fence, whether the attempt lists its keys, the count in
    the fence itself, and the sum over the attempt's tasks."""
    locked_fence: sa.Select[Any]
    """The same, locked for this transaction alone."""
    taken_fence: sa.Select[Any]
    """The same without the sum: to read that takes a server longer than to read the fence."""
    raise_fence: sa.Update
    lists: sa.Select[Any]
    """The keys that were written, one to a line, in one row or several."""
    forget_lists: sa.Delete
    sweep: sa.Delete
    """Tombstones of another transaction than ``of_txid``, an earlier one, or of another generation
    than ``of_generation``."""
    make_fence: sa.Insert
    add_list: sa.Insert


def statements_of(
    store: str, fences: sa.Table, counts: sa.Table, lists: sa.Table, values: sa.Table
) -> Statements:
    """The statements on these tables of ``store``."""
    fence, row = fences.c, values.c
    topology, component, generation, txid, attempt = map(
        _which, ("topology", "component", "generation", "txid", "attempt")
    )
    is_fence = sa.and_(
        fence.store == store, fence.topology == topology, fence.component == component
    )
    is_here = sa.and_(fence.generation == generation, fence.txid == txid, fence.attempt == attempt)
    is_list = sa.and_(lists.c.topology == topology, lists.c.component == component)
    is_settled = sa.or_(row.txid < txid, row.generation != generation)
    of_same = (
        counts.c[name] == fence[name]
        for name in ("store", "topology", "component", "generation", "txid", "attempt")
    )
    total = (
        sa.select(sa.func.sum(counts.c.transactions))
        .where(*of_same)
        .correlate(fences)
        .scalar_subquery()
    )
    selected = sa.select(
        fence.generation, fence.txid, fence.attempt, fence.listed, fence.counted, total
    ).where(is_fence)
    return Statements(
        total=total,
        standing=sa.select(fence.listed).where(is_fence, is_here).with_for_update(read=True),
        fence=selected,
        locked_fence=selected.with_for_update(of=fences),
        taken_fence=sa.select(
            fence.generation, fence.txid, fence.attempt, fence.listed, fence.counted
        )
        .where(is_fence)
        .with_for_update(),
        raise_fence=sa.update(fences).where(is_fence),
        lists=sa.select(lists.c["keys"]).where(is_list),
        forget_lists=sa.delete(lists).where(is_list),
        sweep=sa.delete(values).where(
            row.deleted, row.topology == topology, row.component == component, is_settled
        ),
        make_fence=sa.insert(fences),
        add_list=sa.insert(lists),
    )


def _which(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(f"of_{name}")
