"""One connection to a Redis server: settings, password, and the conditions for writing to a server.

Apart from ``session``, which uses the connection. Needs redis-py, without the retries of
redis-py: a step whose answer is lost may have been done, and only a replay can tell.

Invariants:
    - A password is read when a connection is made, given to the library, and kept nowhere.
    - A connection on which an answer was missed is never used again, nor silently replaced.
    - ``run_id`` is of the server process at the other end: a connection cannot outlive it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import redis
import redis.backoff
import redis.retry

from txtopo import errors
from txtopo.stores import faults as failures
from txtopo.stores import place as places
from txtopo.stores.redis import errors as faults
from txtopo.stores.redis import layout

SERVER_VERSION_MIN = (6, 2)

PASSWORD_VARIABLE = "REDISCLI_AUTH"
"""Where the password is unless the store says otherwise; redis-cli looks there too."""

Node = tuple[str, int]
"""Host and port of a node of a cluster."""


class Link:
    """An open connection for ``store``: to the server of its URL, or to ``node`` of the cluster
    that this belongs to."""

    def __init__(self, store: places.Place, node: Node | None = None) -> None:
        self._address = store.address
        self._turn = threading.Lock()
        self._wait_s = store.limits["answer_timeout_s"]
        self._is_lost = False
        self._is_trusted = False
        with faults.translating(store.address, connecting=True):
            self._raw = _connection(store, node)
        try:
            with faults.translating(store.address, connecting=True):
                self._raw.connect()
            self._facts = _facts(self.ask("INFO"))
        except BaseException:
            self.close()
            raise
        self.run_id = self._facts["run_id"]
        """Of the server process."""

    def ask(self, *command: Any) -> Any:
        """The answer to one command."""
        return self.ask_all([command])[0]

    def ask_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers to several commands, in one round trip."""
        with self._exchange():
            self._raw.send_packed_command([_packed(command) for command in commands])
            answers = [self._answer() for _ in commands]
            for answer in answers:
                if isinstance(answer, redis.exceptions.ResponseError):
                    raise answer
            return answers

    def run(self, script: layout.Script, names: Sequence[str], arguments: Sequence[Any]) -> Any:
        """What ``script`` answers; it is sent whole only to a server that does not know it."""
        with self._exchange():
            self._raw.send_packed_command(
                [_packed(("EVALSHA", script.digest, len(names), *names, *arguments))]
            )
            answer = self._answer()
            if isinstance(answer, redis.exceptions.NoScriptError):
                self._raw.send_packed_command(
                    [_packed(("EVAL", script.text, len(names), *names, *arguments))]
                )
                answer = self._answer()
            if isinstance(answer, redis.exceptions.ResponseError):
                raise answer
            return answer

    def _answer(self) -> Any:
        """The next answer; an error is returned too, so that later answers are not left unread."""
        try:
            return self._raw.read_response()
        except redis.exceptions.ResponseError as error:
            return error

    @property
    def has_news(self) -> bool:
        """Whether there is something to read while nothing was asked, which is the server's
        goodbye; or the connection is known to be lost."""
        if self._is_lost:
            return True
        if not self._turn.acquire(blocking=False):
            return False  # The bytes are the answer for another thread.
        try:
            return bool(self._raw.can_read(0))
        except (redis.exceptions.RedisError, OSError):
            return True
        finally:
            self._turn.release()

    def check_may_be_written(self, accept_loss: bool) -> None:
        """Refuse a server that would drop results by itself. Refuse a server that may forget
        acknowledged writes, unless ``accept_loss`` is True."""
        version = tuple(int(part) for part in self._facts["redis_version"].split(".")[:2])
        if version < SERVER_VERSION_MIN:
            wanted = ".".join(map(str, SERVER_VERSION_MIN))
            raise errors.SetupError(
                f"the server of {self._address} is too old: Redis {self._facts['redis_version']}\n  {wanted} or newer is needed."
            )
        if self._facts["role"] != "master":
            raise failures.busy(
                self._address, "the server is a replica; give the address of the master"
            )
        policy = self._facts.get("maxmemory_policy", "noeviction")
        if policy.startswith("allkeys"):
            raise errors.SetupError(
                f"the server of {self._address} removes whatever it likes when its memory is full: maxmemory-policy is {policy}\n"
                "  Type: redis-cli CONFIG SET maxmemory-policy noeviction; and write it into its configuration. volatile-… is fine too."
            )
        if not accept_loss and not self._is_trusted:
            self._check_remembers()
            self._is_trusted = True

    def _check_remembers(self) -> None:
        if not int(self._facts.get("aof_enabled", "0")):
            reason = "it keeps no append-only file"
        else:
            try:
                fsync = b"".join(self.ask("CONFIG", "GET", "appendfsync")[1:]).decode() or None
            except errors.TxtopoError:
                fsync = None
            if fsync == "always":
                return
            reason = (
                "it does not say when it syncs its append-only file"
                if fsync is None
                else f"appendfsync is {fsync}"
            )
        raise errors.SetupError(
            f"the server of {self._address} may forget what it has acknowledged: {reason}\n"
            "  Type: redis-cli CONFIG SET appendonly yes, redis-cli CONFIG SET appendfsync always; and write both into its configuration.\n"
            "  Or give accept_loss=True: results that a crash of the server loses are then noticed in most cases, not in all."
        )

    def close(self) -> None:
        """Close it for good."""
        self._is_lost = True
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            self._raw.disconnect()

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=self._wait_s):
            raise failures.busy(
                self._address, f"another thread held the connection for {self._wait_s:g} s"
            )
        try:
            if self._is_lost:
                raise failures.unreachable(self._address, "the connection is lost")
            with faults.translating(self._address):
                yield
        except BaseException as error:
            # Only an error that the server answered leaves no bytes unread on the connection.
            if not isinstance(error.__cause__, redis.exceptions.ResponseError):
                self.close()
            raise
        finally:
            self._turn.release()


def _packed(command: Sequence[Any]) -> bytes:
    """A command as it is sent (RESP); in a third of the library's time, which counts where a
    transaction has thousands of rows."""
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    return b"*%d\r\n%b" % (
        len(parts),
        b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]),
    )


def _connection(store: places.Place, node: Node | None) -> Any:
    """A connection that is not made yet."""
    options: dict[str, Any] = {
        "protocol": 2,
        "client_name": "txtopo",
        "socket_timeout": store.limits["answer_timeout_s"],
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    }
    if not store.url.startswith("unix:"):
        options |= {
            "socket_connect_timeout": store.limits["connect_timeout_s"],
            "socket_keepalive": True,
        }
    password = places.password_from(
        f"the store {store.address}", store.password_env, store.password_file
    )
    if password is None:
        password = os.environ.get(PASSWORD_VARIABLE)
    if password:
        options["password"] = password
    # Of the pool only the parsed URL is of use.
    pool = redis.ConnectionPool.from_url(store.url, **options)
    elsewhere = {} if node is None else {"host": node[0], "port": node[1]}
    make: Any = pool.connection_class
    return make(**{**pool.connection_kwargs, **elsewhere})


def _facts(info: bytes) -> dict[str, str]:
    """What INFO tells, by name."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
