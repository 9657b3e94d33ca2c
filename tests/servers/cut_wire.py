"""A wire of bytes to a server on loopback that a test can hold, and cut: bytes held at the cut
never arrive.

A replica is connected to its primary by a wire, so that the replica lags when a test demands a lag.

Invariants:
    - A held wire passes no new bytes on. The bytes that have arrived are a beginning of the bytes
      sent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from tests.patience import PATIENCE_S

BYTES_AT_ONCE = 65_536


class Wire:
    """Forwards every connection with ``port`` (its own, of 127.0.0.1) to the port ``target``; a
    context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._changed = threading.Condition()
        self._is_held = self._is_closed = False
        self._answers_left: int | None = None
        self._ends: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, name="wire", daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """Let nothing pass until :meth:`let_go`; connections stay open."""
        with self._changed:
            self._is_held = True

    def let_go(self) -> None:
        """Pass the waiting bytes, and all that come."""
        with self._changed:
            self._is_held = False
            self._changed.notify_all()

    def lose_answer(self, after: int = 0) -> None:
        """Cut the connection where the server answers, after so many answers."""
        with self._changed:
            self._answers_left = after

    def close(self) -> None:
        """Cut every connection, and take no more; what was held is lost."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for end in (self._listener, *self._ends):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        self._thread.join(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target), PATIENCE_S)
        except OSError:  # the server is away
            client.close()
            return
        server.settimeout(None)
        with self._changed:
            self._ends.extend([client, server])
        for source, sink in ((client, server), (server, client)):
            threading.Thread(
                target=self._forward,
                args=[source, sink, source is server],
                name="wire",
                daemon=True,
            ).start()

    def _forward(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):  # either end is away
            while data := source.recv(BYTES_AT_ONCE):
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or not self._is_held)
                    if self._is_closed:
                        return
                    if is_answer and self._answers_left is not None:
                        self._answers_left -= 1
                        if self._answers_left < 0:
                            self._answers_left = None
                            source.close()
                            break
                # Not under the lock: a server that takes nothing for a while must not keep the
                # other connections waiting.
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
