"""A sink that writes the tuples of a batch as rows of the user's own table, exactly once (R28-R31).

``SqlSink`` is a committer. In its database transaction a task writes its rows and one auxiliary row
about them: topology, generation, component, task, txid, attempt. A replay meets the auxiliary row,
or takes back the rows of a failed attempt (opaque batches); a late task of an older attempt loses
to the fence. The same sink serves Structured Streaming, see ``streaming``.

Apart from ``ledger``, which decides whether rows are written, and from the modules of databases,
which write them: here are the arguments of users, and the way from a tuple to a row. Runs on
executors: standard library only, and the driver of the database where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors import streaming, tuple_rows
from txtopo.connectors.sinks.sql import ledger, parameters, queries
from txtopo.connectors.sinks.sql import target as sql_target
from txtopo.topology import bolt
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer, Tuple
from txtopo.topology.transaction import TransactionAttempt


class SqlSink(bolt.BaseTransactionalBolt, bolt.ICommitter):
    """A committer that writes every tuple as one row of a table of yours, exactly once.

    ``builder.set_bolt("write", SqlSink("shop.db", "sales", ["id", "cents"]),
    2).shuffle_grouping("prices")``

    :param database: the path of a SQLite file (also ``sqlite:///path``), or
        ``postgresql+psycopg://user@host:port/database`` or ``mysql+pymysql://…`` as
        :class:`~txtopo.stores.SqlStore` takes it, without a password.
    :param table: the name of a table that exists, perhaps with its schema (``shop.sales``), or a
        ``sqlalchemy.Table``.
    :param columns: the columns to write, which are fields of the tuples; ``{column: field}`` where
        their names differ. If not given, all fields of a tuple but the first, the attempt.
    :param key: columns with a unique index, by which a row replaces an earlier one; the last of a
        task's rows wins. A key has one writer per transaction (R32): put a fields grouping on it in
        front of a sink with several tasks.
    :param statement: instead of a table, SQL to run for each row, with ``:name`` for its fields.
    :param opaque: True with an opaque spout. Then rows of a failed attempt are taken back (R31),
        which needs a ``mark`` or a ``key``; in MySQL and MariaDB a ``mark``.
    :param mark: a text column that the sink fills with the writer of a row: topology, component,
        generation and txid. Rows are found again by it: put an index on it.
    :param auxiliary_table: where the auxiliary rows are; made on first use, shared by all sinks of
        a database.
    :param options: as for the store of the same database: ``busy_timeout_s`` (SQLite),
        ``password_env``, ``password_file``, ``lock_timeout_s``, ``statement_timeout_s``,
        ``idle_timeout_s`` (servers).

    It emits ``(tx, rows)``: how many rows each of its tasks wrote; on every attempt, also if they
    were there already.

    :raises errors.UsageError: the arguments contradict each other, or the rows of a failed opaque
        attempt could not be taken back.
    """

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
        auxiliary_table: str = ledger.TABLE,
        **options: Any,
    ) -> None:
        target = sql_target.target_of(table, columns, key, statement, mark, opaque, parameters.dialect_of(os.fspath(database)))
        self.fields = tuple(columns[name] for name in target.columns) if isinstance(columns, Mapping) else target.columns
        """The fields of a tuple that become a row; empty for all but the first."""
        self.input_fields = Fields(dict.fromkeys(self.fields)) if self.fields else None
        names = dict(zip(target.columns, self.fields, strict=True))
        self.key_fields = Fields(*(names[column] for column in target.key)) if target.key else None
        """The fields of a tuple that become its key: equal keys must come to one task (R32)."""
        self.ledger = ledger.open_ledger(os.fspath(database), auxiliary_table, target, options)
        """The store of the auxiliary rows: ``ledger.fences()``, ``ledger.adopt(…)`` and
        ``ledger.clear(…)`` as those of any store."""

    def check_destination(self, fields: Fields) -> None:
        """Ask the database for the table, and for its columns for tuples with ``fields``."""
        self.ledger.check_table(tuple(fields)[1:])

    @property
    def opaque(self) -> bool:
        """Whether rows of a failed attempt are taken back."""
        return self.ledger.opaque

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "rows"))

    def prepare(self, conf: TopologyConf, context: TopologyContext, collector: BatchOutputCollector, attempt: TransactionAttempt) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.rows: list[tuple[Any, ...]] = []
        self._taken_from: Fields | None = None
        self._columns: tuple[str, ...] = ()
        self._take: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple

    def execute(self, tup: Tuple) -> None:
        if tup.fields is not self._taken_from:
            self._prepare_to_take(tup.fields)
        self.rows.append(self._take(tup.values))

    def finish_batch(self) -> None:
        self.ledger.apply(self.context, self.attempt, self._columns, self.rows)
        self.collector.emit([self.attempt, len(self.rows)])

    def foreach_batch(self, query_id: str, *, begin_at: int = 0) -> streaming.ForeachBatch:
        """What ``writeStream.foreachBatch(…)`` takes: each micro-batch is one transaction of the
        database, however it is partitioned.

        :param query_id: names the query in the auxiliary rows, always the same for one query and
            its checkpoint; like a topology's id.
        :param begin_at: the first batch id this sink is given, if the query ran without it before.
        """
        return streaming.ForeachBatch(queries.Writes(self.ledger, self.fields), query_id, begin_at)

    def foreach_writer(self, query_id: str, *, partitions: int, begin_at: int = 0) -> streaming.ForeachWriter:
        """What ``writeStream.foreach(…)`` takes: each partition of a micro-batch is one
        transaction, written by the executor that has it.

        :param partitions: the number of partitions of a micro-batch, and your promise that they
            hold the same rows at every replay: ``stream.repartition(8,
            "key").writeStream.foreach(sink.foreach_writer("q", partitions=8))``. If you cannot
            promise it, use :meth:`foreach_batch`. So do if a task may fail in the middle: Spark
            then hands over a part of a partition as if it were the whole, and the partition that
            comes again is refused.
        """
        return streaming.ForeachWriter(queries.Writes(self.ledger, self.fields), query_id, partitions, begin_at)

    def _prepare_to_take(self, fields: Fields) -> None:
        columns = self.ledger.target.columns or tuple(fields)[1:]
        if self._columns and columns != self._columns:
            raise errors.UsageError(
                f"the sink of component {self.context.component_id!r} gets tuples with the fields {', '.join(columns)} and others with "
                f"{', '.join(self._columns)}\n  Name those to write by columns=."
            )
        self._take = tuple_rows.taker(fields, self.fields or columns, self.context.component_id, self.ledger.target.statement is not None)
        self._columns, self._taken_from = columns, fields

    def __repr__(self) -> str:
        return f"<SqlSink {self.ledger.sink}{' opaque' if self.opaque else ''}>"


__all__ = ["SqlSink"]
