"""Ports of 127.0.0.1 for servers of tests, below the ports that the kernel gives to clients: a
server that is away for a moment finds its port free again."""

from __future__ import annotations

import itertools
import secrets
import socket
from collections.abc import Iterator

PORTS = range(20_000, 32_000)
_BEGIN = secrets.randbelow(len(PORTS))
# Each process begins somewhere else, so that processes side by side do not try the same ports.
_candidates: Iterator[int] = itertools.cycle([*PORTS[_BEGIN:], *PORTS[:_BEGIN]])


def free_port() -> int:
    """A port that was free a moment ago; another one at each call."""
    while not _is_free(port := next(_candidates)):
        pass
    return port


def free_ports(count: int) -> list[int]:
    """``count`` free ports, no two the same."""
    return [free_port() for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
