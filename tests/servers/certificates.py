"""Certificates for tests, made by Java's keytool: one for a server on 127.0.0.1, one for a client."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.servers import jars

PASSWORD = "keys and trust"


class Certificates:
    """A server's and a client's key stores in ``directory``. Each trusts the other, and nothing
    else."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("server", "client", "stranger"):
            self._keytool(
                name,
                "-genkeypair",
                "-alias",
                name,
                "-keyalg",
                "EC",
                "-dname",
                f"CN={name}",
                "-ext",
                "san=ip:127.0.0.1",
            )
            self._keytool(name, "-exportcert", "-rfc", "-alias", name, "-file", str(self.of(name)))
        self._keytool(
            "trust", "-importcert", "-noprompt", "-alias", "client", "-file", str(self.of("client"))
        )

    def store(self, name: str) -> Path:
        """The key store (PKCS #12) of ``name``."""
        return self.directory / f"{name}.p12"

    def of(self, name: str) -> Path:
        """The certificate (PEM) of ``name``."""
        return self.directory / f"{name}.pem"

    def _keytool(self, store: str, *arguments: str) -> None:
        java = shutil.which(jars.java()) or jars.java()
        command = [
            str(Path(java).resolve().with_name("keytool")),
            *arguments,
            "-keystore",
            str(self.store(store)),
            "-storetype",
            "PKCS12",
            "-storepass",
            PASSWORD,
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
