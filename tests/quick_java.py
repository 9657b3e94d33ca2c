"""Options for JVMs that live a few seconds, which is what most of the tests start: Spark is there
in half the time.

``python -m tests.quick_java`` writes the archive of Spark's loaded classes that they use into this
interpreter's environment, once. A JVM that cannot use the archive, because it is another Java or
loads from other places, goes on without it and says nothing.

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
"""The same for the JVM that finds out how to start that one."""


def of_spark() -> str:
    """Options for the JVM of a driver."""
    shared = f" -Xshare:auto -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds*=off" if ARCHIVE.exists() else ""
    return QUICK_JAVA + shared


def be_quick() -> None:
    """Have every Spark that this process or its children start be quick."""
    os.environ.setdefault(OF_SPARK, of_spark())
    os.environ.setdefault(OF_LAUNCHER, QUICK_JAVA)


def write_archive() -> None:
    """Run what most tests run, and have the JVM keep what it loaded."""
    unfinished = ARCHIVE.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    os.environ[OF_SPARK] = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={unfinished} -Xlog:cds*=off"
    from txtopo.spark import session

    context = session.spark_context("local[2]")
    assert dict(context.parallelize(range(100), 2).map(lambda number: (number % 3, number)).reduceByKey(max, 2).collect()) == {0: 99, 1: 97, 2: 98}
    session.stop_ours()
    gateway = context._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    unfinished.replace(ARCHIVE)


if __name__ == "__main__":
    write_archive()
