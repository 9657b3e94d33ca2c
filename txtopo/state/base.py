"""The contract of a store of znodes: read one, list children, and change several atomically.

Apart from its implementations because every caller is written against this contract and tested with
both. The contract is ZooKeeper's data model without the parts that we do not use: no watches, no
sequential nodes, no writes but ``multi``.

Paths are absolute within the store (``/words/epoch``); where the store keeps them is its own
affair.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from txtopo import errors

OPERATION_OVERHEAD_BYTES = 128
"""Bytes of an operation on the wire beyond its path and data: header, lengths, version or ACL, and
the prefix of the store."""

ENSURE_TRIES_MAX = 10
"""How often :meth:`StateStore.ensure` starts again because another client made or removed a parent.
"""

ConflictReason = Literal["exists", "missing", "version", "not empty", "ephemeral parent"]


@dataclass(frozen=True, slots=True)
class Node:
    """What a znode holds. ``version`` is 0 when it is created and grows by one with every
    :class:`Set`."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make a znode; its parent must exist or be made earlier in the same multi. An ephemeral one
    goes with the session."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace the data of a znode that exists; with ``version``, only if the znode has that
    version.
    """

    path: str
    data: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a znode that exists and has no children; with ``version``, only if the znode has that
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
    """A multi was refused, and no part of it was applied: ``operation`` met another state than
    expected."""

    def __init__(self, operation: Operation, reason: ConflictReason) -> None:
        super().__init__(operation, reason)
        self.operation, self.reason = operation, reason

    def __str__(self) -> str:
        name = type(self.operation).__name__.lower()
        why = {
            "exists": "it exists already",
            "missing": "it, or its parent, does not exist",
            "version": f"its version is not {getattr(self.operation, 'version', None)}",
            "not empty": "it has children",
            "ephemeral parent": "an ephemeral node has no children",
        }[self.reason]
        return f"{name} {self.operation.path}: {why}\n  Nothing was changed. Another process has written there; look at it with `txtopo state show`."


class StateUnavailableError(errors.ZooKeeperUnavailableError):
    """The store did not answer. Whether a multi was applied is unknown: read back before deciding
    anything else."""


class StateStore(abc.ABC):
    """A client session with a store of znodes. Thread-safe.

    Every call may raise :class:`StateUnavailableError`; no call retries by itself: the caller
    decides about an unknown outcome.
    """

    def __init__(self) -> None:
        self._round_trips = 0
        self._round_trips_lock = threading.Lock()

    @property
    def round_trips(self) -> int:
        """How many requests this session has sent, answered or not."""
        return self._round_trips

    def _count_round_trip(self) -> None:
        with self._round_trips_lock:
            self._round_trips += 1

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """The name of this store for people: ``host:port/chroot/root``."""

    @property
    @abc.abstractmethod
    def session(self) -> int:
        """Id of the session whose end takes ephemeral znodes with it; 0 while there is none. Costs
        no round trip."""

    @abc.abstractmethod
    def get(self, path: str) -> Node | None:
        """The znode at ``path``, None if there is none."""

    @abc.abstractmethod
    def children(self, path: str) -> list[str]:
        """Names (not paths) of the children of ``path``, sorted; empty if there are none or no such
        znode."""

    @abc.abstractmethod
    def multi(self, operations: Sequence[Operation]) -> None:
        """Apply ``operations`` in order, all or none, in one round trip.

        :raises StateConflictError: one operation met another state than expected; no operation was
            applied.
        :raises StateUnavailableError: no answer; all or nothing was applied, which of the two is
            unknown.
        """

    @abc.abstractmethod
    def wait_until_connected(self, timeout_s: float) -> bool:
        """Wait until the store can be asked again, at most ``timeout_s``; False if it still cannot."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the session; ephemeral znodes go. May be called again; no other call may follow."""

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


def check_path(path: str) -> str:
    """``path`` itself if ZooKeeper accepts it: absolute, no empty or dotted component, no slash at
    the end."""
    if path != "/" and (
        not path.startswith("/")
        or any(part in ("", ".", "..") for part in path[1:].split("/"))
        or "\0" in path
    ):
        raise ValueError(f"{path!r} is not a path of a znode: it must look like /topology/epoch")
    return path


def parent_of(path: str) -> str:
    """The path above ``path``."""
    return path.rpartition("/")[0] or "/"


def size_of(operations: Sequence[Operation]) -> int:
    """Bytes that ``operations`` take in a request; a little more than they really do."""
    return sum(
        OPERATION_OVERHEAD_BYTES
        + len(operation.path.encode())
        + len(getattr(operation, "data", b""))
        for operation in operations
    )


__all__ = [
    "Check",
    "ConflictReason",
    "Create",
    "Delete",
    "Node",
    "Operation",
    "Set",
    "StateConflictError",
    "StateStore",
    "StateUnavailableError",
    "check_path",
    "parent_of",
    "size_of",
]
