"""The function of every Spark task.

Runs on: executor. Its closure carries a job and a level; the shared part of the run's jobs is
broadcast once and kept by the worker.
"""

from __future__ import annotations

import pickle
import struct
import time
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection
from typing import Any

from pyspark import TaskContext

from txtopo.dataplane import one_task, wire, worker
from txtopo.dataplane import slot as execute
from txtopo.dataplane.job import COMMITTING, Job
from txtopo.spark import imports
from txtopo.topology import pickling

JOB_PROPERTY = "spark.jobGroup.id"
"""The group that Spark runs a job under, which for every job of ours is its name."""


class WrongJobError(Exception):
    """Spark ran this closure for another job than its own: Spark computes a lost result again
    (R33).
    """


class RepeatedTaskError(Exception):
    """Spark began a task with effects again within the attempt: the first task may still run, and a
    straight task may emit another batch (R33)."""


def _context_of(group: str, task_name: str, has_effects: bool) -> Any:
    """The context of the Spark task this is, which must be one of the job ``group``, and if it has
    effects the only one."""
    context = TaskContext.get()
    assert context is not None
    asked = context.getLocalProperty(JOB_PROPERTY)
    if asked != group:
        raise WrongJobError(f"{task_name} of {group} was run for {asked}")
    if has_effects and context.attemptNumber() > 0:
        # Spark begins a task again if its executor was taken away, or its machine was lost, with
        # any value of spark.task.maxFailures.
        raise RepeatedTaskError(f"{group} was begun {context.attemptNumber() + 1} times")
    return context


class LevelFunction:
    """One level of one job. The last level yields bytes; the others yield (receiving slot, bytes)
    pairs, flat, as Spark's pairwise RDD wants."""

    def __init__(self, run: Any, job: Job, level: int, is_last: bool) -> None:
        self._run, self._job, self._level, self._is_last = run, job, level, is_last

    def __call__(self, slot: int, incoming: Iterator[bytes]) -> Iterator[bytes]:
        context = _context_of(
            f"{self._job.run}/{self._job.name}",
            f"level {self._level}",
            self._job.part in COMMITTING,
        )
        known = worker.worker_run(
            self._job.run, lambda: imports.data_of(self._run), time.perf_counter
        )
        with worker.seldom_collected():
            for receiver, data in self.send(known, slot, context.taskAttemptId(), incoming):
                if not self._is_last:
                    yield struct.pack("!q", receiver)
                yield data

    def send(
        self, known: worker.WorkerRun, slot: int, task_attempt: int, incoming: Iterator[bytes]
    ) -> Iterator[tuple[int, bytes]]:
        """Compute the slot."""
        return one_task.computation(known, self._job, self._level, slot, task_attempt).run(incoming)


class ResidentFunction:
    """Runs whole small transactions, one after the other, for the listener at ``address`` (see
    ``resident_task``): the answer to a pickled job is the pickled records of its last level. Ends
    when the listener hangs up."""

    def __init__(self, run: Any, token: str, group: str, address: str) -> None:
        self._run, self._token, self._group, self._address = run, token, group, address

    def __call__(self, slot: int, incoming: Iterator[bytes]) -> Iterator[bytes]:
        context = _context_of(self._group, "a resident task", has_effects=True)
        for _ in incoming:
            pass  # A worker that leaves input behind dies.
        known = worker.worker_run(
            self._token, lambda: imports.data_of(self._run), time.perf_counter
        )
        with worker.seldom_collected(), Client(self._address, "AF_UNIX") as channel:
            # An end in the middle of a transaction is an error: whoever asked has given up.
            while (request := _received(channel)) is not None:
                job = pickling.loads(request)
                records = [
                    data
                    for _, data in one_task.computation(
                        known, job, 0, slot, context.taskAttemptId()
                    ).run(iter([b""]))
                ]
                channel.send_bytes(pickle.dumps(records))
        return iter(())


def _received(channel: Connection) -> bytes | None:
    try:
        return channel.recv_bytes()
    except (EOFError, ConnectionResetError):
        return None


def reports_only(slot: int, records: Iterator[bytes]) -> Iterator[bytes]:
    """The part of pinned results that the driver needs. All other input is read, too, because a
    worker that leaves input behind dies."""
    for record in records:
        if record[:1] == wire.REPORT:
            yield record


class ForwardFunction(LevelFunction):
    """Sends pinned results to the first level of the job that reads them, where this level has
    other slots than the level that holds the results."""

    def __init__(self, run: Any, job: Job, receiving_slots: int) -> None:
        super().__init__(run, job, -1, is_last=False)
        self._receiving_slots = receiving_slots

    def send(
        self, known: worker.WorkerRun, slot: int, task_attempt: int, incoming: Iterator[bytes]
    ) -> Iterator[tuple[int, bytes]]:
        return execute.forward(
            known, self._job, slot, task_attempt, self._receiving_slots, incoming
        )
