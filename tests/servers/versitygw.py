"""A second real S3 server for tests (see ``s3``): Versity's gateway, over a directory. In a test ask
for the fixture ``versitygw``."""

from __future__ import annotations

import subprocess

import pytest

from tests.servers import more, owned, s3


class VersityServer(s3.Bucket):
    """A server with data of its own; it lives inside a ``with``."""

    title = "versitygw"
    port_taken = "address already in use"

    def _make(self) -> None:
        self._server = self._runnable(more.found("versitygw"))
        self._make_directories("data", "data/files", "attributes")

    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        return self._run(
            str(self._server.program),
            f"--port=127.0.0.1:{port}",
            "--quiet",
            "posix",
            # Not every file system takes attributes.
            f"--sidecar={self._directory}/attributes",
            f"{self._directory}/data",
            environment={"ROOT_ACCESS_KEY": s3.ACCESS, "ROOT_SECRET_KEY": s3.SECRET},
        )


@pytest.fixture
def versitygw() -> VersityServer:
    """The server that all tests of this process share, running."""
    return owned.running(VersityServer)
