"""Makes a store's tables in a database server.

Layout, version 4. NULL means "there is none", a stored JSON null is the text ``null``::

    txtopo_schema(store, version, form)                               one row per value table in this database; form: codec, plain or not
    txtopo_fence(store, topology, component, generation, txid, attempt, listed,
                 counted)                                             listed: whether <table>_written has what that attempt wrote;
                                                                      counted: store transactions of a component's only task (R34)
    txtopo_count(store, topology, component, task, generation, txid, attempt, transactions)
                                                                      how many store transactions a task committed in that attempt (R34)
    <table>(key, curr, prev,                                          JSON texts; curr NULL: deleted, prev NULL: was not there
            topology, generation, component, task, txid, attempt,     the stamp: who wrote curr
            prev_txid, steps,                                         who made prev; JSON list of texts if one transaction updated the key repeatedly
            deleted)                                                  curr IS NULL, kept by the database
    <table>_deleted                                                   index of the tombstones
    <table>_written(topology, component, id, keys)                    keys, one to a line, that a task wrote in the transaction of the fence; opaque
                                                                      stores only (R31); id: any number that no other has

``deleted`` is a column, and not only a condition in an index: PostgreSQL can then update ``curr``
without touching an index. Needs SQLAlchemy.

Invariants:
    - A table that is not in ``txtopo_schema`` is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from txtopo import errors
from txtopo.stores import rows
from txtopo.stores.servers import statements as relational_statements

Run = Callable[..., Any]
"""``(statement, parameters) -> sqlalchemy.CursorResult``: runs a statement in the open transaction,
and translates the database's errors."""


class Types(NamedTuple):
    """A database's column types. They compare and order texts by code points."""

    name: sa.types.TypeEngine[str]
    """For the names of topologies, components and stores."""
    key: sa.types.TypeEngine[str]
    """For a key's text."""
    value: sa.types.TypeEngine[str]
    """For a value's text, however long."""


class Tables:
    """The five tables for store ``name``. An index on the columns ``tombstones`` finds the
    tombstones. ``options`` are the database's own, for every table."""

    def __init__(
        self,
        name: str,
        types: Types,
        tombstones: Sequence[str],
        *,
        values_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        metadata = sa.MetaData()

        def column(name: str, kind: Any = types.name, **options: Any) -> sa.Column[Any]:
            return sa.Column(name, kind, **{"nullable": False, **options})

        def text(name: str) -> sa.Column[Any]:
            return column(name, types.value, nullable=True)

        self.name = name
        self.schema = sa.Table(
            "txtopo_schema",
            metadata,
            column("store", primary_key=True),
            column("version", sa.Integer),
            column("form"),
            **options,
        )
        self.fence = sa.Table(
            "txtopo_fence",
            metadata,
            *(column(part, primary_key=True) for part in ("store", "topology", "component")),
            column("generation"),
            column("txid", sa.BigInteger),
            column("attempt", sa.BigInteger),
            column("listed", sa.Boolean),
            column("counted", sa.BigInteger),
            **options,
        )
        self.count = sa.Table(
            "txtopo_count",
            metadata,
            *(column(part, primary_key=True) for part in ("store", "topology", "component")),
            column("task", sa.Integer, primary_key=True, autoincrement=False),
            column("generation"),
            column("txid", sa.BigInteger),
            column("attempt", sa.BigInteger),
            column("transactions", sa.BigInteger),
            **options,
        )
        self.written = sa.Table(
            f"{name}_written",
            metadata,
            column("topology", primary_key=True),
            column("component", primary_key=True),
            column("id", sa.BigInteger, primary_key=True, autoincrement=False),
            column("keys", types.value),
            quote=True,
            **options,
        )
        self.values = sa.Table(
            name,
            metadata,
            column("key", types.key, primary_key=True),
            text("curr"),
            text("prev"),
            column("topology"),
            column("generation"),
            column("component"),
            column("task", sa.Integer),
            column("txid", sa.BigInteger),
            column("attempt", sa.BigInteger),
            column("prev_txid", sa.BigInteger),
            text("steps"),
            sa.Column("deleted", sa.Boolean, sa.Computed("curr IS NULL", persisted=True)),
            quote=True,
            **options,
            **(values_options or {}),
        )
        values = self.values.c
        self.statements = relational_statements.statements_of(
            name, self.fence, self.count, self.written, self.values
        )
        self.deleted_index = sa.Index(
            f"{name}_deleted",
            *(values[column] for column in tombstones),
            postgresql_where=values.deleted,
        )
        self.columns = [values[name] for name in rows.COLUMNS]


def form_of(run: Run, tables: Tables, address: str, has_table: Callable[[str], bool]) -> str | None:
    """The store's form as recorded, or None if the store does not exist. Raises if a different
    txtopo version made the store. Neighbours may have any version."""
    if not has_table(tables.schema.name):
        return None
    schema = tables.schema.c
    row = run(
        sa.select(schema.version, schema.form).where(schema.store == tables.name)
    ).one_or_none()
    if row is None or row.version == rows.BEING_MADE:
        return None
    rows.check_version(address, tables.name, row.version)
    return str(row.form)


def check_neighbours(
    run: Run, tables: Tables, address: str, has_table: Callable[[str], bool]
) -> None:
    """Refuse to make a store if all stores here have a different version: the shared tables belong
    to that version."""
    if has_table(tables.schema.name):
        schema = tables.schema.c
        rows.check_neighbours(
            address,
            {
                str(store): int(version)
                for store, version in run(sa.select(schema.store, schema.version))
            },
        )


def make(
    run: Run, tables: Tables, address: str, form: str, has_table: Callable[[str], bool]
) -> None:
    """Make a store's tables beside other stores' tables. Only one process at a time may do so."""
    check_names_are_free(tables, address, has_table)
    check_neighbours(run, tables, address, has_table)
    for table in (tables.schema, tables.fence, tables.count, tables.values, tables.written):
        if not has_table(table.name):
            run(sa.schema.CreateTable(table))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                run(sa.schema.CreateIndex(index))
    run(sa.insert(tables.schema).values(store=tables.name, version=rows.LAYOUT_VERSION, form=form))


def check_names_are_free(tables: Tables, address: str, has_table: Callable[[str], bool]) -> None:
    """Refuse to make a store if a foreign table has the store's name, or its lists' name."""
    for table in (tables.values, tables.written):
        if has_table(table.name):
            fact = f"the database of {address} has a table {table.name!r} that is not a store of txtopo"
            raise errors.SetupError(f"{fact}\n  Choose another table name.")


def change_form(run: Run, tables: Tables, address: str, stored: str, form: str) -> None:
    """Give an empty store the form ``form``. Refuse if the store has rows. Only one process at a
    time may do so."""
    if run(sa.select(tables.values.c.txid).limit(1)).first() is not None:
        rows.check_form(address, stored, form)
    run(sa.update(tables.schema).where(tables.schema.c.store == tables.name).values(form=form))
