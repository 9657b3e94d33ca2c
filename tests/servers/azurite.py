"""A real server of Azure's blobs for tests (see ``owned``): Azurite, over a directory. In a test ask
for the fixture ``azurite``."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import os
import subprocess
import urllib.request
from typing import Any

import pytest

from tests.servers import more, owned, s3

ACCOUNT, KEY = "clerk", base64.b64encode(b"the clerk's key").decode()
KEY_VARIABLE = "TEST_AZURE_KEY"
_VERSION = "2021-08-06"


class AzuriteServer(s3.Bucket):
    """A server with data of its own; it lives inside a ``with``."""

    title = "Azurite"
    scheme = "az"
    port_taken = "EADDRINUSE"

    @property
    def client(self) -> dict[str, Any]:
        os.environ[KEY_VARIABLE] = KEY
        return {
            "endpoint": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
            "account_name": ACCOUNT,
            "account_key_env": KEY_VARIABLE,
        }

    def _make(self) -> None:
        self._server = self._runnable(more.found("azurite"))
        self._make_directories("data")

    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        return self._run(
            str(self._server.program),
            f"--blobPort={port}",
            f"--location={self._directory}/data",
            "--silent",
            "--skipApiVersionCheck",
            "--disableTelemetry",
            environment={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        )

    def _furnish(self) -> None:
        """Make the container."""
        now, place = email.utils.formatdate(usegmt=True), f"/{ACCOUNT}/files"
        headers = f"x-ms-date:{now}\nx-ms-version:{_VERSION}"
        text = "PUT" + "\n" * 12 + f"{headers}\n/{ACCOUNT}{place}\nrestype:container"
        digest = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{place}?restype=container",
            method="PUT",
            headers={
                **dict(line.split(":", 1) for line in headers.splitlines()),
                "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            },
        )
        urllib.request.urlopen(request).close()


@pytest.fixture
def azurite() -> AzuriteServer:
    """The server that all tests of this process share, running."""
    return owned.running(AzuriteServer)
