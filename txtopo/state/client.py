"""Sets up kazoo, ZooKeeper's client: endless tries to reconnect with growing, jittered pauses, a
log without secrets, authentication.

Module ``retry`` repeats unanswered calls. Only this module, ``zookeeper`` and ``protection`` know
kazoo.

Invariants:
- No password, no answer to a server's challenge and no session key gets into a log, at any level.
- A data directory's server gets the password and the session key only after the kernel has said
  that the process at the other end belongs to the directory's user, or to root. Every connection is
  checked, because another user may have taken the port meanwhile.
- A connection that breaks during authentication counts as broken. kazoo takes the break for a
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
"""Longest pause between two tries to reconnect. kazoo would by default wait up to an hour."""

HANDSHAKE_SHARE, HANDSHAKE_MIN_S = 1 / 4, 1.0
"""How long a new connection may wait for its answer: this share of the session time-out, but at
least so many seconds."""

_LOGGER = logging.getLogger("txtopo.state.zookeeper.kazoo")
# Without a handler a library's warnings go to stderr, and kazoo warns at every try to reconnect.
for _name in (_LOGGER.name, "kazoo"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


def _is_harmless(record: logging.LogRecord) -> bool:
    """Whether ``record`` may be logged. At level DEBUG kazoo logs every request, even the password
    and the session key."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    return "session_passwd" not in str(record.msg) and not any(
        isinstance(argument, serialization.Auth | serialization.SASL | serialization.Connect)
        for argument in arguments
    )


_LOGGER.addFilter(_is_harmless)


OWNED_BY_NOBODY = security.make_acl("digest", "txtopo:AAAAAAAAAAAAAAAAAAAAAAAAAAA=", all=True)
"""Rights for a user without a password: no known text has a digest of zeros. Only the
administrator, bound by no rights, may use such a znode."""


class Client:
    """One kazoo client for ``servers``, not yet started, with its authentication state.

    ``owner`` holds the administrator's credentials, if the server runs in a data directory. New
    znodes belong to ``login``, and to the administrator.
    """

    def __init__(
        self,
        servers: str,
        session_timeout_s: float,
        login: credentials.Credentials | None,
        owner: credentials.Credentials | None = None,
    ) -> None:
        digests = [each for each in (owner, login) if each is not None and each.scheme == "digest"]
        self._servers = servers
        self.acl = _rights(login, owner)
        """Rights on every new znode: open to all, or only for ``login`` and the administrator."""
        self.refusal: errors.TxtopoError | None = None
        """Why the process at the server's port does not get the password."""
        self.hang_ups = 0
        """How often in a row a server has hung up during SASL authentication."""
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
            sasl_options=None if login is None or login.scheme != "sasl" else _sasl_options(login),
        )
        if login is not None and login.scheme == "sasl":
            self._authenticate = self.kazoo._connection._authenticate_with_sasl
            self.kazoo._connection._authenticate_with_sasl = self._authenticate_or_reconnect
        self._handshake_s = max(HANDSHAKE_MIN_S, session_timeout_s * HANDSHAKE_SHARE)
        self._invoke = self.kazoo._connection._invoke
        self.kazoo._connection._invoke = self._invoke_in_time
        if owner is not None and owner.server_uid is not None:
            self._uids = {owner.server_uid, 0}
            self._create_connection = self.kazoo.handler.create_connection
            self.kazoo.handler.create_connection = self._connect_to_our_user

    @property
    def has_ended(self) -> bool:
        """Whether the client will never again reconnect by itself."""
        return bool(self.kazoo._connection.connection_stopped.is_set())

    def _invoke_in_time(self, timeout_s: float, request: Any, xid: int | None = None) -> Any:
        """Bound the wait for the answer to a new connection. Runs on: kazoo's thread.

        kazoo would wait until the session is over, and a server that is just starting may never
        answer.
        """
        if isinstance(request, serialization.Connect):
            timeout_s = min(timeout_s, self._handshake_s)
        return self._invoke(timeout_s, request, xid)

    def _connect_to_our_user(self, **how: Any) -> socket.socket:
        """Connect, but hang up unless the server belongs to our user or root. Runs on: kazoo's
        thread, for every new connection.

        kazoo takes an OSError for a failed connection.
        """
        connection: socket.socket = self._create_connection(**how)
        try:
            uid = peer.user_of_peer(connection, how["timeout"])
            if uid not in self._uids:
                raise errors.ZooKeeperAccessError(
                    f"another user's process (uid {uid}) listens at {self._servers}, not the data directory's server\n"
                    "  The process did not get the password. Run again: the topology resumes, on another port."
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
        """Authenticate, and tell a broken connection from a refusal. Runs on: kazoo's thread, for
        every new connection."""
        try:
            self._authenticate(host, timeout_s)
        except exceptions.SessionClosedRequireSaslError:
            # The server insists on SASL. kazoo does not expect this refusal: its thread would die
            # with a traceback.
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
    login: credentials.Credentials | None, owner: credentials.Credentials | None
) -> list[Any]:
    if owner is None:
        return list(security.OPEN_ACL_UNSAFE if login is None else security.CREATOR_ALL_ACL)
    return [
        OWNED_BY_NOBODY,
        *(
            []
            if login is None
            else [security.make_digest_acl(login.user, login.reveal(), all=True)]
        ),
    ]


def _sasl_options(login: credentials.Credentials) -> dict[str, Any]:
    return {
        "mechanism": "DIGEST-MD5",
        "service": "zookeeper",
        "principal": "zk-sasl-md5",
        "username": login.user,
        "password": login.reveal(),
    }
