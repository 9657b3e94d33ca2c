"""The driver's modules in its workers.

Workers on local masters find modules as the driver does. Elsewhere an error names the missing
module and the cure.

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
    """The directories that this process imports from, those among them that belong to its Python,
    and the Python's prefix.

    Workers of ``context`` know this package's directory at once, and learn the other directories
    from its code.
    """
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
    does, except for another Python's packages."""
    places, data = run.value
    if places is not None:
        entries, own, prefix = places
        sys.path[:] = dict.fromkeys(
            [*(entry for entry in entries if prefix == sys.prefix or entry not in own), *sys.path]
        )
    return data  # type: ignore[no-any-return]


def missed_by(text: str, is_local: bool) -> errors.SetupError | None:
    """The error if a worker cannot import a module that this process can: another attempt would
    fail alike. ``text`` begins with a hook's exception."""
    missed = re.match(r"ModuleNotFoundError: No module named '([^']+)'", text)
    if missed is None or (
        missed[1] not in sys.modules
        and ("." in missed[1] or importlib.util.find_spec(missed[1]) is None)
    ):
        return None
    cure = (
        f"Put its directory on sys.path before the run, or call cloudpickle.register_pickle_by_value({missed[1]}) before the topology is built.\n"
        "  If PYSPARK_PYTHON names another Python, install the module there."
        if is_local
        else "Send it along with `txtopo submit TARGET` or with --py-files, or install it for the workers' Python (docs/clusters.md)."
    )
    return errors.SetupError(
        f"the workers cannot import the module {missed[1]!r}, which this program can\n  {cure}"
    )


def error_of(text: str, is_local: bool) -> errors.SetupError | None:
    """The error if Spark's ``text`` says that a worker cannot load the topology's code."""
    missed = re.search(r"^ModuleNotFoundError: .*", text, re.MULTILINE)
    error = None if missed is None else missed_by(missed[0], is_local)
    unloaded = re.search(
        r'/topology/pickling\.py", line \d+, in loads\n(?: .*\n)*((?!MemoryError)\S.*)', text
    )
    if error is not None or unloaded is None:
        return error
    cure = f"Give the workers the same modules as this program. Spark says:\n{text}"
    return errors.SetupError(f"a worker cannot load the topology's code: {unloaded[1]}\n  {cure}")
