"""The process that PySpark's workers are forked from, on local masters: what every worker needs is imported before the fork.

Runs on: executor, as ``python -m txtopo.runtime.daemon``, in the place of ``pyspark.daemon``. A new worker then begins to work at once, and a worker
whose job was cancelled, and whose socket is therefore closed, ends without a traceback on the user's terminal.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import socket
from typing import Any

from pyspark import daemon

_THREADED = ("pandas", "pyarrow")
"""Importing these starts threads, which must not happen before a fork; ``pyspark.worker`` imports them where they are installed."""


def warm_up() -> None:
    """Import what workers need, and keep the garbage collector from looking at it after every task."""
    importlib.import_module("txtopo.dataplane.execute")
    if not any(importlib.util.find_spec(name) for name in _THREADED):
        importlib.import_module("pyspark.worker")
    gc.collect()
    gc.freeze()


def ending_quietly(worker: Any) -> Any:
    """``worker``, but a socket that Spark has closed is its normal end."""

    def run(sock: socket.socket, authenticated: bool) -> int:
        try:
            code: int = worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)
        return code

    return run


if __name__ == "__main__":
    warm_up()
    daemon.worker = ending_quietly(daemon.worker)
    daemon.manager()
