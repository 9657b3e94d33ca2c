"""A sink's auxiliary rows: they say which transactions each task has written to the user's table.

A ledger is a store (``txtopo.stores``) whose keys are the sinks' tasks. So every promise that
stores give holds here, and no rule is implemented twice: the component's fence (R29), recorded
attempts (R27), stamps (R30), taking back (R31), ``txtopo store adopt`` and ``clear``. Besides, a
ledger writes the user's rows, in the database transaction that writes the auxiliary row. It writes
the user's rows only if the auxiliary row is new, and only after the auxiliary row, so that of two
writers with the same rows, one waits for the other.

Invariants:
    - The user's rows are written if and only if their task's auxiliary row for the transaction is
      written, in one database transaction.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.sql import parameters, values
from txtopo.connectors.sql import target as sql_target
from txtopo.sinks import replays
from txtopo.stores import base, fencing, sessions, stamps
from txtopo.stores.servers.store import SqlStore
from txtopo.stores.sqlite.store import SqliteStore
from txtopo.topology import context as contexts
from txtopo.topology import destination
from txtopo.topology import transaction as attempts

TABLE = "sink_transactions"
"""The default name for the table with the auxiliary rows."""


class Ledger(base.Store):
    """A store for auxiliary rows, beside the table ``target``. Made by :func:`open_ledger`."""

    target: sql_target.Target
    has_one_attempt: bool = False
    """Whether all writers in a transaction must agree on the attempt. The attempt's number then says
    how the rows are divided among the writers."""

    def guarantee(self) -> destination.Guarantee:
        """The guarantee for the user's table, not for the auxiliary rows. An upserted row has a
        key, and so one writer. An inserted row has neither."""
        how = (
            "by a statement"
            if self.target.statement
            else "upserted"
            if self.target.key
            else "inserted"
        )
        has_key = bool(self.target.key)
        return dataclasses.replace(
            super().guarantee(),
            name=f"SqlSink {self.sink}",
            holds=f"rows, {how}",
            is_keyed=has_key,
            cure="give the sink opaque=True",
            has_one_writer=self.target.has_undo_log,
        )

    def apply(
        self,
        context: contexts.TopologyContext,
        attempt: attempts.TransactionAttempt,
        columns: tuple[str, ...],
        rows: Collection[Sequence[Any]],
    ) -> bool:
        """Write a task's rows once, all or none. False if the rows were there already.

        :param columns: the columns for the rows' values, if the target leaves them to the tuples.
        :raises errors.RowRefusedError: the database refuses a row.
        :raises errors.SetupError: the table is not as the user described it.
        """
        target = (
            self.target
            if self.target.columns
            else dataclasses.replace(self.target, columns=columns)
        )
        key = (context.topology_id, context.component_id, context.task_index)
        with self.transaction(context, attempt) as opened:
            update = opened.update(key, lambda old: {"rows": len(rows)})
            if update.applied and len(rows):
                opened.flush()
                session: Any = opened.session
                with session.translating():
                    known = self._columns(session.connection, target)
                work = sql_target.Work(
                    self.sink,
                    target,
                    stamps.Stamp.of(context, attempt),
                    context.num_tasks,
                    rows,
                    known,
                )
                values.check(work)
                self._writer().write(session, work)
        if not update.applied and update.curr != {"rows": len(rows)}:
            raise replays.other_rows(
                self.sink,
                context.component_id,
                context.task_index,
                attempt.txid,
                update.curr["rows"],
                len(rows),
                ", or give the sink opaque=True",
            )
        return update.applied

    def _stand_at_fence(self, session: sessions.Session, opening: fencing.Opening) -> None:
        stamp, recorded = opening.stamp, opening.recorded
        if self.has_one_attempt:
            fence = session.read_fence(stamp.topology_id, stamp.component)
            if (
                fence is not None
                and (fence.generation, fence.txid) == (stamp.generation, stamp.txid)
                and fence.attempt != stamp.attempt
            ):
                raise replays.DividedOtherwiseError(fence.attempt, stamp.attempt)
            last = None if recorded is None else recorded.get(stamp.component)
            if (
                fence is not None
                and fence.txid < stamp.txid
                and (last is None or last.txid == fence.txid)
            ):
                # The earlier transaction is over, however it was divided. Without a known attempt
                # before the present attempt, every earlier transaction is over.
                over = _recorded_by_checkpoint(fence, is_known=last is not None)
                opening = opening._replace(recorded={stamp.component: over})
        if self.target.has_undo_log:
            fence = session.read_fence(stamp.topology_id, stamp.component)
            if fence is None or fence.attempt == stamps.CLOSED_ATTEMPT:
                # Clearing or adopting the store left the undo log as it was. Transactions in the
                # undo log may come again.
                self._writer().forget(session, self.target, sql_target.writer_of(stamp))
        super()._stand_at_fence(session, opening)

    def _take_back(self, session: sessions.Session, void: stamps.Fence) -> None:
        if self.target.mark is None and not self.target.has_undo_log:
            raise errors.StateMismatchError(
                f"the sink {self.sink} has rows of component {void.component!r} from attempt {void.position}, which was replayed without the sink\n"
                "  These rows do not count, and cannot be told from other rows. Nothing was written. Remove the rows by hand, then type\n"
                f"    `{self.command('adopt', void.topology_id)}`\n"
                "  With mark='column' a sink finds such rows by itself."
            )
        self._writer().take_back(session, self.target, sql_target.mark_of(void))
        super()._take_back(session, void)

    def rows_left(self, topology_id: str) -> str:
        """The table's name if the table may hold rows that the topology has written, else empty.
        Marks tell. Without a mark, the topology may have written any row in the table. A statement
        that does not begin with INSERT INTO may have written to any table."""
        return self.sink if self._may_hold_rows(topology_id) else ""

    def _may_hold_rows(self, topology_id: str) -> bool:
        if not any(fence.topology_id == topology_id for fence in self.fences()):
            return False
        target = self.target
        if target.statement is not None:
            name = parameters.table_of(target.statement, target.dialect)
            if not name:
                return True
            target = dataclasses.replace(target, statement=None, name=name)
        with self._maintenance(dry_run=True) as maintenance:
            session: Any = maintenance
            with session.translating():
                is_there = self._writer().columns(session.connection, target)
            return bool(
                self._holds_rows(session.connection, target, f"{topology_id}/")
                if is_there
                else self.target.statement
            )

    def _holds_rows(self, connection: Any, target: sql_target.Target, beginning: str) -> bool:
        """Whether the table has a row. If it has marks, only a row whose mark begins with
        ``beginning`` counts."""
        writer, marks = self._writer(), list[str]()
        select = f"SELECT 1 FROM {'.'.join(map(writer.quoted, target.name.split('.', 1)))}"
        if target.mark is not None:
            condition = writer.BEGINNING.format(writer.quoted(target.mark), len(beginning))
            select, marks = f"{select} WHERE {condition}", [beginning]
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(f"{select} LIMIT 1", marks)
            return cursor.fetchone() is not None

    def simulated(self, world: destination.World) -> destination.Destination:
        """The ledger's own code, on a store and a table in memory."""
        simulated: destination.Destination = importlib.import_module(
            "txtopo.connectors.sql.simulated"
        ).SimulatedLedger(self, world.store(self))
        return simulated

    @property
    def sink(self) -> str:
        return f"{self.address.removesuffix(f'#{self.name}')}#{self.target.name}"

    def check_table(self, fields: tuple[str, ...]) -> None:
        """Check that the database has the table and its columns. The columns are ``fields`` if the
        target leaves them to the tuples. Creates nothing."""
        store: Any = self
        with store.looking() as connection:
            self._columns(
                connection,
                self.target
                if self.target.columns
                else dataclasses.replace(self.target, columns=fields),
            )

    def _columns(self, connection: Any, target: sql_target.Target) -> Mapping[str, values.Column]:
        """The table's columns. Empty for a statement, whose columns are unknown."""
        if target.statement is not None:
            return {}
        columns: Mapping[str, values.Column] = self._writer().columns(connection, target)
        values.check_table(self.sink, target, columns)
        return columns

    def _writer(self) -> Any:
        """The module that writes rows to the target's database."""
        dialect = self.target.dialect
        try:
            return importlib.import_module(f"txtopo.connectors.sql.{dialect}")
        except ImportError as error:
            extra = "postgres" if dialect == "postgresql" else dialect
            raise errors.SetupError(
                f"the sink {self.sink} needs a driver that cannot be imported: {error}\n  Type: pip install 'txtopo[{extra}]'"
            ) from error


def _recorded_by_checkpoint(fence: stamps.Fence, is_known: bool) -> attempts.TransactionAttempt:
    """The attempt that the checkpoint has recorded. If the attempt ``is_known``, all its writers
    have written, each in one store transaction (R34). The attempt's number is the number of
    writers."""
    if not is_known or fence.attempt == stamps.CLOSED_ATTEMPT:
        return attempts.TransactionAttempt(fence.txid, fence.attempt)
    return attempts.RecordedAttempt(fence.txid, fence.attempt, fence.attempt)


class SqliteLedger(Ledger, SqliteStore):
    """Auxiliary rows in a SQLite file."""

    local_only_reason = "SqlSink writes to a file on this machine"


class SqlLedger(Ledger, SqlStore):
    """Auxiliary rows in a database server."""


def open_ledger(
    database: str, table: str, target: sql_target.Target, options: dict[str, Any]
) -> Ledger:
    """Make the ledger ``table`` in ``database``, a server's address or a SQLite file's path,
    without connecting."""
    scheme, separator, rest = database.partition("://")
    ledger: Ledger
    if separator and scheme != "sqlite":
        ledger = SqlLedger(database, table, opaque=target.opaque, **options)
    else:
        # As in SQLAlchemy: sqlite:///relative.db, sqlite:////absolute.db
        ledger = SqliteLedger(
            rest.removeprefix("/") if separator else database,
            table,
            opaque=target.opaque,
            **options,
        )
    if target.dialect == "mysql" and target.has_undo_log:
        raise errors.UsageError(
            f"an opaque SqlSink with a key needs an undo log, which MySQL and MariaDB cannot make inside a transaction ({target.name})\n"
            "  Give mark='column' instead of key=, or use a transactional spout without opaque=True, or an SqlStore with opaque=True."
        )
    ledger.target = target
    return ledger
