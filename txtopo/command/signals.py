"""Ctrl-C and SIGTERM: once asks a run to stop, twice ends it.

Apart from ``main`` because a signal handler may do next to nothing. It runs between any two
instructions of the main thread, which may just be writing or holding a lock; so it counts, and the
main thread looks.

Runs on: driver, main thread. Elsewhere Python allows no handlers, and nothing is changed.

Invariants: the handlers found on entry are in place again on exit. The first signal raises nothing;
nor does the second, once a run is watched.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FORCE = 2


class InterruptedBySignalError(KeyboardInterrupt):
    """A signal that is not waited for any longer. ``signum`` is its number."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class StopSignals:
    """A context in which signals mean "stop": the first one is to be looked at, the second too.

    While the run is only being started (until :meth:`watch`) nobody looks: the first signal calls
    ``early``, which may do no more than write a line, and the second interrupts. Not the first,
    because a JVM whose start is interrupted leaves files and stack traces behind.
    """

    def __init__(self, early: Callable[[], None]) -> None:
        self._early = early
        self._found: dict[int, Any] = {}
        self._watching = False
        self._count = 0
        self.signum = int(signal.SIGINT)
        """The signal that came last."""

    @property
    def asked(self) -> bool:
        """Whether to finish what is in flight, and stop."""
        return self._count > 0

    @property
    def forced(self) -> bool:
        """Whether to stop now."""
        return self._count >= _FORCE

    def watch(self) -> None:
        """Count signals from now on. Installs the handlers again: making a SparkContext replaces
        that of SIGINT."""
        self._watching = True
        self._install()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._found = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        self._install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for signum, handler in self._found.items():
            # None stands for a handler that was not installed by Python and cannot be put back by
            # it.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def _install(self) -> None:
        for signum in self._found:
            signal.signal(signum, self._received)

    def _received(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self._count += 1
        if self._count > _FORCE or (self._count == _FORCE and not self._watching):
            raise InterruptedBySignalError(signum)
        if not self._watching:
            self._early()


def exit_code_of(error: KeyboardInterrupt) -> int:
    """What a shell reports for a process that this interruption ended: 130 for Ctrl-C, 143 for
    SIGTERM."""
    signum = error.signum if isinstance(error, InterruptedBySignalError) else signal.SIGINT
    return 128 + signum
