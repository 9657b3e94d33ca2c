"""A store of znodes in a ZooKeeper ensemble, through kazoo.

Apart from everything else because it is the only module that knows kazoo: its threads, its states, its logs and its errors end here.

Invariants:
- No request is retried here: kazoo's own retry would hide that an outcome is unknown.
- A request is queued only while connected. One that was queued and not answered may still be sent; kazoo's queue and ZooKeeper's
  sessions are first in, first out, so that whatever is read later tells whether it was applied.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Any

from kazoo import exceptions, hosts
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from txtopo import errors
from txtopo.state import base

RECONNECT_DELAY_MAX_S = 1.0
"""kazoo would by default wait up to an hour between two tries to reconnect."""

_LOGGER = logging.getLogger("txtopo.state.zookeeper.kazoo")
# Without a handler of its own a library's warnings go to stderr; kazoo warns at every try to reconnect.
for _name in (_LOGGER.name, "kazoo"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

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


class ZooKeeperStateStore(base.StateStore):
    """A session with the ensemble ``hosts`` (``host:port[,host:port…][/chroot]``), under ``root`` within the chroot.

    Chroot and root are made if missing. ``connect_timeout_s`` bounds the first connection, ``session_timeout_s`` is after how long
    of silence the server gives the session, and with it the lease, to somebody else; it bounds every request, too.

    :raises ConfigError: ``hosts`` or ``root`` cannot be understood.
    :raises ZooKeeperUnavailableError: nobody answers there.
    """

    def __init__(self, hosts: str, root: str = "/txtopo", connect_timeout_s: float = 10.0, session_timeout_s: float = 10.0) -> None:
        super().__init__()
        servers, self._prefix = _parse(hosts, root)
        self._address = f"{servers}{self._prefix}"
        self._session_timeout_s = session_timeout_s
        self._connected = threading.Event()
        self._closed = False
        self._client = KazooClient(
            servers,
            timeout=session_timeout_s,
            logger=_LOGGER,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": RECONNECT_DELAY_MAX_S},
        )
        self._client.add_listener(self._on_state)
        self._connect(servers, connect_timeout_s)

    def _connect(self, servers: str, connect_timeout_s: float) -> None:
        try:
            self._client.start(timeout=connect_timeout_s)
        except KazooTimeoutError:
            raise errors.ZooKeeperUnavailableError(
                f"no ZooKeeper answers at {servers} within {connect_timeout_s:g} s\n"
                f"  Start it, or name another with --zookeeper host:port[,host:port…][/chroot]; without that option txtopo runs its own."
            ) from None
        try:
            if self._prefix:
                self._ask(self._client.ensure_path_async(self._prefix), f"make {self._prefix}")
        except BaseException:
            self.close()
            raise

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()

    @property
    def address(self) -> str:
        return self._address

    @property
    def session(self) -> int:
        identity = self._client.client_id
        return int(identity[0] or 0) if identity else 0

    def get(self, path: str) -> base.Node | None:
        self._request()
        try:
            data, stat = self._ask(self._client.get_async(self._full(path)), f"read {path}")
        except exceptions.NoNodeError:
            return None
        return base.Node(data, stat.version)

    def children(self, path: str) -> list[str]:
        self._request()
        try:
            return sorted(self._ask(self._client.get_children_async(self._full(path)), f"list {path}"))
        except exceptions.NoNodeError:
            return []

    def multi(self, operations: Sequence[base.Operation]) -> None:
        request = self._client.transaction()
        for operation in operations:
            self._add(request, operation)
        self._request()
        results = self._ask(request.commit_async(), f"write {len(operations)} operations ({base.size_of(operations)} bytes)")
        for operation, result in zip(operations, results, strict=True):
            # The operations before the refused one say "rolled back", those after it "runtime inconsistency".
            if isinstance(result, Exception) and not isinstance(result, exceptions.RolledBackError | exceptions.RuntimeInconsistency):
                reason = _CONFLICTS.get(type(result), "refused")
                raise base.StateConflictError(operation, reason, type(result).__name__ if reason == "refused" else "")

    def _add(self, request: Any, operation: base.Operation) -> None:
        path = self._full(operation.path)
        match operation:
            case base.Create(_, data, ephemeral):
                request.create(path, data, ephemeral=ephemeral)
            case base.Set(_, data, version):
                request.set_data(path, data, version=-1 if version is None else version)
            case base.Delete(_, version):
                request.delete(path, version=-1 if version is None else version)
            case base.Check(_, version):
                request.check(path, version)

    def wait_until_connected(self, timeout_s: float) -> bool:
        return self._connected.wait(timeout_s)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(exceptions.KazooException):
            self._client.stop()
        self._client.close()

    def _full(self, path: str) -> str:
        return self._prefix + base.check_path(path) if path != "/" else self._prefix or "/"

    def _request(self) -> None:
        self._count_round_trip()
        if self._closed:
            raise errors.ZooKeeperUnavailableError(f"the session with ZooKeeper at {self._address} is closed\n  Open another.")
        if not self._client.connected:
            raise base.StateUnavailableError(f"ZooKeeper at {self._address} is not connected")

    def _ask(self, result: Any, what: str) -> Any:
        """The answer to a request that was just queued; one without an answer has an unknown outcome."""
        try:
            return result.get(timeout=self._session_timeout_s)
        except _UNANSWERED as error:
            raise base.StateUnavailableError(f"ZooKeeper at {self._address} did not answer ({what}): {type(error).__name__}") from error
        except exceptions.NoNodeError:
            raise
        except exceptions.KazooException as error:
            raise errors.ZooKeeperUnavailableError(
                f"ZooKeeper at {self._address} refused to {what}: {type(error).__name__} {error}".rstrip()
                + f"\n  Everybody who runs topologies there needs all rights under {self._prefix or '/'}."
            ) from error


def _parse(servers: str, root: str) -> tuple[str, str]:
    """``host:port,…`` without chroot, and chroot and root as one path."""
    try:
        addresses, chroot = hosts.collect_hosts(servers)
        prefix = base.check_path("/" + "/".join(part.strip("/") for part in (chroot or "", root) if part.strip("/")))
    except ValueError as error:
        raise errors.ConfigError(
            f"the ZooKeeper address {servers!r} with root {root!r} is no address: {error}\n  It must look like host:port[,host:port…][/chroot]."
        ) from None
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses), "" if prefix == "/" else prefix


__all__ = ["ZooKeeperStateStore"]
