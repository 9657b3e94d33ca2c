"""Brings what only thorough tests need: servers that Go builds or npm has, Delta's own reader, and
Prometheus' checker.

``python -m tests.servers.more``, which ``make more-servers`` runs, puts them into ``servers/`` of
this interpreter's environment, for good, beside the others (see ``fetch`` and ``jars``). Go and npm
keep their caches where they always do.

Invariants:
    - A server's directory appears whole or not at all.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

from tests.servers import fetch, jars


@dataclasses.dataclass(frozen=True)
class Program:
    """A server, as Go's or npm's registry has it."""

    tool: str
    package: str
    version: str
    program: str
    """Its path in the directory that the tool has filled."""

    @property
    def name(self) -> str:
        """The name of the program."""
        return Path(self.program).name

    @property
    def directory(self) -> Path:
        """Where the server is once it was fetched."""
        return fetch.HOME / f"{self.name}-{self.version}"


PROGRAMS = {
    "versitygw": Program("go", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0", "versitygw"),
    "fake-gcs": Program("go", "github.com/fsouza/fake-gcs-server", "v1.56.1", "fake-gcs-server"),
    # Older ones begin each listing at the first name, so that deltalake finds no newest version.
    "azurite": Program("npm", "azurite", "3.37.0", "node_modules/.bin/azurite-blob"),
}


PROMTOOL = fetch.Server("prometheus", "prometheus", "promtool")


def promtool() -> fetch.Found:
    """Prometheus' checker of rules.

    :raises fetch.ServerMissingError: it was not fetched.
    """
    return fetch.program_of(PROMTOOL, "make more-servers")


def found(name: str) -> fetch.Found:
    """The server ``name``.

    :raises fetch.ServerMissingError: it was not fetched.
    """
    server = PROGRAMS[name]
    if not server.directory.is_dir():
        raise fetch.ServerMissingError(
            f"there is no {server.name} to test with\n  Type: make more-servers, which needs {server.tool}"
        )
    return fetch.Found(server.directory / server.program, server.directory)


def bring(server: Program | jars.Jars | fetch.Server) -> None:
    """Bring ``server`` unless it is there.

    :raises RuntimeError: it could not be brought; says what to do.
    """
    if isinstance(server, jars.Jars):
        jars.bring(server)
    elif isinstance(server, fetch.Server):
        fetch.fetch(server)
    elif not server.directory.is_dir():
        if shutil.which(server.tool) is None:
            raise RuntimeError(
                f"{server.name} cannot be fetched: there is no {server.tool} here\n  Install {server.tool}, and type: make more-servers"
            )
        with fetch.whole(server.directory) as making:
            package = f"{server.package}@{server.version}"
            command = {
                "go": ["env", f"GOBIN={making}", "CGO_ENABLED=0", "go", "install", package],
                "npm": [
                    "npm",
                    "install",
                    f"--prefix={making}",
                    "--no-audit",
                    "--no-fund",
                    "--ignore-scripts",
                    package,
                ],
            }[server.tool]
            cure = f"Look after what {server.tool} says, and type: make more-servers"
            fetch.persistently(lambda: fetch.run(command, package, cure))


if __name__ == "__main__":
    sys.exit(fetch.exit_code(bring, [*PROGRAMS.values(), *jars.MORE.values(), PROMTOOL]))
