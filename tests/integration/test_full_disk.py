"""The disk of the data directory is full: the message says so, the run waits, and goes on when
there is room."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.exceptions import KazooException

from tests.patience import PATIENCE_S, wait_until
from tests.processes import owners
from tests.servers.clusters import Journal, fast
from tests.servers.zookeepers import client_of
from tests.topologies.spouts import Keep, batches, keeping_topology
from txtopo import Fields, LocalCluster, SetupError, TopologyRun, ZooKeeperUnavailableError
from txtopo.engine.logged import LogLines
from txtopo.engine.status import RunStatus, StatusBoard
from txtopo.journal import fold, reader, recording, writer
from txtopo.runtime.revival import Revival
from txtopo.state import directory, embedded, recorded, server_process
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout


class SmallDisk:
    """A file system of two megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, free_bytes: int = 0) -> None:
        """Leave so much room."""
        stat = os.statvfs(self.path)
        with contextlib.suppress(OSError), open(self.path / "filler", "ab", buffering=0) as file:
            file.write(b"x" * max(0, stat.f_bavail * stat.f_frsize - free_bytes))
            while free_bytes == 0:
                file.write(b"x" * 512)

    def make_room(self) -> None:
        """Remove what filled it."""
        (self.path / "filler").unlink(missing_ok=True)


class PretendedDisk(SmallDisk):
    """Where no file system may be mounted: a full disk as txtopo meets it when it starts a server.
    The server itself is killed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._patch = pytest.MonkeyPatch()

    def fill(self, free_bytes: int = 0) -> None:
        self._patch.setattr(directory, "write_durably", refuse_for_want_of_room)
        self._patch.setattr(writer.Writer, "_write_waiting", refuse_for_want_of_room)
        running = directory.running(self.path / "state")
        if running is not None and not owners.has_ended(running.pid, patience_s=0):
            os.kill(running.pid, signal.SIGKILL)

    def make_room(self) -> None:
        self._patch.undo()


def refuse_for_want_of_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    try:
        mounted = (
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)],
                capture_output=True,
                check=False,
            ).returncode
            == 0
        )
    except FileNotFoundError:
        mounted = False
    if not mounted:
        yield PretendedDisk(path)
        return
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_wrong_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(directory, "write_durably", full)
    with pytest.raises(ZooKeeperUnavailableError) as caught:
        embedded.EmbeddedZooKeeper(tmp_path).start()
    fact, cure = str(caught.value).splitlines()
    assert fact == f"there is no room left in the data directory {tmp_path}: {os.strerror(number)}"
    assert (
        cure == f"  Make room in {tmp_path}, and run again: the topology resumes. Nothing is lost."
    )
    assert caught.value.exit_code == 5
    assert not directory.is_owned(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_server_that_ends_because_the_disk_is_full_is_told_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    words = f"java.io.IOException: {os.strerror(number)}\n\tat java.base/java.io.FileOutputStream.writeBytes"
    monkeypatch.setattr(
        server_process, "command", lambda config: [sys.executable, "-c", f"print({words!r})"]
    )
    with pytest.raises(ZooKeeperUnavailableError) as caught:
        embedded.EmbeddedZooKeeper(tmp_path).start()
    assert str(caught.value).startswith(
        f"there is no room left in the data directory {tmp_path}: {os.strerror(number)}\n  Make room in {tmp_path}"
    )


def test_a_directory_that_may_not_be_written_is_a_wrong_one(tmp_path: Path) -> None:
    error = directory.unusable(tmp_path, PermissionError(errno.EACCES, "Permission denied"))
    assert isinstance(error, SetupError)
    assert "--data-dir" in str(error)


def test_the_cause_of_an_absent_zookeeper_is_told_meanwhile_and_at_the_end() -> None:
    board, full = (
        StatusBoard(RunStatus("words", "words")),
        ZooKeeperUnavailableError("there is no room left"),
    )
    answers: list[Exception | None] = [full, full, None, full]

    def revive() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    revival = Revival(revive, board, LogLines("words"))
    away = ZooKeeperUnavailableError("ZooKeeper has not answered for 10 s")
    assert revival.explained(away) is away
    for _ in range(2):
        revival()
        assert board.snapshot().standing_error == "there is no room left"
    assert revival.explained(away) is full
    other = SetupError("something else")
    assert revival.explained(other) is other
    revival()
    assert board.snapshot().standing_error is None
    assert revival.explained(away) is away


@pytest.mark.thorough
def test_a_server_that_meets_a_full_disk_dies_and_has_forgotten_nothing_when_there_is_room(
    small_disk: SmallDisk,
) -> None:
    data_dir, answered = small_disk.path / "state", 0
    zookeeper = embedded.EmbeddedZooKeeper(data_dir).start()
    try:
        # Each time the disk is full at another byte of a write.
        for size in (40, 700, 1031, 2362):
            with contextlib.suppress(KazooException), client_of(zookeeper.hosts) as client:
                client.ensure_path("/current")
                while True:
                    client.set("/current", f"{answered + 1} ".encode() + b"x" * size)
                    answered += 1
                    if answered % 3 == 0:
                        small_disk.fill(free_bytes=20_000)
            assert owners.has_ended(zookeeper.pid)
            small_disk.fill()
            with pytest.raises(
                ZooKeeperUnavailableError, match="there is no room left in the data directory"
            ):
                zookeeper.restart()
            znodes = recorded.files_of(data_dir).read()
            assert znodes is not None
            assert int(znodes["/current"].data.split()[0]) == answered, (
                "a reader sees what was answered"
            )
            small_disk.make_room()
            zookeeper.restart()
            with client_of(zookeeper.hosts) as client:
                assert int(client.get("/current")[0].split()[0]) == answered
    finally:
        zookeeper.stop()
    assert answered >= 12


def says_no_room(run: TopologyRun) -> bool:
    return "there is no room left" in (run.status().last_error or "")


@pytest.mark.thorough
def test_a_run_waits_for_room_says_so_and_goes_on(
    small_disk: SmallDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [text for text in caplog.messages if "cannot write all of its journal" in text]

    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(n,) for n in range(3)]}, Fields("n"), 1)
    with LocalCluster(master="local[2]", data_dir=small_disk.path / "state") as cluster:
        run = cluster.submit_topology(
            "full",
            fast(),
            keeping_topology("full", spout, Keep(store, Journal(tmp_path / "journal"))),
        )
        run.wait_for_txid(3, PATIENCE_S)
        assert cluster.zookeeper_pid is not None
        pid = cluster.zookeeper_pid
        small_disk.fill()
        os.kill(pid, signal.SIGKILL)
        spout.append(0, [(n,) for n in range(3, 6)])
        wait_until(
            lambda: not run.is_alive or says_no_room(run), "the status to say that there is no room"
        )
        assert f"Make room in {small_disk.path / 'state'}" in str(run.status().last_error)
        small_disk.fill()  # the dead server may have left room
        wait_until(lambda: bool(warnings()), "the warning about the journal")
        small_disk.make_room()
        run.wait_for_txid(6, PATIENCE_S)
        run.wait_until_idle(PATIENCE_S)
        assert run.status().standing_error is None
        run.stop(PATIENCE_S)
    assert batches(store) == {txid: [txid - 1] for txid in range(1, 7)}
    assert [text.splitlines()[0].rpartition(": ")[2] for text in warnings()] == [
        "No space left on device"
    ]
    journal = reader.Reader(recording.place(small_disk.path / "state", "full"))
    assert fold.fold(journal.about([6])).transactions[6].committed is not None


@pytest.mark.thorough
def test_a_run_ends_with_the_cure_when_there_is_no_room_for_too_long_and_resumes(
    small_disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(n,) for n in range(2)]}, Fields("n"), 1)
    topology = keeping_topology("full", spout, Keep(store, Journal(tmp_path / "journal")))
    with LocalCluster(master="local[2]", data_dir=small_disk.path / "state") as cluster:
        run = cluster.submit_topology("full", fast(zookeeper_wait_s=2 * PATIENCE_S), topology)
        run.wait_for_txid(2, PATIENCE_S)
        assert cluster.zookeeper_pid is not None
        small_disk.fill()
        os.kill(cluster.zookeeper_pid, signal.SIGKILL)
        spout.append(0, [(n,) for n in range(2, 4)])
        wait_until(
            lambda: not run.is_alive or says_no_room(run), "the status to say that there is no room"
        )
        assert run.is_alive
        # All of the wait has passed at each look at the clock, also of a wait that begins only now.
        looks = itertools.count(1)
        monkeypatch.setattr(
            run._state._waits, "_clock", lambda: time.monotonic() + next(looks) * 2 * PATIENCE_S
        )
        with pytest.raises(
            ZooKeeperUnavailableError, match="there is no room left in the data directory"
        ):
            run.join(PATIENCE_S)
        with pytest.raises(
            ZooKeeperUnavailableError, match="there is no room left in the data directory"
        ):
            cluster.submit_topology("full", fast(), topology)
        small_disk.make_room()
        # Our ZooKeeper is brought back before the next run begins.
        cluster.submit_topology("full", fast(until="exhausted"), topology).join(PATIENCE_S)
    assert batches(store) == {txid: [txid - 1] for txid in range(1, 5)}


@pytest.mark.thorough
def test_a_zookeeper_that_died_between_two_runs_is_brought_back(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(n,) for n in range(4)]}, Fields("n"), 1)
    topology = keeping_topology("between", spout, Keep(store, Journal(tmp_path / "journal")))
    with LocalCluster(master="local[2]") as cluster:
        cluster.submit_topology("between", fast(max_transactions=2), topology).join(PATIENCE_S)
        assert cluster.zookeeper_pid is not None
        os.kill(cluster.zookeeper_pid, signal.SIGKILL)
        assert owners.has_ended(cluster.zookeeper_pid)
        cluster.submit_topology("between", fast(until="exhausted"), topology).join(PATIENCE_S)
    assert batches(store) == {txid: [txid - 1] for txid in range(1, 5)}
