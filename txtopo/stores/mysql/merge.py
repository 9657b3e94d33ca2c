"""Combines integers inside MySQL and MariaDB: one statement for all keys that a task changes, with
no key read in Python.

Assignments after ON DUPLICATE KEY UPDATE are made from left to right. The first assignment tests
whether the row is ordinary. For any other row, the assignment puts NULL into a column that cannot
be NULL. The statement then fails, and InnoDB undoes all its changes. So no second statement needs
to look at the result.

The server judges a row after waiting for the row's lock, and so judges the newest version. If two
tasks write or add a key at the same time, the second task finds the first task's row. This row was
written in the same transaction, and so is not ordinary. Needs SQLAlchemy.

Invariants:
    - All keys are combined, or no row is changed.
    - The columns that tell whether a row is ordinary are assigned after the column that asks.
"""

from __future__ import annotations

import functools

import sqlalchemy as sa

from txtopo.topology import merge

GIVEN = "CONVERT(:given USING utf8mb4)"
"""The JSON parameter, sent as a text or as UTF-8 bytes."""

_OLD, _NEW = "CAST(kept.curr AS SIGNED)", "given.delta"
_MADE: dict[merge.Operator, str] = {
    "add": f"{_OLD} + {_NEW}",
    "min": f"LEAST({_OLD}, {_NEW})",
    "max": f"GREATEST({_OLD}, {_NEW})",
}
# The stored JSON is an integer of 15 digits at most: no float, no text, no very large integer. NULL
# is no value.
_IS_ORDINARY = (
    "kept.topology = :topology AND kept.generation = :generation AND kept.component = :component AND kept.txid <= :settled"
    " AND kept.curr REGEXP '^(0|-?[1-9][0-9]{0,14})$'"
)
# For a new row. Columns without a name here are NULL.
_VALUES = {
    "key": "given.`key`",
    "curr": "given.delta",
    "topology": ":topology",
    "generation": ":generation",
    "component": ":component",
    "task": ":task",
    "txid": ":txid",
    "attempt": ":attempt",
    "prev_txid": "0",
}


@functools.cache
def statement(table: str, key: str, operator: merge.Operator) -> sa.TextClause:
    """Build the statement that combines integers in ``table``. ``key`` declares the key column.

    :returns: a statement with the parameters ``given`` (a JSON list, each item a key and a number),
        ``settled`` (the newest transaction whose rows are ordinary), and a stamp's fields.
    """
    names, values = ", ".join(f"`{name}`" for name in _VALUES), ", ".join(_VALUES.values())
    changes = (
        f"kept.task = IF({_IS_ORDINARY}, :task, NULL), kept.prev = kept.curr, kept.prev_txid = kept.txid, kept.curr = {_MADE[operator]},"
        " kept.txid = :txid, kept.attempt = :attempt, kept.steps = NULL"
    ).replace("kept.", f"`{table}`.")
    deltas = f"JSON_TABLE({GIVEN}, '$[*]' COLUMNS ({key} PATH '$[0]', delta BIGINT PATH '$[1]')) AS given"
    return sa.text(
        f"INSERT INTO `{table}`({names}) SELECT {values} FROM {deltas} ON DUPLICATE KEY UPDATE {changes}"
    )
