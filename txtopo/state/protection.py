"""Access control of the embedded ZooKeeper: its znodes are open to users who may read the data
directory, and to no others.

Apart from ``embedded`` because ``embedded`` runs a server and this module speaks to the server. The
server listens on 127.0.0.1, where every user of the machine may connect; the rights (ACLs) on every
znode, the root included, keep other users out.

Invariants:
- Rights are given from the root down: below a znode that has them, another user can make no more
  znodes. Znodes made before are met later.
- After a death half-way, the next start begins at the root again: the work counts as complete only
  when ``done`` says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kazoo import exceptions, security
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from txtopo import errors
from txtopo.state import client, credentials

_TIMEOUT_S = 10.0

_OF_ZOOKEEPER = "/zookeeper/config"
"""ZooKeeper's own: it says how the server is configured, and only its administrator may change it.
"""


def protect(hosts: str, owner: credentials.Credentials, done: bool, data_dir: Path) -> None:
    """Give every znode open to everybody on the server at ``hosts`` to ``owner``. ``done``: an
    earlier call has run to its end.

    Znodes that belong to other credentials of the user stay as they are. ``data_dir`` is the
    directory of the server's data.

    :raises ZooKeeperAccessError: the data belongs to the owner of another directory.
    :raises ZooKeeperUnavailableError: the server does not answer.
    """
    link = client.Client(hosts, _TIMEOUT_S, None, owner)
    try:
        link.kazoo.start(_TIMEOUT_S)
        _require_ours(link.kazoo, data_dir)
        if not done or _is_open(link.kazoo, "/"):
            for path in _paths(link.kazoo, "/"):
                with contextlib.suppress(exceptions.NoNodeError):
                    if _is_open(link.kazoo, path):
                        link.kazoo.set_acls(path, security.CREATOR_ALL_ACL)
    except (exceptions.KazooException, KazooTimeoutError) as error:
        raise errors.ZooKeeperUnavailableError(
            f"the ZooKeeper at {hosts}, which was just started, cannot be made private: {type(error).__name__} {error}\n  Run again."
        ) from error
    finally:
        link.kazoo.stop()
        link.kazoo.close()


def _require_ours(kazoo: KazooClient, data_dir: Path) -> None:
    try:
        kazoo.get_acls("/")
    except exceptions.NoAuthError:
        raise errors.ZooKeeperAccessError(
            f"the ZooKeeper data in {data_dir} belongs to another user than {data_dir / credentials.OWNER_FILE} names\n"
            f"  It comes from a copy: restore {credentials.OWNER_FILE} from the same copy."
        ) from None


def _is_open(kazoo: KazooClient, path: str) -> bool:
    try:
        rights, _ = kazoo.get_acls(path)
    except exceptions.NoAuthError:
        return False
    return any(right.id.scheme == "world" for right in rights)


def _paths(kazoo: KazooClient, path: str) -> Iterator[str]:
    """``path``, and everything below that may be listed, parents first: children are listed when
    their parent has been dealt with."""
    if path == _OF_ZOOKEEPER:
        return
    yield path
    try:
        names = kazoo.get_children(path)
    except (exceptions.NoAuthError, exceptions.NoNodeError):
        return
    for name in names:
        yield from _paths(kazoo, f"{path.rstrip('/')}/{name}")


__all__ = ["protect"]
