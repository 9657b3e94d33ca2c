"""A client of the ZooKeeper of a local cluster, beside the cluster's own."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL

from txtopo.state import credentials


def client(hosts: str | None) -> KazooClient:
    """Not yet started; this process runs the server at ``hosts``, and has the credentials of its
    owner.
    """
    assert hosts is not None
    owner = credentials.owner_of_server(hosts)
    assert owner is not None
    return KazooClient(
        hosts=hosts,
        auth_data=[("digest", f"{owner.user}:{owner.reveal()}")],
        default_acl=CREATOR_ALL_ACL,
    )
