"""However a driver ends, nothing it started goes on: no JVM, no ZooKeeper, no Python worker; and
nothing delays the next start.

Every process that descends from a driver inherits its environment, and so can be told by it.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.owners import has_ended
from tests.starter.commands import Command, done
from txtopo.stores import SqliteStore

PROGRAM = Path(__file__).parents[1] / "starter" / "endless.py"
ROWS = 10


class Driver:
    """A driver process of the endless topology, with its store, its gate and its mark."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.gate = place / "gate"
        self.gate.mkdir(exist_ok=True)
        self._mark = uuid.uuid4().hex
        self._environment = {
            "ENDLESS_STORE": str(place / "numbers.db"),
            "ENDLESS_GATE": str(self.gate),
            "ENDLESS_MARK": self._mark,
        }

    def start(self, *options: str) -> Command:
        return Command(
            ["python", PROGRAM, "--master", "local[2]", *options], self.place, **self._environment
        )

    def run_one_transaction(self) -> str:
        return done(
            ["python", PROGRAM, "--master", "local[2]", "--max-transactions", "1"],
            self.place,
            0,
            **self._environment,
        )

    def processes(self) -> dict[int, str]:
        """The living processes of the driver, the driver included: pid and command line."""
        commands = {}
        for directory in Path("/proc").iterdir():
            if directory.name.isdecimal():
                try:
                    if self._mark.encode() in (directory / "environ").read_bytes():
                        commands[int(directory.name)] = (
                            (directory / "cmdline")
                            .read_bytes()
                            .replace(b"\0", b" ")
                            .decode(errors="replace")
                        )
                except OSError:
                    continue  # It has ended meanwhile.
        return commands

    def expect_nothing_left(self) -> None:
        """Every process ends by itself."""
        while left := self.processes():
            assert all(map(has_ended, left))

    def expect_exact(self, committed: int) -> None:
        assert SqliteStore(self.place / "numbers.db", "numbers").get("count") == ROWS * committed


def kinds(processes: dict[int, str]) -> set[str]:
    """What the processes are."""
    names = {
        "zookeeper": "QuorumPeerMain",
        "spark": "org.apache.spark.deploy",
        "daemon": "spark.daemon",
    }
    return {
        name
        for name, word in names.items()
        if any(word in command for command in processes.values())
    }


def in_a_commit(driver: Driver) -> bool:
    return (driver.gate / "waiting").exists()


@pytest.mark.in_gate("9")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_gets_a_signal_in_a_commit_leaves_nothing(
    tmp_path: Path, signum: signal.Signals
) -> None:
    driver = Driver(tmp_path)
    shut = driver.gate / "shut"
    with driver.start() as command:
        command.wait_until_it_says("begins at txid 1")
        shut.touch()
        command.wait_until(lambda: in_a_commit(driver))
        assert kinds(driver.processes()) == {"zookeeper", "spark", "daemon"}
        command.signal(signum)
        if signum == signal.SIGTERM:
            command.wait_until_it_says("stopping: finishing commits in flight")
            shut.unlink()
            assert command.wait() == 0, command.said
        else:
            assert command.wait() == -signum
        driver.expect_nothing_left()
    shut.unlink(missing_ok=True)
    said = driver.run_one_transaction()
    assert "resumes at txid" in said
    driver.expect_exact(int(said.rsplit("begins at txid ", 1)[1]) - 1)
    driver.expect_nothing_left()


@pytest.mark.thorough
def test_a_killed_driver_leaves_a_quiet_terminal(tmp_path: Path) -> None:
    """Spark's JVM, whose driver is gone in the middle of a job, complains for itself."""
    driver = Driver(tmp_path)
    shut = driver.gate / "shut"
    shut.touch()
    with driver.start() as command:
        command.wait_until(lambda: in_a_commit(driver))
        command.signal(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        shut.unlink()
        driver.expect_nothing_left()
        assert command.wait() == -signal.SIGKILL
        lines = command.said.splitlines()
        assert lines
        own = re.compile(r"txtopo: |.* INFO topology=endless component=count ")
        assert [line for line in lines if not own.match(line)] == []


@pytest.mark.thorough
def test_a_commit_that_does_not_end_is_waited_for_as_long_as_said_and_then_abandoned(
    tmp_path: Path,
) -> None:
    driver = Driver(tmp_path)
    shut = driver.gate / "shut"
    shut.touch()
    with driver.start("--set", "drain_timeout_s=1s") as command:
        command.wait_until(lambda: in_a_commit(driver))
        command.signal(signal.SIGTERM)
        assert command.wait() == 0, command.said
        assert "the next run begins at txid 1" in command.said
        driver.expect_nothing_left()
    shut.unlink()
    said = driver.run_one_transaction()
    driver.expect_exact(int(said.rsplit("begins at txid ", 1)[1]) - 1)


def has_zookeeper(driver: Driver) -> bool:
    return "zookeeper" in kinds(driver.processes())


def starts_java(driver: Driver) -> bool:
    """The program that makes Spark's command line, or Spark's JVM itself, has just been started."""
    return any(
        "spark" in command and "QuorumPeerMain" not in command and str(PROGRAM) not in command
        for command in driver.processes().values()
    )


def has_spark(driver: Driver) -> bool:
    return "spark" in kinds(driver.processes())


@pytest.mark.thorough
@pytest.mark.parametrize("moment", [has_zookeeper, starts_java, has_spark])
def test_a_driver_that_is_killed_while_starting_leaves_nothing(
    tmp_path: Path, moment: Callable[[Driver], bool]
) -> None:
    driver = Driver(tmp_path)
    with driver.start() as command:
        command.wait_until(lambda: moment(driver))
        command.signal(signal.SIGKILL)
        command.wait()
        driver.expect_nothing_left()


@pytest.mark.thorough
@pytest.mark.parametrize("moment", [has_zookeeper, starts_java, has_spark])
def test_a_driver_that_is_interrupted_twice_while_starting_leaves_nothing(
    tmp_path: Path, moment: Callable[[Driver], bool]
) -> None:
    driver = Driver(tmp_path)
    with driver.start() as command:
        command.wait_until(lambda: moment(driver))
        command.signal(signal.SIGTERM)
        command.wait_until_it_says("stopping: as soon as Spark has started")
        command.signal(signal.SIGTERM)
        assert command.wait() == 143, command.said
        driver.expect_nothing_left()


def test_a_driver_whose_jvm_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """As by a kernel that is short of memory: the message names the dead process, and the next run
    goes on.
    """
    driver = Driver(tmp_path)
    with driver.start() as command:
        command.wait_until_it_says("begins at txid 1")
        command.wait_until(
            lambda: SqliteStore(tmp_path / "numbers.db", "numbers").get("count") is not None
        )
        (jvm,) = (
            pid
            for pid, line in driver.processes().items()
            if "org.apache.spark.deploy" in line and "java" in line.split()[0]
        )
        os.kill(jvm, signal.SIGKILL)
        assert command.wait() == 1, command.said
        driver.expect_nothing_left()
    assert "txtopo: error: Spark's JVM has ended" in command.said
    assert "run again, and the topology\n  resumes" in command.said
    assert "atexit" not in command.said
    said = driver.run_one_transaction()
    assert "resumes at txid" in said
    driver.expect_exact(int(said.rsplit("begins at txid ", 1)[1]) - 1)
