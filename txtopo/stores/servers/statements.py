"""Builds the statements about a store's fence, lists and tombstones, each once.

Building a statement takes longer than running it, and a transaction with few keys runs little else.
Parameters that begin with ``of_`` select rows. All other parameters are named after the columns
that they write. Needs SQLAlchemy.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import sqlalchemy as sa

from txtopo.stores import rows


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """A store's statements. All but ``make_fence`` and ``add_list`` have the parameters
    ``of_topology`` and ``of_component``. ``total`` is an expression inside other statements."""

    total: sa.ScalarSelect[Any]
    """How many store transactions all tasks have counted for the selected fence's attempt. NULL if
    no task has (R34)."""
    standing: sa.Select[Any]
    """Whether the attempt lists its keys, if the fence belongs to the attempt ``of_generation``,
    ``of_txid``, ``of_attempt``. No row otherwise. Takes a shared lock."""
    fence: sa.Select[Any]
    """The fence's generation, txid and attempt, whether the attempt lists its keys, the count in
    the fence itself, and ``total``."""
    locked_fence: sa.Select[Any]
    """As ``fence``, locked for this transaction alone."""
    taken_fence: sa.Select[Any]
    """As ``locked_fence``, without ``total``: a server reads the fence faster than the sum."""
    raise_fence: sa.Update
    lists: sa.Select[Any]
    """The written keys, one per line, in one or several rows."""
    forget_lists: sa.Delete
    sweep: sa.Delete
    """Deletes tombstones from transactions before ``of_txid``, and from all generations but
    ``of_generation``."""
    make_fence: sa.Insert
    add_list: sa.Insert


def statements_of(
    store: str, fences: sa.Table, counts: sa.Table, lists: sa.Table, values: sa.Table
) -> Statements:
    """Build the statements for ``store`` on these tables."""
    fence, row = fences.c, values.c
    topology, component, generation, txid, attempt = map(
        _selector, ("topology", "component", "generation", "txid", "attempt")
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


@functools.lru_cache(maxsize=64)
def first_rows(values: sa.Table, count: int) -> sa.CompoundSelect[Any]:
    """Selects the first ``most`` rows in each of ``count`` ranges, each row after its range's
    number: from ``low0`` on and below ``high0``, and so on. Takes no lock."""
    key = values.c.key
    return sa.union_all(
        *(
            sa.select(sa.literal_column(str(number)), *(values.c[name] for name in rows.COLUMNS))
            .where(key >= sa.bindparam(f"low{number}"), key < sa.bindparam(f"high{number}"))
            .order_by(key)
            .limit(sa.bindparam("most", type_=sa.Integer))
            for number in range(count)
        )
    )


def _selector(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(f"of_{name}")
