"""Turns at a store: the threads of a task make the transactions of one store one after the other.

Apart from ``base``, which asks for a turn, and from connections, at which all tasks of a process
take turns: here the threads of one task do. A task reads its memory when a store transaction
begins, and changes its memory after the commit: how many store transactions there were (R34), and
how many updates of each key (R32). Runs on executors: standard library only.

Invariants:
- From the beginning of a store transaction until the task has remembered it, the task begins no
  other one of that store.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from txtopo import errors
from txtopo.stores import faults as failures
from txtopo.topology import context as contexts

WAIT_S = 60.0
"""How long a thread of a task waits for the store transaction of another thread, before the attempt
fails and is replayed."""


class Turn:
    """The turn at one store."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: int | None = None
        """The thread that has the turn; None if no thread has it."""


@contextlib.contextmanager
def taken(context: contexts.TopologyContext, name: str, address: str) -> Iterator[None]:
    """The turn of this thread at the store ``name``, which is ``component/store``; other threads of
    the task wait until it ends.

    :raises errors.UsageError: this thread has it already.
    :raises errors.FailedException: another thread kept the turn too long.
    """
    turn: Turn = context.store_turns.setdefault(name, Turn())
    if turn.thread == threading.get_ident():
        raise errors.UsageError(
            f"a transaction of the store {address} is open already in this task\n"
            "  End it first: a task makes its transactions of a store one after the other. Write all in one block."
        )
    if not turn.lock.acquire(timeout=WAIT_S):
        failure = failures.busy(
            address,
            f"another thread of this task held a transaction open for {WAIT_S:g} s\n"
            "  End each transaction of a store in less time; or write to the store in one thread.",
        )
        context.on_failure(failure)
        raise failure
    turn.thread = threading.get_ident()
    try:
        yield
    finally:
        turn.thread = None
        turn.lock.release()


__all__ = ["taken"]
