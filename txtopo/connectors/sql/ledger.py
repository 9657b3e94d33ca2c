"""The auxiliary rows of a sink: which transactions of which tasks are in the user's table, in the
same database, committed with the rows.

A ledger is a store (``txtopo.stores``) whose keys are the tasks of sinks. So every promise of
stores holds here, and no rule is implemented twice: the fence of the component (R29), recorded
attempts (R27), stamps (R30), taking back (R31); also ``txtopo store adopt`` and ``clear``. What is
its own: rows of the user's are written in the transaction of the auxiliary row, only if that row is
new, and only after it was written, so that of two writers of the same rows one waits for the other.

Apart from ``sink``, which users see, and from the modules of databases, which write rows fast.

Invariants:
    - Rows of the user's are written if and only if the auxiliary row of their task and transaction
      is, in one database transaction.
"""

from __future__ import annotations

import dataclasses
import importlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.sql import parameters, values
from txtopo.connectors.sql import target as sql_target
from txtopo.sinks import replays
from txtopo.stores import base, sessions, stamps
from txtopo.stores.servers.store import SqlStore
from txtopo.stores.sqlite.store import SqliteStore
from txtopo.topology import context as contexts
from txtopo.topology import destination
from txtopo.topology import transaction as attempts

TABLE = "sink_transactions"
"""The default name of the table of auxiliary rows."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Database:
    """The facts about a database that a ledger needs before it connects."""

    writer: str
    """The module that writes rows."""
    extra: str = ""
    """The extra of txtopo's package that brings the driver."""
    no_undo_log: str = ""
    """Why the database cannot have an undo log; empty if it can."""


_DATABASES = {
    "sqlite": _Database("txtopo.connectors.sql.sqlite"),
    "postgresql+psycopg": _Database("txtopo.connectors.sql.postgresql", "postgres"),
    "mysql+pymysql": _Database(
        "txtopo.connectors.sql.mysql",
        "mysql",
        "which MySQL and MariaDB cannot make inside a transaction",
    ),
}
"""By the scheme of an address. The one registry of the databases of sinks, beside that of the
servers of stores (``txtopo.stores.servers.store``) and the quotes of statements (``parameters``).
"""


_SIMULATED = "txtopo.connectors.sql.simulated"
"""The module of the database in memory."""


class Ledger(base.Store):
    """A store of auxiliary rows, beside the table ``target``. Made by :func:`open_ledger`."""

    target: sql_target.Target
    scheme: str
    has_one_attempt: bool = False
    """Whether all writers of a transaction must agree on its attempt, which then stands for the
    division of its rows among them."""

    def guarantee(self) -> destination.Guarantee:
        """The user's table, not that of the auxiliary rows. An upserted row has a key, and so one
        writer; an inserted row has neither."""
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
        rows: Sequence[Sequence[Any]],
    ) -> bool:
        """Write the rows of one task, all of them or none, once; False if they were there already.

        :param columns: of the rows' values, if the target leaves that to the tuples.
        :raises errors.RowRefusedError: the database refuses one of the rows.
        :raises errors.SetupError: the table is not as it was said to be.
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
                    self.sink, target, _stamp(context, attempt), context.num_tasks, rows, known
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
                "; or give the sink opaque=True",
            )
        return update.applied

    def _stand_at_fence(
        self,
        session: sessions.Session,
        context: contexts.TopologyContext,
        stamp: stamps.Stamp,
        recorded: stamps.Recorded | None,
    ) -> None:
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
                # Any division of the earlier transaction is over; so is any earlier transaction,
                # for a caller without a known attempt before this one.
                recorded = {
                    stamp.component: _recorded_by_checkpoint(fence, is_known=last is not None)
                }
        if self.target.has_undo_log:
            fence = session.read_fence(stamp.topology_id, stamp.component)
            if fence is None or fence.attempt == stamps.CLOSED_ATTEMPT:
                # The store was cleared or adopted, which knows nothing of the undo log.
                # Transactions that are in there may come again.
                self._writer().forget(session, self.target, sql_target.writer_of(stamp))
        super()._stand_at_fence(session, context, stamp, recorded)

    def _take_back(self, session: sessions.Session, void: stamps.Fence) -> None:
        if self.target.mark is None and not self.target.has_undo_log:
            raise errors.StateMismatchError(
                f"the sink {self.sink} has rows of component {void.component!r} from attempt {void.position}, which was replayed without the sink\n"
                "  These rows do not count, and nothing tells them from others. Nothing was written. Remove them by hand, then type\n"
                f"    `txtopo store adopt {shlex.quote(self.location)} {shlex.quote(self.name)} --topology {shlex.quote(void.topology_id)}`\n"
                "  With mark='column' a sink finds such rows by itself."
            )
        self._writer().take_back(session, self.target, sql_target.mark_of(void))
        super()._take_back(session, void)

    def rows_left(self, topology_id: str) -> str:
        """The table, if it may hold rows that the topology has written. A mark tells; without a
        mark every row of the table may be one of them. A statement that does not begin with INSERT
        INTO may have written to any table."""
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
                self._writer().holds_rows(session, target, f"{topology_id}/")
                if is_there
                else self.target.statement
            )

    def simulated(self, world: destination.World) -> destination.Destination:
        """The ledger's own code, on a store and a table in memory."""
        simulated: destination.Destination = importlib.import_module(_SIMULATED).SimulatedLedger(
            self, world.store(self)
        )
        return simulated

    @property
    def sink(self) -> str:
        """Where the rows go, for messages."""
        return f"{self.address.removesuffix(f'#{self.name}')}#{self.target.name}"

    def check_table(self, fields: tuple[str, ...]) -> None:
        """Ask the database for the table and its columns, which are ``fields`` where the target
        leaves that to the tuples. Nothing is made."""
        store: Any = self
        with store.looking() as connection:
            self._columns(
                connection,
                self.target
                if self.target.columns
                else dataclasses.replace(self.target, columns=fields),
            )

    def _columns(self, connection: Any, target: sql_target.Target) -> Mapping[str, values.Column]:
        """The columns of the table; of a statement's none are known."""
        if target.statement is not None:
            return {}
        columns: Mapping[str, values.Column] = self._writer().columns(connection, target)
        values.check_table(self.sink, target, columns)
        return columns

    def _writer(self) -> Any:
        try:
            return importlib.import_module(_DATABASES[self.scheme].writer)
        except ImportError as error:
            extra = _DATABASES[self.scheme].extra
            raise errors.SetupError(
                f"the sink {self.sink} needs what cannot be imported: {error}\n  Type: pip install 'txtopo[{extra}]'"
            ) from error


def _recorded_by_checkpoint(fence: stamps.Fence, is_known: bool) -> attempts.TransactionAttempt:
    """The checkpoint's statement about the transaction before its next one, if it ``is_known``: all
    its writers have written, each in one store transaction (R34). The attempt says how many they
    were."""
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
    """The ledger ``table`` in ``database``, an address of a server or the path of a SQLite file;
    nothing is connected to."""
    scheme, separator, rest = database.partition("://")
    ledger: Ledger
    if separator and scheme != "sqlite":
        ledger = SqlLedger(database, table, opaque=target.opaque, **options)
    else:
        # As SQLAlchemy has it: sqlite:///relative.db, sqlite:////absolute.db
        ledger = SqliteLedger(
            rest.removeprefix("/") if separator else database,
            table,
            opaque=target.opaque,
            **options,
        )
        scheme = "sqlite"
    if (why := _DATABASES[scheme].no_undo_log) and target.has_undo_log:
        raise errors.UsageError(
            f"an opaque SqlSink with a key needs an undo log, {why} ({target.name})\n"
            "  Give mark='column' instead of key=; or use a transactional spout, and no opaque=True; or an SqlStore with opaque=True."
        )
    ledger.target, ledger.scheme = target, scheme
    return ledger


def _stamp(context: contexts.TopologyContext, attempt: attempts.TransactionAttempt) -> stamps.Stamp:
    return stamps.Stamp(
        context.topology_id,
        context.generation,
        context.component_id,
        context.task_index,
        attempt.txid,
        attempt.attempt_id,
    )
