"""Translates errors from MySQL and MariaDB: a passing error fails the attempt, an error for a
person names the cure.

The table goes by error numbers (https://mariadb.com/kb/en/mariadb-error-code-reference/). Numbers
from 2000 to 2999 come from the driver and concern the connection. While connecting, an unknown
number counts as passing: a waiting run names the reason, and a person can stop the run.

Invariants:
    - Every error raised is from ``txtopo.errors``: a process that unpickles an error needs no
      driver.
    - A message quotes the server or the driver, which repeat no password. A message never holds a
      statement or its parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pymysql
import sqlalchemy as sa

from txtopo.stores import failures

DRIVER_ERROR: type[Exception] = pymysql.err.MySQLError
"""The base class for all errors that the driver raises."""

_DEADLOCK = 1213
_DUPLICATE = 1062
_TOO_LARGE = 1153
_NULL = 1048

_BUSY = {
    1020: "transactions got in each other's way",
    1037: "the server is out of memory",
    1038: "the server is out of memory",
    1040: "the server has too many connections: raise max_connections, or use fewer executor cores",
    1061: "another process has made the index first",
    _DUPLICATE: "another transaction has made the row first",
    1146: "a table was removed",
    1203: "the user has too many connections: raise max_user_connections, or use fewer executor cores",
    1205: "it waited for a lock longer than lock_timeout_s",
    1206: "the server has no room for more locks: raise innodb_buffer_pool_size",
    1226: "the user has reached an account limit",
    1290: "the server is read-only",
    1317: "a statement was cancelled",
    1412: "a table was being changed",
    1614: "transactions got in each other's way",
    1792: "the server is read-only",
    1836: "the server is read-only",
    1969: "a statement took longer than statement_timeout_s",
    3024: "a statement took longer than statement_timeout_s",
    3572: "it waited for a lock longer than lock_timeout_s",
}

_LOST = frozenset(
    {1047, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1192, 1927, 3159, 4031}
)
"""The server ends or has ended the connection. The driver's own numbers mean a lost connection,
too."""

_GRANT = "Grant the user SELECT, INSERT, UPDATE and DELETE on the tables, and for the first use CREATE and INDEX on the database."
_PASSWORD = (
    "Check the user in the URL and the machine it may come from, and the password:"
    " password_env=, password_file=, or a file named by read_default_file in the URL."
)
_DATABASE = "Type, in the server: CREATE DATABASE name. Or mend the URL."
_CURES = {
    1044: f"{_GRANT} Or mend the database in the URL.",
    1045: _PASSWORD,
    1049: _DATABASE,
    1129: "The server has blocked this machine after many errors. Type, in the server: FLUSH HOSTS.",
    1130: "The server has no user for this machine. Make one, as 'user'@'host'.",
    1142: _GRANT,
    1143: _GRANT,
    1227: _GRANT,
    1251: "Give the user another way to authenticate, or use a newer PyMySQL.",
    1275: _PASSWORD,
    1286: "Have the server use InnoDB: no other engine has transactions.",
    1370: _GRANT,
    1406: "Names of topologies and components may have up to 255 characters.",
    1665: "Have the server use binlog_format=ROW or MIXED: it cannot log READ COMMITTED otherwise.",
    1698: _PASSWORD,
    1820: "Change the user's password, which has expired.",
    1862: "Change the user's password, which has expired.",
    1873: _PASSWORD,
    3118: "Unlock the account: ALTER USER name ACCOUNT UNLOCK.",
    3948: "Remove local_infile from the URL.",
    4151: "Unlock the account: ALTER USER name ACCOUNT UNLOCK.",
    _TOO_LARGE: "Raise max_allowed_packet on the server, or store smaller values.",
}
_FULL = frozenset({1021, 1026, 1114, 1030})
_CONNECTING = {
    "SSL": "Check the ssl_… options in the URL, and whether the server uses TLS.",
    "cryptography": "Type: pip install 'txtopo[mysql]', for the interpreter of the driver and of every executor.",
    "certificate": "Check the ssl_… options in the URL.",
    "unexpected keyword argument": "Mend the options in the URL, after the ?.",
    "No such file or directory: ": "Mend the path in the URL. The file must be on every machine that connects.",
}


def is_deadlock(error: BaseException) -> bool:
    """Whether the server has ended the transaction because two transactions waited for each
    other."""
    return _number(error.__cause__) == _DEADLOCK


def is_duplicate(error: BaseException) -> bool:
    """Whether a new row's key existed already. The statement has changed nothing, and the
    transaction goes on."""
    return _number(error.__cause__) == _DUPLICATE


def is_refusal(error: BaseException) -> bool:
    """Whether a column that cannot be NULL should become NULL. The statement has changed nothing,
    and the transaction goes on."""
    return _number(error.__cause__) == _NULL


def may_pass(error: BaseException) -> bool:
    """Whether a new attempt, or a change of the server's setup, may get past ``error``."""
    number = _number(error)
    return (
        number < 1000
        or 2000 <= number < 3000
        or number in {_DEADLOCK, *_BUSY, *_CURES, *_LOST, *_FULL}
    )


@contextlib.contextmanager
def translating(address: str, connecting: bool = False) -> Iterator[None]:
    """Translate the database's errors into errors from ``txtopo.errors``."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        # SQLAlchemy would add the statement.
        raise meaning(
            address, error.orig or error, connecting, bool(error.connection_invalidated)
        ) from error.orig
    except DRIVER_ERROR as error:
        raise meaning(address, error, connecting, False) from error
    except (RuntimeError, TypeError, ValueError, OSError) as error:
        # While connecting, PyMySQL raises these for missing packages, unknown options and missing
        # files.
        if not connecting:
            raise
        raise meaning(address, error, connecting, False) from error


def meaning(address: str, error: BaseException, connecting: bool, lost: bool) -> Exception:
    """The txtopo error that stands for ``error``. ``lost``: the connection is known to be gone."""
    number, said = _number(error), message(error)
    if number == _DEADLOCK:
        return failures.busy(address, f"two transactions waited for each other ({said})")
    if number in _CURES:
        return failures.unusable(address, f"{said} ({number})", _CURES[number])
    if number in _BUSY:
        return failures.busy(address, f"{_BUSY[number]} ({said})")
    if connecting:
        return _while_connecting(address, said)
    if (
        lost
        or number in _LOST
        or 2000 <= number < 3000
        or isinstance(error, pymysql.err.InterfaceError)
    ):
        return failures.unreachable(address, f"the connection is lost ({said})")
    if number in _FULL:
        return failures.full(address, f"{said} ({number})")
    reason = f"{said} ({number or type(error).__name__})"
    return failures.failed(address, reason)


def _while_connecting(address: str, said: str) -> Exception:
    for words, cure in _CONNECTING.items():
        if words in said:
            return failures.unusable(address, said, cure)
    return failures.unreachable(address, f"it cannot be connected to ({said})")


def _number(error: BaseException | None) -> int:
    number = error.args[0] if isinstance(error, DRIVER_ERROR) and error.args else 0
    return number if isinstance(number, int) else 0


def message(error: BaseException) -> str:
    """The server's or the driver's message, on one line."""
    words = error.args[1] if isinstance(error, DRIVER_ERROR) and len(error.args) > 1 else error
    return " ".join(str(words).split()) or "no reason was given"
