"""A process's children, read from ``/proc``. Systems without ``/proc`` show none."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children_of(pid: int) -> dict[int, tuple[bytes, ...]]:
    """The living children of ``pid``: each child's pid, and the arguments it was started with."""
    children: dict[int, tuple[bytes, ...]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The parent is the second field after the name. The name is in parentheses, and may
            # contain parentheses.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                children[int(stat.parent.name)] = tuple(
                    stat.with_name("cmdline").read_bytes().split(b"\0")
                )
    return children
