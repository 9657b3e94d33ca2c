"""Contract for a znode store: read a znode, list children, change several znodes atomically.

Every caller is written against this contract and tested with both implementations. The contract is
ZooKeeper's data model without the parts that txtopo does not use: no watches, no sequential nodes,
no writes but ``multi``.

Paths are absolute within the store (``/words/epoch``). Where a path begins is the store's choice.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from txtopo import errors

OPERATION_OVERHEAD_BYTES = 128
"""An operation's bytes on the wire beyond path and data: header, lengths, version or ACL, and the
store's prefix."""

ENSURE_TRIES_MAX = 10
"""How often :meth:`StateStore.ensure` starts again because another client made or removed a parent."""

ConflictReason = Literal["exists", "missing", "version", "not empty", "ephemeral parent"]


@dataclass(frozen=True, slots=True)
class Node:
    """A znode's content. ``version`` is 0 at creation and grows by one with every :class:`Set`."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make a znode. Its parent must exist, or be made earlier in the same multi. An ephemeral znode
    ends with its session."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace an existing znode's data. With ``version``, only if the znode has that version."""

    path: str
    data: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove an existing znode without children. With ``version``, only if the znode has that
    version."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but refuse the whole multi unless the znode exists with this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check


class StateConflictError(errors.TxtopoError):
    """The store refused a multi, and applied no part: ``operation`` met another state than
    expected."""

    def __init__(self, operation: Operation, reason: ConflictReason) -> None:
        super().__init__(operation, reason)
        self.operation, self.reason = operation, reason

    def __str__(self) -> str:
        name = type(self.operation).__name__.lower()
        why = {
            "exists": "it exists already",
            "missing": "the znode or its parent does not exist",
            "version": f"its version is not {getattr(self.operation, 'version', None)}",
            "not empty": "it has children",
            "ephemeral parent": "an ephemeral node has no children",
        }[self.reason]
        return f"{name} {self.operation.path}: {why}\n  Nothing was changed. Another process has written there: see `txtopo state show ID`."


class StateUnavailableError(errors.ZooKeeperUnavailableError):
    """The store did not answer. Whether a multi was applied is unknown: read the state before you
    decide."""


class StateStore(abc.ABC):
    """Client session with a znode store. Thread-safe.

    Every call may raise :class:`StateUnavailableError`. No call retries by itself: the caller
    decides after an unknown outcome.
    """

    address: str
    """The store's name for people: ``host:port/chroot/root``."""

    @property
    @abc.abstractmethod
    def session(self) -> int:
        """Id of the session, 0 while there is none. Ephemeral znodes end with the session. Costs no
        round trip."""

    @abc.abstractmethod
    def get(self, path: str) -> Node | None:
        """The znode at ``path``, None if there is none."""

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The znodes at ``paths``, read one after the other, in this order."""
        return [self.get(path) for path in paths]

    @abc.abstractmethod
    def children(self, path: str) -> list[str]:
        """Children's names (not paths) under ``path``, sorted. Empty without children, or without
        the znode."""

    @abc.abstractmethod
    def multi(self, operations: Sequence[Operation]) -> None:
        """Apply ``operations`` in order, all or none, in one round trip.

        :raises StateConflictError: an operation met another state than expected; none was applied.
        :raises StateUnavailableError: no answer; whether all or none was applied is unknown.
        """

    @abc.abstractmethod
    def wait_until_connected(self, timeout_s: float) -> bool:
        """Wait until the store can be asked again, at most ``timeout_s``. False if the store still
        cannot."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the session and its ephemeral znodes. May be called again. No other call may follow."""

    def ensure(self, path: str) -> None:
        """Make ``path`` and its parents where they are missing, without data."""
        parts = check_path(path).strip("/").split("/")
        paths = (
            ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]
            if path != "/"
            else []
        )
        for _ in range(ENSURE_TRIES_MAX):
            missing = [ancestor for ancestor in paths if self.get(ancestor) is None]
            if not missing:
                return
            try:
                self.multi([Create(ancestor) for ancestor in missing])
                return
            except StateConflictError as conflict:
                if conflict.reason not in ("exists", "missing"):
                    raise
        raise errors.FencedError(
            f"another coordinator makes and removes {path} in {self.address} all the time\n  Stop the other coordinator."
        )


@functools.lru_cache(4096)
def check_path(path: str) -> str:
    """Return ``path`` if ZooKeeper accepts it: absolute, no empty or dotted component, no slash at
    the end."""
    if path != "/" and (
        not path.startswith("/")
        or any(part in ("", ".", "..") for part in path[1:].split("/"))
        or "\0" in path
    ):
        raise ValueError(f"{path!r} is not a znode path: a path must look like /topology/epoch")
    return path


def parent_of(path: str) -> str:
    """The path above ``path``."""
    return path.rpartition("/")[0] or "/"


def size_of(operations: Sequence[Operation]) -> int:
    """Upper bound, in bytes, for ``operations`` in a request, a little above the true size."""
    return sum(
        OPERATION_OVERHEAD_BYTES
        + len(operation.path.encode())
        + len(getattr(operation, "data", b""))
        for operation in operations
    )
