"""A standalone Spark cluster for tests: a master and workers, from the scripts of the installed
pyspark, on 127.0.0.1.

As a context manager it serves outside of pytest, too. The wheel has no ``start-master.sh``;
``spark-class`` is what those scripts call.

Invariants: nothing of it outlives the ``with``. When the process that made it dies without leaving
that, master and workers die too; executors outlive their worker, and end with their driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.patience import PATIENCE_S, wait_until
from tests.quick_java import QUICK_JAVA

SPARK_HOME = Path(pyspark.__file__).parent

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Daemon:
    """A master or a worker: a JVM, a log, and a directory."""

    def __init__(self, kind: str, arguments: list[str], place: Path) -> None:
        """``kind`` is the name of a class of ``org.apache.spark.deploy``."""
        place.mkdir(parents=True)
        self.place, self._log = place, place / "log"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYSPARK_", "SPARK_", "TXTOPO_", "PYTHON"))
        }
        environment |= {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(place),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(place / "local"),
            "SPARK_WORKER_DIR": str(place / "applications"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Dspark.master.rest.enabled=false",
        }
        command = [
            str(SPARK_HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            *arguments,
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_us,
            )

    @property
    def pid(self) -> int:
        """Of the JVM: the scripts on the way to it are replaced by it."""
        return self._process.pid

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until it has logged ``pattern``."""
        wait_until(
            lambda: re.search(pattern, self.log) or self._process.poll() is not None,
            f"{pattern!r} in {self._log}",
        )
        match = re.search(pattern, self.log)
        assert match, f"no {pattern!r} in:\n{self.log}"
        return match

    def children(self) -> list[int]:
        """The pids of the JVMs it has started: a worker's executors."""
        return [
            pid
            for pid, parent in parents()
            if parent == self.pid and _EXECUTOR in command_line(pid)
        ]

    def kill(self) -> None:
        """kill -9, and wait until it is dead."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)


class StandaloneCluster:
    """A master and ``workers`` workers of ``cores`` cores and ``memory`` each, in ``directory``;
    they run between :meth:`start` and :meth:`stop`."""

    def __init__(
        self, directory: Path, workers: int = 2, cores: int = 1, memory: str = "1g"
    ) -> None:
        self._directory, self._count, self._cores, self._memory = directory, workers, cores, memory
        self._master: Daemon | None = None
        self._started = 0
        self.workers: list[Daemon] = []
        """Servers that were started and not killed."""
        self.url = ""
        """The master's, for ``--master``."""

    def start(self) -> Self:
        """Return when every worker is registered."""
        try:
            self._master = Daemon(
                "master.Master",
                ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"],
                self._directory / "master",
            )
            self.url = self._master.wait_for(
                r"Starting Spark master at (spark://127\.0\.0\.1:[1-9]\d*)"
            )[1]
            workers = [self._make_worker() for _ in range(self._count)]
            for worker in workers:
                worker.wait_for("Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End everything; what it wrote stays."""
        executors = self.executor_pids()
        for daemon in [*self.workers, *([self._master] if self._master else [])]:
            daemon.kill()
        for pid in executors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.workers.clear()
        self._master = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def executor_pids(self) -> list[int]:
        """Of all workers."""
        return [pid for worker in self.workers for pid in worker.children()]

    def kill_worker(self, worker: Daemon) -> list[int]:
        """kill -9 a worker together with its executors, as when its machine is lost; the pids of
        the executors it had."""
        executors = worker.children()
        # The worker first: it would report the end of an executor, and start another.
        worker.kill()
        self.workers.remove(worker)
        for pid in executors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return executors

    def add_worker(self) -> Daemon:
        """One more worker, registered."""
        worker = self._make_worker()
        worker.wait_for("Successfully registered with master")
        return worker

    def logs_of_executors(self) -> str:
        """Output of executors, and of the Python workers in them."""
        files = sorted(self._directory.glob("worker-*/applications/*/*/std*"))
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')}" for file in files)

    def _make_worker(self) -> Daemon:
        arguments = [
            "--host",
            "127.0.0.1",
            "-c",
            str(self._cores),
            "-m",
            self._memory,
            "--webui-port",
            "0",
            self.url,
        ]
        worker = Daemon("worker.Worker", arguments, self._directory / f"worker-{self._started}")
        self._started += 1
        self.workers.append(worker)
        return worker


def bare_interpreter(directory: Path) -> Path:
    """A Python of the version that runs here whose only packages are pyspark and the py4j that
    belongs to it, as on a host of executors."""
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    packages = (
        directory
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )
    for package in ("pyspark", "py4j"):
        (packages / package).symlink_to(SPARK_HOME.parent / package, target_is_directory=True)
    return python


def archive(path: Path, distributions: list[str]) -> None:
    """The result of ``pip install --target`` for ``distributions``, which are installed here, as an
    archive for ``--archives``."""
    with tarfile.open(path, "w:gz", compresslevel=1) as packed:
        for name in distributions:
            distribution = importlib.metadata.distribution(name)
            for file in distribution.files or []:
                if ".." not in file.parts and file.suffix != ".pyc":
                    packed.add(str(distribution.locate_file(file)), str(file))


def parents() -> list[tuple[int, int]]:
    """Every process of the machine, with its parent."""
    pairs = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                pairs.append(
                    (
                        int(entry.name),
                        int((entry / "stat").read_text().rpartition(")")[2].split()[1]),
                    )
                )
    return pairs


def command_line(pid: int) -> str:
    """Of a process; empty if it has ended."""
    try:
        return (
            (Path("/proc") / str(pid) / "cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
        )
    except OSError:
        return ""


def _die_with_us() -> None:
    # The kernel sends this signal when the process that made the cluster dies: a dead process stops
    # no server itself.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
