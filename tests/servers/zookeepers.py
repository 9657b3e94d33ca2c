"""Clients of a ZooKeeper beside txtopo's own, and sessions that a test ends."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient

from tests.patience import PATIENCE_S
from txtopo.state import credentials
from txtopo.state.client import Client

SESSION_S = 60.0
"""The longest session that a server of ours allows. To end a session earlier, a test calls
:func:`end_session`."""
_SECRET = 0xB3415C00


def client(hosts: str, data_dir: Path | None = None) -> KazooClient:
    """A client of the server at ``hosts``, not yet started. It is the server's owner, if this
    process runs the server or is told its ``data_dir``."""
    owner = (
        credentials.owner_of_server(hosts)
        if data_dir is None
        else credentials.owner_of_directory(data_dir)
    )
    # Only with txtopo's settings: kazoo waits a whole session for a server that is just starting.
    return Client(hosts, SESSION_S, None, owner).kazoo


@contextmanager
def client_of(hosts: str, data_dir: Path | None = None) -> Iterator[KazooClient]:
    """The same, started; ended at the end of the ``with``."""
    connected = client(hosts, data_dir)
    connected.start(timeout=PATIENCE_S)
    try:
        yield connected
    finally:
        connected.stop()
        connected.close()


def end_session(hosts: str, session: int) -> None:
    """End the session of any client at once, as the server does after a long silence."""
    # A client that connects with a session's id and password is that session, and may end it.
    twin = KazooClient(hosts, client_id=(session, _password_of(session)))
    twin.start(timeout=PATIENCE_S)
    twin.stop()
    twin.close()


def _password_of(session: int) -> bytes:
    """The password of a session. A server stores no passwords: it makes them from the id, with
    Java's generator of random numbers."""
    state, mask, words = session ^ _SECRET ^ 0x5DEECE66D, (1 << 48) - 1, []
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & mask
        words.append(state >> 16)
    return struct.pack("<4I", *words)
