"""Modules of the driver in its workers: on local masters found as the driver finds them; elsewhere
missed by name, with the cure.

Runs on: driver and executor.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

from txtopo import errors


def shared_with(context: Any) -> tuple[list[str], list[str], str]:
    """The directories that this process imports from; those of them that are of its Python; and
    that Python. Workers of ``context`` know the directory of this package at once: its code tells
    them the others."""
    root = str(Path(errors.__file__).parents[1])
    if not root.endswith("-packages"):
        context.environment.setdefault("PYTHONPATH", root)
    entries = []
    for entry in sys.path:
        with contextlib.suppress(FileNotFoundError):  # the current directory was removed
            entries.append(os.path.abspath(entry))
    roots = [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]
    libraries = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    archive = str(
        Path(sysconfig.get_path("stdlib")).parent
        / f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    )
    own = [
        entry
        for entry in entries
        if entry in roots or os.path.dirname(entry) in libraries or entry == archive
    ]
    return entries, own, sys.prefix


def data_of(run: Any) -> bytes:
    """The pickled run in the broadcast ``run``. From now on this process imports as the driver
    does, but for the packages of another Python."""
    places, data = run.value
    if places is not None:
        entries, own, prefix = places
        sys.path[:] = dict.fromkeys(
            [*(entry for entry in entries if prefix == sys.prefix or entry not in own), *sys.path]
        )
    return data  # type: ignore[no-any-return]


def missed_by(text: str, is_local: bool) -> errors.SetupError | None:
    """The error if ``text``, which begins with the exception of a hook, says that a worker cannot
    import a module that this process can: another attempt would fail alike."""
    missed = re.match(r"ModuleNotFoundError: No module named '([^']+)'", text)
    if missed is None or (
        missed[1] not in sys.modules
        and ("." in missed[1] or importlib.util.find_spec(missed[1]) is None)
    ):
        return None
    cure = (
        f"put its directory on sys.path before the run, or call cloudpickle.register_pickle_by_value({missed[1]}) before the topology is built;\n"
        "  or install it for the workers' Python, if PYSPARK_PYTHON names another"
        if is_local
        else "send it along with `txtopo submit`, or with --py-files; or install it for the workers' Python (docs/clusters.md)"
    )
    return errors.SetupError(
        f"the workers cannot import the module {missed[1]!r}, which this program can\n  Cure: {cure}."
    )


def error_of(text: str, is_local: bool) -> errors.SetupError | None:
    """The error if ``text`` of Spark says that a worker cannot load the topology's code."""
    missed = re.search(r"^ModuleNotFoundError: .*", text, re.MULTILINE)
    error = None if missed is None else missed_by(missed[0], is_local)
    unloaded = re.search(
        r'/topology/pickling\.py", line \d+, in loads\n(?: .*\n)*((?!MemoryError)\S.*)', text
    )
    if error is not None or unloaded is None:
        return error
    cure = f"Its modules must be the same there as here. Spark says:\n{text}"
    return errors.SetupError(f"a worker cannot load the topology's code: {unloaded[1]}\n  {cure}")
