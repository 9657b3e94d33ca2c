"""Tells a queue's entries to a table in PostgreSQL.

Runs where SQLAlchemy and psycopg are installed, and is configuration elsewhere. All rows
travel as one JSON text, which the server turns into the column types. So one statement takes any
number of rows, of any types.

Invariants:
    - The entries of a call are written in one transaction, or none is.
    - A row changes only to a higher sequence of its own generation.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.sql import values
from txtopo.connectors.sql.target import Target, listed, quoted
from txtopo.exports import linked
from txtopo.exports.entries import EntryRefusedError, SequencedExport
from txtopo.stores import place as places
from txtopo.stores.servers import store as servers

OWN = {
    "txtopo_sequence": ("bigint NOT NULL", "0"),
    "txtopo_generation": ("text NOT NULL", "''"),
    "txtopo_deleted": ("boolean NOT NULL", "false"),
}
"""Columns beside the user's, with their types, and values for rows that were there before."""

_LIMITS = {"lock_timeout_s": 30.0, "statement_timeout_s": 60.0, "idle_timeout_s": 60.0}
_OF_THE_ROW = ("22", "23", "44", "54", "P0")
"""Error classes of one row: its data or size, or a constraint, a view or a trigger that refuses the
row."""
_CURES = {
    "21": "Two keys are equal in the table: give the key's columns a type and a collation that tell them apart.",
    "42": "Mend the table, and start the exporter again.",
    "55000": "Make the key's constraint NOT DEFERRABLE, and start the exporter again.",
}

_COLUMNS = (
    "SELECT attname, format_type(atttypid, atttypmod), typcategory, attnotnull FROM pg_catalog.pg_attribute AS a"
    " JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
)
_IS_UNIQUE = (
    "SELECT 1 FROM pg_catalog.pg_index WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid"
    ' AND indpred IS NULL AND indexprs IS NULL AND %s = (SELECT array_agg(attname::text ORDER BY attname::text COLLATE "C")'
    " FROM pg_catalog.pg_attribute WHERE attrelid = indrelid AND attnum = ANY(indkey[0:indnkeyatts - 1])) LIMIT 1"
)


class PostgresExporter(linked.LinkedExporter):
    """Keeps the current value of each key in table ``table`` in the PostgreSQL database at ``url``.

    Besides the named columns the table needs ``txtopo_sequence bigint``, ``txtopo_generation text``
    and ``txtopo_deleted boolean``, all ``NOT NULL``, and a unique index on the key's columns. The
    first export refuses another table, and names the statement to type. The row stays when the key
    is gone, with ``txtopo_deleted`` true and NULL in ``columns``, since an older entry might come
    late.

    Needs ``pip install 'txtopo[postgres]'`` where entries are exported.

    :param url: as a ``SqlStore`` takes it: ``postgresql+psycopg://user@host:port/database``, without
        a password.
    :param table: a name, or ``schema.name``.
    :param key: the key's column, or the columns for a tuple's elements. A ``str`` needs a text column,
        an ``int`` a numeric column.
    :param columns: the value's columns. The value is a dict with exactly these names, or a list as
        long. A single column takes the value itself. A ``json`` or ``jsonb`` column takes any value.
    :param password_env: an environment variable with the password, in the exporting process.
    :param password_file: a file whose first line is the password.
    """

    def __init__(
        self,
        url: str,
        table: str,
        key: str | Sequence[str],
        columns: Sequence[str],
        *,
        password_env: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(f"{servers.database_of(url)}#{table}")
        if not url.startswith("postgresql+psycopg:"):
            raise errors.UsageError(
                "a PostgresExporter writes to PostgreSQL only\n  Give postgresql+psycopg://user@host:port/database."
            )
        keys, names = (key,) if isinstance(key, str) else tuple(key), tuple(columns)
        every = [*keys, *names, *OWN]
        if (
            isinstance(columns, str)
            or not (keys and names and len(set(every)) == len(every))
            or not all(isinstance(name, str) and name for name in [table, *every])
        ):
            raise errors.UsageError(
                f"a PostgresExporter takes a table and different columns, not {table!r}, {key!r} and {columns!r}\n"
                f"  Give table='counts', key='word', columns=['count']. The exporter fills {', '.join(OWN)} by itself."
            )
        self._is_tuple = not isinstance(key, str)
        self._target = Target(table, (*keys, *names), keys, dialect="postgresql")
        access = places.access("PostgresExporter", url, password_env, password_file, _LIMITS)
        self._place = places.Place(table, self.address, url, "", False, **access)
        self._types: dict[str, str] = {}
        self._categories: dict[str, str] = {}
        self._columns: Mapping[str, values.Column] = {}

    def close(self) -> None:
        if self._link is not None:
            self._link.invalidate()
        super().close()

    def _tell(self, last: Sequence[SequencedExport]) -> None:
        backend = self._backend("postgresql", "postgres")
        with backend.faults.translating(self.address):
            if self._link is None:
                self._link = backend.connections.open_connection(
                    self._place, _LIMITS["statement_timeout_s"]
                )
                self._look_at_table()
            rows = [self._row(entry) for entry in last]
            connection = self._link.connection.driver_connection
            try:
                self._write(last, rows)
                connection.commit()
            except backend.faults.DRIVER_ERROR as error:
                state = error.sqlstate or ""
                cure = _CURES.get(state, _CURES.get(state[:2]))
                if cure is not None and state != "42501":
                    raise errors.SetupError(
                        f"{self.address} does not take rows: {_message(error)} ({state})\n  {cure}"
                    ) from error
                if state[:2] not in _OF_THE_ROW:
                    raise
                connection.rollback()
                self._blame(last, rows, backend.faults.DRIVER_ERROR)
                raise errors.FailedException(f"{self.address}: {_message(error)}") from error

    def _blame(self, last: Sequence[SequencedExport], rows: Sequence[Any], failure: Any) -> None:
        """Write row by row until one is refused. The caller commits nothing."""
        self._run("SET CONSTRAINTS ALL IMMEDIATE")
        for entry, row in zip(last, rows, strict=True):
            try:
                self._write([entry], [row])
            except failure as error:
                raise EntryRefusedError(entry.key, _message(error)) from error

    def _write(self, last: Sequence[SequencedExport], rows: Sequence[Any]) -> None:
        """Write ``rows``, made from the entries ``last``, in the open transaction."""
        target, text = self._target, json.dumps(rows, ensure_ascii=False)
        generation = last[0].generation
        typed = ", ".join(f"{quoted(name)} {kind}" for name, kind in self._types.items())
        told = f"json_to_recordset(%s) AS told({typed})"
        changed = [name for name in self._types if name not in target.key]
        changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in changed)
        count = self._run(
            f"INSERT INTO {target.quoted} AS kept({listed(self._types)}, txtopo_generation)"
            f" SELECT {listed(self._types)}, %s FROM {told} ORDER BY {listed(target.key)} ON CONFLICT ({listed(target.key)}) DO UPDATE SET {changes}"
            " WHERE kept.txtopo_generation = excluded.txtopo_generation AND kept.txtopo_sequence < excluded.txtopo_sequence",
            [generation, text],
        ).rowcount
        if count == len(rows):
            return
        keys = ", ".join(f"told.{quoted(name)}" for name in target.key)
        other = self._run(
            f"SELECT kept.txtopo_generation, {keys} FROM {target.quoted} AS kept JOIN {told}"
            f" ON {target.matches('kept', 'told')} WHERE kept.txtopo_generation <> %s LIMIT 1",
            [text, generation],
        ).fetchone()
        if other is not None:
            told_keys = [tuple(row[name] for name in target.key) for row in rows]
            entry = last[told_keys.index(other[1:]) if other[1:] in told_keys else 0]
            old, new = (
                f"'{name.replace(chr(39), chr(39) * 2)}'" for name in (other[0], generation)
            )
            raise self._mismatch(
                entry,
                other[0],
                f"Type: TRUNCATE TABLE {target.quoted}\n  {linked.REPLAY}\n"
                "  Or keep the rows, if the topology goes on with the store that the rows came from. Type:\n"
                f"    UPDATE {target.quoted} SET txtopo_generation = {new}, txtopo_sequence = 0 WHERE txtopo_generation = {old}",
            )

    def _row(self, entry: SequencedExport) -> dict[str, Any]:
        """The row of ``entry``, by column."""
        keys, columns, value = self._target.key, self._target.others, entry.value
        parts = entry.key if self._is_tuple else (entry.key,)
        if not isinstance(parts, tuple) or len(parts) != len(keys):
            raise EntryRefusedError(entry.key, f"it does not fit the columns {', '.join(keys)}")
        for name, part in zip(keys, parts, strict=True):
            if not isinstance(part, {"S": str, "N": int}.get(self._categories[name], str | int)):
                why = f"the column {name!r} has type {self._types[name]} and takes no {part!r}"
                raise EntryRefusedError(entry.key, why)
        if isinstance(value, dict) and len(columns) > 1 and value.keys() == set(columns):
            value = [value[name] for name in columns]
        elif len(columns) == 1 or value is None:
            value = [value] * len(columns)
        if not isinstance(value, list) or len(value) != len(columns):
            why = f"its value is neither a dict with {', '.join(columns)} nor a list of {len(columns)}: {value!r:.200}"
            raise EntryRefusedError(entry.key, why)
        row = dict(zip((*keys, *columns), (*parts, *value), strict=True))
        for name, one in row.items():
            kind: type = type(one)
            changed = values.changes(kind, self._columns[name])
            if changed is not None and changed(one):
                why = f"a column of type {self._types[name]} would round or cut its value of {name!r}, {one!r:.200}"
                raise EntryRefusedError(entry.key, why)
        return {
            **row,
            "txtopo_sequence": entry.sequence,
            "txtopo_deleted": entry.value is None,
        }

    def _look_at_table(self) -> None:
        """Learn the column types.

        :raises errors.SetupError: the table is missing, or not as needed.
        """
        target = self._target
        known = {name: facts for name, *facts in self._run(_COLUMNS, [target.quoted])}
        is_unique = self._run(_IS_UNIQUE, [target.quoted, sorted(target.key)]).fetchone()
        wanted = dict.fromkeys(target.key, "text NOT NULL") | dict.fromkeys(target.others, "jsonb")
        wanted |= {name: kind for name, (kind, _) in OWN.items()}
        changes = []
        for name, kind in wanted.items():
            column, (stored, _, is_bound) = quoted(name), known.get(name, ("", "", False))
            if not stored:
                default = f" DEFAULT {OWN[name][1]}" if name in OWN else ""
                changes.append(f"ADD {column} {kind}{default}")
            elif name in OWN and f"{stored}{' NOT NULL' if is_bound else ''}" != kind:
                type = kind.removesuffix(" NOT NULL")
                changes.append(f"ALTER {column} TYPE {type} USING {column}::{type}")
                changes.append(f"ALTER {column} SET NOT NULL")
            elif name in target.others and is_bound:
                changes.append(f"ALTER {column} DROP NOT NULL")
        unique = f"UNIQUE ({listed(target.key)})"
        if not known:
            columns = [f"{quoted(name)} {kind}" for name, kind in wanted.items()]
            cure = f"CREATE TABLE {target.quoted} ({', '.join([*columns, unique])})"
        else:
            cure = f"ALTER TABLE {target.quoted} {', '.join([*changes, *([] if is_unique else [f'ADD {unique}'])])}"
        if not known or changes or not is_unique:
            raise errors.SetupError(
                f"{self.address} {'is not as an exporter needs it' if known else 'is missing'}\n"
                f"  Type, with types as you like for key and value: {cure}"
            )
        self._types = {name: known[name][0] for name in wanted if name != "txtopo_generation"}
        self._categories = {name: known[name][1] for name in target.key}
        sql = importlib.import_module("txtopo.connectors.sql.postgresql")
        self._columns = sql.columns(self._link.connection.driver_connection, target)

    def _run(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Run a statement with ``values`` for ``%s``. Further ``%`` belong to names."""
        escaped = statement.replace("%", "%%").replace("%%s", "%s")
        return self._link.connection.driver_connection.execute(escaped, values)


def _message(error: Any) -> str:
    """The server's message, on one line."""
    primary = error.diag.message_primary or str(error)
    return " ".join(f"{primary} {error.diag.message_detail or ''}".split())
