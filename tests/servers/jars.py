"""Brings servers that are written in Java from Maven's repository, without Maven: PySpark has Ivy
among its jars, and Ivy knows the repository.

``python -m tests.servers.jars`` puts the jars of :data:`JARS` into ``servers/`` of this
interpreter's environment, for good, beside the servers of Debian (see ``fetch``).

Invariants:
    - The jars of a server appear all at once or not at all.
    - A repository that does not answer is asked again, with pauses.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from tests import quick_java
from tests.servers import fetch


@dataclasses.dataclass(frozen=True)
class Jars:
    """A server, as Maven's repository has it: with its dependencies."""

    name: str
    dependencies: tuple[tuple[str, str, str], ...]
    """Organisation, module and revision."""
    is_whole: bool = False
    """Whether the modules that these need are here anyway."""

    @property
    def directory(self) -> Path:
        """Where the jars are once they were fetched."""
        return fetch.HOME / "-".join(
            (self.name, *dict.fromkeys(revision for _, _, revision in self.dependencies))
        )


JARS = {
    # 4.4.0 lacks a module in the repository.
    "kafka": Jars(
        "kafka",
        (
            ("org.apache.kafka", "kafka_2.13", "4.3.0"),
            ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
        ),
    ),
    "s3proxy": Jars(
        "s3proxy",
        (
            ("org.gaul", "s3proxy", "4.1.0"),
            # It does not name what it needs.
            ("com.fasterxml.jackson.core", "jackson-annotations", "2.21"),
        ),
    ),
    # The rest of it is among PySpark's jars.
    "hdfs": Jars("hdfs", (("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0"),)),
}
_DELTA = ("delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults")
MORE = {
    # Spark's own reader of Delta tables.
    "delta": Jars("delta", tuple(("io.delta", each, "4.4.0") for each in _DELTA), is_whole=True),
}
"""For thorough tests only; brought by ``more``."""

_IVY = """<ivy-module version="2.0">
<info organisation="txtopo" module="tests"/>
<configurations><conf name="default"/></configurations>
<dependencies>{dependencies}</dependencies>
</ivy-module>"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" transitive="{}" conf="default->default"/>'


def directory(name: str) -> Path:
    """Where the jars of the server ``name`` are.

    :raises fetch.ServerMissingError: the jars were not fetched.
    """
    jars = {**JARS, **MORE}[name]
    if not jars.directory.is_dir():
        raise fetch.ServerMissingError(
            f"there are no jars of {name} to test with\n  Type: make {'more-' * (name in MORE)}servers"
        )
    return jars.directory


def bring(jars: Jars) -> None:
    """Fetch ``jars`` unless they are there.

    :raises RuntimeError: they could not be fetched; says what to do.
    """
    if jars.directory.is_dir():
        return
    with (
        tempfile.TemporaryDirectory(prefix="txtopo-jars-") as scratch,
        fetch.whole(jars.directory) as making,
    ):
        module = Path(scratch) / "ivy.xml"
        module.write_text(
            _IVY.format(
                dependencies="".join(
                    _DEPENDENCY.format(*each, "false" if jars.is_whole else "true")
                    for each in jars.dependencies
                )
            )
        )
        ivy = [
            "-cache",
            f"{scratch}/cache",
            "-ivy",
            str(module),
            "-retrieve",
            f"{making}/[artifact]-[revision](-[classifier]).[ext]",
        ]
        command = [
            java(),
            *quick_java.QUICK_JAVA.split(),
            "-cp",
            str(_pyspark() / "jars" / "*"),
            "org.apache.ivy.Main",
            *ivy,
        ]
        title = " and ".join(":".join(dependency) for dependency in jars.dependencies)
        cure = (
            "Look after what Ivy says: is Maven's repository within reach? Then type: make servers"
        )

        def retrieve() -> None:
            fetch.run(command, title, cure)
            if not any(making.iterdir()):
                raise RuntimeError(f"{title} cannot be fetched: Ivy brought no files\n  {cure}")

        fetch.persistently(retrieve)


def java() -> str:
    """The program that runs them."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


if __name__ == "__main__":
    sys.exit(fetch.exit_code(bring, JARS.values()))
