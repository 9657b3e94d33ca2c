"""The command ``txtopo`` as a program: ``python -m txtopo``, and what ``txtopo submit`` gives to
spark-submit.

Invariants: run by its path, it changes nothing of where Python looks for modules, except that the
package installed here is preferred to the copy that spark-submit puts before it for the executors:
nothing in a zip has a path that another program could be given.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def prefer_installed(entries: list[str], here: Path) -> list[str]:
    """``entries`` of ``sys.path`` without ``here``, this file's directory, and without zips of ours
    if txtopo is found elsewhere too."""
    outside = [entry for entry in entries if entry != str(here)]
    unpacked = [
        entry
        for entry in outside
        if not (entry.endswith(".zip") and Path(entry).name.startswith("txtopo-"))
    ]
    return unpacked if PathFinder.find_spec("txtopo", unpacked) is not None else outside


if __name__ == "__main__":
    sys.path[:] = prefer_installed(sys.path, Path(__file__).resolve().parent)
    from txtopo.command import entry

    sys.exit(entry.main())
