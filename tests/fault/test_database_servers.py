"""The servers of the tests that keep stores end with the process that started them, and accept
local connections only."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.databases import Database
from tests.servers.owned import Server, state
from tests.servers.redis_server import RedisServer

ROOT = Path(__file__).parents[2]
KINDS = {"mariadb": "MariaServer", "postgres": "PostgresServer", "redis_server": "RedisServer"}

OWNER = """
import importlib, sys

with getattr(importlib.import_module("tests.servers." + sys.argv[2]), sys.argv[3])() as server:
    print(server._directory, server._process.pid, flush=True)
    sys.stdin.read()
    sys.exit("failed" if sys.argv[1] == "fail" else 0)
"""


@pytest.mark.in_gate("kill-*")
@pytest.mark.parametrize("module", KINDS)
@pytest.mark.parametrize("how", ["end", "fail", "kill"])
def test_a_server_ends_with_the_process_that_started_it(how: str, module: str) -> None:
    command = [sys.executable, "-c", OWNER, how, module, KINDS[module]]
    owner = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        directory, pid = owner.stdout.readline().split()
        assert (Path(directory) / "pid").read_text() == f"{pid}\n"
        if how == "kill":
            owner.send_signal(signal.SIGKILL)
    assert owner.wait(PATIENCE_S) == {"end": 0, "fail": 1, "kill": -signal.SIGKILL}[how]
    wait_until(
        lambda: not Path(directory).exists() and state(int(pid)) in "Z",
        "the end of the server and its directory",
    )


ADDRESSES = {
    "postgresql+psycopg": "SHOW listen_addresses",
    "mysql+pymysql": "SELECT @@bind_address",
}


def test_a_database_server_listens_on_loopback_only_and_never_runs_as_root(
    database: Database,
) -> None:
    assert account_of(database.server) != 0
    assert database.execute(ADDRESSES[database.url.partition(":")[0]]) == [("127.0.0.1",)]


def test_a_redis_server_listens_on_loopback_only_and_never_runs_as_root(
    redis_server: RedisServer,
) -> None:
    assert account_of(redis_server) != 0
    assert redis_server.ask("CONFIG", "GET", "bind") == ["bind", "127.0.0.1"]


def account_of(server: Server) -> int:
    """The account under which ``server`` runs."""
    assert server.is_running
    assert server._process is not None
    return Path(f"/proc/{server._process.pid}").stat().st_uid
