"""The database servers of the tests end with the process that started them, and accept local
connections only."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.servers.databases import Database
from tests.servers.owned import state

BOUND_S = 60
ROOT = Path(__file__).parents[2]
KINDS = {"mariadb": "MariaServer", "postgres": "PostgresServer"}

OWNER = """
import importlib, sys

with getattr(importlib.import_module("tests.servers." + sys.argv[2]), sys.argv[3])() as server:
    print(server._directory, server._process.pid, flush=True)
    sys.stdin.read()
    sys.exit("failed" if sys.argv[1] == "fail" else 0)
"""


@pytest.mark.parametrize("module", KINDS)
@pytest.mark.parametrize("how", ["end", "fail", "kill"])
def test_a_server_ends_with_the_process_that_started_it(how: str, module: str) -> None:
    command = [sys.executable, "-c", OWNER, how, module, KINDS[module]]
    owner = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        directory, pid = owner.stdout.readline().split()
        assert (Path(directory) / "pid").read_text() == f"{pid}\n"
        if how == "kill":
            owner.send_signal(signal.SIGKILL)
    assert owner.wait(BOUND_S) == {"end": 0, "fail": 1, "kill": -signal.SIGKILL}[how]
    for _ in range(BOUND_S * 100):
        if not Path(directory).exists():
            break
        threading.Event().wait(0.01)
    assert not Path(directory).exists()
    assert state(int(pid)) in "Z"


ADDRESSES = {"postgresql+psycopg": "SHOW listen_addresses", "mysql+pymysql": "SELECT @@bind_address"}


def test_a_server_listens_on_loopback_only_and_never_runs_as_root(database: Database) -> None:
    assert database.server.is_running
    assert database.server._process is not None
    assert Path(f"/proc/{database.server._process.pid}").stat().st_uid != 0
    assert database.execute(ADDRESSES[database.url.partition(":")[0]]) == [("127.0.0.1",)]
