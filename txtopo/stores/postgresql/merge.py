"""Combines integers inside PostgreSQL: one statement for all keys that a task changes, with no key
read in Python.

Needs SQLAlchemy. Keys and numbers travel as one text each, which the server cuts into arrays:
making arrays from thousands of Python objects takes the driver longer than the server takes to
count. The keys are in order, and the server locks each row as it comes to the row. If two tasks
have common keys, the second task waits at the first common key. The second task then finds a row
from the same transaction, which is not ordinary. A row that was added meanwhile is not ordinary
either.

Invariants:
    - A row is combined or left unchanged.
    - A row was combined here if it has both the writer's stamp and this database transaction's id.
      The id alone will not do: this database transaction may have taken back rows before. The stamp
      alone will not do: an earlier database transaction may have left the same stamp.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from txtopo.stores import rows as layout
from txtopo.stores import stamps
from txtopo.stores.servers import layout as server_layout
from txtopo.topology import merge

_MADE = {"add": "{old} + {new}", "min": "least({old}, {new})", "max": "greatest({old}, {new})"}
_GIVEN_KEYS = "string_to_array(CAST(:keys AS text), E'\\n')"
_GIVEN = f"unnest({_GIVEN_KEYS}, string_to_array(CAST(:deltas AS text), ',')) AS given(key, delta)"
# An integer in JSON has only digits and perhaps a sign. A float, a text or a list has other
# characters, too. NULL is no value.
_IS_ORDINARY = (
    "kept.topology = CAST(:topology AS text) AND kept.generation = CAST(:generation AS text) AND kept.component = CAST(:component AS text)"
    " AND kept.txid <= CAST(:settled AS bigint) AND length(kept.curr) < 16 AND translate(kept.curr, '0123456789', '') IN ('', '-')"
)
_STAMP = {
    "topology": "text",
    "generation": "text",
    "component": "text",
    "task": "integer",
    "txid": "bigint",
    "attempt": "bigint",
}


def merged(
    run: server_layout.Run,
    table: str,
    deltas: Mapping[str, int],
    how: merge.Merge,
    stamp: stamps.Stamp,
    settled_txid: int,
) -> Collection[str]:
    """Run :meth:`txtopo.stores.sessions.Session.merge_rows` in the open transaction of ``run``. No
    key has a line feed, because keys are JSON."""
    keys = sorted(deltas)
    owner = {**layout.owner_of(stamp), "keys": "\n".join(keys)}
    parameters = {
        **owner,
        "deltas": ",".join([str(deltas[key]) for key in keys]),
        "settled": settled_txid,
    }
    if run(_merge(table, how.operator), parameters).rowcount == len(keys):
        return ()
    return deltas.keys() - set(run(_select_own(table), owner).scalars())


@functools.cache
def _merge(table: str, operator: merge.Operator) -> sa.TextClause:
    merged_value = _MADE[operator].format(
        old="CAST(kept.curr AS bigint)", new="CAST(excluded.curr AS bigint)"
    )
    stamp = ", ".join(f"CAST(:{name} AS {kind})" for name, kind in _STAMP.items())
    return sa.text(
        f'INSERT INTO "{table}" AS kept(key, curr, {", ".join(_STAMP)}, prev_txid) SELECT given.key, given.delta, {stamp}, 0 FROM {_GIVEN}'
        f" ON CONFLICT (key) DO UPDATE SET prev = kept.curr, prev_txid = kept.txid, curr = CAST({merged_value} AS text),"
        f" task = excluded.task, txid = excluded.txid, attempt = excluded.attempt, steps = NULL WHERE {_IS_ORDINARY}"
    )


@functools.cache
def _select_own(table: str) -> sa.TextClause:
    """Selects the given keys whose rows were written in this database transaction with this
    stamp."""
    stamp = " AND ".join(f"{name} = CAST(:{name} AS {kind})" for name, kind in _STAMP.items())
    return sa.text(
        f'SELECT key FROM "{table}" WHERE key = ANY({_GIVEN_KEYS}) AND xmin = pg_current_xact_id()::xid AND {stamp}'
    )
