"""A real S3 server for tests (see ``owned``): s3proxy, over a directory. ``bucket`` makes a new one.

In a test ask for the fixture ``s3`` (one server for all tests)::

    def test_something(s3: S3Server) -> None:
        root = s3.new_root()            # s3://bucket/folder
        FileSink(root, client=s3.client)
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
from typing import Any

import pytest

from tests import quick_java
from tests.servers import jars, owned

ACCESS, SECRET = "clerk", "the clerk's secret"
SECRET_VARIABLE = "TEST_S3_SECRET"

_LOGGING = '<configuration><root level="WARN"/></configuration>'


class Bucket(owned.Server):
    """A server of objects, with a bucket or container ``files``."""

    scheme = "s3"

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    @property
    def client(self) -> dict[str, Any]:
        """The argument ``client`` for a sink here. The secret is in the environment."""
        os.environ[SECRET_VARIABLE] = SECRET
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "us-east-1",
            "access_key_id": ACCESS,
            "secret_access_key_env": SECRET_VARIABLE,
        }

    def new_root(self) -> str:
        """A new folder in the bucket."""
        return f"{self.scheme}://files/folder{next(self._numbers)}"

    def _make_directories(self, *names: str) -> None:
        """Make directories of the server's account. A bucket is a directory, too."""
        for name in names:
            (self._directory / name).mkdir()
            if self._account is not None:
                os.chown(self._directory / name, self._account.pw_uid, self._account.pw_gid)

    def _is_ready(self, port: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False


class S3Server(Bucket):
    """A server with data of its own; it lives inside a ``with``."""

    title = "S3"

    def __init__(self) -> None:
        super().__init__()
        self._jars = jars.directory("s3proxy")

    def _make(self) -> None:
        if self._run("ls", str(self._jars)).wait() != 0:
            self._jars = shutil.copytree(self._jars, self._directory / "jars")
        self._make_directories("data", "data/files")

    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        lines = {
            "s3proxy.endpoint": f"http://127.0.0.1:{port}",
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ACCESS,
            "s3proxy.credential": SECRET,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self._directory / "data"),
        }
        configuration = self._directory / "s3proxy.conf"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        (self._directory / "logback.xml").write_text(_LOGGING)
        return self._run(
            jars.java(),
            "-Xmx128m",
            *quick_java.QUICK_JAVA.split(),
            f"-Dlogback.configurationFile={self._directory}/logback.xml",
            "-cp",
            f"{self._jars}/*",
            "org.gaul.s3proxy.Main",
            "--properties",
            str(configuration),
        )


@pytest.fixture
def s3() -> S3Server:
    """The server that all tests of this process share, running."""
    server = owned.running(S3Server)
    server.start()
    return server
