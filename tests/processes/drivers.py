"""Driver processes that a test may kill.

``python -m tests.processes.drivers TOPOLOGY DIRECTORY PENDING`` runs a starter until its input is
exhausted. ``python -m tests.processes.drivers steps DIRECTORY DATABASES SIZE LIFE`` runs the
topologies of ``tests.topologies.steps`` side by side; the process kills itself when every fault
that *holds* has struck. ``python -m tests.processes.drivers small DIRECTORY SIZE LIFE NAME …`` does
the same for ``tests.topologies.small``, and ``python -m tests.processes.drivers sinks DIRECTORY
SIZE LIFE ADDRESSES`` for ``tests.topologies.sinks_killed``. ``python -m tests.processes.drivers
topics DIRECTORY SERVERS TOPIC NAME …`` runs topologies of ``tests.topologies.topic_kept`` over one
topic of Kafka.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from tests.patience import PATIENCE_S, OutOfPatience, wait_until
from tests.quick_java import QUICK_JAVA
from txtopo.state import server_process

ENDLESS_S = 3600.0
"""Longer than any test lives. A driver that waits for the end of its predecessor's session never
begins."""
ROOT = Path(__file__).parents[2]


def make(name: str, directory: Path) -> Any:
    """The starter ``name`` with its store in ``directory``."""
    from starter import transactional_global_count, transactional_words

    return {"global-count": transactional_global_count, "words": transactional_words}[
        name
    ].make_topology(directory / "store.db")


def drive(
    name: str, directory: Path, pending: int, fault: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a driver to its end, with ``fault`` armed (see ``txtopo.faults``)."""
    return _run([name, str(directory), str(pending)], {"TXTOPO_FAULT": fault})


def drive_steps(
    directory: Path, databases: list[str], size: int, life: int, faults: Iterable[str]
) -> subprocess.CompletedProcess[str]:
    """Run driver number ``life`` of all ``tests.topologies.steps`` to its end; faults that strike
    leave files in ``directory/faults``."""
    return _drive_with(
        directory, faults, ["steps", str(directory), json.dumps(databases), str(size), str(life)]
    )


def drive_small(
    directory: Path, size: int, life: int, names: Iterable[str], faults: Iterable[str]
) -> subprocess.CompletedProcess[str]:
    """Like :func:`drive_steps`, for ``tests.topologies.small``. See :func:`run_small`."""
    return _drive_with(directory, faults, ["small", str(directory), str(size), str(life), *names])


def drive_sinks(
    directory: Path, addresses: dict[str, str], size: int, life: int, faults: Iterable[str]
) -> subprocess.CompletedProcess[str]:
    """Like :func:`drive_steps`, for ``tests.topologies.sinks_killed``. ``addresses`` name the
    databases."""
    return _drive_with(
        directory, faults, ["sinks", str(directory), str(size), str(life), json.dumps(addresses)]
    )


def drive_topics(
    directory: Path, servers: str, topic: str, names: Iterable[str], faults: Iterable[str]
) -> subprocess.CompletedProcess[str]:
    """Like :func:`drive_steps`, for ``tests.topologies.topic_kept`` over one topic."""
    return _drive_with(directory, faults, ["topics", str(directory), servers, topic, *names])


def _drive_with(
    directory: Path, faults: Iterable[str], arguments: list[str]
) -> subprocess.CompletedProcess[str]:
    (directory / "faults").mkdir(exist_ok=True)
    environment = {
        "TXTOPO_FAULT": ",".join(faults),
        "TXTOPO_FAULT_DIR": str(directory / "faults"),
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    return _run(arguments, environment)


def _run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.processes.drivers", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


def run_starter(name: str, directory: Path, pending: int) -> None:
    """Run in the driver process."""
    from txtopo import Config, LocalCluster

    with LocalCluster(master="local[2]", data_dir=directory / "zookeeper") as cluster:
        run = cluster.submit_topology(
            name,
            Config(
                max_spout_pending=pending,
                until="exhausted",
                poll_interval_s=0.02,
                zookeeper_session_timeout_s=ENDLESS_S,
            ),
            make(name, directory),
        )
        started_at = run.status().current
        status = run.join(PATIENCE_S)
    print(
        f"began at {started_at}, committed {status.committed}, current {status.current}, epoch {status.epoch}"
    )


def run_steps(directory: Path, databases: list[str], size: int, life: int) -> None:
    """Run in the driver process."""
    from tests.topologies.steps import VARIANTS, make_topology

    topologies = {
        variant.name: (variant.pending, make_topology(variant, directory, databases, size, life))
        for variant in VARIANTS
    }
    _run_side_by_side(directory, topologies)


def run_sinks(directory: Path, size: int, life: int, addresses: dict[str, str]) -> None:
    """Run in the driver process."""
    from tests.topologies.sinks_killed import WRITING, make_topology

    _run_side_by_side(
        directory,
        {
            writing.name: (2, make_topology(writing, directory, addresses, size, life))
            for writing in WRITING
        },
    )


def run_topics(directory: Path, servers: str, topic: str, names: Iterable[str]) -> None:
    """Run in the driver process."""
    from tests.topologies.topic_kept import make_topology

    topologies = {
        name: (2, make_topology(directory, name, servers, topic, records_per_batch=10))
        for name in names
    }
    _run_side_by_side(directory, topologies)


def run_small(directory: Path, size: int, life: int, names: Iterable[str]) -> None:
    """Run in the driver process. Each ``KIND-NUMBER-PENDING`` is a topology whose transactions are
    all small, however slow the machine."""
    from tests.topologies.small import Small
    from txtopo.engine import deadlines

    deadlines.LATE_S = ENDLESS_S
    topologies = {}
    for name in names:
        kind, _, pending = name.rsplit("-", 2)
        topologies[name] = (int(pending), Small(name, directory, kind, size).make(life))
    _run_side_by_side(directory, topologies, small_transaction_s=ENDLESS_S)


def _run_side_by_side(
    directory: Path, topologies: dict[str, tuple[int, Any]], **settings: Any
) -> None:
    """Run each topology, with so many transactions pending. Prints, as JSON and by name, the txid
    and epoch of its beginning; and the committed transactions, if it comes so far."""
    from txtopo import Config, LocalCluster

    holding = [fault for fault in os.environ["TXTOPO_FAULT"].split(",") if fault.endswith("=hold")]
    # Two cores for the tasks that are held, and two to work with.
    with LocalCluster(master="local[4]", data_dir=directory / "zookeeper") as cluster:
        runs = {}
        for name, (pending, topology) in topologies.items():
            conf = Config(
                max_spout_pending=pending,
                until="exhausted",
                poll_interval_s=0.02,
                backoff_min_s=0.01,
                message_timeout_s=ENDLESS_S,
                zookeeper_session_timeout_s=ENDLESS_S,
                **settings,
            )
            runs[name] = cluster.submit_topology(name, conf, topology)
        began = {name: run.began for name, run in runs.items()}
        print(
            json.dumps(
                {
                    name: [status.current, status.epoch]
                    for name, status in began.items()
                    if status is not None
                }
            ),
            flush=True,
        )

        def have_struck() -> bool:
            if all((directory / "faults" / fault).exists() for fault in holding):
                return True
            if ended := [run.status() for run in runs.values() if not run.is_alive]:
                _give_up(ended)
            return False

        if holding:
            try:
                wait_until(have_struck)
            except OutOfPatience:
                _give_up([run.status() for run in runs.values()])
            os.kill(os.getpid(), signal.SIGKILL)
        print(
            json.dumps({name: run.join(PATIENCE_S).current for name, run in runs.items()}),
            flush=True,
        )


def _give_up(statuses: list[Any]) -> NoReturn:
    # Without stopping the topologies: some of them wait at a fault point, for ever.
    print(f"not every fault struck: {statuses}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    server_process.SETTINGS["maxSessionTimeout"] = str(int(ENDLESS_S * 1000))
    if sys.argv[1] == "steps":
        run_steps(Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    elif sys.argv[1] == "sinks":
        run_sinks(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
    elif sys.argv[1] == "topics":
        run_topics(Path(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
    elif sys.argv[1] == "small":
        run_small(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    else:
        run_starter(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
