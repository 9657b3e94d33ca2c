"""A small HTTP service for tests, over TLS if need be::

with Service() as service:
    service.url          # http://127.0.0.1:PORT; PUT, POST and DELETE any path
    service.read()       # the values by path, without the slash
"""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import threading
import urllib.parse
from pathlib import Path
from typing import Any, Self

CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUwlXQfiI78LUbTM2
pOgYF7hLNcXZXZ2DL5ppZZ7ewWahRANCAATr06peTwcSoCx1eoafHmDxzRheEPmY
pEjcrC6nSADejfPQN5bwvwVyIzLzAWjxenWP0iO1qyFFepSpYmjEv5cO
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBjDCCATKgAwIBAgIULH/X0JgLF7ylzXkD0gTCIT0Q+JwwCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHc2VydmljZTAgFw0yNjExMjgwMDE1MTlaGA8yMTI2MTEwNDAw
MTUxOVowEjEQMA4GA1UEAwwHc2VydmljZTBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABOvTql5PBxKgLHV6hp8eYPHNGF4Q+ZikSNysLqdIAN6N89A3lvC/BXIjMvMB
aPF6dY/SI7WrIUV6lKliaMS/lw6jZDBiMB0GA1UdDgQWBBQvdPWRahdJ1gS4ejnT
sQfZdr4+rzAfBgNVHSMEGDAWgBQvdPWRahdJ1gS4ejnTsQfZdr4+rzAPBgNVHRMB
Af8EBTADAQH/MA8GA1UdEQQIMAaHBH8AAAEwCgYIKoZIzj0EAwIDSAAwRQIhAIKs
9v2QSgXfoMw8s5BydlDcHQkImDZIyT9Uu0cgmhc2AiBrjn1K/TmYeV3mrb8DPurQ
y+7JlaGsuI+bApZYr+5pwA==
-----END CERTIFICATE-----
"""
"""For 127.0.0.1, until 2126."""


class Service(http.server.ThreadingHTTPServer):
    """Keeps values by path, with their sequences. ``answers`` are given instead, one after the
    other."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.rows: dict[str, tuple[int, Any]] = {}
        self.requests: list[tuple[str, str, Any, dict[str, str]]] = []
        self.answers: list[tuple[int, dict[str, str], str]] = []
        self.connections: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def speak_tls(self, file: Path) -> None:
        """Take TLS connections only. The certificate is written to ``file``."""
        file.write_text(CERTIFICATE)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https{self.url[4:]}"

    def handle_error(self, request: Any, address: Any) -> None:
        return

    def read(self) -> dict[Any, Any]:
        """The values by key."""
        return {
            urllib.parse.unquote(path[1:]): value
            for path, (_, value) in self.rows.items()
            if value is not None
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self.connection)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        value = json.loads(body) if body else None
        self.server.requests.append((self.command, self.path, value, dict(self.headers)))
        headers: dict[str, str] = {}
        status, text = 200, ""
        if self.server.answers:
            status, headers, text = self.server.answers.pop(0)
        elif self.server.rows.get(self.path, (0, None))[0] >= int(self.headers["X-Sequence"]):
            status = 409
        else:
            self.server.rows[self.path] = (int(self.headers["X-Sequence"]), value)
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        for name, header in {**headers, "Content-Length": str(len(text))}.items():
            self.send_header(name, header)
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_DELETE = do_PUT

    def log_message(self, format: str, *arguments: object) -> None:
        return
