"""Every socket that a run's processes listen at is in a directory which no other user may enter,
also with umask 000."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes.drivers import ROOT
from tests.quick_java import QUICK_JAVA

RUNNING = """
import json, os, sys, threading
os.umask(0)
from pathlib import Path
from txtopo import Config, Fields, LocalCluster
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout
from tests.servers.clusters import Journal
from tests.topologies.spouts import Keep, keeping_topology

place = Path(sys.argv[1])
small = float(sys.argv[2])
spout = MemoryTransactionalSpout({0: [(n,) for n in range(6)]}, Fields("n"), 1)
topology = keeping_topology("sockets", spout, Keep(SqliteStore(place / "kept.db", "kept"), Journal(place / "journal")))

def listening():
    found = set()
    for row in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = row.split(maxsplit=7)
        if len(fields) == 8 and fields[3] == "00010000" and fields[7].startswith("/"):
            found.add(fields[7])
    return found

with LocalCluster(master="local[2]", data_dir=place / "state") as cluster:
    directory = dict(cluster.context.getConf().getAll())["spark.python.unix.domain.socket.dir"]
    mode = os.stat(directory).st_mode & 0o777
    run = cluster.submit_topology("sockets", Config(small_transaction_s=small, poll_interval_s=0.02), topology)
    seen, rows = set(), 6
    while rows < 16 or not any(name.startswith(sys.argv[3]) for name in seen):
        if run.status().committed == rows:
            spout.append(0, [(rows,)])
            rows += 1
        threading.Event().wait(0.01)
        seen |= {os.path.basename(path) for path in listening() if os.path.dirname(path) == directory}
    run.stop()
print(json.dumps({"directory": directory, "mode": mode, "seen": sorted(seen)}))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("small", "name"), [("0", ""), ("5", "task-")])
def test_sockets_of_a_run_are_in_a_private_directory_and_gone_at_its_end(
    tmp_path: Path, small: str, name: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JDK_JAVA_OPTIONS": QUICK_JAVA}
    command = [sys.executable, "-c", RUNNING, str(tmp_path), small, name]
    run = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert any(socket.startswith(name) for socket in report["seen"]), (
        "of workers, or of a resident task"
    )
    assert report["mode"] == stat.S_IRWXU
    assert not Path(report["directory"]).exists()
