"""Brings the database servers that the tests start, without installing anything on this machine and
without being its administrator.

``python -m tests.servers.fetch`` puts the servers of :data:`SERVERS` that the machine lacks into
``servers/`` of this interpreter's environment, for good: ``apt-get`` downloads and verifies the
distribution's packages, ``dpkg-deb`` unpacks them. On systems that do not descend from Debian,
install the servers in the way of the system; a server on the PATH is used as it is.

Apart from the modules that start servers because it runs once, before any test.

Invariants:
    - A server's directory appears whole or not at all.
    - A mirror that does not answer is asked again, with pauses; then an error says what was missing
      and what to type.
    - No file outside of the environment and the temporary directory is changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HOME = Path(sys.prefix) / "servers"
FETCH_TIMEOUT_S = 900.0
PAUSES_S = (5.0, 15.0)
"""Before the second and the third try."""
_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
_PROGRAMS = ("usr/sbin", "usr/bin")


@dataclasses.dataclass(frozen=True)
class Server:
    """A server, as Debian packs it."""

    name: str
    package: str
    program: str
    others: tuple[str, ...] = ()
    """Programs with the same use, where the machine has one of them."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A server that can be started."""

    program: Path
    root: Path
    """What its files are under: ``/`` if the machine has it."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which the program finds its libraries."""
        if self.root == Path("/"):
            return {}
        directories = sorted(
            {
                file.parent
                for part in ("lib", "usr/lib")
                for file in (self.root / part).rglob("*.so*")
            }
        )
        return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, directories))}


SERVERS = {
    "mariadb": Server("mariadb", "mariadb-server-core", "mariadbd"),
    # The driver's package needs the browser's.
    "chromium": Server("chromium", "chromium-driver", "chromedriver"),
    "redis": Server("redis", "redis-server", "redis-server", others=("valkey-server",)),
}


class ServerMissingError(RuntimeError):
    """There is no server to test with, so that the test proves nothing."""


def found(name: str) -> Found:
    """The server ``name``.

    :raises ServerMissingError: neither was it fetched, nor does the machine have it.
    """
    return program_of(SERVERS[name], "make servers")


def program_of(server: Server, command: str) -> Found:
    """``server``, which ``command`` fetches.

    :raises ServerMissingError: neither was it fetched, nor does the machine have it.
    """
    installed = _fetched(server) or _installed(server)
    if installed is None:
        cure = f"Type: {command}; or, where there is no apt-get, install {server.name}."
        raise ServerMissingError(f"there is no {server.program} to test with\n  {cure}")
    return installed


def fetch(server: Server) -> None:
    """Bring ``server`` unless it is there.

    :raises RuntimeError: it could not be brought; says what to do.
    """
    if _fetched(server) or _installed(server):
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        cure = f"Install {server.name}, so that {server.program} is on the PATH."
        raise RuntimeError(
            f"{server.program} cannot be fetched: there is no apt-get here\n  {cure}"
        )
    with tempfile.TemporaryDirectory(prefix="txtopo-fetch-") as scratch:
        packages = _download(server.package, Path(scratch))
        with whole(HOME / server.name) as making:
            for package in packages:
                _run(["dpkg-deb", "--extract", str(package), str(making)], server.package)


@contextlib.contextmanager
def whole(directory: Path) -> Iterator[Path]:
    """A directory to fill: it becomes ``directory`` when it is full, and is gone after an error."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield making
        making.chmod(0o755)
        making.replace(directory)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def persistently(deed: Callable[[], object]) -> None:
    """Do ``deed``; after a RuntimeError try again after each of :data:`PAUSES_S`."""
    for pause_s in PAUSES_S:
        try:
            deed()
            return
        except RuntimeError as error:
            print(
                f"txtopo: {error}\n  The next try begins in {pause_s:g} s.",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(pause_s)
    deed()


def run(command: Sequence[str], title: str, cure: str) -> None:
    """Run ``command``, which brings ``title``.

    :raises RuntimeError: it failed, or took longer than :data:`FETCH_TIMEOUT_S`; has the words of
        the command, and the ``cure``.
    """
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        ended = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"{title} cannot be fetched: {command[0]} took longer than {FETCH_TIMEOUT_S:g} s\n  {cure}"
        ) from None
    if ended.returncode != 0:
        said = (ended.stdout + ended.stderr).strip()[-4_000:]
        raise RuntimeError(f"{title} cannot be fetched: {said}\n  {cure}")


def _download(package: str, scratch: Path) -> list[Path]:
    """``package`` and the dependencies missing on this machine."""
    archives, lists = scratch / "archives", scratch / "lists"
    for directory in (archives / "partial", lists / "partial"):
        directory.mkdir(parents=True)
    settings = {
        "Debug::NoLocking": 1,
        "APT::Sandbox::User": "",
        "Dir::Cache": scratch,
        "Dir::Cache::archives": archives,
        "Acquire::Retries": 3,
        "Acquire::http::Timeout": 30,
    }
    apt = [
        "apt-get",
        "-q",
        *(word for name, value in settings.items() for word in ("-o", f"{name}={value}")),
    ]
    own = [*apt, "-o", f"Dir::State::Lists={lists}"]
    install = ["install", "--yes", "--no-install-recommends", "--download-only", package]
    try:
        _run([*apt, *install], package)
    except RuntimeError:
        # The machine's lists of packages are not there, or out of date; to renew those is the
        # administrator's.
        def download() -> None:
            _run([*own, "update"], package)
            _run([*own, *install], package)

        persistently(download)
    return sorted(archives.glob("*.deb"))


def _run(command: Sequence[str], package: str) -> None:
    run(
        command,
        package,
        f"Look after what apt-get says, and type: make servers; or type: apt-get install {package}",
    )


def _fetched(server: Server) -> Found | None:
    root = HOME / server.name
    programs = [
        root / part / server.program
        for part in _PROGRAMS
        if (root / part / server.program).exists()
    ]
    return Found(programs[0], root) if programs else None


def _installed(server: Server) -> Found | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PLACES])
    program = next(
        filter(None, (shutil.which(name, path=path) for name in (server.program, *server.others))),
        None,
    )
    return None if program is None else Found(Path(program), Path("/"))


def exit_code(bring: Callable[[Any], object], servers: Iterable[Any]) -> int:
    """Bring each of ``servers``; 1 after an error, which is printed."""
    failed = 0
    for server in servers:
        try:
            bring(server)
        except RuntimeError as error:
            print(f"txtopo: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(exit_code(fetch, SERVERS.values()))
