"""The functions that Spark tasks run.

Runs on: executor. A function's closure carries a job and a level. The part that a run's jobs share
is broadcast once, and the worker keeps it.
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
from txtopo.dataplane.job import COMMITTING, Job
from txtopo.dataplane.slot import forward
from txtopo.spark import imports, late_tasks, log_lines
from txtopo.topology import pickling

JOB_PROPERTY = "spark.jobGroup.id"
"""The property with a Spark job's group, in which ``SparkJobs`` puts the name of each job."""


class WrongJobError(Exception):
    """Spark ran this closure for a foreign job, because Spark computes a lost result again (R33)."""


class RepeatedTaskError(Exception):
    """Spark began a task with effects again within the attempt: the first task may still run, and a
    whole task may emit another batch (R33)."""


def _context_of(group: str, task_name: str, has_effects: bool) -> Any:
    """This Spark task's context. The task must belong to the job ``group``, and must be its first
    attempt if it has effects."""
    context = TaskContext.get()
    assert context is not None
    asked = context.getLocalProperty(JOB_PROPERTY)
    if asked != group:
        raise WrongJobError(f"{task_name} of {group} was run for {asked}")
    if has_effects and context.attemptNumber() > 0:
        # If a task's executor was taken away, or its machine was lost, Spark begins the task again,
        # even with spark.task.maxFailures=1.
        raise RepeatedTaskError(f"{group} was begun {context.attemptNumber() + 1} times")
    return context


def _run_of(token: str, broadcast: Any) -> worker.WorkerRun:
    known = worker.worker_run(token, lambda: imports.data_of(broadcast), time.perf_counter)
    log_lines.show(known.run.conf["log_level"], known.run.conf["log_format"])
    return known


class LevelFunction:
    """One level in one job. The last level yields bytes. An earlier level yields (receiving slot,
    bytes) pairs, flat, as Spark's pairwise RDD wants."""

    def __init__(self, run: Any, job: Job, level: int, is_last: bool) -> None:
        self._run, self._job, self._level, self._is_last = run, job, level, is_last
        self._submitted_at = time.time()

    def __call__(self, slot: int, incoming: Iterator[bytes]) -> Iterator[bytes]:
        context = _context_of(
            f"{self._job.run}/{self._job.name}",
            f"level {self._level}",
            self._job.part in COMMITTING,
        )
        known = _run_of(self._job.run, self._run)
        watch = late_tasks.Watch(known.run, self._job, self._level, slot, self._submitted_at)
        with worker.seldom_collected(), watch:
            for receiver, data in self.send(known, slot, context.taskAttemptId(), incoming):
                if not self._is_last:
                    yield struct.pack("!q", receiver)
                yield data

    def send(
        self, known: worker.WorkerRun, slot: int, task_attempt: int, incoming: Iterator[bytes]
    ) -> Iterator[tuple[int, bytes]]:
        return one_task.computation(known, self._job, self._level, slot, task_attempt).run(incoming)


class ResidentFunction:
    """Runs whole small transactions, one by one, for the listener at ``address`` (see
    ``resident_task``). Answers a pickled job with the pickled records of the job's last level. Ends
    when the listener hangs up."""

    def __init__(self, run: Any, token: str, group: str, address: str) -> None:
        self._run, self._token, self._group, self._address = run, token, group, address

    def __call__(self, slot: int, incoming: Iterator[bytes]) -> Iterator[bytes]:
        context = _context_of(self._group, "a resident task", has_effects=True)
        for _ in incoming:
            pass  # A worker that leaves input behind dies.
        known = _run_of(self._token, self._run)
        with worker.seldom_collected(), Client(self._address, "AF_UNIX") as channel:
            # A hang-up in the middle of a transaction is an error: the driver has given up.
            while (request := _receive(channel)) is not None:
                job = pickling.loads(request)
                with late_tasks.Watch(known.run, job):
                    records = [
                        data
                        for _, data in one_task.computation(
                            known, job, 0, slot, context.taskAttemptId()
                        ).run(iter([b""]))
                    ]
                channel.send_bytes(pickle.dumps(records))
        return iter(())


def _receive(channel: Connection) -> bytes | None:
    try:
        return channel.recv_bytes()
    except (EOFError, ConnectionResetError):
        return None


def reports_only(slot: int, records: Iterator[bytes]) -> Iterator[bytes]:
    """The reports in pinned results, which the driver needs. All other input is read, too, because
    a worker that leaves input behind dies."""
    for record in records:
        if record[:1] == wire.REPORT:
            yield record


class ForwardFunction(LevelFunction):
    """Sends pinned results to the first level of the job that reads them, if the slots of this
    level and of the pinned level differ."""

    def __init__(self, run: Any, job: Job, receiving_slots: int) -> None:
        super().__init__(run, job, -1, is_last=False)
        self._receiving_slots = receiving_slots

    def send(
        self, known: worker.WorkerRun, slot: int, task_attempt: int, incoming: Iterator[bytes]
    ) -> Iterator[tuple[int, bytes]]:
        return forward(known, self._job, slot, task_attempt, self._receiving_slots, incoming)
