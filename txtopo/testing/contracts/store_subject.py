"""The subject for store clauses: empty stores, a process whose tasks write, and short forms for
writing."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from txtopo import errors
from txtopo.stores import base, stamps, transaction
from txtopo.stores.updates import Update
from txtopo.stores.visible import VisibleTxid
from txtopo.testing.contracts import clauses, worker_process
from txtopo.topology.context import TopologyContext
from txtopo.topology.transaction import TransactionAttempt

T = TypeVar("T")

_TRIES_MAX, _WAIT_S = 200, 120.0

_TOUCHES: tuple[Callable[[transaction.StoreTransaction], Any], ...] = (
    lambda opened: opened.put("dog", 5),
    lambda opened: opened.delete("dog"),
    lambda opened: opened.get("dog"),
)
"""A write, a deletion and a read."""


class MakeStore(Protocol):
    """Makes the store called ``name``: empty if the name is new, otherwise with the earlier
    contents.

    ``form`` is for the constructor: always ``opaque=``, sometimes ``plain=`` or ``codec=``.
    """

    def __call__(self, name: str, **form: Any) -> base.Store: ...


class Subject:
    """Stores of one kind, for one clause. ``prefix`` makes their names new."""

    def __init__(self, make_store: MakeStore, kind: stamps.Kind, prefix: str) -> None:
        self._make_store, self._prefix, self.kind = make_store, prefix, kind
        self.process = worker_process.WorkerProcess()
        self.task = self.process.task

    def store(self, name: str = "results", opaque: bool | None = None, **form: Any) -> base.Store:
        """The clause's own store, of the checked kind by default."""
        if self.kind == "plain":
            form = {"plain": True, **form}
        return self._make_store(
            f"{self._prefix}_{name}",
            opaque=self.kind == "opaque" if opaque is None else opaque,
            **form,
        )

    @property
    def touches(self) -> tuple[Callable[[transaction.StoreTransaction], Any], ...]:
        """Every way to touch a key: in a plain store without an update."""
        update = () if self.kind == "plain" else (lambda opened: opened.update("dog", plus(1)),)
        return (*_TOUCHES, *update)

    def write(self, *where: Any, **deltas: int) -> None:
        """Add ``deltas`` as :func:`run` does, or in a plain store put them."""
        (put if self.kind == "plain" else run)(*where, **deltas)


def run(
    store: base.Store, context: TopologyContext, txid: int, attempt: int = 0, /, **deltas: int
) -> dict[str, Update]:
    """Add ``deltas`` in one store transaction."""
    with store.transaction(context, TransactionAttempt(txid, attempt)) as opened:
        return opened.update_many(deltas, add)


def block(
    store: base.Store,
    context: TopologyContext,
    txid: int,
    attempt: int,
    action: Callable[[transaction.StoreTransaction], Any],
) -> Any:
    """Do ``action`` in one store transaction."""
    with store.transaction(context, TransactionAttempt(txid, attempt)) as opened:
        return action(opened)


def failing_block(
    store: base.Store,
    context: TopologyContext,
    txid: int,
    attempt: int,
    action: Callable[[transaction.StoreTransaction], Any],
) -> None:
    """Do ``action`` in a store transaction that then fails."""

    def die(opened: transaction.StoreTransaction) -> None:
        action(opened)
        raise ZeroDivisionError

    failing = functools.partial(block, store, context, txid, attempt, die)
    clauses.refused(ZeroDivisionError, failing, "a block that raises")


def put(
    store: base.Store, context: TopologyContext, txid: int, attempt: int = 0, /, **values: Any
) -> None:
    """Set ``values`` in one store transaction."""
    with store.transaction(context, TransactionAttempt(txid, attempt)) as opened:
        opened.put_many(values)


def recorded(
    store: base.Store, txid: int, attempt: int = 0, component: str = "count"
) -> dict[str, TransactionAttempt]:
    """The record that ``component`` last opened ``store`` in this attempt."""
    return {f"{component}/{store.name}": TransactionAttempt(txid, attempt)}


def visible_at(
    txid: int, known: Mapping[str, TransactionAttempt], generation: str = "first"
) -> VisibleTxid:
    """The visible txid when transaction ``txid`` is recorded, with ``known`` attempts by store."""
    return VisibleTxid(txid, "words", generation, known)


def plus(n: int) -> Callable[[int | None], int]:
    """For ``update``: adds ``n``."""
    return lambda old: (old or 0) + n


def add(old: int | None, delta: int) -> int:
    """For ``update_many``: adds the delta."""
    return (old or 0) + delta


def never(old: Any) -> Any:
    """For ``update``: fails if the update is applied again."""
    raise clauses.BrokenClauseError(
        f"the function given to update is called although the update was applied before, with {old!r}"
    )


def set_to(value: Any) -> Callable[[Any], Any]:
    """For ``update``: replaces any value."""
    return lambda old: value


def contents(store: base.Store) -> dict[Any, Any]:
    """All committed values, by key."""
    return dict(store.items())


def mismatched(action: Callable[[], Any], attempted: str, *naming: str) -> None:
    """``action()`` must be refused as a state mismatch, with its exit code."""
    error = clauses.refused(errors.StateMismatchError, action, attempted, *naming)
    clauses.equal(error.exit_code, 6, "its exit code")


def retry(write: Callable[[], T]) -> T:
    """The result from ``write()``, which is called again while the store is busy."""
    tries = 1
    while True:
        try:
            return write()
        except errors.StaleAttemptError:
            raise
        except errors.FailedException:
            if tries == _TRIES_MAX:
                raise
            tries += 1


def at_once(count: int, work: Callable[[int], object]) -> None:
    """Call ``work(0)`` … ``work(count - 1)`` at the same time, in threads. No call may raise."""
    begin, failures = threading.Barrier(count), list[BaseException]()

    def work_one(number: int) -> None:
        try:
            begin.wait(_WAIT_S)
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work_one, args=(number,), daemon=True) for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT_S)
    is_hanging = any(thread.is_alive() for thread in threads)
    clauses.true(not is_hanging, f"a thread did not end within {_WAIT_S:g} s")
    clauses.equal(failures, [], "the threads' errors")
