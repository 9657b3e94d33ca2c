"""ZooKeeper's client, kazoo, with settings of ours: pauses between endless tries to reconnect, a
log without secrets, authentication.

A call that is not answered is tried again in ``retry``. Apart from ``zookeeper`` because the
settings of kazoo, its log, its threads and its authentication are a subject of their own. This
module and ``zookeeper`` are all that knows kazoo.

Invariants:
- No password, no answer to a server's challenge and no key of a session gets into a log, at any
  level.
- The server of a data directory gets its password, and the key of a session, only when the kernel
  has said that the process at the other end is of the directory's user: at every connection, since
  another user may have taken the port meanwhile.
- A connection that breaks while we authenticate is a broken connection. kazoo takes it for a
  refusal, and would stop for good.
"""

from __future__ import annotations

import logging
import socket
from typing import Any

from kazoo import exceptions, security
from kazoo.client import KazooClient
from kazoo.protocol import serialization

from txtopo import errors
from txtopo.state import credentials, peer

RECONNECT_DELAY_MAX_S = 1.0
"""kazoo would by default wait up to an hour between two tries to reconnect."""

HANDSHAKE_SHARE, HANDSHAKE_MIN_S = 1 / 4, 1.0
"""The part of a session's time, and the least time, that one new connection may wait for its
answer."""

_LOGGER = logging.getLogger("txtopo.state.zookeeper.kazoo")
# Without a handler of its own a library's warnings go to stderr; kazoo warns at every try to
# reconnect.
for _name in (_LOGGER.name, "kazoo"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


def _is_harmless(record: logging.LogRecord) -> bool:
    """Whether ``record`` may be logged: at level DEBUG kazoo logs every request, the password and
    the session's key among them."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    return "session_passwd" not in str(record.msg) and not any(
        isinstance(argument, serialization.Auth | serialization.SASL | serialization.Connect)
        for argument in arguments
    )


_LOGGER.addFilter(_is_harmless)


OWNED_BY_NOBODY = security.make_acl("digest", "txtopo:AAAAAAAAAAAAAAAAAAAAAAAAAAA=", all=True)
"""The rights of a user without a password: no text is known to have the digest of zeros. Only the
administrator, whom no rights bind, may use such a znode."""


class Client:
    """One kazoo client of ``servers``, not yet started, and the state of its authentication.

    ``owner`` holds the credentials of the server's administrator, if the server is that of a data
    directory. New znodes belong to ``who``, and to the administrator.
    """

    def __init__(
        self,
        servers: str,
        session_timeout_s: float,
        who: credentials.Credentials | None,
        owner: credentials.Credentials | None = None,
    ) -> None:
        digests = [each for each in (owner, who) if each is not None and each.scheme == "digest"]
        self._servers = servers
        self.acl = _rights(who, owner)
        """The rights on every znode we make: everybody's, or those of ``who`` and the administrator
        alone."""
        self.refusal: errors.TxtopoError | None = None
        """Why the process that has the server's port does not get the password."""
        self.hang_ups = 0
        """How often in a row a server has hung up while we authenticated by SASL."""
        self.is_refused = False
        """Whether a server has refused the credentials. The client has ended then."""
        self.kazoo = KazooClient(
            servers,
            timeout=session_timeout_s,
            logger=_LOGGER,
            default_acl=self.acl,
            connection_retry={
                "max_tries": -1,
                "delay": 0.05,
                "backoff": 2,
                "max_delay": RECONNECT_DELAY_MAX_S,
            },
            auth_data=[("digest", f"{each.user}:{each.reveal()}") for each in digests] or None,
            sasl_options=None if who is None or who.scheme != "sasl" else _sasl_options(who),
        )
        if who is not None and who.scheme == "sasl":
            self._authenticate = self.kazoo._connection._authenticate_with_sasl
            self.kazoo._connection._authenticate_with_sasl = self._authenticate_or_reconnect
        self._handshake_s, self._invoke = (
            max(HANDSHAKE_MIN_S, session_timeout_s * HANDSHAKE_SHARE),
            self.kazoo._connection._invoke,
        )
        self.kazoo._connection._invoke = self._invoke_in_time
        if owner is not None and owner.server_uid is not None:
            self._uids, self._create_connection = (
                {owner.server_uid, 0},
                self.kazoo.handler.create_connection,
            )
            self.kazoo.handler.create_connection = self._connect_to_our_user

    @property
    def has_ended(self) -> bool:
        """Whether it will not reconnect by itself any more."""
        return bool(self.kazoo._connection.connection_stopped.is_set())

    def _invoke_in_time(self, timeout_s: float, request: Any, xid: int | None = None) -> Any:
        """On kazoo's thread. kazoo would wait for the answer to a new connection until the session
        is over, and a server that is just starting may never give it."""
        if isinstance(request, serialization.Connect):
            timeout_s = min(timeout_s, self._handshake_s)
        return self._invoke(timeout_s, request, xid)

    def _connect_to_our_user(self, **how: Any) -> socket.socket:
        """On kazoo's thread, for every new connection. kazoo takes an OSError for a connection that
        cannot be made."""
        connection: socket.socket = self._create_connection(**how)
        try:
            uid = peer.user_of_peer(connection, how["timeout"])
            if uid not in self._uids:
                raise errors.ZooKeeperAccessError(
                    f"at {self._servers} a process of another user listens (uid {uid}), and not the server of the data directory\n"
                    "  It was not told the password. Run again: the topology resumes, on another port."
                )
        except errors.TxtopoError as error:
            self.refusal = error
            connection.close()
            raise PermissionError(str(error)) from error
        except BaseException:
            connection.close()
            raise
        self.refusal = None
        return connection

    def _authenticate_or_reconnect(self, host: str, timeout_s: float) -> None:
        """On kazoo's thread, for every new connection."""
        try:
            self._authenticate(host, timeout_s)
        except exceptions.SessionClosedRequireSaslError:
            # The refusal of a server that insists on SASL. kazoo does not expect it, and its thread
            # would die of it with a traceback.
            self.is_refused = True
            raise exceptions.AuthFailedError("the server requires SASL, and refused it") from None
        except exceptions.AuthFailedError as error:
            if isinstance(error.__cause__, exceptions.ConnectionDropped):
                self.hang_ups += 1
                raise exceptions.ConnectionDropped("dropped while authenticating") from error
            self.is_refused = True
            raise
        self.hang_ups = 0


def _rights(
    who: credentials.Credentials | None, owner: credentials.Credentials | None
) -> list[Any]:
    if owner is None:
        return list(security.OPEN_ACL_UNSAFE if who is None else security.CREATOR_ALL_ACL)
    return [
        OWNED_BY_NOBODY,
        *([] if who is None else [security.make_digest_acl(who.user, who.reveal(), all=True)]),
    ]


def _sasl_options(who: credentials.Credentials) -> dict[str, Any]:
    return {
        "mechanism": "DIGEST-MD5",
        "service": "zookeeper",
        "principal": "zk-sasl-md5",
        "username": who.user,
        "password": who.reveal(),
    }


__all__ = ["OWNED_BY_NOBODY", "Client"]
