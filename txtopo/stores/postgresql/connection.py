"""Opens connections to PostgreSQL, with settings and password.

Needs SQLAlchemy and psycopg.

Invariants:
    - A password is read when a connection is made, given to the driver, and kept nowhere.
"""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
import sqlalchemy.dialects.postgresql.psycopg
from psycopg.types.array import ListBinaryDumper

from txtopo import errors
from txtopo.stores import place as places
from txtopo.stores.postgresql import errors as faults

SERVER_VERSION_MIN = 13

CONNECT_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "txtopo",
}
"""Options for libpq, unless the URL gives others. A server that vanished without closing the
connection is noticed within half a minute."""

# Session settings. A commit that returned must be on disk, so ``off`` becomes ``on``. All other
# values stay: they may have the server wait for replicas, too.
_SETTINGS = sa.text(
    "SELECT set_config('lock_timeout', :lock, false), set_config('statement_timeout', :statement, false),"
    " set_config('idle_in_transaction_session_timeout', :idle, false),"
    " set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, false),"
    " current_setting('server_encoding'), current_setting('server_version_num')"
)


def open_connection(
    store: places.Place, statement_s: float, *, for_reading: bool = False
) -> sa.Connection:
    """Open a connection and make its settings. ``statement_s`` bounds a statement, in seconds, and
    0 is no limit.

    The server ends a transaction that is idle too long. A connection for reading keeps its first
    state, however long the reading takes.
    """
    lock_ms = milliseconds(store.limits["lock_timeout_s"])
    idle_ms = 0 if for_reading else milliseconds(store.limits["idle_timeout_s"])
    statement_ms = milliseconds(statement_s) if statement_s else 0
    engine = _engine(store.url, store.password_env, store.password_file, store.address)
    with faults.translating(store.address, connecting=True):
        raw = engine.connect()
    # The driver would search each string in a text array twice for characters to escape: a third of
    # the driver's time for a bulk update.
    driver: Any = raw.connection.driver_connection
    driver.adapters.register_dumper(list, ListBinaryDumper)
    try:
        with faults.translating(store.address):
            limits = {"lock": str(lock_ms), "statement": str(statement_ms), "idle": str(idle_ms)}
            *_, encoding, version = raw.execute(_SETTINGS, limits).one()
            raw.commit()
        if encoding != "UTF8":
            raise errors.SetupError(
                f"the database of {store.address} has the encoding {encoding}, which cannot hold every key and value\n"
                "  Use a database that was made with ENCODING 'UTF8'."
            )
        if int(version) < SERVER_VERSION_MIN * 10_000:
            raise errors.SetupError(
                f"the server of {store.address} is too old\n  PostgreSQL {SERVER_VERSION_MIN} or newer is needed."
            )
        if for_reading:
            raw.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    except BaseException:
        raw.close()
        raise
    return raw


@functools.lru_cache(maxsize=64)
def _engine(
    url: str, password_env: str | None, password_file: str | None, address: str
) -> sa.Engine:
    """Makes connections. Holds no connection and no password."""
    engine = sa.create_engine(
        url,
        poolclass=sa.NullPool,
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        use_native_hstore=False,
    )

    @sa.event.listens_for(engine, "do_connect")
    def _connect(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
        for name, value in CONNECT_DEFAULTS.items():
            options.setdefault(name, value)
        password = places.password_from(f"the store {address}", password_env, password_file)
        if password is not None:
            options["password"] = password

    return engine


def milliseconds(seconds: float) -> int:
    """``seconds`` as a limit for PostgreSQL: 1 at least, because 0 is no limit."""
    return max(1, int(seconds * 1000))


def descriptor(driver: Any) -> int:
    """The connection's socket number, negative after the connection was closed."""
    return -1 if driver.closed else int(driver.fileno())
