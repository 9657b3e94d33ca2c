"""Topologies on a standalone cluster, a master and two workers, whose executors have pyspark and
nothing else.

What they run is shipped: this package and the user's code as zips, a database's driver or Kafka's
library as an archive. ZooKeeper, the database and Kafka are outside.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import owners
from tests.servers import standalone, zookeepers
from tests.servers.kafka import KafkaServer
from tests.servers.postgres import PostgresServer
from tests.starter.commands import BIN, Command
from tests.topologies import counted_words, held_lines
from txtopo.command import submit, submit_process
from txtopo.state.embedded import EmbeddedZooKeeper

LOOPBACK = [
    "--conf",
    "spark.driver.host=127.0.0.1",
    "--conf",
    "spark.driver.bindAddress=127.0.0.1",
    "--conf",
    "spark.executor.memory=512m",
]


class Place:
    """A cluster with its outside systems, and a directory for each test's project."""

    def __init__(
        self, cluster: standalone.StandaloneCluster, zookeeper: EmbeddedZooKeeper, python: Path
    ) -> None:
        self.cluster, self.zookeeper, self.python = cluster, zookeeper, python

    def arguments(
        self, target: str, *options: str, spark: tuple[str, ...] = ()
    ) -> list[str | Path]:
        """Of ``txtopo``, to run ``target`` to its end."""
        outside = [
            "--master",
            self.cluster.url,
            "--zookeeper",
            self.zookeeper.hosts,
            "--python",
            str(self.python),
        ]
        settings = [
            "max_spout_pending=3",
            "poll_interval_s=0.05",
            "backoff_max_s=0.2",
            "message_timeout_s=3600",
            "drain_timeout_s=3600",
        ]
        ours = [word for setting in settings for word in ("--set", setting)]
        return [
            "txtopo",
            "submit",
            target,
            *outside,
            "--until-exhausted",
            *ours,
            *options,
            "--",
            *LOOPBACK,
            *spark,
        ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("standalone")
    python = standalone.bare_interpreter(directory / "bare")
    with (
        standalone.StandaloneCluster(directory / "cluster") as cluster,
        EmbeddedZooKeeper(directory / "zookeeper", is_private=False) as zookeeper,
    ):
        yield Place(cluster, zookeeper, python)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The directory of a user's project, with a module in it."""
    (tmp_path / "project").mkdir()
    shutil.copy(counted_words.__file__, tmp_path / "project")
    return tmp_path / "project"


def committed(said: str) -> int:
    """How many transactions the run that said so has committed."""
    match = re.search(r": (\d+) transactions? committed, ", said)
    assert match is not None, said
    return int(match[1])


@pytest.mark.thorough
def test_the_interpreter_of_the_executors_is_bare(place: Place) -> None:
    def imports(name: str) -> bool:
        return (
            subprocess.run(
                [place.python, "-I", "-c", f"import {name}"], capture_output=True, check=False
            ).returncode
            == 0
        )

    can_import = {
        name: imports(name)
        for name in (
            "pyspark",
            "txtopo",
            "kazoo",
            "pydantic",
            "cloudpickle",
            "sqlalchemy",
            "psycopg",
        )
    }
    assert [name for name in can_import if can_import[name]] == ["pyspark"]


@pytest.mark.thorough
def test_the_printed_line_run_by_a_shell_counts_exactly_on_bare_executors(
    place: Place, project: Path, tmp_path: Path
) -> None:
    expected = counted_words.write_texts(tmp_path / "texts", 40)
    (tmp_path / "out").mkdir()
    target = f"counted_words:in_files('printed', '{tmp_path}/texts/*.txt', '{tmp_path}/out')"
    arguments = place.arguments(target, "--print")
    printed = subprocess.run(
        [BIN / str(arguments[0]), *map(str, arguments[1:])],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stderr == "txtopo: ships counted_words\n"
    line = tmp_path / "line.sh"
    line.write_text(printed.stdout)
    with Command(["/bin/sh", line], project) as shell:
        assert shell.wait() == 0, shell.said + place.cluster.logs_of_executors()
    assert counted_words.counted(tmp_path / "out") == expected
    records = counted_words.records(tmp_path / "out")
    assert len(records) == 2 * committed(shell.said)
    assert {record["python"] for record in records} == {str(place.python)}
    assert all(
        re.fullmatch(r".*/txtopo-[^/]*\.zip/txtopo/__init__\.pyc", record["package"])
        for record in records
    )
    assert {(record["class"], record["cloudpickle"]) for record in records} == {
        ("counted_words.CountInFiles", "pyspark.cloudpickle")
    }


HELD = """
import os, pathlib, threading
import counted_words

class Mine(counted_words.CountInFiles):
    '''Once, in the commit of transaction 3, says which executor it is in, and waits for its end.
    Waits in the commits of transactions 9 and 18 until there is a file.'''

    def __init__(self, directory, held, goes_on):
        super().__init__(directory)
        self.held, self.goes_on = held, goes_on

    def finish_batch(self):
        if self.attempt.txid == 3:
            try:
                file = open(self.held, "x")
            except FileExistsError:
                pass
            else:
                # The worker's parent is the process it was forked from, whose parent is the executor.
                stat = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text()
                print(stat.rpartition(")")[2].split()[1], file=file, flush=True)
                threading.Event().wait()
        while self.attempt.txid in (9, 18) and not os.path.exists(self.goes_on):
            threading.Event().wait(0.05)
        super().finish_batch()

"""


@pytest.mark.rule(6, 28, 33)
def test_a_killed_executor_costs_replays_and_a_killed_worker_changes_no_count_either(
    place: Place, project: Path, tmp_path: Path
) -> None:
    expected = counted_words.write_texts(tmp_path / "texts", 80)
    out = tmp_path / "out"
    out.mkdir()
    held, goes_on = tmp_path / "held", tmp_path / "goes on"
    # The file's own class travels by value; the module it imports, in a zip.
    topology = f"topology = counted_words.make('worker-killed', '{tmp_path}/texts/*.txt', Mine('{out}', '{held}', '{goes_on}'))\n"
    (project / "mine.py").write_text(HELD + topology)
    # In tasks of their own on all executors, also when transactions are small.
    with Command(place.arguments("mine.py", "--set", "small_transaction_s=0"), project) as command:
        command.wait_until(functools.partial(is_written, held), "a commit that is held")
        executor = int(held.read_text())
        [owner] = [worker for worker in place.cluster.workers if executor in worker.children()]
        # The other one's executor has been at work all along; the new one of this may not even have
        # been heard of.
        [lost] = [worker for worker in place.cluster.workers if worker is not owner]
        os.kill(executor, signal.SIGKILL)
        command.wait_until(
            lambda: (
                len(counted_words.records(out)) == 16 and owner.children() not in ([], [executor])
            ),
            "a new executor",
        )
        try:
            assert len(place.cluster.kill_worker(lost)) == 1
            goes_on.touch()
            assert command.wait() == 0, command.said + place.cluster.logs_of_executors()
        finally:
            place.cluster.add_worker()
    # Spark says "worker lost" or "disassociated", depending on which connection it misses first.
    assert command.said.count("Lost executor") >= 2, command.said
    assert " 0 replays" not in command.said.splitlines()[-1], command.said
    assert counted_words.counted(out) == expected
    assert {record["class"] for record in counted_words.records(out)} == {"__txtopo_main__.Mine"}


HANGS = """
import threading
import counted_words

class Mine(counted_words.CountInFiles):
    '''Hangs once, in the commit of transaction 3, and logs each commit.'''

    def __init__(self, directory, hung):
        super().__init__(directory)
        self.hung = hung

    def finish_batch(self):
        self.context.log.info("counted")
        if self.attempt.txid == 3:
            try:
                open(self.hung, "x").close()
            except FileExistsError:
                pass
            else:
                threading.Event().wait()
        super().finish_batch()

"""


@pytest.mark.thorough
@pytest.mark.rule(8)
def test_a_hang_on_an_executor_is_named_and_its_log_names_task_and_attempt(
    place: Place, project: Path, tmp_path: Path
) -> None:
    expected = counted_words.write_texts(tmp_path / "texts", 20)
    out = tmp_path / "out"
    out.mkdir()
    topology = f"topology = counted_words.make('hangs', '{tmp_path}/texts/*.txt', Mine('{out}', '{tmp_path}/hung'))\n"
    (project / "mine.py").write_text(HANGS + topology)
    arguments = place.arguments("mine.py", "--set", "message_timeout_s=30")
    with Command(arguments, project) as command:
        assert command.wait() == 0, command.said + place.cluster.logs_of_executors()
    assert re.search(
        r"txid 3: attempt 3:\d+ was \w+ for longer than message_timeout_s = 30.0: only the executor knows where, .* 'hangs 3:\d+:\w+ is late'",
        command.said,
    ), command.said
    assert re.search(
        r"hangs 3:\d+:\w+ is late\n  in component 'count', task \d, finish_batch\n",
        place.cluster.logs_of_executors(),
    )
    assert counted_words.counted(out) == expected
    assert re.search(
        r" INFO topology=hangs component=count task=\d txid=3 attempt=\d+ phase=commit: counted",
        place.cluster.logs_of_executors(),
    )


MISSES = """
import sys
import counted_words

sys.path.insert(0, {elsewhere!r})  # of the driver's machine

class Mine(counted_words.CountInFiles):
    def finish_batch(self):
        import helpers
        super().finish_batch()

"""


@pytest.mark.thorough
def test_a_module_that_was_not_shipped_ends_the_run_with_its_name_and_the_cure(
    place: Place, project: Path, tmp_path: Path
) -> None:
    counted_words.write_texts(tmp_path / "texts", 20)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "helpers.py").touch()
    topology = (
        f"topology = counted_words.make('misses', '{tmp_path}/texts/*.txt', Mine('{tmp_path}'))\n"
    )
    (project / "mine.py").write_text(
        MISSES.format(elsewhere=str(tmp_path / "elsewhere")) + topology
    )
    with Command(place.arguments("mine.py"), project) as command:
        assert command.wait() == 2, command.said + place.cluster.logs_of_executors()
    assert (
        "the workers cannot import the module 'helpers', which this program can\n  Send it along with `txtopo submit TARGET` or with --py-files"
        in command.said
    )
    assert " 0 replays" in command.said


@pytest.mark.thorough
@pytest.mark.rule(23, 26, 28, 29)
def test_a_killed_driver_that_is_submitted_again_goes_on_in_postgresql_where_it_was(
    place: Place, postgres: PostgresServer, project: Path, tmp_path: Path
) -> None:
    from txtopo.stores import SqlStore

    expected = counted_words.write_texts(tmp_path / "texts", 60)
    url = postgres.new_url()
    store = SqlStore(url, "counts")
    standalone.archive(
        tmp_path / "environment.tar.gz",
        ["SQLAlchemy", "psycopg", "psycopg-binary", "typing_extensions"],
    )
    native = shipped(tmp_path / "environment.tar.gz")
    target = f"counted_words:in_postgresql('driver-killed', '{tmp_path}/texts/*.txt', '{url}')"
    arguments = place.arguments(
        target,
        "--set",
        f"zookeeper_session_timeout_s={zookeepers.SESSION_S:g}",
        "--set",
        "on_held=wait",
        spark=native,
    )
    with Command(arguments, project, TXTOPO_FAULT="apply.after@driver-killed:6=hold") as first:
        first.wait_until_it_says("fault: apply.after at driver-killed txid 6: hold")
        # The machine it runs on is lost: the driver, the JVM beside it, and the command.
        jvm = child_of(first.pid)
        driver = submit_process.driver_of(jvm, submit.PROGRAM)
        assert driver is not None
        for pid in (driver, jvm, first.pid):
            os.kill(pid, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    with zookeepers.client_of(place.zookeeper.hosts) as client:
        _, lease = client.get("/txtopo/driver-killed/lease")
    zookeepers.end_session(place.zookeeper.hosts, lease.owner_session_id)
    with Command(arguments, project) as second:
        assert second.wait() == 0, second.said + place.cluster.logs_of_executors()
    assert re.search(r"resumes at txid 6 \(generation \w+, epoch 2\)", second.said), second.said
    assert 5 + committed(second.said) == 12
    assert dict(store.items()) == expected


@pytest.mark.thorough
@pytest.mark.rule(28, 29, 40)
def test_executors_killed_before_and_after_the_commit_of_a_kafka_sink_double_no_line(
    place: Place, kafka: KafkaServer, tmp_path: Path
) -> None:
    lines = [[f"{partition}-{n}" for n in range(300)] for partition in range(4)]
    source, written = (kafka.new_topic(partitions=len(lines)) for _ in range(2))
    for partition, values in enumerate(lines):
        kafka.produce(source, values, partition)
    held = tmp_path / "held"
    held.mkdir()
    shutil.copy(held_lines.__file__, tmp_path)
    standalone.archive(tmp_path / "environment.tar.gz", ["confluent-kafka"])
    arguments = place.arguments(
        f"held_lines:make('{kafka.servers}', '{source}', '{written}', '{held}')",
        "--set",
        "small_transaction_s=0",
        spark=shipped(tmp_path / "environment.tar.gz"),
    )
    with Command(arguments, tmp_path) as command:
        for txid in (held_lines.BEFORE, held_lines.AFTER):
            file = held / str(txid)
            command.wait_until(
                functools.partial(is_written, file),
                f"a commit of transaction {txid} that is held",
            )
            executor = int(file.read_text())
            assert executor in place.cluster.executor_pids()
            os.kill(executor, signal.SIGKILL)
        assert command.wait() == 0, command.said + place.cluster.logs_of_executors()
    assert command.said.count("Lost executor") >= 2, command.said
    assert " 0 replays" not in command.said.splitlines()[-1], command.said
    assert kafka.values(written) == [value for values in lines for value in values]


@pytest.mark.thorough
def test_a_signal_to_the_command_drains_the_driver_and_its_death_ends_everything(
    place: Place, project: Path, tmp_path: Path
) -> None:
    expected = counted_words.write_texts(tmp_path / "texts", 300)
    out, held, goes_on = (tmp_path / name for name in ("out", "held", "goes on"))
    out.mkdir()
    held.touch()
    topology = f"topology = counted_words.make('stopped', '{tmp_path}/texts/*.txt', Mine('{out}', '{held}', '{goes_on}'))\n"
    (project / "mine.py").write_text(HELD + topology)
    with Command(place.arguments("mine.py"), project) as command:
        command.wait_until(lambda: len(counted_words.records(out)) == 16, "eight transactions")
        command.signal(signal.SIGTERM)
        command.wait_until_it_says(
            "txtopo: stopping: finishing commits in flight (again to stop now)\n"
        )
        goes_on.touch()
        assert command.wait() == 0, command.said
    drained = committed(command.said.partition("txtopo: stopped stopped: ")[2].join([": ", ""]))
    assert 2 * drained == len(counted_words.records(out))
    assert sum(counted_words.counted(out).values()) < sum(expected.values())

    goes_on.unlink()
    with Command(place.arguments("mine.py"), project) as command:
        command.wait_until_it_says(f"resumes at txid {drained + 1} ")
        jvm = child_of(command.pid)
        driver = submit_process.driver_of(jvm, submit.PROGRAM)
        assert driver is not None
        command.signal(signal.SIGKILL)
        assert owners.has_ended(jvm)
        assert owners.has_ended(driver)


def is_written(file: Path) -> bool:
    """Whether a line is in ``file``."""
    return file.exists() and file.read_text().endswith("\n")


def shipped(archive: Path) -> tuple[str, ...]:
    """Arguments of spark-submit that put the packages in ``archive`` on the path of executors."""
    return (
        "--archives",
        f"{archive}#environment",
        "--conf",
        "spark.executorEnv.PYTHONPATH=./environment",
    )


def child_of(pid: int) -> int:
    """The one child of a process."""
    [child] = [child for child, parent in standalone.parents() if parent == pid]
    return child
