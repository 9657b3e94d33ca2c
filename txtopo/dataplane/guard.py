"""A slot's guard: runs user code, and remembers the first failure for good.

Every call into user code goes through :meth:`Guard.call`. An exception becomes a recorded failure,
which no ``try``/``except`` in an upstream bolt can undo (R7).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NoReturn

from txtopo import errors, plain_json
from txtopo.dataplane import collector, column_runs, hold, out_of_resources, route
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import AbortedError, Failure, describe, user_traceback
from txtopo.stores import conflicts
from txtopo.topology import aggregator
from txtopo.topology.context import Phase


class EmissionMistakeError(Exception):
    """An emitter broke its contract. Becomes :class:`txtopo.errors.MetadataError`, with component
    and task."""


_MISTAKES: dict[type[BaseException], type[errors.UserCodeError]] = {
    collector.EmitMistakeError: errors.EmitError,
    route.WrongTaskError: errors.EmitError,
    column_runs.ColumnMistakeError: errors.EmitError,
    MemoryError: errors.OutOfMemoryError,
    hold.CannotHoldError: errors.HeldStateError,
    EmissionMistakeError: errors.MetadataError,
    plain_json.NotJsonError: errors.MetadataError,
    conflicts.StoreConflict: errors.StoreConflictError,
    aggregator.ValueRefusedError: errors.UserCodeError,
}
"""Maps txtopo's own exceptions to the class that reaches the driver."""


class Guard:
    """Runs user code for one slot, and remembers the first failure for good.

    Invariants: once ``has_failed``, no further hook returns normally. A failed emit or store is
    noted at once. The failure is recorded when its hook ends, because only then is the traceback
    complete.
    """

    def __init__(self, job: Job, phase: Phase) -> None:
        self._job, self._phase = job, phase
        self.failure: Failure | None = None
        self.has_failed = False
        self.on_failure: list[Callable[[], None]] = []
        """Functions that stop parts of the slot at once."""
        self._noted: tuple[str, int, BaseException] | None = None

    def call(
        self, component: str, task: int, hook: str, function: Callable[..., Any], *args: Any
    ) -> Any:
        """Call ``function(*args)``. :class:`AbortedError` if the function fails, or if a call
        inside the function has failed."""
        try:
            result = function(*args)
        except AbortedError:
            self.abort(hook)
        except BaseException as error:
            self.record(component, task, hook, error)
            raise AbortedError from None
        if self.has_failed:
            self.abort(hook)
        return result

    def note(self, component: str, task: int, error: BaseException) -> None:
        """Note that an emit or a store failed with ``error``, which the bolt may yet swallow. An
        :class:`AbortedError` changes nothing: it follows a failure."""
        self._stop()
        if self._noted is None:
            self._noted = (component, task, error)

    def _stop(self) -> None:
        if not self.has_failed:
            self.has_failed = True
            for stop in self.on_failure:
                stop()

    def abort(self, hook: str) -> NoReturn:
        """Unwind ``hook`` after a noted failure: user code may have swallowed the exception, or
        called a stopped function."""
        if self.failure is None and self._noted is not None:
            component, task, error = self._noted
            self.record(component, task, hook, error)
        raise AbortedError

    def record(self, component: str, task: int, hook: str, error: BaseException) -> None:
        """Remember ``error`` as the slot's failure, unless a failure is already recorded. A noted
        FailedException takes the place of a later ``error``."""
        self._stop()
        if self.failure is not None:
            return
        if self._noted is not None and isinstance(self._noted[2], errors.FailedException):
            component, task, error = self._noted
        cause: bytes | None = None
        kind: Any = "error"
        if isinstance(error, errors.StaleAttemptError):
            kind = "stale"
        elif isinstance(error, errors.FailedException):
            kind = "failed"
        elif isinstance(error, errors.TxtopoError):
            cause = _pickled(error)
        elif type(error) in _MISTAKES:
            cause = pickle.dumps(_MISTAKES[type(error)])
        described = out_of_resources.of(error) or (
            str(error) if type(error) in _MISTAKES else describe(error)
        )
        self.failure = Failure(
            kind,
            component,
            task,
            self._job.attempt,
            self._phase,
            hook,
            described,
            user_traceback(error),
            cause,
        )


def _pickled(error: errors.TxtopoError) -> bytes | None:
    """Pickle ``error``. ``None`` if a user's subclass cannot be pickled and restored."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return None
    return data
