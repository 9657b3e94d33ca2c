"""The process from which PySpark's workers are forked, on local masters.

Modules that every worker needs are imported before the fork, so a new worker begins at once. When a
job is cancelled, Spark closes the socket of its worker: such a worker ends without a traceback on
the user's terminal.

Runs on: executor, as ``python -m txtopo.spark.daemon``, instead of ``pyspark.daemon``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import os
import socket
import sys
from typing import Any

from pyspark import daemon

_THREADED = ("pandas", "pyarrow")
"""Modules whose import starts threads, which must not happen before a fork. Only some
``pyspark.worker`` versions import these modules."""


class _Refusal(importlib.abc.MetaPathFinder):
    """Refuses to find modules that start threads, and notes a request."""

    was_asked = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in _THREADED:
            self.was_asked = True
            raise ModuleNotFoundError(f"{name} is not imported before the fork", name=name)


def warm_up() -> None:
    """Import the modules that workers need, and keep the garbage collector off their objects, which
    it would visit after every task."""
    importlib.import_module("txtopo.dataplane.slot")
    _import_worker()
    gc.collect()
    gc.freeze()


def _import_worker() -> None:
    """Import ``pyspark.worker``, unless the import asks for a module that starts threads. Each
    worker then imports ``pyspark.worker`` by itself."""
    refusal, before = _Refusal(), set(sys.modules)
    sys.meta_path.insert(0, refusal)
    try:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("pyspark.worker")
    finally:
        sys.meta_path.remove(refusal)
    if refusal.was_asked:
        # A module that was refused pyarrow may remember the refusal. The worker imports the module
        # again, with pyarrow.
        for name in [name for name in set(sys.modules) - before if name.startswith("pyspark.")]:
            package, _, module = name.rpartition(".")
            del sys.modules[name]
            if package in before:
                vars(sys.modules[package]).pop(module, None)


def ending_quietly(worker: Any) -> Any:
    """``worker``, which ends normally when Spark has closed its socket."""

    def run(sock: socket.socket, authenticated: bool) -> int:
        try:
            code: int = worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)
        return code

    return run


def main() -> None:
    """Fork workers until Spark closes standard input."""
    warm_up()
    daemon.worker = ending_quietly(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
