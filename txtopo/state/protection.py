"""Controls access to the embedded ZooKeeper: only users who may read the data directory may use its
znodes.

``embedded`` runs a server, and this module speaks to the server. The server listens on 127.0.0.1,
where every user on the machine may connect. The rights (ACLs) on every znode, also on the root,
keep other users out. The rights name a user without a password, so only the administrator, bound by
no rights, gets in. Each owner of the directory draws a new administrator's password.

Invariants:
- Rights are set from the root down. Below a protected znode another user can make no znodes, and
  earlier znodes are met later.
- After a death half-way, the next start begins at the root again: the work counts as complete only
  when ``done`` says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kazoo import exceptions, security
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from txtopo import errors
from txtopo.state import client, credentials

_TIMEOUT_S = 10.0

_OF_ZOOKEEPER = "/zookeeper/config"
"""ZooKeeper's own configuration: only the administrator may change this znode."""


def digest_of(administrator: credentials.Credentials) -> str:
    """Name and password digest, as a server's configuration has them."""
    digest: str = security.make_digest_acl_credential(administrator.user, administrator.reveal())
    return digest


def protect(hosts: str, administrator: credentials.Credentials, done: bool) -> None:
    """Close every znode on the server at ``hosts`` that is open to all, or to the password of an
    earlier start. ``done``: an earlier call has run to its end.

    The user's other credentials keep their rights.

    :raises ZooKeeperUnavailableError: the server does not answer.
    """
    link = client.Client(hosts, _TIMEOUT_S, None, administrator)
    try:
        link.kazoo.start(_TIMEOUT_S)
        if not done or _is_open(_rights(link.kazoo, "/")):
            for path in _paths(link.kazoo, "/"):
                with contextlib.suppress(exceptions.NoNodeError):
                    if _is_open(rights := _rights(link.kazoo, path)):
                        kept = [right for right in rights if not _is_open([right])]
                        link.kazoo.set_acls(path, [client.OWNED_BY_NOBODY, *kept])
    except (exceptions.KazooException, KazooTimeoutError) as error:
        raise errors.ZooKeeperUnavailableError(
            f"the ZooKeeper at {hosts}, which was just started, cannot be made private: {type(error).__name__} {error}\n  Run again."
        ) from error
    finally:
        link.kazoo.stop()
        link.kazoo.close()


def _rights(kazoo: KazooClient, path: str) -> list[Any]:
    return list(kazoo.get_acls(path)[0])


def _is_open(rights: list[Any]) -> bool:
    return any(
        right.id.scheme == "world"
        or (right.id.id.startswith("txtopo:") and right.id != client.OWNED_BY_NOBODY.id)
        for right in rights
    )


def _paths(kazoo: KazooClient, path: str) -> Iterator[str]:
    """``path``, and everything below that may be listed, parents first: children are listed after
    the caller has dealt with their parent."""
    if path == _OF_ZOOKEEPER:
        return
    yield path
    try:
        names = kazoo.get_children(path)
    except exceptions.NoNodeError:
        return
    for name in names:
        yield from _paths(kazoo, f"{path.rstrip('/')}/{name}")
