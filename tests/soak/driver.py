"""A driver process: ``python -m tests.soak.driver DIRECTORY NUMBER ROLE`` runs every workload of a
world until it is killed, or asked to finish.

Messages go to a file, a line of JSON for each change, because a killed process leaves no other
message. Exit codes are those of the package: 0 finished, 4 fenced or refused.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, Any

from tests.soak import world as worlds
from tests.soak.workloads import WORKLOADS
from txtopo import Config, LocalCluster, TopologyRun, errors

POLL_S = 0.2
IDLE_TIMEOUT_S = 900.0
ROLES = {"first": "refuse", "rival": "refuse", "standby": "wait", "usurper": "take"}
"""The driver's answer to topologies held by another driver, by its role."""
ROOT = Path(__file__).resolve().parents[2]


class Journal:
    """Lines of JSON, each written at once."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._last: dict[str, Any] = {}

    def write(self, kind: str, **more: Any) -> None:
        """One line; not if the last one of this kind and workload said the same."""
        key = f"{kind} {more.get('workload', '')}"
        if self._last.get(key) != more:
            self._last[key] = more
            self._file.write(json.dumps({"kind": kind, **more}).encode() + b"\n")


def settings(world: worlds.World, workload: str, role: str) -> Config:
    """Short waits, for many events; the trial is about crashes, so that no number of them ends
    a run."""
    return Config(
        max_spout_pending=1 if workload == "words" else 3,
        message_timeout_s=worlds.MESSAGE_TIMEOUT_S,
        zombie_wait_s=worlds.ZOMBIE_WAIT_S,
        zookeeper_session_timeout_s=worlds.SESSION_TIMEOUT_S,
        backoff_min_s=0.05,
        backoff_max_s=0.5,
        poll_interval_s=0.05,
        max_crashes=10_000,
        on_held=ROLES[role],
    )


def spark_settings(master: str) -> dict[str, str]:
    """Small JVMs; executors of their own find this tree."""
    if not master.startswith("local-cluster"):
        return {"spark.driver.memory": "700m"}
    return {
        "spark.driver.memory": "700m",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }


def watch(runs: dict[str, TopologyRun], journal: Journal) -> None:
    """Report the state of the runs. Raises the error that ended a run."""
    for workload, run in runs.items():
        status = run.status()
        journal.write(
            "status",
            workload=workload,
            state=status.state,
            epoch=status.epoch,
            current=status.current,
            committed=status.committed,
            replays=status.replays,
            tuples=status.tuples,
        )
        if not run.is_alive:
            run.join(0)
            raise errors.TxtopoError(f"{workload} ended, and nobody has asked it to")


def finish(runs: dict[str, TopologyRun], journal: Journal) -> None:
    """Commit all there is, and stop."""
    for workload, run in runs.items():
        run.wait_until_idle(IDLE_TIMEOUT_S)
        journal.write("idle", workload=workload, current=run.status().current)
    watch(runs, journal)
    for run in runs.values():
        run.stop()


def orphaned(parent: int) -> None:
    """End at once when the supervisor has died: nobody would."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def drive(world: worlds.World, number: int, role: str, journal: Journal) -> None:
    """Run everything."""
    threading.Thread(target=orphaned, args=[os.getppid()], daemon=True).start()
    with LocalCluster(
        world.zookeeper, spark_settings(world.master), world.master, world.path / "zookeeper"
    ) as cluster:
        journal.write("spark")
        runs: dict[str, TopologyRun] = {}
        for name in world.workloads:
            topology = WORKLOADS[name].topology(world, number)
            runs[name] = cluster.submit_topology(topology.id, settings(world, name, role), topology)
        while not (
            world.finish.exists() and all(run.status().state == "running" for run in runs.values())
        ):
            watch(runs, journal)
            time.sleep(POLL_S)
        finish(runs, journal)


def main() -> int:
    """Run in the driver process."""
    world, number, role = worlds.World.load(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    journal = Journal(world.path / f"driver-{number}.jsonl")
    try:
        drive(world, number, role, journal)
    except Exception as error:
        traceback.print_exc()
        code = errors.exit_code_of(error) if isinstance(error, errors.TxtopoError) else 1
        journal.write(
            "failed", code=code, error=f"{type(error).__name__}: {error}", pid=os.getpid()
        )
        return code
    journal.write("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
