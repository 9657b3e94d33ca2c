"""An empty place of each kind where stores can be: by name, the address of one for a test that has
a directory of its own.

Apart from ``databases``, which is about servers with SQL alone. The servers are those that all
tests of a process share.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.servers import mariadb, postgres, redis_server

PLACES: dict[str, Callable[[Path], str]] = {
    # Its driver takes longer to make ready for TLS, which the server does not have, than for
    # everything else.
    "mariadb": lambda directory: f"{mariadb.running_server().new_url()}?ssl_disabled=1",
    "postgresql": lambda directory: postgres.running_server().new_url(),
    "redis": lambda directory: redis_server.running_server().url_for(directory),
    "sqlite": lambda directory: str(directory / "store.db"),
}
