"""Clients of an embedded ZooKeeper that are not txtopo's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL

from tests.processes import owners
from txtopo.state import credentials


def client(hosts: str, data_dir: Path | None = None) -> KazooClient:
    """A client of the server at ``hosts``, not yet started. It is the server's owner, if this
    process runs the server or is told its ``data_dir``."""
    owner = credentials.owner_of_server(hosts) if data_dir is None else credentials.owner_of_directory(data_dir)
    if owner is None:
        return KazooClient(hosts=hosts, timeout=5.0)
    return KazooClient(hosts=hosts, timeout=5.0, auth_data=[("digest", f"{owner.user}:{owner.reveal()}")], default_acl=CREATOR_ALL_ACL)


@contextmanager
def client_of(hosts: str, data_dir: Path | None = None) -> Iterator[KazooClient]:
    """The same, started; ended at the end of the ``with``."""
    connected = client(hosts, data_dir)
    connected.start(timeout=owners.PATIENCE_S)
    try:
        yield connected
    finally:
        connected.stop()
        connected.close()
