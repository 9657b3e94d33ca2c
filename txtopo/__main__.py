"""The command ``txtopo`` as a program: ``python -m txtopo``, and the program that ``txtopo submit``
gives to spark-submit.

Invariants: run by its path, the program leaves Python's search for modules alone, with one
exception: the package installed here comes before the zip that spark-submit adds for the executors.
A file in a zip has no path that could be given to another program.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def prefer_installed(entries: list[str], here: Path) -> list[str]:
    """``sys.path``, given as ``entries``, without ``here``, this file's directory, and without our
    zips if txtopo is found elsewhere too."""
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
