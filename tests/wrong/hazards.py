"""Spark's hazards, staged on a cluster of two executor processes: ``python -m tests.wrong.hazards
strict|lenient MASTER`` in a process of its own.

The process is asked for scenarios on its standard input, one line of JSON each, and answers each
with one line. ``strict`` is a cluster as txtopo makes it. ``lenient`` lacks the settings that
txtopo requires: Spark retries tasks and stages and speculates, as it does by default or when told.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyspark

from tests.patience import PATIENCE_S, wait_until
from tests.servers import clusters, standalone
from tests.topologies.fresh_emissions import DRIVER_WAITS, FreshTopology, Strike
from tests.wrong import weakened
from txtopo.coordinator.transitions import Status
from txtopo.topology.transaction import TransactionAttempt

ROOT = Path(__file__).parents[2]
ANSWER = "ANSWER "
ENDLESS_S = 3600.0
"""Longer than a scenario may take."""
KILLS = 4

TWO_PROCESSES = "local-cluster[2,1,512]"
"""Two executors of one core each. Spark takes them to be on one host, and starts a second copy of a
task on another host only."""

CONF = {
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    # Spark would kill an executor that a scenario has stopped, and its zombie with it.
    "spark.network.timeout": "900s",
}
LENIENT = {
    **CONF,
    "spark.task.maxFailures": "4",
    "spark.stage.maxAttempts": "4",
    "spark.stage.maxConsecutiveAttempts": "4",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    # Long enough that of all scenarios only the one that waits for a second copy gets one.
    "spark.speculation.minTaskRuntime": "4s",
}


@dataclass(frozen=True)
class Request:
    """Play ``scenario`` in ``directory`` without the guards in ``removed``."""

    scenario: str
    directory: str
    removed: Sequence[str] = ()


@dataclass
class Answer:
    """The outcome: ``violations`` of the promises, ``refusals`` (why jobs were lost), and the notes
    of user code."""

    violations: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    committed: int = 0
    replays: int = 0
    journal: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class Scenario:
    """The strike in user code, the deeds against Spark meanwhile (``staged``), and the deed after
    all commits (``then``)."""

    strikes: Sequence[Strike] = ()
    planned: bool = True
    size: int = 12
    settings: dict[str, Any] = field(default_factory=dict)
    staged: Callable[[Any, FreshTopology], contextlib.AbstractContextManager[None]] = (
        lambda cluster, topology: contextlib.nullcontext()
    )
    then: Callable[[Any, FreshTopology], list[str]] = lambda cluster, topology: []


# -- what is done to Spark -------------------------------------------------------------------------


def _executors(context: Any) -> set[str]:
    """Those that Spark believes in; by number, since one that takes another's place may be given
    its port."""
    return set(filter(None, context._jsc.sc().getExecutorIds().mkString(",").split(",")))


def _are_idle(context: Any) -> bool:
    """Whether there are two executors, and no task runs."""
    running = context._jsc.sc().taskScheduler().runningTasksByExecutors().mkString(",").split(",")
    return len(_executors(context)) == len(running) == 2 and all(
        each.endswith(" -> 0") for each in running
    )


def _number_of(pid: int) -> str:
    """The number of an executor."""
    words = standalone.command_line(pid).split()
    return words[words.index("--executor-id") + 1]


def _kill(context: Any, pid: int) -> None:
    """Kill an executor, and wait until Spark knows."""
    number = _number_of(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: number not in _executors(context), "Spark to notice the loss of an executor")


@contextlib.contextmanager
def _killed_between_the_phases(cluster: Any, topology: FreshTopology) -> Iterator[None]:
    """When transaction 2 is about to be applied, the executor that held the first committer is
    killed."""
    from txtopo.engine.attempts import AttemptRunner

    apply = AttemptRunner.apply

    def kill_first(runner: Any, work: Any, *arguments: Any) -> None:
        if work.attempt.txid == 2 and topology.journal.claim("struck between the phases"):
            _kill(cluster.context, topology.pids(f"keep 0 prepared {work.attempt} ")[-1])
        apply(runner, work, *arguments)

    with mock.patch.object(AttemptRunner, "apply", kill_first):
        yield


def _hold_a_core(journal_path: str) -> Callable[[int], None]:
    def hold(ignored: int) -> None:
        journal = clusters.Journal(Path(journal_path))
        journal.write("holding a core")
        wait_until(lambda: "released" in journal.lines(), "the release")

    return hold


@contextlib.contextmanager
def _one_executor_busy(cluster: Any, topology: FreshTopology) -> Iterator[None]:
    """Keep an executor busy. All tasks run on the other executor one by one: reducers do not
    overlap."""
    job = cluster.context.parallelize([0], 1)
    thread = threading.Thread(
        target=job.foreach, args=[_hold_a_core(str(topology.journal.path))], daemon=True
    )
    thread.start()
    wait_until(lambda: "holding a core" in topology.journal.lines(), "the other job to begin")
    try:
        yield
    finally:
        topology.journal.write("released")
        thread.join(PATIENCE_S)


@contextlib.contextmanager
def _killed_when_half_is_pinned(cluster: Any, topology: FreshTopology) -> Iterator[None]:
    """One task of the emission has ended, and its result is pinned; its executor is killed, and the
    other task goes on."""

    def kill() -> None:
        wait_until(
            lambda: bool(topology.lines("struck numbers 1 emitted")), "the second task to wait"
        )
        attempt = topology.lines("numbers 1 emitted 2:")[0].split()[3]
        wait_until(
            lambda: bool(topology.lines(f"numbers 0 emitted {attempt} ")), "the first task to emit"
        )
        tracker = cluster.context.statusTracker()

        def first_has_ended() -> bool:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            return any(stage is not None and stage.numCompletedTasks == 1 for stage in stages)

        wait_until(first_has_ended, "Spark to hear of the end of the first task")
        _kill(cluster.context, topology.pids(f"numbers 0 emitted {attempt} ")[0])
        topology.journal.write("released")

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE_S)


@contextlib.contextmanager
def _taken_away(cluster: Any, topology: FreshTopology) -> Iterator[None]:
    """The cluster takes away the executor in which user code waits, without any task's fault: Spark
    runs its task again, on the other executor."""
    from txtopo.engine import deadlines

    def take_away() -> None:
        wait_until(lambda: bool(topology.lines("struck ")), "user code to wait")
        [pid] = topology.pids(f"{topology.strikes[0].point} {topology.strikes[0].txid}:")
        one = cluster.context._jvm.java.util.ArrayList([_number_of(pid)])
        backend = cluster.context._jsc.sc().schedulerBackend()
        # Without lowering the number of executors, without counting as a failure, and with any
        # tasks running there.
        backend.killExecutors(cluster.context._jvm.PythonUtils.toSeq(one), False, False, True)

    thread = threading.Thread(target=take_away, daemon=True)
    thread.start()
    with mock.patch.object(deadlines, "LATE_S", ENDLESS_S):
        yield
    thread.join(PATIENCE_S)


@contextlib.contextmanager
def _waiting_is_noted(cluster: Any, topology: FreshTopology) -> Iterator[None]:
    from txtopo.spark.jobs import SparkJobs

    is_running = SparkJobs.is_running

    def noting(jobs: Any, group: str) -> bool:
        if is_running(jobs, group):
            topology.journal.write(DRIVER_WAITS)
            return True
        return False

    with mock.patch.object(SparkJobs, "is_running", noting):
        yield


@contextlib.contextmanager
def _others_are_never_timed_out(cluster: Any, topology: FreshTopology) -> Iterator[None]:
    """The struck attempt is timed out when it has been struck, and no other one, however slow."""
    from txtopo.engine.deadlines import Deadlines

    time_out = Deadlines._time_out

    def time_out_the_struck(self: Deadlines, attempt: TransactionAttempt, status: Status) -> None:
        if attempt != TransactionAttempt(topology.strikes[0].txid, 0):
            return
        if topology.lines("struck "):
            time_out(self, attempt, status)
        else:
            self._loop.surroundings.after(0.1, lambda: time_out_the_struck(self, attempt, status))

    with mock.patch.object(Deadlines, "_time_out", time_out_the_struck):
        yield


@contextlib.contextmanager
def _killed_at_random(cluster: Any, topology: FreshTopology) -> Iterator[None]:
    """``KILLS`` executors, one after the other, at moments that the topology's id decides as far as
    chance lets it."""
    rng = random.Random(topology.id)
    is_over = threading.Event()

    def kill() -> None:
        for number in range(KILLS):
            wait_until(
                lambda: len(_executors(cluster.context)) == 2 or is_over.is_set(), "two executors"
            )
            if is_over.wait(rng.uniform(0.0, 2.0)):
                return
            _kill(cluster.context, rng.choice(_executor_pids()))
            topology.journal.write(f"struck at random {number}")

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(PATIENCE_S)


def _executor_pids() -> list[int]:
    """The executors of this process: children of the process's JVM."""
    jvms = {pid for pid, parent in standalone.parents() if parent == os.getpid()}
    return [
        pid
        for pid, parent in standalone.parents()
        if parent in jvms and "CoarseGrainedExecutorBackend" in standalone.command_line(pid)
    ]


def _release_the_zombie(cluster: Any, topology: FreshTopology) -> list[str]:
    """The zombie's end, and whether the store is unchanged."""
    before = (list(topology.store.items()), topology.store.fences())
    topology.journal.write("released")
    wait_until(
        lambda: (
            bool(topology.lines("keep 0 2:0 was refused"))
            or bool(topology.lines("keep 0 after 2:0"))
        ),
        "the zombie to write",
    )
    unchanged = (list(topology.store.items()), topology.store.fences()) == before
    _kill(cluster.context, int(topology.lines("stopped executor ")[0].split()[-1]))
    return [*topology.lines("keep 0 2:0 was refused"), f"store unchanged: {unchanged}"]


PINNED = {"inline_bytes_max": 0}
SMALL = {"small_transaction_s": ENDLESS_S}
"""However slow the machine is: from the fourth transaction on each is one task."""
CANCELLED = {"message_timeout_s": 5.0, "zombie_wait_s": 1.0}

SCENARIOS = {
    "killed between map and reduce": Scenario(
        [Strike("pass 1 finish", 2, "kill executor after sibling")]
    ),
    "killed between map and reduce, emitted beforehand": Scenario(
        [Strike("pass 1 finish", 2, "kill executor after sibling")], planned=False, settings=PINNED
    ),
    "shuffle files lost": Scenario(
        [Strike("pass 0 finish", 2, "delete shuffle files")], staged=_one_executor_busy
    ),
    "killed between the phases, inline": Scenario(staged=_killed_between_the_phases),
    "killed between the phases, pinned": Scenario(
        settings=PINNED, staged=_killed_between_the_phases
    ),
    "killed when half is pinned": Scenario(
        [Strike("numbers 1 emitted", 2, "wait")],
        planned=False,
        settings=PINNED,
        staged=_killed_when_half_is_pinned,
    ),
    "killed during commit, before the effect": Scenario(
        [Strike("keep 0 before", 2, "kill executor")]
    ),
    "killed during commit, inside the store": Scenario(
        [Strike("keep 0 inside", 2, "kill executor")]
    ),
    "killed during commit, after the effect": Scenario(
        [Strike("keep 0 after", 2, "kill executor")]
    ),
    "zombie in user code": Scenario(
        [Strike("keep 0 before", 2, "stop executor")],
        settings=CANCELLED,
        staged=_others_are_never_timed_out,
        then=_release_the_zombie,
    ),
    "zombie that is waited for": Scenario(
        [
            Strike("keep 0 before", 2, "stop executor until the replay waits"),
            Strike("keep 1 before", 2, "die beside it"),
        ],
        settings={"zombie_wait_s": ENDLESS_S},
        staged=_waiting_is_noted,
    ),
    "zombie inside the store": Scenario(
        [Strike("keep 0 inside", 2, "wait")], settings=CANCELLED, staged=_others_are_never_timed_out
    ),
    "killed at random, inline": Scenario(
        size=100, settings={"max_spout_pending": 3}, staged=_killed_at_random
    ),
    "killed at random, pinned": Scenario(
        size=30,
        planned=False,
        settings={**PINNED, "max_spout_pending": 2, "max_crashes": 20},
        staged=_killed_at_random,
    ),
    "taken away during a whole job": Scenario(
        [Strike("keep 0 after", 6, "wait")], size=32, settings=SMALL, staged=_taken_away
    ),
    "speculation": Scenario([Strike("numbers 1 emitted", 2, "wait for a copy")]),
}


# -- in the driver process -------------------------------------------------------------------------


def play(cluster: Any, request: Request, number: int) -> Answer:
    """One scenario, from the first transaction to the last."""
    from txtopo.spark.jobs import SparkJobs

    scenario = SCENARIOS[request.scenario]
    topology = FreshTopology(
        f"hazard-{number}",
        Path(request.directory),
        scenario.strikes,
        scenario.planned,
        scenario.size,
    )
    answer = Answer()
    run_job = SparkJobs.run

    def noting(jobs: Any, *arguments: Any) -> Any:
        try:
            return run_job(jobs, *arguments)
        except Exception as error:
            answer.refusals.append(f"{arguments[0].part}: {error}")
            raise

    wait_until(lambda: _are_idle(cluster.context), "two idle executors")
    settings = {"message_timeout_s": ENDLESS_S, **scenario.settings}
    with (
        weakened.weakened(frozenset(request.removed)),
        mock.patch.object(SparkJobs, "run", noting),
        scenario.staged(cluster, topology),
    ):
        run = cluster.submit_topology(topology.id, clusters.fast(**settings), topology.topology)
        try:
            run.wait_until_idle(PATIENCE_S)
            answer.notes = scenario.then(cluster, topology)
            run.stop()
        finally:
            if run.is_alive:
                run.kill()
    answer.violations = topology.violations()
    answer.struck = topology.lines("struck ")
    answer.committed, answer.replays = run.status().current - 1, run.status().replays
    answer.journal = topology.journal.lines()
    return answer


def main(kind: str, master: str) -> None:
    """Answer requests until there are no more."""
    from txtopo import LocalCluster
    from txtopo.spark import session

    if kind == "lenient":
        session.REQUIRED.clear()
    conf = LENIENT if kind == "lenient" else CONF
    if master != TWO_PROCESSES:
        # On a cluster the context is the user's own.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        pyspark.SparkContext(
            conf=pyspark.SparkConf()
            .setAppName("hazards")
            .setAll(list(session.our_settings(master, conf).items()))
        )
    with LocalCluster(master=master, spark_conf=conf) as cluster:
        for number, line in enumerate(sys.stdin):
            try:
                answer = play(cluster, Request(**json.loads(line)), number)
            except Exception as error:
                answer = Answer(error=f"{type(error).__name__}: {error}")
            print(ANSWER + json.dumps(asdict(answer)), flush=True)


# -- in the test's process -------------------------------------------------------------------------


class HazardousCluster:
    """A driver process that plays scenarios; a context manager, which leaves no process behind."""

    def __init__(self, kind: str, log: Path, master: str = TWO_PROCESSES) -> None:
        self._log = log.open("w")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.wrong.hazards", kind, master]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def play(self, scenario: str, directory: Path, removed: Sequence[str] = ()) -> Answer:
        """Have ``scenario`` played, and take its outcome."""
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps(asdict(Request(scenario, str(directory), tuple(removed)))) + "\n"
        )
        self._process.stdin.flush()
        while not (line := self._lines.get()).startswith(ANSWER):
            assert line, f"the driver has ended: {Path(self._log.name).read_text()[-3000:]}"
        answer = Answer(**json.loads(line.removeprefix(ANSWER)))
        assert not answer.error, answer.error
        return answer

    def __enter__(self) -> HazardousCluster:
        return self

    def __exit__(self, *ignored: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._reader.join()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
