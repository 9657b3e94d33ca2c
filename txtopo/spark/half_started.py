"""Ends a JVM whose start was interrupted, and which would not end by itself.

PySpark starts Spark's JVM as a child, waits for a file with the JVM's port, and keeps the child in
a local variable. If the wait is interrupted, the file's directory goes, and the JVM fails to write
the file. The JVM then stays for ever: only a later step would have tied its end to the driver's.

Runs on: driver.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from txtopo.spark import children

_SPARKS = (b"org.apache.spark", b"spark-submit", b"spark-class")


@contextlib.contextmanager
def ended_if_interrupted() -> Iterator[None]:
    """While the block starts Spark: if the block is interrupted, end the JVMs it has started. After
    an ordinary error the JVM can be used again, and lives on."""
    before = children.children_of(os.getpid())
    try:
        yield
    except Exception:
        raise
    except BaseException:
        for pid, arguments in children.children_of(os.getpid()).items():
            if pid not in before and any(
                word in argument for word in _SPARKS for argument in arguments
            ):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        raise
