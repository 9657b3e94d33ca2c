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

Places = tuple[list[str], tuple[str, str]]


def shared_with(context: Any) -> Places:
    """The directories that this process imports from, and those of its Python. Workers of
    ``context`` get that of this package at once, since they are told the others by its code."""
    root = str(Path(errors.__file__).parents[1])
    if not root.endswith("-packages"):
        context.environment.setdefault("PYTHONPATH", root)
    return [os.path.abspath(entry) for entry in sys.path], (sys.prefix, sys.base_prefix)


def search(places: Places) -> None:
    """Import from ``places`` first, in their order; without the packages of another Python."""
    entries, prefixes = places
    if prefixes != (sys.prefix, sys.base_prefix):
        entries = [entry for entry in entries if not any(Path(entry).is_relative_to(prefix) for prefix in prefixes)]
    sys.path[:] = dict.fromkeys([*entries, *sys.path])


def error_of(text: str, is_local: bool) -> errors.SetupError | None:
    """The error if ``text``, of Spark or of a hook, says that a worker cannot load code which this
    process has: another attempt would fail alike."""
    missed = re.search(r"^ModuleNotFoundError: No module named '([^']+)'", text, re.MULTILINE)
    if missed is not None and (missed[1] in sys.modules or ("." not in missed[1] and importlib.util.find_spec(missed[1]) is not None)):
        cure = (
            "Workers search sys.path as it was when the run began: put the module's directory there; or, before the topology is built, let its code\n"
            f"  travel with the topology: cloudpickle.register_pickle_by_value({missed[1]})"
            if is_local
            else "Send your own modules along: `txtopo submit` takes those that TARGET imports, spark-submit those in --py-files. A package that is\n"
            "  installed here must be in the workers' Python too (docs/clusters.md)."
        )
        return errors.SetupError(f"the workers cannot import the module {missed[1]!r}, which this program can\n  {cure}")
    refused = re.search(r"^txtopo\.errors\.SetupError: (.*)", text, re.MULTILINE)
    return None if refused is None else errors.SetupError(f"{refused[1]}\n  Its modules must be the same there as here. Spark says:\n{text}")
