"""The contract of a workload towards its driver, and of a checker towards its reader."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from tests.soak.world import World

Snapshot = Mapping[Any, Any]
"""The whole content of one store at one moment, as an outside reader saw it."""


class Checker(abc.ABC):
    """Judges reads of a workload's stores, in turn. It knows the input, and nothing of the
    processing.

    Returns violations, as sentences, or an empty list. A checker remembers the last reads, to
    notice content that goes backwards.
    """

    @abc.abstractmethod
    def read(self, store: str, seen: Snapshot, available: int) -> list[str]:
        """A read while the workload runs; ``available`` rows of each partition were there when it
        ended."""

    @abc.abstractmethod
    def end(self, seen: Mapping[str, Snapshot], available: int) -> list[str]:
        """The last read of every store, when all ``available`` rows of each partition must have
        been committed."""


class Workload(abc.ABC):
    """A topology over an endless source."""

    name: str
    take: int
    """Rows of each partition in a transaction, at most."""
    is_parted: bool
    """Whether an attempt is of several store transactions to one store, always as many."""
    pace: int
    """The same, on average; the feed publishes a multiple of this."""

    @abc.abstractmethod
    def stores(self, world: World) -> dict[str, Any]:
        """Every store, by name."""

    @abc.abstractmethod
    def topology(self, world: World, incarnation: int) -> Any:
        """The topology, for driver number ``incarnation``."""

    @abc.abstractmethod
    def checker(self, world: World) -> Checker:
        """A checker that has seen no read yet."""


def differences(expected: Mapping[Any, Any], seen: Mapping[Any, Any], at_most: int = 5) -> str:
    """Where ``seen`` is not as ``expected``, for a sentence; empty if it is."""
    wrong = sorted(
        (key for key in {*expected, *seen} if expected.get(key) != seen.get(key)), key=str
    )
    more = f" and {len(wrong) - at_most} more" if len(wrong) > at_most else ""
    return (
        ", ".join(
            f"{key!r} is {seen.get(key)!r}, not {expected.get(key)!r}" for key in wrong[:at_most]
        )
        + more
    )
