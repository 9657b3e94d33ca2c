"""A server like Google's for tests (see ``owned``): fake-gcs-server, in memory. In a test ask for the
fixture ``fake_gcs``.

The server lacks the put of Google's XML requests, and lists from the first name on. An adapter before
it has both, for objects that are put at once.
"""

from __future__ import annotations

import functools
import http.client
import http.server
import json
import re
import subprocess
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import more, owned, s3

_PASSED_ON = ("Range", "Content-Type")
_ANEW = {"connection", "content-length", "date", "etag", "transfer-encoding"}


class FakeGcsServer(s3.Bucket):
    """A server with data of its own; it lives inside a ``with``."""

    title = "fake-gcs"
    scheme = "gs"
    port_taken = "address already in use"

    def __init__(self) -> None:
        super().__init__()
        handler = functools.partial(_Adapter, lambda: self.port)
        self._adapter = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._adapter.serve_forever, daemon=True).start()

    @property
    def client(self) -> dict[str, Any]:
        base_url = f"http://127.0.0.1:{self._adapter.server_port}"
        key = self._directory / "key.json"
        keys = {"client_email": "", "private_key": "", "private_key_id": ""}
        # Without this, obstore would look for Google's own server that gives out tokens.
        key.write_text(json.dumps({**keys, "disable_oauth": True, "gcs_base_url": base_url}))
        return {"base_url": base_url, "service_account": str(key)}

    def _make(self) -> None:
        self._server = self._runnable(more.found("fake-gcs"))
        self._make_directories("data", "data/files")

    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        return self._run(
            str(self._server.program),
            "-scheme=http",
            "-host=127.0.0.1",
            f"-port={port}",
            f"-public-host=127.0.0.1:{port}",
            "-backend=memory",
            f"-data={self._directory}/data",
            "-log-level=error",
        )

    def close(self) -> None:
        self._adapter.shutdown()
        self._adapter.server_close()
        super().close()


class _Adapter(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, port: Callable[[], int], *arguments: Any) -> None:
        self._port = port
        super().__init__(*arguments)

    def do_GET(self) -> None:
        method, place, query = self.command, self.path, ""
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        address = urllib.parse.urlsplit(place)
        if method == "PUT":
            bucket, name = urllib.parse.unquote(address.path[1:]).split("/", 1)
            settings = {"uploadType": "media", "name": name}
            if "x-goog-if-generation-match" in self.headers:
                settings["ifGenerationMatch"] = self.headers["x-goog-if-generation-match"]
            query = urllib.parse.urlencode(settings)
            method, place = "POST", f"/upload/storage/v1/b/{bucket}/o?{query}"
        connection = http.client.HTTPConnection("127.0.0.1", self._port())
        passed_on = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
        connection.request(method, place, body, passed_on)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        after = urllib.parse.parse_qs(address.query).get("start-after")
        if after:
            data = re.sub(
                rb"<Contents><Key>(.*?)</Key>.*?</Contents>",
                lambda entry: entry[0] if entry[1] > after[0].encode() else b"",
                data,
            )
        size = answer.getheader("Content-Length", "0") if method == "HEAD" else str(len(data))
        self.send_response(answer.status)
        for header, value in answer.getheaders():
            if header.lower() not in _ANEW:
                self.send_header(header, value)
        self.send_header("ETag", answer.getheader("ETag", '"1"'))
        self.send_header("Content-Length", size)
        self.end_headers()
        self.wfile.write(data)

    do_PUT = do_HEAD = do_DELETE = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        """Be quiet."""


@pytest.fixture
def fake_gcs() -> FakeGcsServer:
    """The server that all tests of this process share, running."""
    return owned.running(FakeGcsServer)
