"""Asks the kernel which user's process is at the other end of a connection on this machine.

Any user may take a port of 127.0.0.1 that a server has left, so an address does not tell the user.

Invariants:
- A connection that no process has accepted yet belongs to no user, although the kernel lists it as
  root's.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from pathlib import Path

from txtopo import errors

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOOK_EVERY_S = 0.002


def user_of_peer(connection: socket.socket, wait_s: float) -> int:
    """The uid of the process that accepted ``connection``.

    :raises OSError: no process accepts it within ``wait_s``, or the connection has ended.
    :raises SetupError: this machine does not tell the user.
    """
    ours, peer = connection.getsockname()[:2], connection.getpeername()[:2]
    deadline = time.monotonic() + wait_s
    while (uid := _accepted_by(peer, ours)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"no process of this machine has accepted the connection to {peer[0]}:{peer[1]} within {wait_s:g} s"
            )
        time.sleep(_LOOK_EVERY_S)
    return uid


def _accepted_by(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """The uid of the socket between these addresses. None without a socket, or if no process has
    it."""
    ends = f":{local[1]:04X}", f":{remote[1]:04X}"
    tables = list[str]()
    for table in TABLES:
        with contextlib.suppress(
            FileNotFoundError, PermissionError
        ):  # without IPv6 there is one table
            tables.append(table.read_text())
    if not tables:
        raise errors.SetupError(
            f"this machine does not tell the user of a connection: {TABLES[0]} cannot be read\n"
            "  Only our user's process may get the password for the data directory's ZooKeeper. Mount /proc,\n"
            "  or name your own ZooKeeper: --zookeeper HOST:PORT"
        )
    for text in tables:
        for line in text.splitlines()[1:]:
            fields = line.split()
            if (
                fields[1].endswith(ends[0])
                and fields[2].endswith(ends[1])
                and (_address(fields[1]), _address(fields[2])) == (local, remote)
            ):
                uid, inode = int(fields[7]), int(fields[9])
                return uid if inode else None
    return None


def _address(field: str) -> tuple[str, int]:
    """``0100007F:1F90`` as ``("127.0.0.1", 8080)``. The words have the machine's byte order, and an
    IPv4 address may be within an IPv6 address."""
    host, _, port = field.partition(":")
    packed = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address), int(port, 16)
