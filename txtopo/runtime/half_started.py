"""A JVM whose start was interrupted is ended, because it would not end itself.

PySpark starts Spark's JVM as a child, waits for a file in which that says where it listens, and keeps the child in a local variable. If the wait is
interrupted, the file's directory goes, the JVM fails to write it, and stays for ever: only what would come after would have made it end with us.

Apart from ``session`` because it asks the operating system. Without ``/proc`` nothing is found, and nothing is ended.

Runs on: driver.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_SPARKS = (b"org.apache.spark", b"spark-submit", b"spark-class")


@contextlib.contextmanager
def ended_if_interrupted() -> Iterator[None]:
    """While the block starts Spark: end the JVMs it has started, should it be interrupted. An ordinary error leaves a JVM that can be used again."""
    before = _children()
    try:
        yield
    except Exception:
        raise
    except BaseException:
        for pid in _children() - before:
            with contextlib.suppress(OSError):
                if any(word in Path(f"/proc/{pid}/cmdline").read_bytes() for word in _SPARKS):
                    os.kill(pid, signal.SIGKILL)
        raise


def _children() -> set[int]:
    """The pids of this process's children."""
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The parent is the second field after the name, which is in parentheses.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


__all__ = ["ended_if_interrupted"]
