"""The child processes of a process, read from ``/proc``; none on systems without ``/proc``."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children_of(pid: int) -> dict[int, tuple[bytes, ...]]:
    """The living children of ``pid``: their pids, and the arguments each was started with."""
    children: dict[int, tuple[bytes, ...]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The parent is the second field after the name, which is in parentheses and may contain
            # any.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                children[int(stat.parent.name)] = tuple(
                    stat.with_name("cmdline").read_bytes().split(b"\0")
                )
    return children
