"""Clauses about counts: a store counts an attempt's store transactions, and is refused if one is
missing (R34)."""

from __future__ import annotations

import functools

from txtopo.stores.base import Store
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal
from txtopo.testing.contracts.store_subject import (
    Subject,
    at_once,
    contents,
    failing_block,
    mismatched,
    put,
    retry,
)
from txtopo.topology.context import TopologyContext
from txtopo.topology.transaction import RecordedAttempt

CONTRACT = clauses.Contract[Subject]("store")

_COUNT = (
    "Have Session.count add one to the task's count in the fence's attempt, with the commit, unless the count has reached the number. "
    "Give the sum over all tasks as the fence's count, in read_fence and in fences()."
)


def _tasks(
    subject: Subject, store: Store, recorded: RecordedAttempt | None = None, /
) -> list[TopologyContext]:
    """An attempt's two tasks. ``recorded`` is the store's record in ZooKeeper."""
    known = {} if recorded is None else {f"count/{store.name}": recorded}
    return [subject.task(task=task, num_tasks=2, known_stores=known) for task in range(2)]


def _reported_count(tasks: list[TopologyContext]) -> int:
    """The count that the tasks report to the driver."""
    return sum(sum(task.touched_stores.values()) for task in tasks)


def _count(store: Store) -> int | None:
    [fence] = store.fences()
    return fence.count


@CONTRACT.clause(
    "the fence counts its attempt's store transactions, as the tasks report them",
    34,
    cure=_COUNT,
    also="plain",
)
def _counts(subject: Subject) -> None:
    store = subject.store()
    for txid in (1, 2):
        tasks = _tasks(subject, store)
        for number, task in enumerate((*tasks, tasks[0]), start=1):
            put(store, task, txid, 0, **{f"key {task.task_index}": txid})
            equal(
                _count(store),
                number,
                f"the fence's count after store transaction {number} of transaction {txid}",
            )
        equal(_reported_count(tasks), 3, "the reported count")


@CONTRACT.clause(
    "a rolled back store transaction is not counted, and a new attempt is counted from zero",
    34,
    cure=_COUNT,
)
def _recount(subject: Subject) -> None:
    store = subject.store()
    tasks = _tasks(subject, store)
    put(store, tasks[0], 1, 0, dog=1)

    failing_block(store, tasks[1], 1, 0, lambda opened: opened.put("cat", 1))
    equal(
        (_count(store), _reported_count(tasks)),
        (1, 1),
        "the fence's and the tasks' counts after a block that raised",
    )
    tasks = _tasks(subject, store)
    put(store, tasks[1], 1, 1, owl=1)
    equal(
        (_count(store), _reported_count(tasks)),
        (1, 1),
        "the fence's and the tasks' counts in the next attempt",
    )


@CONTRACT.clause("a task run twice in an attempt is counted once", 34, cure=_COUNT)
def _once(subject: Subject) -> None:
    store = subject.store()
    for counts in ((1, 2, 3), (3, 3, 3)):
        tasks = _tasks(subject, store)
        for task, count in zip((*tasks, tasks[1]), counts, strict=True):
            put(store, task, 1, 0, **{f"key {task.task_index}": 1})
            equal(_count(store), count, "the fence's count")
    equal(
        (_count(store), _reported_count(tasks)),
        (3, 3),
        "the fence's count, and the last tasks' count",
    )


@CONTRACT.clause(
    "a store that lacks a store transaction of the recorded attempt is refused",
    34,
    27,
    cure="Compare the fence's count with the record.",
    also="plain",
)
def _incomplete(subject: Subject) -> None:
    store = subject.store()
    put(store, _tasks(subject, store)[0], 1, 0, dog=1)
    named = (
        "is behind",
        "holds 1 store transactions of attempt 1:0",
        "has recorded 2",
        "txtopo store adopt",
        "txtopo state reset words",
    )
    for task in _tasks(subject, store, RecordedAttempt(1, 0, 2)):
        write = functools.partial(put, store, task, 2, 0, dog=2)
        mismatched(write, "a store without the second task's commit", *named)
    equal((contents(store), _count(store)), ({"dog": 1}, 1), "the contents")
    put(store, _tasks(subject, store, RecordedAttempt(1, 0, 1))[0], 2, 0, dog=2)
    equal(contents(store), {"dog": 2}, "the contents with every commit")


@CONTRACT.clause(
    "a store with more store transactions than were recorded for the attempt is refused",
    34,
    29,
    cure="Compare the fence's count with the record.",
)
def _refuse_excess(subject: Subject) -> None:
    store = subject.store()
    for task in _tasks(subject, store):
        put(store, task, 1, 0, **{f"key {task.task_index}": 1})
    named = (
        "is ahead",
        "holds 2 store transactions of attempt 1:0",
        "has recorded 1",
        "txtopo store adopt",
        "txtopo state reset words",
    )
    write = functools.partial(
        put, store, _tasks(subject, store, RecordedAttempt(1, 0, 1))[0], 2, 0, dog=2
    )
    mismatched(write, "a store that holds more than was recorded", *named)


@CONTRACT.clause(
    "adopting or clearing a store removes the count",
    34,
    27,
    cure="Remove the counts with the fence.",
)
def _forget(subject: Subject) -> None:
    store = subject.store()
    put(store, _tasks(subject, store)[1], 1, 0, dog=1)
    store.adopt("words", "second", 0, ["count"])
    equal(_count(store), 0, "an adopted fence's count")
    context = subject.task(generation="second", num_tasks=2)
    for number in (1, 2):
        put(store, context, 1, 0, dog=number)
        equal(_count(store), number, "the count in another generation's first transaction")
    store.clear("words")
    put(store, _tasks(subject, store)[0], 1, 0, dog=1)
    equal(_count(store), 1, "the count in a cleared store's first transaction")


@CONTRACT.clause(
    "transactions counted before a store was adopted are never counted again",
    34,
    27,
    cure="Remove its counts.",
)
def _not_counted_again(subject: Subject) -> None:
    store = subject.store()
    for task in _tasks(subject, store):
        put(store, task, 2, 0, **{f"key {task.task_index}": 1})
    # ZooKeeper was restored from an older copy: the attempt's number comes again, and now only one
    # task writes.
    store.adopt("words", "first", 1, ["count"])
    task = _tasks(subject, store)[0]
    put(store, task, 2, 0, dog=1)
    equal(
        (_count(store), _reported_count([task])),
        (1, 1),
        "an attempt's count, if its number was used before the store was adopted",
    )


@CONTRACT.clause(
    "blocks that threads of one task open at the same time are all counted",
    34,
    32,
    cure="Leave Store.transaction as it is.",
)
def _threads_of_a_task(subject: Subject) -> None:
    store, task, threads = subject.store(), subject.task(), 4

    def write(thread: int) -> None:
        for number in range(3):
            put(store, task, 1, 0, **{f"key {thread}-{number}": number})

    at_once(threads, write)
    equal(
        (_count(store), _reported_count([task])),
        (3 * threads, 3 * threads),
        "the fence's and the task's counts",
    )


@CONTRACT.clause(
    "tasks of one attempt may write at the same time, and are all counted",
    34,
    29,
    32,
    cure=f"Raise FailedException for a transient conflict, and never deadlock. {_COUNT}",
    only="concurrent",
    also="plain",
)
def _tasks_at_once(subject: Subject) -> None:
    store, tasks = subject.store(), 4
    contexts = [subject.task(task=task, num_tasks=tasks) for task in range(tasks)]

    def write(task: int) -> None:
        for number in range(3):
            deltas = {f"key {task}": number}
            retry(functools.partial(subject.write, store, contexts[task], 1, 0, **deltas))

    at_once(tasks, write)
    written = 2 if subject.kind == "plain" else 0 + 1 + 2
    equal(contents(store), {f"key {task}": written for task in range(tasks)}, "the contents")
    equal(
        (_count(store), _reported_count(contexts)),
        (3 * tasks, 3 * tasks),
        "the fence's and the tasks' counts",
    )
