"""Keeps znodes in a ZooKeeper ensemble.

kazoo's states and errors end here.

Invariants:
- No request is retried here: kazoo's own retry would hide an unknown outcome.
- A request is queued only while connected. A request that was queued and not answered may still be
  sent. kazoo's queue and ZooKeeper's sessions are first in, first out, so any later read tells
  whether the request was applied.
- Every znode made here, also chroot and root, belongs to our credentials. Without credentials, it
  is open to all.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from kazoo import exceptions, hosts
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.security import Permissions

from txtopo import errors
from txtopo.config import sources, text
from txtopo.state import base, client, credentials

_CONFLICTS: dict[type[Exception], base.ConflictReason] = {
    exceptions.NodeExistsError: "exists",
    exceptions.NoNodeError: "missing",
    exceptions.BadVersionError: "version",
    exceptions.NotEmptyError: "not empty",
    exceptions.NoChildrenForEphemeralsError: "ephemeral parent",
}

_UNANSWERED = (
    exceptions.ConnectionLoss,
    exceptions.SessionExpiredError,  # also ConnectionClosedError
    exceptions.SessionMovedError,
    exceptions.OperationTimeoutError,
    exceptions.RequestTimeoutError,
    exceptions.ThrottledOpError,
    exceptions.CancelledError,
    KazooTimeoutError,
)

_REFUSALS = (
    exceptions.NoAuthError,
    exceptions.AuthFailedError,
    exceptions.InvalidACLError,
    exceptions.SessionClosedRequireSaslError,
)
"""Wrong credentials, or a missing right."""

LARGE_BYTES = 4 * 1024
DROPPED_MAX = 5
"""How often in a row a write of at least ``LARGE_BYTES`` may cost the connection, while reads are
answered, until the write counts as too large."""


class ZooKeeperStateStore(base.StateStore):
    """A session with the ensemble ``hosts`` (``host:port[,host:port…][/chroot]``), under ``root``
    within the chroot.

    Makes chroot and root if missing. ``connect_timeout_s`` bounds the first connection. After
    ``session_timeout_s`` of silence the server ends the session, and the lease with it. Every
    request has the same bound. ``login``: our credentials, which own every znode made here.
    ``owner``: the server's own credentials, if it runs in a data directory. Not needed if this
    process runs the server.

    :raises ConfigError: ``hosts`` or ``root`` cannot be understood.
    :raises ZooKeeperUnavailableError: no server answers there.
    :raises ZooKeeperAccessError: ZooKeeper does not know ``login``, or denies a needed right. Every
        later call may raise this error, too.
    """

    def __init__(
        self,
        hosts: str,
        root: str = "/txtopo",
        connect_timeout_s: float = 10.0,
        session_timeout_s: float = 10.0,
        login: credentials.Credentials | None = None,
        owner: credentials.Credentials | None = None,
    ) -> None:
        self._servers, self._prefix = _parse(hosts, root)
        self.address = f"{self._servers}{self._prefix}"
        self._session_timeout_s = session_timeout_s
        self._login = login
        self._connected = threading.Event()
        self.outages = 0
        """How often the connection was lost."""
        self._closed = False
        self._pid = os.getpid()
        self._dropped = 0
        self._link = client.Client(
            self._servers,
            session_timeout_s,
            login,
            owner or credentials.owner_of_server(self._servers),
        )
        self._client = self._link.kazoo
        self._client.add_listener(self._on_state)
        try:
            self._connect(connect_timeout_s)
        except BaseException:
            self.close()
            raise

    def _connect(self, connect_timeout_s: float) -> None:
        deadline = time.monotonic() + connect_timeout_s
        self._client.start_async()
        while self.wait_until_connected(deadline - time.monotonic()):
            try:
                # Ask even without a path to make: only an answer shows that we are let in.
                self._ask(
                    self._client.ensure_path_async(self._prefix or "/"),
                    f"use {self._prefix or '/'}",
                )
                return
            except base.StateUnavailableError:
                continue
        if self._link.hang_ups:
            raise self._not_let_in("hangs up while we authenticate", "Is it configured for SASL?")
        if self._link.refusal is not None:
            raise self._link.refusal
        raise errors.ZooKeeperUnavailableError(
            f"no ZooKeeper answers at {self._servers} within {connect_timeout_s:g} s\n"
            f"  Start ZooKeeper, or name another with --zookeeper host:port[,host:port…][/chroot]. Without --zookeeper, txtopo runs its own."
        )

    def _on_state(self, state: str) -> None:
        # kazoo is "connected" before it has authenticated. Requests wait meanwhile.
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self.outages += self._connected.is_set() and not self._closed
            self._connected.clear()

    @property
    def is_away(self) -> bool:
        return not self._connected.is_set()

    @property
    def session(self) -> int:
        identity = self._client.client_id
        return int(identity[0] or 0) if identity else 0

    def get(self, path: str) -> base.Node | None:
        return self.get_many([path])[0]

    def get_many(self, paths: Sequence[str]) -> list[base.Node | None]:
        # ZooKeeper answers a session's requests in their order, so they need not wait for answers.
        self._request()
        asked = [self._client.get_async(self._full(path)) for path in paths]
        return [self._node(answer, path) for answer, path in zip(asked, paths, strict=True)]

    def _node(self, answer: Any, path: str) -> base.Node | None:
        try:
            data, stat = self._ask(answer, f"read {path}")
        except exceptions.NoNodeError:
            return None
        return base.Node(data, stat.version)

    def children(self, path: str) -> list[str]:
        self._request()
        try:
            return sorted(
                self._ask(self._client.get_children_async(self._full(path)), f"list {path}")
            )
        except exceptions.NoNodeError:
            return []

    def multi(self, operations: Sequence[base.Operation]) -> None:
        request = self._client.transaction()
        for operation in operations:
            self._add(request, operation)
        self._request()
        size = base.size_of(operations)
        try:
            results = self._ask(
                request.commit_async(), f"write {len(operations)} operations ({size} bytes)"
            )
        except base.StateUnavailableError as error:
            self._count_dropped(size, error)
            raise
        self._dropped = 0
        for operation, result in zip(operations, results, strict=True):
            # Operations before the refused operation say "rolled back", later operations "runtime
            # inconsistency".
            if isinstance(result, Exception) and not isinstance(
                result, exceptions.RolledBackError | exceptions.RuntimeInconsistency
            ):
                if type(result) in _CONFLICTS:
                    raise base.StateConflictError(operation, _CONFLICTS[type(result)])
                self._raise_refusal(result, f"{type(operation).__name__.lower()} {operation.path}")

    def _count_dropped(self, size: int, error: base.StateUnavailableError) -> None:
        """Raise after ``DROPPED_MAX`` lost writes. A server that receives more than its
        jute.maxbuffer hangs up without a word, every time, before reading the request."""
        is_hung_up = isinstance(error.__cause__, exceptions.ConnectionLoss)
        self._dropped = self._dropped + 1 if size >= LARGE_BYTES and is_hung_up else 0
        if self._dropped == DROPPED_MAX:
            self._dropped = 0
            raise errors.ZooKeeperUnavailableError(
                f"ZooKeeper at {self.address} has hung up {DROPPED_MAX} times in a row at a write of {size} bytes, as if it were too large\n"
                f"  Raise every server's jute.maxbuffer beyond metadata_bytes_max, or lower metadata_bytes_max. Then run again: the topology resumes."
            ) from error

    def _add(self, request: Any, operation: base.Operation) -> None:
        path = self._full(operation.path)
        match operation:
            case base.Create(_, data, ephemeral):
                request.create(path, data, acl=self._link.acl, ephemeral=ephemeral)
            case base.Set(_, data, version):
                request.set_data(path, data, version=-1 if version is None else version)
            case base.Delete(_, version):
                request.delete(path, version=-1 if version is None else version)
            case base.Check(_, version):
                request.check(path, version)

    def wait_until_connected(self, timeout_s: float) -> bool:
        if self._connected.wait(max(timeout_s, 0)):
            return True
        self._raise_if_ended()
        return False

    def require_protected(self, path: str) -> None:
        """If we have credentials, refuse a topology at ``path`` that was made without any: every
        ZooKeeper client could change the topology.

        Costs two round trips and one for each child, and nothing without credentials.

        :raises StateMismatchError: every client may write the topology's znodes.
        """
        if self._login is None or self.get(path) is None:
            return
        for each in (path, *(f"{path}/{name}" for name in self.children(path))):
            self._request()
            try:
                rights, _ = self._ask(
                    self._client.get_acls_async(self._full(each)), f"read the ACL of {each}"
                )
            except exceptions.NoNodeError:
                continue
            if any(
                right.id.scheme == "world" and right.perms & ~Permissions.READ for right in rights
            ):
                full = self._full(path)
                raise errors.StateMismatchError(
                    f"every client may write {self._full(each)}, which was made without credentials, but now there are credentials ({self._login})\n"
                    f"  Protect the znodes with ZooKeeper's zkCli.sh: `setAcl -R {full} auth:{self._login.user}:cdrwa`, authenticated as that user.\n"
                    f"  Or start over with `txtopo state reset ID`, or go on without zookeeper_auth."
                )

    def close(self) -> None:
        if self._closed or self._pid != os.getpid():
            return  # a fork leaves the connection to its parent
        self._closed = True
        with contextlib.suppress(exceptions.KazooException):
            self._client.stop()
        self._client.close()

    def _full(self, path: str) -> str:
        return self._prefix + base.check_path(path) if path != "/" else self._prefix or "/"

    def _request(self) -> None:
        if self._closed:
            raise errors.ZooKeeperUnavailableError(
                f"the session with ZooKeeper at {self.address} is closed\n  Open another."
            )
        if not self._client.connected:
            self._raise_if_ended()
            raise base.StateUnavailableError(f"ZooKeeper at {self.address} is not connected")

    def _raise_if_ended(self) -> None:
        """Raise if no wait will bring the connection back."""
        if self._link.is_refused:
            raise self._not_let_in("does not let us in", "The name or the password is wrong.")
        if self._link.has_ended and not self._closed:
            raise errors.ZooKeeperUnavailableError(
                f"the client for ZooKeeper at {self.address} has ended\n  Run again: the topology resumes."
            )

    def _ask(self, result: Any, request: str) -> Any:
        """Wait for the answer to a queued request. Without an answer, the outcome is unknown."""
        try:
            return result.get(timeout=self._session_timeout_s)
        except _UNANSWERED as error:
            raise base.StateUnavailableError(
                f"ZooKeeper at {self.address} did not answer ({request}): {type(error).__name__}"
            ) from error
        except exceptions.NoNodeError:
            raise
        except exceptions.KazooException as error:
            self._raise_refusal(error, request)

    def _raise_refusal(self, error: Exception, request: str) -> NoReturn:
        if not isinstance(error, _REFUSALS):
            is_quota = isinstance(error, exceptions.QuotaExceededError)
            cure = (
                "A quota is used up: raise it with `setquota` in zkCli.sh."
                if is_quota
                else "The server's log may say why."
            )
            raise errors.ZooKeeperUnavailableError(
                f"ZooKeeper at {self.address} refused to {request}: {f'{type(error).__name__} {error}'.rstrip()}\n"
                f"  {cure} Then run again: the topology resumes."
            ) from error
        if not isinstance(error, exceptions.NoAuthError):
            raise self._not_let_in(
                "does not let us in",
                "The name or the password is wrong."
                if self._login is not None
                else "It wants credentials.",
            )
        if self._login is None:
            why = "The znode was made with credentials: give the same credentials now. To reach a data directory's ZooKeeper, name the directory."
        else:
            why = "The znode was made with another name, password or zookeeper_auth. Name a place of your own with zookeeper_root."
        raise self._not_let_in(f"does not allow us to {request}: {type(error).__name__}", why)

    def _not_let_in(self, fact: str, why: str) -> errors.ZooKeeperAccessError:
        as_whom = "without credentials" if self._login is None else f"as {self._login}"
        return errors.ZooKeeperAccessError(
            f"ZooKeeper at {self.address} {fact} ({as_whom})\n"
            f"  {why}\n"
            f"  Credentials are zookeeper_auth, zookeeper_user, and zookeeper_password_file or the environment variable {sources.PASSWORD_VARIABLE}."
        )


def _parse(servers: str, root: str) -> tuple[str, str]:
    """``host:port,…`` without chroot, and chroot and root as one path."""
    text.check_address(servers)
    try:
        addresses, chroot = hosts.collect_hosts(servers)
        prefix = base.check_path(
            "/" + "/".join(part.strip("/") for part in (chroot or "", root) if part.strip("/"))
        )
    except ValueError as error:
        raise errors.ConfigError(
            f"the ZooKeeper address {servers!r} with root {root!r} is no address: {error}\n  It must look like host:port[,host:port…][/chroot]."
        ) from None
    return ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses
    ), "" if prefix == "/" else prefix
