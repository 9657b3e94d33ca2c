"""A wire to a ZooKeeper server that can be cut, blocked, slowed down, and that can lose the answer
to a request of a certain kind.

The proxy parses the frames it forwards: a length, and then, for a request, its number and its kind,
for an answer, the number of the request. So "the server has applied the write, and no client was
told" is not imitated but happens.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self

from tests.patience import PATIENCE_S

MULTI = 14
"""The kinds of requests that change data."""


class Proxy:
    """Forwards every connection with ``hosts`` (its own) to ``target`` (``host:port``); a context
    manager."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._changed = threading.Condition()
        self._links: list[_Link] = []
        self._lose: list[Literal["request", "answer"]] = []
        self._lose_greetings = 0
        self._is_refusing = self._is_blocked = self._is_closed = False
        self.delay_s = 0.0
        """How long an answer is kept back."""
        self.lost = 0
        """Lost multis, with their connections cut: before the request arrived, or after the request
        was applied and before its answer."""
        self.connections = 0
        """How many there have been."""
        self._thread = threading.Thread(target=self._accept, name="proxy")
        self._thread.start()

    # -- deeds of tests ----------------------------------------------------------------------------

    def lose_next(self, half: Literal["request", "answer"] = "answer", times: int = 1) -> None:
        """Lose ``half`` of the next ``times`` multis, cutting the connection each time."""
        with self._changed:
            self._lose.extend([half] * times)

    def lose_next_greeting(self) -> None:
        """Lose the first request after a session was opened on a new connection (with SASL, its
        first step), cutting the connection."""
        with self._changed:
            self._lose_greetings += 1

    def cut(self) -> None:
        """Cut every connection; new ones are taken."""
        with self._changed:
            links, self._links = self._links, []
        for link in links:
            link.cut()

    def refuse(self) -> None:
        """Cut every connection, and every new one at once, until :meth:`accept`."""
        with self._changed:
            self._is_refusing = True
        self.cut()

    def accept(self) -> None:
        """Take connections again."""
        with self._changed:
            self._is_refusing = False

    def block(self) -> None:
        """Let nothing pass in either direction until :meth:`unblock`; connections stay open, as
        when a network loses every packet."""
        with self._changed:
            self._is_blocked = True

    def unblock(self) -> None:
        """Pass the waiting frames, and all that come."""
        with self._changed:
            self._is_blocked = False
            self._changed.notify_all()

    def close(self) -> None:
        """Cut everything and end."""
        with self._changed:
            self._is_closed = self._is_refusing = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- what it does ------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, PATIENCE_S)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self.connections += 1
            link = _Link(self, client, server)
            with self._changed:
                is_refused = self._is_refusing
                if not is_refused:
                    self._links.append(link)
            if is_refused:
                link.cut()
            else:
                link.start()

    def may_pass(self, is_answer: bool) -> None:
        """Wait until nothing is blocked; keep an answer back."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._is_blocked)
            if is_answer and self.delay_s:
                self._changed.wait_for(lambda: self._is_closed, self.delay_s)

    def is_lost(self) -> Literal["request", "answer"] | None:
        """What becomes of this multi."""
        with self._changed:
            return self._lose.pop(0) if self._lose else None

    def is_greeting_lost(self) -> bool:
        """Whether the first request of this connection is."""
        with self._changed:
            self._lose_greetings -= (is_lost := self._lose_greetings > 0)
            self.lost += is_lost
            return is_lost

    def count_lost(self) -> None:
        """One was."""
        with self._changed:
            self.lost += 1


class _Link:
    """One connection: two sockets and two threads."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._losing: set[int] = set()
        self._threads = [
            threading.Thread(target=target, name="proxy", daemon=True)
            for target in (self._forward, self._return)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(PATIENCE_S)
        for end in (self._client, self._server):
            end.close()

    def _forward(self) -> None:
        for place, frame in enumerate(_frames(self._client)):
            self._proxy.may_pass(is_answer=False)
            if place == 1 and self._proxy.is_greeting_lost():
                break
            # The first frame opens the session and has neither number nor kind.
            if place and len(frame) >= 12:
                number, kind = struct.unpack_from(">ii", frame, 4)
                lost = self._proxy.is_lost() if kind == MULTI else None
                if lost == "answer":
                    self._losing.add(number)
                elif lost == "request":
                    self._proxy.count_lost()
                    break
            if not _send(self._server, frame):
                break
        self._end()

    def _return(self) -> None:
        for place, frame in enumerate(_frames(self._server)):
            self._proxy.may_pass(is_answer=True)
            if place and len(frame) >= 8 and struct.unpack_from(">i", frame, 4)[0] in self._losing:
                self._proxy.count_lost()
                break
            if not _send(self._client, frame):
                break
        self._end()

    def _end(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _send(sink: socket.socket, frame: bytes) -> bool:
    try:
        sink.sendall(frame)
    except OSError:
        return False
    return True


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Whole frames, each with its length in front, until the connection ends."""
    rest = b""
    while True:
        try:
            data = source.recv(65536)
        except OSError:
            return
        if not data:
            return
        rest += data
        while len(rest) >= 4 and len(rest) >= 4 + (length := struct.unpack_from(">i", rest)[0]):
            yield rest[: 4 + length]
            rest = rest[4 + length :]
