"""Simulated user tables: the rows that a topology's sinks write, in a database in memory.

A sink consists of a ledger and rows. The ledger's code is the real code, on a store in memory. This
module does the database's work on rows: insert, upsert by a key, mark, keep replaced rows, take
back. The real table's constraints, defaults and triggers are unknown. For a user's own statement,
the values for each run are kept: exactly once means that each set of values is run once.

Invariants: rows change when the transaction with their auxiliary row commits, or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from txtopo.connectors.sql import ledger
from txtopo.connectors.sql import target as sql_target
from txtopo.connectors.sql.target import Target, Work
from txtopo.sinks import simulated, tuple_rows
from txtopo.sinks.simulated import Written
from txtopo.stores import backend, base, conflicts, sessions, stamps


@dataclass(frozen=True, slots=True)
class _Replaced:
    """The row before an upsert, for an opaque sink."""

    writer: str
    task: int
    row: Written | None


@dataclass(slots=True)
class _Table:
    """A table as sinks see it. Rows with a key are in ``by_key``, rows without in ``inserted``."""

    inserted: list[Written] = field(default_factory=list)
    by_key: dict[Any, Written] = field(default_factory=dict)
    undo: dict[tuple[str, Any], _Replaced] = field(default_factory=dict)
    """By mark and key."""

    def copy(self) -> _Table:
        return _Table(list(self.inserted), dict(self.by_key), dict(self.undo))


class SimulatedLedger(ledger.Ledger, backend.Backend, simulated.SimulatedSink):
    """Stands for the ledger ``original``, and for the table that the sink writes to. ``store`` is
    in memory."""

    def __init__(self, original: ledger.Ledger, store: Any) -> None:
        vars(self).update(vars(original))
        self._store = store

    @contextlib.contextmanager
    def open_session(self, resources: base.Resources) -> Iterator[sessions.Session]:
        with self._store.open_session(resources) as session:
            session.sink_data[self._table_key] = session.table = session.sink_data.get(
                self._table_key, _Table()
            ).copy()
            session.connection, session.translating = None, contextlib.nullcontext
            yield session

    def open_maintenance(
        self, resources: base.Resources
    ) -> contextlib.AbstractContextManager[sessions.Maintenance]:
        opened: contextlib.AbstractContextManager[sessions.Maintenance] = (
            self._store.open_maintenance(resources)
        )
        return opened

    def read_row(self, text: str) -> stamps.Row | None:
        row: stamps.Row | None = self._store.read_row(text)
        return row

    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        yield from self._store.read_from(text)

    def fences(self) -> list[stamps.Fence]:
        fences: list[stamps.Fence] = self._store.fences()
        return fences

    def exists(self) -> bool:
        return bool(self._store.exists())

    def stored_form(self) -> str | None:
        form: str | None = self._store.stored_form()
        return form

    @property
    def commits(self) -> int:
        """How many transactions the whole database has committed."""
        commits: int = self._store.commits
        return commits

    def rows(self) -> list[Written]:
        table = self._store.sink_data.get(self._table_key, _Table())
        return [*table.inserted, *table.by_key.values()]

    @property
    def _table_key(self) -> tuple[Any, ...]:
        return self.target.statement or self.target.name, self.target.key

    def _writer(self) -> Any:
        return _Writer

    def _columns(self, connection: Any, target: Target) -> Mapping[str, Any]:
        return {}  # The table is unknown.


class _Writer:
    """Stands for a database's module in a ledger."""

    @staticmethod
    def write(session: Any, work: Work) -> None:
        table: _Table = session.table
        target, mark = work.target, sql_target.mark_of(work.stamp)
        rows = [
            Written(target.columns, tuple(row), work.stamp.component, mark) for row in work.rows
        ]
        if not target.key:
            table.inserted.extend(rows)
            return
        places = [target.columns.index(column) for column in target.key]
        keyed = [(tuple(row.values[place] for place in places), row) for row in rows]
        if target.has_undo_log:
            _keep(table, work, mark, keyed)
        table.by_key.update(keyed)

    @staticmethod
    def take_back(session: Any, target: Target, mark: str) -> None:
        table: _Table = session.table
        table.inserted = [row for row in table.inserted if row.mark != mark]
        for place in [place for place in table.undo if place[0] == mark]:
            before = table.undo.pop(place).row
            if before is None:
                table.by_key.pop(place[1], None)
            elif place[1] in table.by_key:
                table.by_key[place[1]] = before

    @staticmethod
    def forget(session: Any, target: Target, writer: str) -> None:
        table: _Table = session.table
        table.undo = {
            place: replaced for place, replaced in table.undo.items() if replaced.writer != writer
        }


def _keep(table: _Table, work: Work, mark: str, rows: list[tuple[Any, Written]]) -> None:
    """Keep the rows about to be replaced, and forget rows that an earlier transaction replaced."""
    writer, task = sql_target.writer_of(work.stamp), work.stamp.task
    for place, replaced in list(table.undo.items()):
        is_own = replaced.task == task or (task == 0 and replaced.task >= work.num_tasks)
        if replaced.writer == writer and place[0] != mark and is_own:
            del table.undo[place]
    for key, row in rows:
        before = table.undo.setdefault((mark, key), _Replaced(writer, task, table.by_key.get(key)))
        if before.task != task:
            shown = tuple_rows.described(work.target.columns, row.values)
            raise conflicts.StoreConflict(
                work.sink, shown, "another task", work.stamp.writer, work.stamp.txid
            )
