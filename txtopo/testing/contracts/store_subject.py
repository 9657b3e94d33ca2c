"""The subject of a clause about stores: empty stores, a process whose tasks write to them, and
short forms for writing.

Apart from the clauses because all of them begin here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from txtopo import errors
from txtopo.stores import base, stamps, transaction
from txtopo.stores.updates import Update
from txtopo.stores.visible import VisibleTxid
from txtopo.testing.contracts import clauses, worker_process
from txtopo.topology.context import TopologyContext
from txtopo.topology.transaction import TransactionAttempt


class MakeStore(Protocol):
    """Makes the store called ``name``: empty if the name is new, otherwise with what was written
    under that name.

    ``form`` is what the store is to be opened as, for its constructor: ``opaque=``, and where they
    matter ``plain=`` and ``codec=``.
    """

    def __call__(self, name: str, **form: Any) -> base.Store: ...


class Subject:
    """An implementation, of one kind, for one clause; ``prefix`` makes its names new."""

    def __init__(self, make_store: MakeStore, kind: stamps.Kind, prefix: str) -> None:
        self._make_store, self._prefix, self.kind = make_store, prefix, kind
        self.process = worker_process.WorkerProcess()
        self.task = self.process.task

    def store(self, name: str = "results", opaque: bool | None = None, **form: Any) -> base.Store:
        """A store of this clause's own, of the kind that is checked unless the call says otherwise."""
        if self.kind == "plain":
            form = {"plain": True, **form}
        return self._make_store(
            f"{self._prefix}_{name}",
            opaque=self.kind == "opaque" if opaque is None else opaque,
            **form,
        )


def run(
    store: base.Store, context: TopologyContext, txid: int, attempt: int = 0, /, **deltas: int
) -> dict[str, Update]:
    """One store transaction that adds ``deltas``."""
    with store.transaction(context, TransactionAttempt(txid, attempt)) as opened:
        return opened.update_many(deltas, add)


def block(
    store: base.Store,
    context: TopologyContext,
    txid: int,
    attempt: int,
    action: Callable[[transaction.StoreTransaction], Any],
) -> Any:
    """One store transaction that does ``action``."""
    with store.transaction(context, TransactionAttempt(txid, attempt)) as opened:
        return action(opened)


def put(
    store: base.Store, context: TopologyContext, txid: int, attempt: int = 0, /, **values: Any
) -> None:
    """One store transaction that sets ``values``."""
    with store.transaction(context, TransactionAttempt(txid, attempt)) as opened:
        opened.put_many(values)


def visible_at(
    txid: int, known: Mapping[str, TransactionAttempt], generation: str = "first"
) -> VisibleTxid:
    """What is visible when transaction ``txid`` of the tasks' topology is recorded, and ``known``
    by store."""
    return VisibleTxid(txid, "words", generation, known)


def plus(n: int) -> Callable[[int | None], int]:
    """For ``update``: adds ``n``."""
    return lambda old: (old or 0) + n


def add(old: int | None, delta: int) -> int:
    """For ``update_many``: adds the delta."""
    return (old or 0) + delta


def never(old: Any) -> Any:
    """For an update that must not be applied again."""
    raise clauses.BrokenClauseError(
        f"the function given to update is called although the update was applied before, with {old!r}"
    )


def set_to(value: Any) -> Callable[[Any], Any]:
    """For ``update``: replaces whatever there was."""
    return lambda old: value


def contents(store: base.Store) -> dict[Any, Any]:
    """All committed values, by key."""
    return dict(store.items())


def swallowed(kind: type[Exception], action: Callable[[], Any]) -> None:
    """``action()``, as user code that catches ``kind`` and goes on."""
    try:
        action()
    except kind:
        return
    raise clauses.BrokenClauseError(
        f"a refusal with {kind.__name__} was expected inside the transaction"
    )


_TRIES_MAX, _WAIT_S = 200, 120.0


def write_at_once(subject: Subject, tasks: int, write: Callable[..., object]) -> None:
    """Have so many tasks of one attempt write a key each at the same time, with :func:`run` or
    :func:`put`: only what may pass may stop them."""
    store, failures = subject.store(), list[BaseException]()
    begin = threading.Barrier(tasks)

    def write_one(task: int) -> None:
        try:
            begin.wait(_WAIT_S)
            for _ in range(_TRIES_MAX):
                try:
                    write(store, subject.task(task=task), 1, 0, **{f"key {task}": task})
                    return
                except errors.StaleAttemptError:
                    raise
                except errors.FailedException:
                    continue
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write_one, args=(task,)) for task in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT_S)
    clauses.equal(failures, [], "what the tasks raised")
    clauses.equal(contents(store), {f"key {task}": task for task in range(tasks)}, "what is stored")
