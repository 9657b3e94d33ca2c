"""``python -m tests.serve NAME``: a database server of the tests for another program: prints its address, and serves until its input ends."""

from __future__ import annotations

import importlib
import sys

SERVERS = {"postgresql": "tests.postgres:PostgresServer", "mariadb": "tests.mariadb:MariaServer", "redis": "tests.redis_server:RedisServer"}
"""By name: a context manager with ``url(database)``; Redis has its databases already."""


def main(name: str) -> None:
    """Serve."""
    module, _, attribute = SERVERS[name].partition(":")
    with getattr(importlib.import_module(module), attribute)() as server:
        print(server.url() if name == "redis" else server.url("served"), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
