"""Guards the page: opens its address, and refuses requests without the token.

Invariants: without a token there is no answer, except to probes. A request for a foreign host, as
after DNS rebinding, and any method but GET and HEAD are refused. Only a token file opens an address
that other machines reach. What a browser sends by itself opens this process's page alone.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import http
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txtopo import errors
from txtopo.journal import writer
from txtopo.page import html
from txtopo.state import directory

PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that need no token."""

HEADERS = {
    "content-security-policy": f"{html.POLICY}; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

KEPT_TOKEN = "page-token"
"""The file in a journal's directory that keeps the page's token."""

_TOKEN = re.compile(r"[!-~]{16,}")
_ADDRESS = re.compile(r"(?:(?:\[(?P<literal>[^]]+)\]|(?P<host>[^:\[\]]+)):)?(?P<port>\d{1,5})")
_LOOPBACK = "127.0.0.1"
_DRAWS = 5
"""How many free ports of the first address are tried at the other addresses."""
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""The machine does not have an address of the host, such as ``::1`` without IPv6."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Sockets at all addresses of ``host``, at one port."""

    host: str
    sockets: Sequence[socket.socket]

    @property
    def place(self) -> tuple[str, int]:
        """The first address, and the port."""
        address, port = self.sockets[0].getsockname()[:2]
        return address, port

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def listen(address: str, is_open_allowed: bool, draws: int = _DRAWS) -> Listening:
    """Listen at ``address``, which is ``[HOST:]PORT``: at all addresses of the host, or another
    user could listen at the one that a browser takes.

    :raises UsageError: the address is no such address, is in use, or is reached from other machines
        although ``is_open_allowed`` is not set.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None or int(parts["port"]) > 0xFFFF:
        raise errors.UsageError(
            f"--page {address} is no address\n  Give [HOST:]PORT, such as 8080, or 0 for any free port."
        )
    host, port = parts["literal"] or parts["host"] or _LOOPBACK, int(parts["port"])
    sockets: list[socket.socket] = []
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        places = [*dict.fromkeys((family, place[0]) for family, *_, place in resolved)]
        # A link's own address needs the link's name, and a browser does not take it for a host.
        places = [each for each in places if not _address(each).is_link_local] or places
        if not all(_address(each).is_loopback for each in places) and not is_open_allowed:
            raise errors.UsageError(
                f"other machines reach the page at {host}\n"
                "  Name a file with a token: --page-token-file FILE. The page is not encrypted. Without the file, use an SSH tunnel."
            )
        for family, place in places:
            try:
                sockets.append(socket.create_server((place, port), family=family))
            except OSError as error:
                if error.errno not in _ABSENT or (not sockets and place == places[-1][1]):
                    raise
            else:
                directory.keep_from_forks(sockets[-1])
                port = sockets[0].getsockname()[1]
    except (OSError, UnicodeError) as error:  # UnicodeError: a host such as a..b
        Listening(host, sockets).close()
        if getattr(error, "errno", 0) == errno.EADDRINUSE and not int(parts["port"]) and draws > 1:
            return listen(address, is_open_allowed, draws - 1)
        # Python names the address once more.
        reason = str(getattr(error, "strerror", "no host has this name")).partition(" (while")[0]
        raise errors.UsageError(
            f"the page cannot listen on port {port} of {host}: {reason}\n  Give another --page [HOST:]PORT, or 0 for any free port."
        ) from error
    return Listening(host, sockets)


def _address(place: tuple[int, int | str]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(place[1])


def token_in(file: Path) -> str:
    """The token in ``file``, which only its user may read."""
    try:
        with file.open(encoding="ascii", errors="replace") as opened:
            mode, token = os.fstat(opened.fileno()).st_mode, opened.read(4096).strip()
    except OSError as error:
        raise errors.UsageError(
            f"there is no token in {file}: {error.strerror}\n  Make one: (umask 077 && openssl rand -hex 32 >{file})"
        ) from error
    if mode & 0o077:
        raise errors.UsageError(f"other users can read {file}\n  Type: chmod 600 {file}")
    if not _TOKEN.fullmatch(token):
        raise errors.UsageError(
            f"{file} has no token of at least 16 characters in ASCII, without spaces\n  Make one: (umask 077 && openssl rand -hex 32 >{file})"
        )
    return token


def kept_token(journal: Path) -> str:
    """The page's token for ``journal``. The first call makes and keeps the token, so that an open
    page can follow a run that is started again."""
    file = journal / KEPT_TOKEN
    with contextlib.suppress(errors.UsageError):
        return token_in(file)
    token = secrets.token_urlsafe(32)
    with contextlib.suppress(OSError):  # then the next run has another token
        writer.make_private(journal)
        directory.write_durably(file, token)
    return token


class Guard:
    """Refuses requests before ``app`` sees them, and adds the headers for security to all
    answers."""

    def __init__(
        self, app: ASGIApp, token: str, hosts: Collection[str], place: tuple[str, int]
    ) -> None:
        self._app, self._token = app, token
        self.key = _mac(token, f"{place} {socket.gethostname()}")
        """With this key an open page makes the cookie of the next run at ``place``, out of that
        run's challenge. The page never sends the key."""
        self._challenge = secrets.token_urlsafe()
        self._cookie_value = _mac(self.key, self._challenge)
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._cookie = f"txtopo-page-{place[1]}"  # browsers do not tell ports apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._answer(Request(scope))
        await (self._app if answer is None else answer)(scope, receive, send_guarded)

    def _answer(self, request: Request) -> Response | None:
        """A refusal, or a cookie for a token. None for requests that pass."""
        if not self._is_ours(request.headers.get("host", "")):
            return _refusal(
                http.HTTPStatus.MISDIRECTED_REQUEST,
                "The page has other names than this.\n"
                "Use the machine's host name or IP address, or start the page with `--page NAME:PORT`.",
            )
        if request.method not in ("GET", "HEAD"):
            return _refusal(
                http.HTTPStatus.METHOD_NOT_ALLOWED, "The page only shows.", allow="GET, HEAD"
            )
        # As the routes do. request.url may end the path where the host header says so.
        path = request.scope["path"]
        if path in PROBES:
            return None
        if _is_in(request.query_params.get("token", ""), self._token, self._cookie_value):
            rest = [each for each in request.query_params.multi_items() if each[0] != "token"]
            query = f"?{urlencode(rest)}" if rest else ""
            # One slash, or a path such as //elsewhere would lead to another host.
            redirect = RedirectResponse(f"/{path.lstrip('/')}{query}", http.HTTPStatus.SEE_OTHER)
            redirect.set_cookie(self._cookie, self._cookie_value, httponly=True, samesite="strict")
            return redirect
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        cookie = request.cookies.get(self._cookie, "")
        if _is_in(bearer, self._token) or _is_in(cookie, self._cookie_value):
            return None
        return _refusal(
            http.HTTPStatus.UNAUTHORIZED,
            "There is no token in the request.\n"
            "Type the whole address that the run printed, or send the header `Authorization: Bearer TOKEN`.",
            **{"www-authenticate": "Bearer", "txtopo-challenge": self._challenge},
        )

    def _is_ours(self, host: str) -> bool:
        """Whether ``host`` is an IP address or a name of this machine. A foreign name may point to
        this address, and the name's owner would then read the page."""
        with contextlib.suppress(ValueError):
            name = urlsplit(f"//{host}").hostname or ""
            if name in self._hosts:
                return True
            ipaddress.ip_address(name)
            return True
        return False


def _mac(key: str, text: str) -> str:
    return hmac.digest(key.encode(), text.encode(), "sha256").hex()


def _is_in(text: str, *secret: str) -> bool:
    return any(secrets.compare_digest(text.encode(), each.encode()) for each in secret)


def _refusal(status: http.HTTPStatus, text: str, **headers: str) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)
