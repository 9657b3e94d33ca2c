"""Ctrl-C and SIGTERM: the first signal asks a run, or a simulation, to stop, the second ends it.

A signal handler may do next to nothing. It runs between any two instructions in the main thread,
which may just be writing or holding a lock. So the handler counts signals, and the main thread
looks at the count.

Runs on: driver, main thread. In another thread Python allows no handlers, and nothing is changed.

Invariants: the handlers found on entry are in place again on exit. The first signal raises nothing,
unless :attr:`StopSignals.is_harmless`. Nor does the second signal, once a run is watched.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FORCE = 2


class InterruptedBySignalError(KeyboardInterrupt):
    """A signal whose number is ``signum``, and which ends the program at once."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class StopSignals:
    """A context in which the first signal means "stop", the second "stop now".

    Until :meth:`watch` the run is being started, and no loop looks at the count. The first signal
    then calls ``early``, which may do no more than write a line, and the second signal interrupts.
    The first signal does not interrupt, because a JVM that is interrupted in its start leaves files
    and stack traces behind.
    """

    def __init__(self, early: Callable[[], None] = lambda: None) -> None:
        self._early = early
        self._found: dict[int, Any] = {}
        self._watching = False
        self.is_harmless = False
        """Whether nothing has been started yet, so that the first signal interrupts."""
        self._count = 0
        self.signum = int(signal.SIGINT)
        """The signal that came last."""

    @property
    def is_requested(self) -> bool:
        """Whether to finish the transactions in flight, and stop."""
        return self._count > 0

    @property
    def is_forced(self) -> bool:
        return self._count >= _FORCE

    def watch(self) -> None:
        """Count signals from now on. Installs the handlers again, because a new SparkContext
        replaces SIGINT's handler."""
        self._watching = True
        self._install()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._found = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        self._install()
        return self

    def __exit__(self, *raised: object) -> None:
        for signum, handler in self._found.items():
            # None stands for a handler that Python has not installed, and cannot put back.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def _install(self) -> None:
        for signum in self._found:
            signal.signal(signum, self._received)

    def _received(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self._count += 1
        is_second = self._count == _FORCE and not self._watching
        if self.is_harmless or self._count > _FORCE or is_second:
            raise InterruptedBySignalError(signum)
        if not self._watching:
            self._early()


def exit_code_of(error: KeyboardInterrupt) -> int:
    """The exit code for an interruption, as in a shell: 130 for Ctrl-C, 143 for SIGTERM."""
    signum = error.signum if isinstance(error, InterruptedBySignalError) else signal.SIGINT
    return 128 + signum
