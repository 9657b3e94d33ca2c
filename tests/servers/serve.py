"""``python -m tests.servers.serve NAME``: a database server of the tests for another program:
prints its address, and serves until its input ends.

Unlike in the tests, acknowledged writes are on disk.
"""

from __future__ import annotations

import importlib
import sys

SERVERS = {
    "postgresql": "tests.servers.postgres:PostgresServer",
    "mariadb": "tests.servers.mariadb:MariaServer",
    "redis": "tests.servers.redis_server:RedisServer",
    "kafka": "tests.servers.kafka:KafkaServer",
}
"""By name: a context manager with ``url(database)``; Redis has its databases already, and Kafka has
none."""

DURABLE = {
    "postgresql": {"fsync": "on"},
    "mariadb": {
        "innodb-flush-log-at-trx-commit": "1",
        "innodb-doublewrite": "ON",
        "innodb-flush-method": "fsync",
        "debug-no-sync": "OFF",
    },
}
"""Settings that the tests switch off, at the servers' own defaults."""


def main(name: str) -> None:
    """Serve."""
    module, _, attribute = SERVERS[name].partition(":")
    with getattr(importlib.import_module(module), attribute)(DURABLE.get(name)) as server:
        address = (
            server.servers
            if name == "kafka"
            else server.url()
            if name == "redis"
            else server.url("served")
        )
        print(address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
