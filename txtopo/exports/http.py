"""Tells the entries of a queue to a service over HTTP, one request for each entry.

The service decides which entry is newer: every request has the entry's sequence. Standard library
only.
"""

from __future__ import annotations

import functools
import http.client
import io
import json
import os
import re
import select
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.exports import linked
from txtopo.exports.entries import EntryRefusedError, SequencedExport
from txtopo.stores import keys
from txtopo.stores import place as places
from txtopo.topology import redaction

CALL_S = 0.5
"""A call takes no further entries after so many seconds: other buckets wait, too."""

_OWN = {"content-type", "content-length", "host", "idempotency-key", "x-sequence", "x-generation"}
_SECRET = re.compile(
    r"(?i)authorization|cookie|signature|\bauth\b|(auth|session)[-_]?(id|token)\b"
    r"|(api|auth|access|subscription|secret|private|shared)[-_]?key\b"
)
_CREDENTIALS = re.compile(r"(?i)\s*(basic|bearer|digest|negotiate) +\S+\s*")
_TOKEN = "Give a token by bearer_token_env=, the name of an environment variable."
_ANSWER_BYTES = 2**16
_SHOWN = 200


class HttpExporter(linked.LinkedExporter):
    """Sends each new value of a key to ``url`` by ``method``, and DELETE for a key that is gone.

    The body is the value as JSON. The header ``X-Sequence`` has the entry's sequence, and
    ``X-Generation`` its generation. The service must keep both with the value, also of a deleted or
    unknown key, answer 422 if the generation differs from a stored one, and 409 or 412 if the
    sequence is not higher. ``Idempotency-Key`` is ``queue/bucket/sequence/generation``, in a replay
    with ``/`` and the key as encoded JSON behind. Answers 2xx, 409 and 412 mean that the entry is
    told, and so does 404 for a DELETE. After 408, 425, 429, 5xx and a lost connection the entry comes
    again. Every other answer, a redirection too, stops the bucket after some attempts.

    :param url: ``https://…`` or ``http://…``. ``{key}`` stands for the key: percent-encoded, and for
        a tuple its encoded elements with ``/`` between. 7 and ``"7"`` are equal keys. Without
        ``{key}``, the body is ``{"key": …, "value": …}``, with null for a key that is gone. An
        ``https`` server's certificate is verified.
    :param headers: further headers, without secrets.
    :param bearer_token_env: an environment variable with a token, in the exporting process.
    :param timeout_s: longest wait for a connection, and for an answer, in seconds.
    """

    def __init__(
        self,
        url: str,
        method: str = "PUT",
        *,
        headers: Mapping[str, str] | None = None,
        bearer_token_env: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        parts = _split(url)
        super().__init__(url)
        if method not in ("PUT", "POST", "PATCH"):
            raise errors.UsageError(
                f"an HttpExporter cannot send {method!r}\n  Give PUT, POST or PATCH. A key that is gone is sent as DELETE."
            )
        self._headers = dict(headers or {})
        _check(self._headers)
        places.access("HttpExporter", url, None, None, {"timeout_s": timeout_s})
        self._server = (parts.scheme, parts.hostname or "", parts.port)
        self._path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        self._method, self._token_env, self._timeout_s = method, bearer_token_env, timeout_s

    def export(self, entries: Iterator[SequencedExport]) -> None:
        ends = time.monotonic() + CALL_S
        for number, entry in enumerate(entries):
            if number and time.monotonic() > ends:
                return  # this entry comes again
            self._tell([entry])

    def _tell(self, last: Sequence[SequencedExport]) -> None:
        (entry,) = last
        path, content, method = self._path, entry.value, self._method
        if "{key}" not in path:
            content = {"key": entry.key, "value": entry.value}
        elif content is None:
            method = "DELETE"
        change = f"{entry.queue}/{entry.bucket}/{entry.sequence}/{entry.generation}"
        if entry.is_replayed:  # all entries of a replay have one sequence
            change += f"/{urllib.parse.quote(keys.encode_key(entry.key), safe='')}"
        headers, token = (
            self._headers
            | {
                "Idempotency-Key": change,
                "X-Sequence": str(entry.sequence),
                "X-Generation": entry.generation,
            },
            self._token(),
        )
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = None if method == "DELETE" else json.dumps(content, ensure_ascii=False).encode()
        if body is not None:
            headers["Content-Type"] = "application/json"
        if "{key}" in path:
            path = path.replace("{key}", _text(entry.key))
        status, later, answer = self._answer(method, path, body, headers)
        if _is_told(method, status):
            return
        shown = redaction.redacted(answer.replace(token or "\0", redaction.HIDDEN))[:_SHOWN]
        fact = f"{self.address} answered {status} to {method} for key {entry.key!r}{later}: {shown}"
        if status >= 500 or status in (408, 425, 429):
            raise errors.FailedException(fact)
        raise EntryRefusedError(entry.key, fact)

    def _answer(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, str, str]:
        """The answer's status, when to come again, and its text."""
        if self._link is not None and _has_more(self._link.sock):
            self.close()  # the service has ended the connection, or answers what was not asked
        is_kept = self._link is not None
        try:
            self._link = link = self._link or self._connection()
            link.response_class = functools.partial(_Answer, timeout_s=self._timeout_s)
            link.request(method, path, body, headers)
            response = link.getresponse()
            try:
                text = response.read(_ANSWER_BYTES).decode(errors="replace")
            except OSError:
                if not _is_told(method, response.status):
                    raise
                text = ""
                self.close()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise errors.SetupError(
                    f"{self.address} has a certificate that is not trusted: {error.verify_message}\n"
                    "  Name a file with the authority's certificate in the environment variable SSL_CERT_FILE."
                ) from error
            if is_kept and isinstance(error, ConnectionError):
                # The service has perhaps closed an idle connection. Telling twice does no harm.
                return self._answer(method, path, body, headers)
            raise errors.FailedException(f"{self.address} does not answer: {error!r}") from error
        if not response.isclosed() or response.status < 200:
            self.close()  # more comes, perhaps the answer to this request
        after = response.headers.get("Retry-After")
        return response.status, f" (Retry-After: {after:.40})" if after else "", text

    def _connection(self) -> http.client.HTTPConnection:
        scheme, host, port = self._server
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)

    def _token(self) -> str:
        """The token, read now. Empty if none is named."""
        if self._token_env is None:
            return ""
        token = os.environ.get(self._token_env, "").strip()
        if not re.fullmatch(r"[!-~]+", token):
            raise errors.SetupError(
                f"{self!r} takes its token from the environment variable {self._token_env}, which is not set here, or holds no token\n"
                "  Set the variable where the exporter is started, to visible ASCII characters."
            )
        return token


class _Answer(http.client.HTTPResponse):
    """An answer that must be whole ``timeout_s`` seconds after the request."""

    def __init__(self, connected: Any, *arguments: Any, timeout_s: float, **more: Any) -> None:
        super().__init__(connected, *arguments, **more)
        self.fp = io.BufferedReader(_Parts(self.fp.detach(), connected, timeout_s))


class _Parts(io.RawIOBase):
    """What comes from the socket ``connected``, until ``timeout_s`` seconds are over."""

    def __init__(self, raw: io.RawIOBase, connected: Any, timeout_s: float) -> None:
        self._raw, self._connected, self._timeout_s = raw, connected, timeout_s
        self._ends = time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer in {self._timeout_s:g} s")
        self._connected.settimeout(left)
        try:
            return self._raw.readinto(buffer)
        finally:
            self._connected.settimeout(self._timeout_s)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _is_told(method: str, status: int) -> bool:
    return 200 <= status < 300 or status in (409, 412) or (method, status) == ("DELETE", 404)


def _has_more(connected: Any) -> bool:
    """Whether an idle socket has something to read, or is closed."""
    if connected is None:
        return True
    readable = select.poll()
    readable.register(connected, select.POLLIN)
    return bool(readable.poll(0))


def _split(url: str) -> urllib.parse.SplitResult:
    """The parts of ``url``. No message shows the URL, which may hold a password anywhere."""
    parts = places.split(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise errors.UsageError(
            "the HttpExporter URL does not name a server\n  Give https://host:port/path/{key}."
        )
    names = [name for name, _ in urllib.parse.parse_qsl(parts.query, keep_blank_values=True)]
    if "@" in parts.netloc or places.holds_password(parts) or any(map(redaction.is_secret, names)):
        raise errors.UsageError(
            f"the HttpExporter URL holds a user, a secret, or a stray @, and is pickled and shown\n  {_TOKEN} Write @ as %40."
        )
    fixed = f"{parts.path}{parts.query}".replace("{key}", "")
    if parts.fragment or not re.fullmatch(r"[!-z|~]*", fixed) or "{" in parts.netloc:
        raise errors.UsageError(
            "the HttpExporter URL has a part that cannot be sent: a #, a space, a brace, or no ASCII\n"
            "  Percent-encode the URL. {key} is in the path, or behind the ?."
        )
    return parts


def _check(headers: Mapping[str, Any]) -> None:
    for name, value in headers.items():
        is_text = isinstance(value, str) and re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII)
        if not is_text or name.lower() in _OWN:
            raise errors.UsageError(
                f"an HttpExporter cannot be given the header {name!r}\n"
                f"  Give names and values as texts. The exporter fills {', '.join(sorted(_OWN))} by itself."
            )
        is_shown = redaction.redacted(value, name) == value and re.fullmatch(r"[ -~]*", value)
        if _SECRET.search(name) or _CREDENTIALS.fullmatch(value) or not is_shown:
            raise errors.UsageError(
                f"the header {name} of an HttpExporter may hold a secret, which would be pickled and shown, or no ASCII text\n  {_TOKEN}"
            )


def _text(key: Any) -> str:
    """``key`` in a URL."""
    parts = key if isinstance(key, tuple) else (key,)
    if not parts or not all(
        isinstance(part, str | int) and part not in ("", ".", "..") for part in parts
    ):
        raise EntryRefusedError(key, "empty, dotted and nested keys, and None, cannot be in a URL")
    return "/".join(urllib.parse.quote(str(part), safe="") for part in parts)
