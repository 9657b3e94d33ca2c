"""Integers that MySQL and MariaDB combine by themselves: one statement for all keys of a task, and
none of them read in Python.

Apart from ``mysql``, which runs it: this module has one statement, and the reason why the statement
is right. Assignments after ON DUPLICATE KEY UPDATE are made from left to right. The first of them
says that a row is ordinary, or else puts NULL where there can be none, which ends the statement,
and InnoDB takes back all that it did: so no count, second look or question is needed.

The server judges a row after waiting for the lock of the row, and so judges the newest version: of
two tasks that write or add a key at the same time, the second finds the row of the first, which is
of this transaction, and so not ordinary. Needs SQLAlchemy.

Invariants:
    - All of the keys are combined, or none is changed.
    - The columns that tell whether a row is ordinary are assigned after the one that asks.
"""

from __future__ import annotations

import functools

import sqlalchemy as sa

from txtopo.topology import merge

GIVEN = "CONVERT(:given USING utf8mb4)"
"""What is given, as JSON; a parameter may be its text or the bytes of that."""

_OLD, _NEW = "CAST(kept.curr AS SIGNED)", "given.delta"
_MADE: dict[merge.Operator, str] = {
    "add": f"{_OLD} + {_NEW}",
    "min": f"LEAST({_OLD}, {_NEW})",
    "max": f"GREATEST({_OLD}, {_NEW})",
}
# An integer as JSON has it, and not a float, a text, a very large integer, or NULL, which is no
# value.
_IS_ORDINARY = (
    "kept.topology = :topology AND kept.generation = :generation AND kept.component = :component AND kept.txid <= :settled"
    " AND kept.curr REGEXP '^(0|-?[1-9][0-9]{0,14})$'"
)
# Of a row that is new; columns without a name are NULL.
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
    """Combines ``deltas``, a JSON list of pairs of a key and a number; ``key`` declares the column
    of a key.

    :returns: a statement with the parameters ``deltas``, ``settled`` (the newest transaction whose
        rows are ordinary), and those of a stamp.
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
