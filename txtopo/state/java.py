"""Finds Java, and refuses a version that is too old before Spark fails with an unreadable error.

The embedded ZooKeeper and Spark both need Java, and would otherwise die with their own stack
traces.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass

from txtopo import errors

OLDEST_VERSION = 17
"""The oldest major version of Java that Spark 4 supports."""

ANSWER_TIMEOUT_S = 30.0
"""How long ``java -version`` may take. A healthy Java answers within 0.1 s."""

_OPTIONS_OF_OTHERS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

_CURE = (
    f"  Install Java {OLDEST_VERSION} or newer, for example with `apt-get install default-jre-headless`,\n"
    "  or set JAVA_HOME to the directory of an installed Java: `export JAVA_HOME=/path/to/java`."
)


@dataclass(frozen=True)
class Java:
    """A usable Java: its executable's path and its major version."""

    executable: str
    version: int


def require_java() -> Java:
    """Find the Java to run: ``$JAVA_HOME/bin/java``, else ``java`` on the PATH. Spark's own
    launcher looks there, too.

    Raises SetupError, with the cure, if there is no Java, if it does not run, or if it is older
    than ``OLDEST_VERSION``.
    """
    executable = _find()
    version = _version(executable)
    if version < OLDEST_VERSION:
        raise errors.SetupError(
            f"{executable} is Java {version}, but Java {OLDEST_VERSION} or newer is needed\n{_CURE}"
        )
    return Java(executable, version)


def require_user() -> None:
    """Raise SetupError if this process's user has no name: Spark's JVM asks for the name, and ends
    without one."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        cure = f"Run as a user with a name, or name this user: in a container image, with `RUN useradd --uid {os.getuid()} NAME`."
        raise errors.SetupError(
            f"the user {os.getuid()} has no name on this machine, and Spark does not start without a name\n  {cure}"
        ) from None


def environment() -> dict[str, str]:
    """The environment for a JVM that txtopo starts: this process's, without options for the user's
    JVMs.

    Among those options may be a debugger's port, which only one JVM could bind. Or txtopo's JVM
    would wait for the debugger.
    """
    return {name: value for name, value in os.environ.items() if name not in _OPTIONS_OF_OTHERS}


def _find() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        executable = os.path.join(home, "bin", "java")
        # Spark (bin/spark-class) does not look on the PATH when JAVA_HOME is set, so falling back
        # here would only postpone the failure.
        if not (os.path.isfile(executable) and os.access(executable, os.X_OK)):
            raise errors.SetupError(
                f"JAVA_HOME is {home!r}, but there is no executable {executable}\n  Correct it, or `unset JAVA_HOME`.\n{_CURE}"
            )
        return executable
    on_path = shutil.which("java")
    if on_path is None:
        raise errors.SetupError(
            f"Java was not found: JAVA_HOME is not set and there is no java on the PATH\n{_CURE}"
        )
    return on_path


@functools.cache
def _version(executable: str) -> int:
    """The major version. Asked once per executable and process, because every question starts a
    JVM."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_TIMEOUT_S,
            env=environment(),
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise errors.SetupError(f"{executable} does not run: {error}\n{_CURE}") from error
    # Up to Java 8 the version began with "1.": "1.8.0_392". A warning may come first.
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stdout)
    if answer.returncode != 0 or version is None:
        raise errors.SetupError(
            f"`{executable} -version` failed with exit code {answer.returncode} and said:\n{answer.stdout.rstrip()}\n{_CURE}"
        )
    return int(version.group(1))
