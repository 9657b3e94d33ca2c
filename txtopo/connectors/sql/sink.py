"""A sink that writes a batch's tuples as rows in the user's own table, exactly once (R28-R31).

``SqlSink`` is a committer. In its database transaction a task writes its rows and one auxiliary row
about them: topology, generation, component, task, txid, attempt. A replay meets the auxiliary row,
or takes back a failed attempt's rows (opaque batches). A late task from an older attempt loses to
the fence. The same sink serves Structured Streaming, see ``sinks.streaming``.

This module checks the user's arguments and makes rows from tuples. ``ledger`` decides whether rows
are written, and each database has a module that writes them. Runs on executors: standard library
only, and the database's driver where the sink is used.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.sql import ledger as ledgers
from txtopo.connectors.sql import parameters
from txtopo.connectors.sql import target as sql_target
from txtopo.sinks import sink as sinks
from txtopo.sinks import tuple_rows
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import Fields
from txtopo.topology.transaction import TransactionAttempt


class SqlSink(sinks.Sink):
    """A committer that writes every tuple as one row in your table, exactly once.

    ``builder.set_bolt("write", SqlSink("shop.db", "sales", ["id", "cents"]),
    2).shuffle_grouping("prices")``

    :param database: a SQLite file's path (also ``sqlite:///path``), or
        ``postgresql+psycopg://user@host:port/database`` or ``mysql+pymysql://…`` as for
        :class:`~txtopo.stores.SqlStore`, without a password.
    :param table: an existing table's name, perhaps with its schema (``shop.sales``), or a
        ``sqlalchemy.Table``.
    :param columns: the columns to write, named like the tuples' fields. Give ``{column: field}``
        where the names differ. By default all fields but the first, the attempt.
    :param key: columns with a unique index, by which a row replaces an earlier row. A task's last
        row for a key wins. A key has one writer per transaction (R32): put a fields grouping on the
        key in front of a sink with several tasks.
    :param statement: instead of a table, SQL to run for each row, with ``:name`` for its fields.
    :param opaque: True with an opaque spout. Then a failed attempt's rows are taken back (R31),
        which needs a ``mark`` or a ``key``, and in MySQL and MariaDB a ``mark``.
    :param mark: a text column that the sink fills with the row's writer: topology, component,
        generation and txid. The sink finds rows again by the mark: put an index on this column.
    :param auxiliary_table: the table with the auxiliary rows, made on first use, and shared by all
        sinks in a database.
    :param options: as for the same database's store: ``busy_timeout_s`` (SQLite),
        ``password_env``, ``password_file``, ``lock_timeout_s``, ``statement_timeout_s``,
        ``idle_timeout_s`` (servers).

    :raises errors.UsageError: the arguments contradict each other, or a failed opaque attempt's
        rows could not be taken back.
    """

    kept_in = "table"
    ledger: ledgers.Ledger
    """The store with the auxiliary rows. ``ledger.fences()``, ``ledger.adopt(…)`` and
    ``ledger.clear(…)`` work as in any store."""

    def __init__(
        self,
        database: str | os.PathLike[str],
        table: Any = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        *,
        key: Sequence[str] = (),
        statement: str | None = None,
        opaque: bool = False,
        mark: str | None = None,
        auxiliary_table: str = ledgers.TABLE,
        **options: Any,
    ) -> None:
        target = sql_target.target_of(
            table, columns, key, statement, mark, opaque, parameters.dialect_of(os.fspath(database))
        )
        self.fields = (
            tuple(columns[name] for name in target.columns)
            if isinstance(columns, Mapping)
            else target.columns
        )
        """The tuple's fields that become a row. Empty for all but the first."""
        self.input_fields = Fields(dict.fromkeys(self.fields)) if self.fields else None
        names = dict(zip(target.columns, self.fields, strict=True))
        self.key_fields = Fields(*(names[column] for column in target.key)) if target.key else None
        """The tuple's fields that become the key: equal keys must come to one task (R32)."""
        self.ledger = ledgers.open_ledger(os.fspath(database), auxiliary_table, target, options)

    def check_destination(self, fields: Fields) -> None:
        """Check that the database has the table, with columns for ``fields``."""
        self.ledger.check_table(tuple(fields)[1:])

    @property
    def opaque(self) -> bool:
        """Whether a failed attempt's rows are taken back."""
        return self.ledger.opaque

    def _begin_to_take(self, fields: Fields) -> None:
        before, now = self._columns_of(self._fields), self._columns_of(tuple(fields))
        if self._fields and now != before:
            raise errors.UsageError(
                f"the sink of component {self.context.component_id!r} gets tuples with the fields {', '.join(now)}, and before with "
                f"{', '.join(before)}\n  Name the fields to write by columns=."
            )
        super()._begin_to_take(fields)

    def taker(
        self, context: TopologyContext, fields: Sequence[str]
    ) -> Callable[[Sequence[Any]], Any]:
        wanted = self.fields or self._columns_of(fields)
        return tuple_rows.taker(
            fields, wanted, self.owner(context), self.ledger.target.statement is not None
        )

    def write(
        self,
        context: TopologyContext,
        attempt: TransactionAttempt,
        fields: Sequence[str],
        rows: Collection[Any],
    ) -> bool:
        return self.ledger.apply(context, attempt, self._columns_of(fields), rows)

    def write_batch(
        self, context: TopologyContext, txid: int, fields: Sequence[str], rows: Collection[Any]
    ) -> bool:
        # The attempt's number says how the transaction's rows are divided among the writers.
        ledger = copy.copy(self.ledger)
        ledger.has_one_attempt = True
        return ledger.apply(
            context, TransactionAttempt(txid, context.num_tasks), self._columns_of(fields), rows
        )

    def _columns_of(self, fields: Sequence[str]) -> tuple[str, ...]:
        return self.ledger.target.columns or tuple(fields)[1:]

    def __repr__(self) -> str:
        return f"<SqlSink {self.ledger.sink}{' opaque' if self.opaque else ''}>"
