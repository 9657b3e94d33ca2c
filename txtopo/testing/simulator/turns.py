"""Runs threads in turns: one thread runs at a time, from its resumption to its next park, and no
thread runs by itself.

The engine's threads wait for Spark in the middle of their work. Here they park instead, and the
scheduler resumes them. So real code that blocks becomes deterministic without a rewrite.

Invariants: a carrier runs only between :meth:`Carrier.start` or :meth:`Carrier.resume` and its next
park or end, while its caller waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_current = threading.local()


def park() -> Any:
    """Give the turn back, and return the answer from :meth:`Carrier.resume`, or raise it if it is
    an exception. Runs on: a carrier."""
    return current()._park()


def is_carried() -> bool:
    """Whether this code runs on a carrier, where it may park."""
    return getattr(_current, "carrier", None) is not None


def current() -> Carrier:
    """The carrier that runs this code."""
    carrier: Carrier = _current.carrier
    return carrier


class Carrier:
    """A thread for many works in turn. An error that leaves a work is raised where the work was
    started or resumed."""

    def __init__(self) -> None:
        # Bare locks, held to begin with: as signals they are several times faster than semaphores,
        # and there are hundreds per schedule.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._work: Callable[[], None] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self.is_busy = False
        """Whether a work is under way."""
        self._thread = threading.Thread(target=self._run, name="txtopo-simulated", daemon=True)
        self._thread.start()

    def start(self, work: Callable[[], None]) -> None:
        """Start ``work``, and return when the work parks or ends."""
        assert not self.is_busy
        self._work, self.is_busy = work, True
        self._turn()

    def resume(self, answer: Any = None) -> None:
        """Resume the parked work, and return when the work parks again or ends."""
        assert self.is_busy
        self._answer = answer
        self._turn()

    def end(self) -> None:
        assert not self.is_busy
        self._work = None
        self._go.release()
        self._thread.join()

    def _turn(self) -> None:
        self._go.release()
        self._back.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _park(self) -> Any:
        self._back.release()
        self._go.acquire()
        answer, self._answer = self._answer, None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _run(self) -> None:
        _current.carrier = self
        while True:
            self._go.acquire()
            if self._work is None:
                return
            try:
                self._work()
            except BaseException as error:
                self._error = error
            self.is_busy = False
            self._back.release()


class Carriers:
    """Lends carriers: to start threads for each of thousands of schedules would take longer than
    the schedules."""

    def __init__(self) -> None:
        self._idle: list[Carrier] = []

    def borrow(self) -> Carrier:
        return self._idle.pop() if self._idle else Carrier()

    def give_back(self, carrier: Carrier) -> None:
        assert not carrier.is_busy
        self._idle.append(carrier)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()
