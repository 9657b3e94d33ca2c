"""Drivers under load, each in a process of its own, whose memory is all theirs: ``python -m
tests.processes.load_driver DIRECTORY SCENARIO``.

``SCENARIO`` is JSON: the load (see :class:`Scenario`), and the settings of txtopo and of Spark. The
last line printed is the outcome, JSON too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Scenario:
    """``shape``: weigh (no shuffle), weigh-shuffled, hoard, keys. Samples are taken every
    ``sample_every`` transactions. ``is_cleaned``: the driver ends when Spark has removed all files
    of attempts."""

    shape: str
    rows: int
    row_bytes: int
    transactions: int = 1
    huge: int = 0
    kill_at: tuple[int, int] | None = None
    file_bytes_max: int = 0
    total: dict[str, Any] = field(default_factory=dict)
    conf: dict[str, Any] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)
    master: str = "local[2]"
    sample_every: int = 0
    is_cleaned: bool = False


@dataclass(frozen=True)
class Sample:
    """Measurements after so many transactions. Sizes are in bytes."""

    committed: int
    driver_rss: int
    driver_threads: int
    held_by_driver: int
    waiting_to_commit: int
    heap: int
    jvm_threads: int
    workers_rss: int
    workers: int
    local_files: int
    local_bytes: int
    persisted: int
    znodes: int
    znode_bytes: int


@dataclass(frozen=True)
class Outcome:
    """``error`` is ``[class, text]`` of the error that ended the run."""

    current: int
    committed: int
    replays: int
    pinned_replays: int
    stored: dict[str, Any]
    error: tuple[str, str] | None
    samples: tuple[Sample, ...]
    last_error: str | None


def drive(directory: Path, scenario: Scenario) -> Outcome:
    """Run ``scenario`` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "tests.processes.load_driver",
        str(directory),
        json.dumps(dataclasses.asdict(scenario)),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said = json.loads(done.stdout.splitlines()[-1])
    error = None if said["error"] is None else tuple(said["error"])
    samples = tuple(Sample(**sample) for sample in said["samples"])
    return Outcome(**{**said, "error": error, "samples": samples})


# -- in the driver process -----------------------------------------------------------------------


def topology_of(scenario: Scenario, directory: Path) -> Any:
    """The topology of ``scenario``."""
    from tests.servers.clusters import Journal
    from tests.topologies import floods

    flood = floods.Flood(
        scenario.transactions,
        scenario.rows,
        scenario.row_bytes,
        scenario.huge,
        scenario.file_bytes_max,
    )
    store = floods.store_of(directory)
    if scenario.shape == "hoard":
        return floods.committing("load", floods.Hoard(store, Journal(directory / "journal")), flood)
    if scenario.shape == "keys":
        return floods.committing("load", floods.ManyKeys(store), flood)
    shuffled = scenario.shape == "weigh-shuffled"
    kill_at = None if scenario.kill_at is None else (scenario.kill_at[0], scenario.kill_at[1])
    return floods.weighing(
        "load", directory, flood, shuffled=shuffled, kill_at=kill_at, **scenario.total
    )


def children(pid: int) -> list[int]:
    """Every process below ``pid``."""
    descendants: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                descendants += [child, *children(child)]
    return descendants


def rss_of(pid: int) -> int:
    """The resident memory of ``pid``, less its shared part; 0 if the process is gone."""
    with contextlib.suppress(OSError):
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def is_worker(pid: int) -> bool:
    """Whether ``pid`` is one of Spark's Python processes."""
    with contextlib.suppress(OSError):
        return b"\0txtopo.spark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def files_below(directory: Path) -> dict[str, int]:
    """Every file below ``directory``, with its size."""
    sizes = {}
    for folder, _, names in os.walk(
        directory
    ):  # a folder that goes while it is walked is passed over, which Path.rglob() does not do
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                sizes[path.relative_to(directory).as_posix()] = path.stat().st_size
    return sizes


def is_clean(directory: Path) -> bool:
    """Whether Spark's local directories have no files of attempts: Spark removes them in the
    background."""
    return not any(
        word in name for name in files_below(directory) for word in ("shuffle", "spill", "rdd_")
    )


def heap_of(jvm: Any) -> int:
    """Live objects on the JVM's heap: the lesser of two looks, each after a collection."""
    runtime = jvm.java.lang.Runtime.getRuntime()
    sizes = []
    for _ in range(2):
        jvm.java.lang.System.gc()
        sizes.append(int(runtime.totalMemory() - runtime.freeMemory()))
    return min(sizes)


def held_by_driver() -> int:
    """The bytes of all results of processing jobs that this process holds."""
    from txtopo.engine.jobs import JobResult

    return sum(
        len(frame.payload)
        for each in gc.get_objects()
        if type(each) is JobResult
        for frame in each.frames
    )


def znodes_of(zookeeper: str) -> tuple[int, int]:
    """How many znodes there are below the topology, and their size."""
    from tests.servers import zookeepers

    client = zookeepers.client(zookeeper)
    client.start(timeout=PATIENCE_S)
    try:
        pending, count, size = ["/txtopo/load"], 0, 0
        while pending:
            path = pending.pop()
            with contextlib.suppress(Exception):
                data, _ = client.get(path)
                count, size = count + 1, size + len(data)
                pending += [f"{path}/{name}" for name in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return count, size


def sample(cluster: Any, run: Any, local: Path) -> Sample:
    """What there is now."""
    status = run.status()
    held = held_by_driver()
    gc.collect()
    workers = [pid for pid in children(os.getpid()) if is_worker(pid)]
    assert workers or not status.committed, "Spark's Python processes are not told from others"
    files = files_below(local)
    count, size = znodes_of(cluster.zookeeper)
    jvm = cluster.context._jvm
    return Sample(
        status.committed,
        rss_of(os.getpid()),
        threading.active_count(),
        held,
        status.waiting_to_commit,
        heap_of(jvm),
        int(jvm.java.lang.management.ManagementFactory.getThreadMXBean().getThreadCount()),
        sum(map(rss_of, workers)),
        len(workers),
        len(files),
        sum(files.values()),
        int(cluster.context._jsc.sc().getPersistentRDDs().size()),
        count,
        size,
    )


def main() -> None:
    """Run in the driver process."""
    from tests.servers.clusters import fast
    from tests.topologies.floods import store_of
    from txtopo import LocalCluster
    from txtopo.spark import session

    directory = Path(sys.argv[1])
    scenario = Scenario(**json.loads(sys.argv[2]))
    local = directory / "local"
    local.mkdir()
    samples: list[Sample] = []
    error: BaseException | None = None
    # A collection on request is then a full collection: objects left on the heap are alive.
    options = session.our_settings(scenario.master)["spark.driver.extraJavaOptions"].replace(
        "-XX:+ExplicitGCInvokesConcurrent", ""
    )
    spark = {
        "spark.local.dir": str(local),
        "spark.driver.extraJavaOptions": options,
        **scenario.spark,
    }
    with LocalCluster(
        master=scenario.master, data_dir=directory / "zookeeper", spark_conf=spark
    ) as cluster:
        run = cluster.submit_topology(
            "load", fast(until="exhausted", **scenario.conf), topology_of(scenario, directory)
        )
        try:
            for txid in (
                range(scenario.sample_every, scenario.transactions, scenario.sample_every)
                if scenario.sample_every
                else ()
            ):
                run.wait_for_txid(txid, PATIENCE_S)
                samples.append(sample(cluster, run, local))
            run.join(PATIENCE_S)
        except Exception as caught:
            error = caught
        status = run.status()
        if scenario.is_cleaned:
            wait_until(lambda: is_clean(local), "Spark to remove the files of attempts")
    said = None if error is None else (type(error).__name__, str(error))
    try:
        stored = {str(key): value for key, value in store_of(directory).items()}
    except Exception:
        stored = {}
    if scenario.shape == "keys":
        stored = {"keys": len(stored), "sum": sum(stored.values())}
    outcome = Outcome(
        status.current,
        status.committed,
        status.replays,
        status.pinned_replays,
        stored,
        said,
        tuple(samples),
        status.last_error,
    )
    print(json.dumps(dataclasses.asdict(outcome)))


if __name__ == "__main__":
    main()
