"""Turns at a store: a task's threads make a store's transactions one after the other.

At a connection, all tasks of a process take turns. Here, the threads of one task take turns. A task
reads its memory when a store transaction begins, and changes its memory after the commit: how many
store transactions there were (R34), and how many updates each key has had (R32). Runs on executors:
standard library only.

Invariants:
- From a store transaction's beginning until the task has remembered it, the task begins no other
  transaction at the store.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from txtopo import errors
from txtopo.stores import failures
from txtopo.topology import context as contexts

WAIT_S = 60.0
"""How long a thread waits for another thread's store transaction, in seconds. After that the
attempt fails and is replayed."""


class Turn:
    """The turn at one store."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: int | None = None
        """The thread that has the turn. None if no thread has it."""


@contextlib.contextmanager
def take(context: contexts.TopologyContext, name: str, address: str) -> Iterator[None]:
    """Give the calling thread the turn at store ``name`` (``component/store``). The task's other
    threads wait until the block ends.

    :raises errors.UsageError: this thread has the turn already.
    :raises errors.FailedException: another thread kept the turn too long.
    """
    turn: Turn = context.store_turns.setdefault(name, Turn())
    if turn.thread == threading.get_ident():
        raise errors.UsageError(
            f"a transaction of the store {address} is open already in this task\n"
            "  End the open transaction first, or write all in one block: a task makes a store's transactions one after the other."
        )
    if not turn.lock.acquire(timeout=WAIT_S):
        failure = failures.busy(
            address,
            f"another thread of this task held a transaction open for {WAIT_S:g} s\n"
            "  End each store transaction in less time, or write to the store in one thread.",
        )
        context.on_failure(failure)
        raise failure
    turn.thread = threading.get_ident()
    try:
        yield
    finally:
        turn.thread = None
        turn.lock.release()
