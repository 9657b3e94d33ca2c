"""Translates errors from Redis: a passing error fails the attempt, an error for a person names the
cure.

A Redis error begins with its class, a word in capitals. Redis-py has exceptions for some classes,
and leaves out the word ERR, which means nothing. For an error inside a script, Redis 6 puts the
place in front. An unknown error ends the run: the server refused the command, and would refuse it
again.

Invariants:
    - Every error raised is from ``txtopo.errors``: a process that unpickles an error needs no
      redis-py.
    - A message quotes the server or redis-py, which repeat no password. A message never holds a
      command.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import redis.exceptions

from txtopo import errors
from txtopo.stores import failures

_BUSY = {
    "BUSY": "a script has kept the server for too long",
    "MASTERDOWN": "the server is a replica without its master",
    "READONLY": "the server is a replica: give the master's address",
    "NOREPLICAS": "the server has fewer replicas than min-replicas-to-write",
    "TRYAGAIN": "the cluster moves the store to another node",
    "ASK": "the cluster moves the store to another node",
    "MOVED": "the cluster has moved the store to another node",
    "CLUSTERDOWN": "the cluster is not complete",
    "max number of clients reached": "the server has too many connections: raise maxclients, or use fewer executor cores",
}

_PASSWORD = (
    "Check the user in the URL, and the password: REDISCLI_AUTH, password_env= or password_file=."
)
_RIGHTS = "Give the user the rights that the page on stores names: ACL SETUSER …"
_CURES = {
    "AUTH": _PASSWORD,
    "NOPERM": _RIGHTS,
    "The user executing the script": _RIGHTS,
    "DENIED": "The server is in protected mode. Give it a password, or bind it to the right address.",
    "WRONGTYPE": "Another program uses this store's keys. Use another name.",
    "SELECT": "Mend the database number in the URL. A cluster has number 0 only.",
    "DB index": "Mend the database number in the URL.",
    "unknown command": "The server has switched off this command, or is too old. Switch on the command, or use a newer server.",
}
_FULL = {
    "OOM": "the server has used all of its maxmemory",
    "MISCONF": "the server cannot write to its disk",
}


@contextlib.contextmanager
def translating(address: str, connecting: bool = False) -> Iterator[None]:
    """Translate redis-py's errors into errors from ``txtopo.errors``."""
    try:
        yield
    except (redis.exceptions.RedisError, OSError) as error:
        raise meaning(address, error, connecting) from error


def meaning(address: str, error: BaseException, connecting: bool = False) -> Exception:
    """The txtopo error that stands for ``error``."""
    said = re.sub(
        r"^Error running script .*@user_script: \d+: -?", "", _message(error)
    ).removeprefix("ERR ")
    for words, cure in _CURES.items():
        if said.startswith(words):
            return failures.unusable(address, said, cure)
    for words, reason in _BUSY.items():
        if said.startswith(words):
            return failures.busy(address, f"{reason} ({said})")
    for words, reason in _FULL.items():
        if said.startswith(words):
            return _full(address, reason, said)
    return _by_kind(address, error, said, connecting)


def _by_kind(address: str, error: BaseException, said: str, connecting: bool) -> Exception:
    """The txtopo error for a redis-py exception class. Where redis-py has a class, the server's
    word is missing from the message."""
    kinds = redis.exceptions
    if isinstance(error, kinds.AuthenticationError):
        return failures.unusable(address, said, _PASSWORD)
    if isinstance(error, kinds.NoPermissionError):
        return failures.unusable(address, said, _CURES["NOPERM"])
    if isinstance(error, kinds.OutOfMemoryError):
        return _full(address, _FULL["OOM"], said)
    if isinstance(error, kinds.ReadOnlyError):
        return failures.busy(address, f"{_BUSY['READONLY']} ({said})")
    if isinstance(
        error,
        kinds.MovedError
        | kinds.AskError
        | kinds.TryAgainError
        | kinds.ClusterDownError
        | kinds.MasterDownError,
    ):
        return failures.busy(address, f"the cluster is changing ({said})")
    if isinstance(error, kinds.BusyLoadingError | kinds.MaxConnectionsError):
        return failures.busy(address, said)
    if isinstance(error, kinds.TimeoutError):
        reason = "cannot be connected to" if connecting else "did not answer in time"
        return failures.unreachable(address, f"the server {reason} ({said})")
    if isinstance(error, kinds.ConnectionError | OSError):
        if "certificate" in said.lower() or "ssl" in said.lower():
            return failures.unusable(
                address, said, "Check rediss:// and the ssl_… options in the URL."
            )
        reason = "it cannot be connected to" if connecting else "the connection is lost"
        return failures.unreachable(address, f"{reason} ({said})")
    return failures.failed(address, said)


def _full(address: str, reason: str, said: str) -> errors.TxtopoError:
    return failures.full(address, f"{reason} ({said})")


def moved_to(error: BaseException) -> tuple[str, int] | None:
    """The cluster node that has the store, if ``error`` says that the store is on another node.
    None otherwise."""
    cause = error.__cause__
    return (
        (str(cause.host), int(cause.port))
        if isinstance(cause, redis.exceptions.MovedError)
        else None
    )


def _message(error: BaseException) -> str:
    """The server's or redis-py's message, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
