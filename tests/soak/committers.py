"""The common part of the committers of all workloads: they collect while they execute, write in
store transactions, and fail now and then.

They fail after their writes, because then a replay must recognise those writes.
"""

from __future__ import annotations

import random
from typing import Any

from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    FailedException,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
    Tuple,
)


class Flaw:
    """Fails one in ``one_in`` attempts of a task, always the same attempts."""

    def __init__(self, seed: str, one_in: int = 25) -> None:
        self.seed, self.one_in = seed, one_in

    def strike(self, context: TopologyContext, attempt: TransactionAttempt) -> None:
        """Called when the task has written."""
        dice = random.Random(f"{self.seed}/{context.component_id}/{context.task_index}/{attempt}")
        if dice.randrange(self.one_in) == 0:
            raise FailedException("has written, and fails")


class Committer(BaseTransactionalBolt, ICommitter):
    """Writes what it has collected. A subclass says how, in :meth:`collect` and :meth:`write`, and
    may emit afterwards, in :meth:`tell`."""

    shares = 1
    """In so many store transactions each task writes: the more there are, the more often a store is
    lost between two of them."""

    def __init__(self, store: Any, flaw: Flaw) -> None:
        self.store, self.flaw = store, flaw

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.begin()

    def execute(self, tup: Tuple) -> None:
        self.collect(tup)

    def finish_batch(self) -> None:
        for share in range(self.shares):
            with self.store.transaction(self.context, self.attempt) as opened:
                self.write(opened, share)
        self.flaw.strike(self.context, self.attempt)
        self.tell()

    def begin(self) -> None:
        """A new attempt."""
        raise NotImplementedError

    def collect(self, tup: Tuple) -> None:
        """One tuple of it."""
        raise NotImplementedError

    def write(self, opened: Any, share: int) -> None:
        """A share of the batch, into the open store transaction; also an empty share: opening
        undoes the earlier attempt (R31)."""
        raise NotImplementedError

    def tell(self) -> None:
        """Emit what was written."""


def added(old: int | None, more: int) -> int:
    """The new value of a sum."""
    return (old or 0) + more
