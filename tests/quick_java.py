"""Options for JVMs that live a few seconds, like most JVMs of the tests: Spark is ready in half the
time.

``python -m tests.quick_java`` writes the archive of Spark's loaded classes into this interpreter's
environment, once. A JVM that cannot use the archive, because of another Java or other class paths,
silently goes on without the archive.

Apart from the modules that start Spark because all of them use it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For any JVM, also one that does not run Spark."""
OF_SPARK = "SPARK_SUBMIT_OPTS"
"""The variable by which Spark's scripts give options to the JVM of a driver."""
OF_LAUNCHER = "SPARK_LAUNCHER_OPTS"
"""The same for the JVM that finds out the command line of the driver's JVM."""


def of_spark() -> str:
    """Options for the JVM of a driver."""
    shared = (
        f" -Xshare:auto -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds*=off" if ARCHIVE.exists() else ""
    )
    return QUICK_JAVA + shared


def be_quick() -> None:
    """Make every Spark of this process and its children quick."""
    os.environ.setdefault(OF_SPARK, of_spark())
    os.environ.setdefault(OF_LAUNCHER, QUICK_JAVA)


def write_archive() -> None:
    """Run the common work of most tests, and have the JVM keep its loaded classes."""
    unfinished = ARCHIVE.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    os.environ[OF_SPARK] = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={unfinished} -Xlog:cds*=off"
    from txtopo.spark import session

    context = session.spark_context("local[2]")
    assert dict(
        context.parallelize(range(100), 2)
        .map(lambda number: (number % 3, number))
        .reduceByKey(max, 2)
        .collect()
    ) == {0: 99, 1: 97, 2: 98}
    session.stop_ours()
    gateway = context._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    unfinished.replace(ARCHIVE)


if __name__ == "__main__":
    write_archive()
