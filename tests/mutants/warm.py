"""A Python that has imported the packages of others and runs pytest in forks of itself.

Imports would take half of the time of a mutation. A warm Python imports nothing of the tree: each
fork does, from the copy of the tree that it was given. A process of its own, run as a script, since
``python -m`` would import the package ``tests`` of one tree for all.

A request is a line of JSON on the standard input: the directory of a tree, an environment,
arguments of pytest and a bound in seconds. The answer is a line with the exit status, ``null`` past
the bound, and what pytest has printed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import threading
import warnings
from typing import Any

MODULES = (
    "_hypothesis_pytestplugin",
    "anyio.pytest_plugin",
    "cloudpickle",
    "confluent_kafka",
    "hypothesis.strategies",
    "kazoo.client",
    "psycopg",
    "pydantic",
    "pymysql",
    "pyspark.sql",
    "pytest",
    "pytest_timeout",
    "redis",
    "sqlalchemy",
    "xdist.plugin",
)
"""The packages of others whose imports cost the tests most."""


def warm_up() -> None:
    """Import :data:`MODULES`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODULES:
            importlib.import_module(name)
        # What imports left is not to be a fork's to collect, and to complain of.
        gc.collect()
    gc.freeze()
    # Threads of allocators and of OpenBLAS see to forks themselves.
    if threading.active_count() > 1:
        raise RuntimeError(
            f"imports have started threads, which forks do not have: {threading.enumerate()}"
        )


def become(tree: str, environment: dict[str, str], output: int) -> None:
    """Make this fork a process of ``tree``, in a session of its own, that writes to ``output``."""
    os.setsid()
    os.chdir(tree)
    os.environ.clear()
    os.environ.update(environment)
    # As `python -m pytest` has it; an editable installation of the tree comes after it.
    sys.path[0] = tree
    sys.path.insert(1, environment["PYTHONPATH"])
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    os.dup2(output, 1)
    os.dup2(output, 2)


def waited(child: int, seconds: float) -> int | None:
    """The exit status of the process ``child``; past the bound its session is killed."""
    ended = os.pidfd_open(child)
    try:
        in_time = bool(select.select([ended], [], [], seconds)[0])
    finally:
        os.close(ended)
    if not in_time:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if in_time else None


def main() -> None:
    """Answer requests until the standard input ends."""
    warm_up()
    import pytest

    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                become(request["tree"], request["environment"], output.fileno())
                # What a process does at its end is done, as stopping servers.
                sys.exit(pytest.main(request["arguments"]))
            status = waited(child, request["seconds"])
            output.seek(0)
            said = output.read().decode(errors="replace")
        print(json.dumps({"status": status, "output": said}), flush=True)


if __name__ == "__main__":
    main()
