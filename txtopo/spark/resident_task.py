"""A Spark task that stays for several transactions, and answers the driver over a local socket.

A Spark job with one Python task takes some fifteen milliseconds before the task begins, and a small
transaction takes one millisecond. So the task that runs a small transaction from end to end (see
``dataplane.one_task``) waits for the next transaction. The driver sends the next transaction when
the last transaction is recorded. For the coordinator each transaction is still a job, with a seal
before the job and a record after the job.

Runs on: driver. ``task.ResidentFunction`` runs in the task. Local masters only: executors elsewhere
might not reach the driver.

Invariants:
    - A task serves one request at a time, so that a lost task hits only one transaction.
    - One process connects, once: a task that Spark begins again is not let in.
    - A task ends after ``_IDLE_S`` without a request, after the first answer past the age
      ``_LIFE_S``, and after its answer if the run's other jobs want its slot. One slot of the
      session is left to other jobs. If the session has only one slot, each other job wants this
      slot, and gets the slot when the task is ``_IDLE_S`` old. A shorter life would help neither
      side.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from txtopo.spark import sockets
from txtopo.spark.threads import WorkThreads

_IDLE_S = 0.1
_LIFE_S = 1.0
_ACCEPT_POLL_S = 0.05
_END_S = 5.0
_REMEMBERED_MAX = 1_000

_numbers = itertools.count(1)
"""Numbers for this process's resident tasks, used in their addresses."""

Launch = Callable[[str, str], None]
"""Runs a Spark job, given its group and the address for its one task, until the job ends. Raises
Spark's exception."""


class TaskLostError(Exception):
    """The task ended, or was cancelled, before its answer. Text and cause are Spark's exception."""


class Seats:
    """Counts a process's resident tasks. All runs in a session share its slots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, cores: int) -> bool:
        """Take one of ``cores`` slots. Returns whether a slot was left."""
        with self._lock:
            if self._taken >= max(1, cores - 1):
                return False
            self._taken += 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self._taken -= 1


_SEATS = Seats()


class _Task:
    """One Spark task, from launch to end."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.serving: str | None = None
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.began = self.used = time.monotonic()
        self._lock = threading.Lock()
        self._in_use = threading.Lock()
        """Held during a request: a descriptor closed meanwhile could belong to another file when
        the request reads."""
        self._hung_up = threading.Event()
        self._socket: socket.socket | None = None
        self._channel: Connection | None = None
        self.address = str(sockets.directory() / f"task-{next(_numbers)}")
        """The address to which the task connects, in a directory that no other user may enter."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self.address)
            self._listener.listen(1)
            self._listener.settimeout(_ACCEPT_POLL_S)
        except OSError:
            self._stop_listening()
            raise

    def ask(self, request: bytes) -> bytes:
        try:
            with self._in_use:
                channel = self._channel or self._connect()
                channel.send_bytes(request)
                return channel.recv_bytes()
        except (EOFError, OSError):
            # The driver may be the end that failed: then the task still waits.
            self.close()
            # Spark tells the reason a moment after the socket breaks.
            self.ended.wait()
            said = (
                f"the Spark job {self.group} ended before it had answered"
                if self.error is None
                else str(self.error)
            )
            raise TaskLostError(said) from self.error

    def hold(self, launch: Launch) -> None:
        """Run the Spark job, on a thread of its own."""
        try:
            launch(self.group, self.address)
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()
            self.hang_up()

    def hang_up(self) -> None:
        """Let the task end at its next request. A thread that waits for the task's answer gives
        up."""
        with self._lock:
            self._hung_up.set()
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the other end has gone already
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the sockets, when the task has ended or is about to. No request may follow."""
        self.hang_up()
        with self._in_use, self._lock:
            self._stop_listening()
            if self._socket is not None and self._channel is not None:
                self._socket.close()
                self._channel.close()

    def _connect(self) -> Connection:
        while not self._hung_up.is_set():
            with contextlib.suppress(TimeoutError):
                accepted, _ = self._listener.accept()
                accepted.setblocking(True)
                with self._lock:
                    if self._hung_up.is_set():
                        accepted.close()
                        break
                    self._socket, self._channel = accepted, Connection(os.dup(accepted.fileno()))
                    self._stop_listening()
                    return self._channel
        raise EOFError

    def _stop_listening(self) -> None:
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address)


class ResidentTasks:
    """A run's resident tasks, of which one serves at a time. One thread at a time may ask, and any
    thread may cancel."""

    def __init__(
        self,
        run: str,
        cores: int,
        launch: Launch,
        cancel: Callable[[str], None],
        seats: Seats = _SEATS,
        slot_is_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        """``cancel`` cancels the Spark jobs of a group, also later jobs. ``slot_is_wanted`` says
        whether the session has a job besides our task."""
        self._run = run
        self._cores = cores
        self._launch = launch
        self._cancel = cancel
        self._seats = seats
        self._slot_is_wanted = slot_is_wanted
        self._lock = threading.Lock()
        self._threads: WorkThreads | None = None
        self._task: _Task | None = None
        self._error: BaseException | None = None
        """The error that has ended a function on our threads."""
        self._launched = 0
        self._others = 0
        self._cancelled: OrderedDict[str, None] = OrderedDict()
        """Groups that were cancelled when no task served them. Most, such as the groups of
        processing jobs, never come as a request."""
        self._served: OrderedDict[str, str] = OrderedDict()
        """Groups that were given up when a task served them, with the task's Spark group."""

    def ask(self, group: str, request: bytes) -> bytes | None:
        """The answer to ``request``, or ``None`` if there can be no resident task now. ``group`` is
        the name to cancel the request by.

        :raises TaskLostError: there is no answer.
        """
        task = self._claim(group)
        if task is None:
            return None
        try:
            answer = task.ask(request)
        except BaseException:
            self._drop(task)
            raise
        with self._lock:
            task.serving, task.used = None, time.monotonic()
            cancelled = group in self._served
            stays = self._others == 0 and task.used - task.began < _LIFE_S
        if stays and self._cores == 1 and task.used - task.began >= _IDLE_S:
            stays = not self._slot_is_wanted()
        if cancelled or not stays:
            self._drop(task)
        if cancelled:
            raise TaskLostError(f"{group} was cancelled")
        return answer

    @contextlib.contextmanager
    def making_room(self) -> Iterator[None]:
        """A context in which the run has a Spark job besides the resident task. An idle task gives
        up its slot at once, and a task at work after its answer."""
        with self._lock:
            self._others += 1
            task = self._task
        if task is not None:
            self._drop(task, idle_s=0.0)
        try:
            yield
        finally:
            with self._lock:
                self._others -= 1

    def cancel(self, group: str) -> None:
        """Give up the request of ``group``, also before the request arrives. Returns before the
        task has stopped."""
        with self._lock:
            task = self._task if self._task is not None and self._task.serving == group else None
            self._remember(group, task)
        if task is not None:
            self._cancel(task.group)
            task.hang_up()

    def spark_group(self, group: str) -> str | None:
        """The Spark group whose task serves the request of ``group``, or served the request when
        it was given up."""
        with self._lock:
            if self._task is not None and self._task.serving == group:
                return self._task.group
            return self._served.get(group)

    def close(self) -> None:
        """End the task, and wait a little for its end."""
        with self._lock:
            task, threads = self._task, self._threads
        if task is not None:
            self._drop(task)
        if threads is not None:
            threads.close(_END_S)

    def _claim(self, group: str) -> _Task | None:
        with self._lock:
            if group in self._cancelled or group in self._served:
                raise TaskLostError(f"{group} was cancelled before it began")
            if self._task is None and self._seats.take(self._cores):
                try:
                    self._task = self._launch_task()
                finally:
                    if self._task is None:
                        self._seats.give_back()
            if self._task is not None:
                self._task.serving = group
            return self._task

    def _launch_task(self) -> _Task | None:
        """A new task, or ``None`` without a socket: the path of the temporary directory is too
        long, for instance, or no descriptor is left."""
        self._launched += 1
        try:
            if self._threads is None:
                # One thread holds the job, and one watches. The task before has two threads more,
                # because its end is not awaited.
                self._threads = WorkThreads("resident", 4, self._fail)
            task = _Task(f"{self._run}/resident-{self._launched}:whole")
        except OSError:
            return None
        self._threads.submit(lambda: task.hold(self._launch))
        self._threads.submit(lambda: self._watch(task))
        return task

    def _watch(self, task: _Task) -> None:
        """On a thread of its own: end the task when it is idle, or cancel the task if it does not
        end then. Clear up when the task has ended."""
        try:
            while not task.ended.wait(_IDLE_S) and task is self._task:
                self._drop(task, idle_s=_IDLE_S)
            self._drop(task)
            if not task.ended.wait(_END_S):
                # The worker is suspended, for instance. Until it goes on it would keep the slot,
                # and the run could launch no new task.
                self._cancel(task.group)
                task.ended.wait()
        finally:
            task.close()

    def _fail(self, error: BaseException) -> None:
        self._error = error

    def raise_unexpected(self) -> None:
        """Raise the error that has ended a function on our threads, if there is one."""
        if self._error is not None:
            raise self._error

    def _drop(self, task: _Task, idle_s: float | None = None) -> None:
        """Send ``task`` no more requests. With ``idle_s`` do so only if the task has been idle for
        so long."""
        with self._lock:
            if task is not self._task:
                return
            if idle_s is not None and (
                task.serving is not None or time.monotonic() - task.used < idle_s
            ):
                return
            self._task = None
            if task.serving is not None:
                # The task was lost, and its work may still be going on.
                self._remember(task.serving, task)
            self._seats.give_back()
        task.hang_up()

    def _remember(self, group: str, task: _Task | None) -> None:
        if task is None:
            self._cancelled[group] = None
        elif group not in self._served:
            self._served[group] = task.group
        for remembered in (self._cancelled, self._served):
            while len(remembered) > _REMEMBERED_MAX:
                remembered.popitem(last=False)
