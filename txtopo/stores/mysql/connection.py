"""Opens connections to MySQL and MariaDB, with settings and password.

Needs SQLAlchemy and PyMySQL.

Invariants:
    - A password is read when a connection is made, given to the driver, and kept nowhere.
"""

from __future__ import annotations

import functools
import math
import socket
from typing import Any

import sqlalchemy as sa
import sqlalchemy.dialects.mysql.pymysql

from txtopo import errors
from txtopo.stores import place as places
from txtopo.stores.mysql import errors as faults

SERVER_VERSION_MIN = {"MariaDB": (10, 6), "MySQL": (8, 0, 19)}
"""The first versions with JSON_TABLE, and where CREATE TABLE makes a table whole or not at all."""

CONNECT_TIMEOUT_S = 10

ANSWER_MARGIN_S = 15.0
"""How long to wait for the server's answer, beyond the longest statement and the longest wait for a
lock."""

HEX_CHARACTERS_MAX = 1_000_000
"""The longest text to send as hexadecimal digits: two digits per byte fill half a packet of a
server's default size."""

_TCP = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""A server that vanished without closing the connection is noticed within half a minute."""

_SQL_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO"
"""The server refuses values that do not fit, instead of cutting them. Backslashes and quotes mean
what the driver expects."""

_SERVER = sa.text("SELECT @@max_allowed_packet, @@innodb_flush_log_at_trx_commit")


def open_connection(
    store: places.Place, statement_s: float, *, for_reading: bool = False
) -> sa.Connection:
    """Open a connection and make its settings. ``statement_s`` bounds a statement, in seconds, and
    0 is no limit. A connection for reading keeps its first state, however long the reading
    takes."""
    answer_s = (
        None if statement_s == 0 else statement_s + store.limits["lock_timeout_s"] + ANSWER_MARGIN_S
    )
    engine = _engine(store.url, store.password_env, store.password_file, store.address, answer_s)
    with faults.translating(store.address, connecting=True):
        raw = engine.connect()
    try:
        _check_version(raw, store.address)
        with faults.translating(store.address):
            _keep_alive(raw)
            raw.execute(*_settings(raw, store, statement_s, for_reading))
            if for_reading:
                raw.exec_driver_sql(
                    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
                )
            packet, flush = raw.execute(_SERVER).one()
            raw.commit()
        raw.info["packet_bytes_max"] = int(packet)
        if int(flush) == 0:
            raise errors.SetupError(
                f"the server of {store.address} does not write commits to its disk (innodb_flush_log_at_trx_commit=0)\n"
                "  Set innodb_flush_log_at_trx_commit=1. With 2, commits outlive the server's process, but not its machine."
            )
    except BaseException:
        raw.close()
        raise
    return raw


@functools.lru_cache(maxsize=64)
def _engine(
    url: str,
    password_env: str | None,
    password_file: str | None,
    address: str,
    answer_s: float | None,
) -> sa.Engine:
    """Makes connections. Holds no connection and no password."""
    engine = sa.create_engine(
        url, poolclass=sa.NullPool, isolation_level="READ COMMITTED", hide_parameters=True
    )

    @sa.event.listens_for(engine, "do_connect")
    def _connect(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
        options.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
        options.setdefault("program_name", "txtopo")
        options |= {
            "charset": "utf8mb4",
            "autocommit": False,
            "read_timeout": answer_s,
            "write_timeout": answer_s,
        }
        password = places.password_from(f"the store {address}", password_env, password_file)
        if password is not None:
            options["password"] = password

    return engine


def sent(text: str) -> str | bytes:
    """``text`` in the form that the driver sends fastest. The driver writes bytes as hexadecimal
    digits, but searches a text for quotes letter by letter.

    The server keeps bytes as bytes until a statement converts them, or puts them into a text
    column.
    """
    return text.encode() if len(text) <= HEX_CHARACTERS_MAX else text


def descriptor(driver: Any) -> int:
    """The connection's socket number, negative after the connection was closed."""
    opened = getattr(driver, "_sock", None)
    return -1 if opened is None else int(opened.fileno())


def _is_mariadb(raw: sa.Connection) -> bool:
    dialect: Any = raw.dialect
    return bool(dialect.is_mariadb)


def _settings(
    raw: sa.Connection, store: places.Place, statement_s: float, for_reading: bool
) -> tuple[sa.TextClause, dict[str, Any]]:
    """One statement for all settings. Limits in whole seconds are rounded up."""
    lock_s = math.ceil(store.limits["lock_timeout_s"])
    idle_s = math.ceil(store.limits["idle_timeout_s"])
    values: dict[str, Any] = {
        "sql_mode": _SQL_MODE,
        "innodb_lock_wait_timeout": lock_s,
        "lock_wait_timeout": lock_s,
    }
    if _is_mariadb(raw):
        values |= {
            "max_statement_time": statement_s,
            "idle_transaction_timeout": 0 if for_reading else idle_s,
        }
    else:
        values |= {"max_execution_time": int(statement_s * 1000)}
        # MySQL has no limit for transactions alone, only for connections. A connection that the
        # server ended between two transactions is opened again.
        values |= {} if for_reading else {"wait_timeout": idle_s}
    return sa.text("SET SESSION " + ", ".join(f"{name} = :{name}" for name in values)), values


def _check_version(raw: sa.Connection, address: str) -> None:
    kind = "MariaDB" if _is_mariadb(raw) else "MySQL"
    reported, least = raw.dialect.server_version_info or (), SERVER_VERSION_MIN[kind]
    numbers = tuple(part for part in reported if isinstance(part, int))
    if numbers < least:
        wanted = " or newer, or ".join(
            f"{name} {'.'.join(map(str, version))}" for name, version in SERVER_VERSION_MIN.items()
        )
        raise errors.SetupError(
            f"the server of {address} is {kind} {'.'.join(map(str, numbers))}, which is too old\n  Use {wanted} or newer."
        )


def _keep_alive(raw: sa.Connection) -> None:
    opened = getattr(raw.connection.dbapi_connection, "_sock", None)
    if isinstance(opened, socket.socket) and opened.family in (socket.AF_INET, socket.AF_INET6):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _TCP.items():
            if hasattr(socket, name):  # not every system has every option
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
