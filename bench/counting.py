"""A wire to a server that counts connections, and how often one side has to wait for the other.

A round trip begins when the client speaks after the server did: protocols where one asks and the
other answers are counted right, however many packets either takes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

CHUNK = 1 << 16
WAIT_S = 10.0


class CountingProxy:
    """Forwards every connection with ``127.0.0.1:port`` to a server; a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        """Where it listens."""
        self.round_trips = 0
        """Of all connections."""
        self.connections = 0
        """How many there have been."""
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._lock = threading.Lock()

    def __enter__(self) -> CountingProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(WAIT_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target, WAIT_S)
                server.settimeout(None)
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                self._sockets += [client, server]
                turn = _Turn()
                pumps = [
                    threading.Thread(target=self._pump, args=(client, server, turn, True)),
                    threading.Thread(target=self._pump, args=(server, client, turn, False)),
                ]
                self._threads += pumps
                for pump in pumps:
                    pump.start()

    def _pump(
        self, source: socket.socket, target: socket.socket, turn: _Turn, is_client: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                with self._lock:
                    self.round_trips += is_client and not turn.is_clients
                    turn.is_clients = is_client
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class _Turn:
    """The last speaker of one connection."""

    def __init__(self) -> None:
        self.is_clients = False
