"""Opens connections to a Redis server, with settings and password, and checks whether a store may
be written there.

Needs redis-py, without its retries: a step whose answer is lost may have been done, and only a
replay can tell.

Invariants:
    - A password is read when a connection is made, given to redis-py, and kept nowhere.
    - A connection that missed an answer is never used again, nor silently replaced.
    - ``run_id`` names the connected server process. A connection cannot outlive this process.
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
from txtopo.stores import failures
from txtopo.stores import place as places
from txtopo.stores.redis import errors as faults
from txtopo.stores.redis import layout

SERVER_VERSION_MIN = (6, 2)

PASSWORD_VARIABLE = "REDISCLI_AUTH"
"""The environment variable with the password, unless the store names a different place. redis-cli
reads the same variable."""

Node = tuple[str, int]
"""A cluster node's host and port."""


class Link:
    """An open connection for ``store``: to the server in the store's URL, or to a ``node`` in the
    server's cluster."""

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
        """Names the server process."""

    def ask(self, *command: Any) -> Any:
        return self.ask_all([command])[0]

    def ask_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers to several commands, in one round trip."""
        with self._exchange():
            self._raw.send_packed_command([_encode(command) for command in commands])
            answers = [self._answer() for _ in commands]
            for answer in answers:
                if isinstance(answer, redis.exceptions.ResponseError):
                    raise answer
            return answers

    def run(self, script: layout.Script, names: Sequence[str], arguments: Sequence[Any]) -> Any:
        """The answer to ``script``. The text is sent only if the server does not know the
        digest."""
        with self._exchange():
            self._raw.send_packed_command(
                [_encode(("EVALSHA", script.digest, len(names), *names, *arguments))]
            )
            answer = self._answer()
            if isinstance(answer, redis.exceptions.NoScriptError):
                self._raw.send_packed_command(
                    [_encode(("EVAL", script.text, len(names), *names, *arguments))]
                )
                answer = self._answer()
            if isinstance(answer, redis.exceptions.ResponseError):
                raise answer
            return answer

    def _answer(self) -> Any:
        """The next answer. An error is returned, not raised, so that later answers are read,
        too."""
        try:
            return self._raw.read_response()
        except redis.exceptions.ResponseError as error:
            return error

    @property
    def has_news(self) -> bool:
        """Whether the connection is lost: known to be, or an idle connection has bytes to read,
        which are the server's goodbye."""
        if self._is_lost:
            return True
        if not self._turn.acquire(blocking=False):
            return False  # The bytes are an answer for another thread.
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
            raise failures.busy(self._address, "the server is a replica: give the master's address")
        policy = self._facts.get("maxmemory_policy", "noeviction")
        if policy.startswith("allkeys"):
            raise errors.SetupError(
                f"the server of {self._address} removes any keys when its memory is full: maxmemory-policy is {policy}\n"
                "  Type `redis-cli CONFIG SET maxmemory-policy noeviction`. Write it into the server's configuration, too. volatile-… is also fine."
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
            f"the server of {self._address} may forget acknowledged writes: {reason}\n"
            "  Type `redis-cli CONFIG SET appendonly yes` and `redis-cli CONFIG SET appendfsync always`. Write both into its configuration.\n"
            "  Or give accept_loss=True: if the server then loses results in a crash, txtopo notices in most cases, not in all."
        )

    def close(self) -> None:
        """Close the connection for good."""
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


def _encode(command: Sequence[Any]) -> bytes:
    """``command`` in Redis's protocol (RESP). Takes a third of redis-py's time, which counts for a
    transaction with thousands of rows."""
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    return b"*%d\r\n%b" % (
        len(parts),
        b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]),
    )


def _connection(store: places.Place, node: Node | None) -> Any:
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
    # The pool is made only to parse the URL.
    pool = redis.ConnectionPool.from_url(store.url, **options)
    elsewhere = {} if node is None else {"host": node[0], "port": node[1]}
    make: Any = pool.connection_class
    return make(**{**pool.connection_kwargs, **elsewhere})


def _facts(info: bytes) -> dict[str, str]:
    """The values in INFO's answer, by name."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
