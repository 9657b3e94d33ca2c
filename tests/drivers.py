"""Driver processes that a test may kill: ``python -m tests.drivers TOPOLOGY DIRECTORY PENDING`` runs a starter until its input is exhausted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SESSION_TIMEOUT_S = 40.0
"""Far longer than a start takes: a driver that waited for its predecessor's session to expire would be seen to."""
ROOT = Path(__file__).parent.parent


def make(name: str, directory: Path) -> Any:
    """The starter ``name`` with its store in ``directory``."""
    from starter import transactional_global_count, transactional_words

    return {"global-count": transactional_global_count, "words": transactional_words}[name].make_topology(directory / "store.db")


def drive(name: str, directory: Path, pending: int, fault: str = "", timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a driver to its end, with ``fault`` armed (see ``txtopo.faults``)."""
    environment = {**os.environ, "TXTOPO_FAULT": fault, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.drivers", name, str(directory), str(pending)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)


def main() -> None:
    """Run in the driver process."""
    from txtopo import Config, LocalCluster

    name, directory, pending = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with LocalCluster(master="local[2]", data_dir=directory / "zookeeper") as cluster:
        run = cluster.submit_topology(
            name,
            Config(max_spout_pending=pending, until="exhausted", poll_interval_s=0.02, zookeeper_session_timeout_s=SESSION_TIMEOUT_S),
            make(name, directory),
        )
        started_at = run.status().current
        status = run.join(90)
    print(f"began at {started_at}, committed {status.committed}, current {status.current}, epoch {status.epoch}")


if __name__ == "__main__":
    main()
