"""A real HDFS for tests (see ``owned``): a NameNode and a DataNode, each in a process.

In a test ask for the fixture ``hdfs`` (one for all tests)::

    def test_something(hdfs: HdfsServer) -> None:
        FileSink(hdfs.new_root())
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import hdfs_native
import pytest

from tests import quick_java
from tests.patience import PATIENCE_S
from tests.servers import jars, owned, ports

_SETTINGS = {
    "dfs.replication": "1",
    "dfs.namenode.safemode.extension": "0",
    "dfs.permissions.enabled": "true",
    "hadoop.security.group.mapping": "org.apache.hadoop.security.ShellBasedUnixGroupsMapping",
    "dfs.namenode.http-bind-host": "127.0.0.1",
    "dfs.datanode.hostname": "127.0.0.1",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
}
_LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %p %c{1} %m%n
"""
_NODE = "org.apache.hadoop.hdfs.server"


class HdfsServer(owned.Server):
    """A NameNode, the server itself, with a DataNode beside it. It lives inside a ``with``."""

    title = "HDFS"

    def __init__(self) -> None:
        super().__init__()
        self._jars = jars.directory("hdfs")
        self._numbers = itertools.count(1)
        self._data_node: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``hdfs://host:port``."""
        return f"hdfs://127.0.0.1:{self.port}"

    def new_root(self) -> str:
        """A new folder."""
        return f"{self.address}/folder{next(self._numbers)}"

    def forbid(self, root: str) -> None:
        """Take all rights below ``root`` away."""
        client = hdfs_native.Client(self.address)
        client.set_permission(root.removeprefix(self.address), 0o000)

    def safe_mode(self, change: str) -> None:
        """``enter`` it, in which nothing can be written, or ``leave`` it."""
        admin = self._java("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", change)
        assert admin.wait(PATIENCE_S) == 0, self.log

    def _make(self) -> None:
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        spark = Path(spec.origin).parent / "jars"
        ours = ("hadoop-", "slf4j", "log4j", "commons-logging", "snappy", "jul-to")
        self._classes = [jar for jar in sorted(spark.iterdir()) if jar.name.startswith(ours)]
        if self._run("ls", str(self._jars), str(spark)).wait() != 0:
            self._jars = shutil.copytree(self._jars, self._directory / "jars")
            (self._directory / "spark").mkdir()
            self._classes = [
                Path(shutil.copy(jar, self._directory / "spark")) for jar in self._classes
            ]

    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        if not self.port:
            self._http, *self._others = ports.free_ports(4)
            shutil.rmtree(self._directory / "name", ignore_errors=True)
        transfer, ipc, web = self._others
        settings = {
            **_SETTINGS,
            "fs.defaultFS": f"hdfs://127.0.0.1:{port}",
            "hadoop.tmp.dir": str(self._directory / "tmp"),
            "dfs.namenode.name.dir": str(self._directory / "name"),
            "dfs.datanode.data.dir": str(self._directory / "data"),
            "dfs.namenode.http-address": f"127.0.0.1:{self._http}",
            "dfs.datanode.address": f"127.0.0.1:{transfer}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{ipc}",
            "dfs.datanode.http.address": f"127.0.0.1:{web}",
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in settings.items()
        )
        conf = self._directory / "conf"
        conf.mkdir(exist_ok=True)
        for name in ("core-site.xml", "hdfs-site.xml"):
            (conf / name).write_text(f"<configuration>{properties}</configuration>")
        (conf / "log4j2.properties").write_text(_LOGGING)
        for folder in ("name", "data", "tmp"):
            path = self._directory / folder
            path.mkdir(exist_ok=True)
            if self._account is not None:
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        if not (self._directory / "name" / "current").exists():
            assert (
                self._java(f"{_NODE}.namenode.NameNode", "-format", "-force").wait(PATIENCE_S) == 0
            ), self.log
        self._end_data_node()
        name_node = self._java(f"{_NODE}.namenode.NameNode")
        self._data_node = self._java(f"{_NODE}.datanode.DataNode")
        return name_node

    def _java(self, *main: str) -> subprocess.Popen[bytes]:
        places = [self._directory / "conf", f"{self._jars}/*", *self._classes]
        return self._run(
            jars.java(),
            "-Xmx256m",
            "-XX:+UnlockDiagnosticVMOptions",
            "-XX:-BytecodeVerificationRemote",
            *quick_java.QUICK_JAVA.split(),
            f"-Dlog4j2.configurationFile={self._directory}/conf/log4j2.properties",
            "-cp",
            ":".join(map(str, places)),
            *main,
        )

    def _is_ready(self, port: int) -> bool:
        """Whether a file could be written: the port is open long before. The client waits longer
        than need be for a server that is not ready."""
        state = (
            f"http://127.0.0.1:{self._http}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        )
        try:
            with urllib.request.urlopen(state, timeout=PATIENCE_S) as answer:
                if not any(bean["NumLiveDataNodes"] for bean in json.load(answer)["beans"]):
                    return False
        except OSError:
            return False
        script = (
            "import hdfs_native as h;"
            f"c = h.Client('hdfs://127.0.0.1:{port}');"
            "w = c.create('/ready', h.WriteOptions(overwrite=True)); w.write(b'.'); w.close();"
            "c.set_permission('/', 0o777)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            env={**os.environ, "HADOOP_USER_NAME": "nobody"},
        )
        return done.returncode == 0

    def close(self) -> None:
        self._end_data_node()
        super().close()

    def _end_data_node(self) -> None:
        if self._data_node is not None:
            with contextlib.suppress(ProcessLookupError):
                self._data_node.kill()
            self._data_node.wait(PATIENCE_S)
            self._data_node = None


@pytest.fixture
def hdfs() -> HdfsServer:
    """The HDFS that all tests of this process share, running."""
    server = owned.running(HdfsServer)
    server.start()
    return server
