"""Modules of the driver in its workers: on local masters found as the driver finds them; elsewhere
missed by name, with the cure.

Runs on: driver and executor.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

from txtopo import errors


def shared_with(context: Any) -> tuple[list[str], tuple[str, str]]:
    """The directories that this process imports from, and those of its Python. Workers of
    ``context`` know that of this package at once: its code tells them the others."""
    root = str(Path(errors.__file__).parents[1])
    if not root.endswith("-packages"):
        context.environment.setdefault("PYTHONPATH", root)
    return [os.path.abspath(entry) for entry in sys.path], (sys.prefix, sys.base_prefix)


def data_of(run: Any) -> bytes:
    """The pickled run in the broadcast ``run``. From now on this process imports as the driver
    does, but for the packages of another Python."""
    places, data = run.value
    if places is not None:
        is_same = places[1] == (sys.prefix, sys.base_prefix)
        theirs = [entry for entry in places[0] if is_same or not any(Path(entry).is_relative_to(prefix) for prefix in places[1])]
        sys.path[:] = dict.fromkeys([*theirs, *sys.path])
    return data  # type: ignore[no-any-return]


def error_of(text: str, is_local: bool) -> errors.SetupError | None:
    """The error if ``text``, of Spark or of a hook, says that a worker cannot load code which this
    process has: another attempt would fail alike."""
    missed = re.search(r"^ModuleNotFoundError: No module named '([^']+)'", text, re.MULTILINE)
    if missed is not None and (missed[1] in sys.modules or ("." not in missed[1] and importlib.util.find_spec(missed[1]) is not None)):
        cure = f"put its directory on sys.path before the run, or call cloudpickle.register_pickle_by_value({missed[1]}) before the topology is built"
        if not is_local:
            cure = "send it along with `txtopo submit`, or with --py-files; or install it for the workers' Python (docs/clusters.md)"
        return errors.SetupError(f"the workers cannot import the module {missed[1]!r}, which this program can\n  Cure: {cure}.")
    unloaded = re.search(r'/topology/pickling\.py", line \d+, in loads\n(?: .*\n)*((?!MemoryError)\S.*)', text)
    cure = f"Its modules must be the same there as here. Spark says:\n{text}"
    return None if unloaded is None else errors.SetupError(f"a worker cannot load the topology's code: {unloaded[1]}\n  {cure}")
