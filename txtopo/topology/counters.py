"""Counters of user code: a task's sums, and the bound on their names.

Invariants: a component's counters have at most ``NAMES_MAX`` names and ``OTHER``. Counts under
further names go to ``OTHER``, so that no count is lost.
"""

from __future__ import annotations

import re
import threading

from txtopo import errors

NAMES_MAX = 100
"""How many names a component's counters may have in a run, besides ``OTHER``."""

OTHER = "other"
"""The name for counts under too many names."""

_IN_TASK_MAX = 2 * NAMES_MAX
"""More than ``NAMES_MAX``, so that the driver also learns about too many names in a single task."""

_N_MAX = 2**63 - 1
_NAME = re.compile("[a-z_][a-z0-9_]*")
_LOCK = threading.Lock()
"""Held while a thread counts: a task's threads may count side by side."""


class Counters:
    """One task's counters, until :meth:`close`."""

    __slots__ = ("_is_closed", "sums")

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        """By name, how much was counted."""
        self._is_closed = False

    def count(self, name: str, n: int) -> None:
        """Add ``n`` to the counter ``name``.

        :raises UsageError: no counter may have the name, ``n`` is no number of things, or the task
            has ended.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise errors.UsageError(
                f"a counter cannot have the name {name!r:.100}\n  Use a to z, 0 to 9 and _, with no digit first, as in late_rows."
            )
        if not isinstance(n, int) or not 0 <= n <= _N_MAX:
            raise errors.UsageError(
                f"counter {name!r} cannot count {n!r:.100}\n  Count an int of at least 0. Another number type becomes one by int()."
            )
        with _LOCK:
            if self._is_closed:
                raise errors.UsageError(
                    f"counter {name!r} belongs to a task that has ended\n  Count with the present attempt's context, before its last hook returns."
                )
            if name not in self.sums and len(self.sums) >= _IN_TASK_MAX:
                name = OTHER
            self.sums[name] = self.sums.get(name, 0) + n

    def close(self) -> dict[str, int]:
        """Count no more, and return the sums. A count that came later would be lost."""
        with _LOCK:
            self._is_closed = True
            return self.sums
