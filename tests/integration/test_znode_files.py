"""The files of a ZooKeeper server, read without the server: a reading equals the server's answers,
also during writes, and damage is told."""

from __future__ import annotations

import errno
import functools
import os
import random
import shutil
import signal
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from tests.patience import wait_until
from tests.processes import owners
from tests.servers.zookeepers import client_of
from txtopo import errors
from txtopo.state import embedded, recorded, server_process, znode_files

ZNodes = dict[str, tuple[bytes, int, int]]


def asked(client: KazooClient, path: str = "/") -> ZNodes:
    """Every znode, as the server has it."""
    data, stat = client.get(path)
    nodes = {"" if path == "/" else path: (data or b"", stat.version, stat.ephemeralOwner or 0)}
    for name in client.get_children(path):
        nodes |= asked(client, f"{path.rstrip('/')}/{name}")
    return nodes


def read(data_dir: Path) -> ZNodes:
    """Every znode, as the files have it."""
    znodes = recorded.files_of(data_dir).read()
    assert znodes is not None
    return {path: (znode.data, znode.version, znode.owner) for path, znode in znodes.items()}


def last_log(data_dir: Path) -> Path:
    return max(
        (data_dir / "zookeeper" / "version-2").glob("log.*"),
        key=lambda log: int(log.suffix[1:], 16),
    )


def write_at_random(client: KazooClient, passing: KazooClient, rng: random.Random) -> None:
    """One write of a kind of ours; some are refused. ``passing`` makes ephemeral znodes."""
    path = f"/n{rng.randrange(20)}"
    kind = rng.randrange(7)
    try:
        if kind == 0:
            client.create(path, rng.randbytes(rng.randrange(20_000)))
        elif kind == 1:
            client.set(path, rng.randbytes(rng.randrange(100)))
        elif kind == 2:
            client.delete(path)
        elif kind == 3:
            passing.create(f"{path}-passing", b"passing", ephemeral=True)
        else:
            request: Any = client.transaction()
            request.create(f"/m{rng.randrange(50)}", b"made")
            request.set_data(path, b"changed")
            if kind == 4:
                request.check(path, rng.randrange(3))
            if kind == 5:
                request.delete(f"/m{rng.randrange(50)}")
            request.commit()
    except KazooException:
        pass


@pytest.mark.thorough
@pytest.mark.rule(37)
@pytest.mark.parametrize("seed", range(2))
def test_the_files_hold_the_answers_of_the_server(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Snapshots are taken while the server is written to, so that they hold effects of later
    # transactions.
    monkeypatch.setitem(server_process.SETTINGS, "snapCount", "60")
    rng = random.Random(seed)
    for life in range(2):
        with (
            embedded.EmbeddedZooKeeper(tmp_path) as zookeeper,
            client_of(zookeeper.hosts) as client,
        ):
            with client_of(zookeeper.hosts) as passing:
                for _ in range(200):
                    write_at_random(client, passing, rng)
                assert read(tmp_path) == asked(client), f"while a server runs, life {life}"
            at_the_end = asked(client)
            assert not any(owner for _, _, owner in at_the_end.values())
            os.kill(zookeeper.pid, signal.SIGKILL)
            assert owners.has_ended(zookeeper.pid)
        assert read(tmp_path) == at_the_end, f"while no server runs, life {life}"


@pytest.mark.thorough
@pytest.mark.rule(37)
def test_answered_writes_are_read_at_once_at_any_speed_of_writing(tmp_path: Path) -> None:
    files = recorded.files_of(tmp_path)
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper, client_of(zookeeper.hosts) as client:
        client.create("/current", b"0")
        for value in range(200):
            client.set("/current", str(value).encode())
            znodes = files.read()
            assert znodes is not None
            assert znodes["/current"].data == str(value).encode()


@pytest.mark.thorough
@pytest.mark.rule(37)
def test_readings_never_go_back_while_a_server_writes_and_purges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(server_process.SETTINGS, "snapCount", "50")
    monkeypatch.setitem(server_process.SETTINGS, "preAllocSize", "64")
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        files = recorded.files_of(tmp_path)
        while not ended.is_set():
            znodes = files.read() or {}
            data = znodes["/current"].data if "/current" in znodes else b""
            if data:
                assert data[:4] == data[-4:], "half a write"
                seen.append(struct.unpack(">i", data[:4])[0])

    def has_seen(number: int) -> bool:
        return seen[-1:] == [number]

    looking = threading.Thread(target=look)
    looking.start()
    number = 0
    try:
        for _ in range(3):
            with (
                embedded.EmbeddedZooKeeper(tmp_path) as zookeeper,
                client_of(zookeeper.hosts) as client,
            ):
                client.ensure_path("/current")
                for _ in range(150):
                    number += 1
                    # Larger than the server's buffer, so that it is written piece by piece.
                    client.set("/current", struct.pack(">i", number) * 10_000)
                    if number % 20 == 0:
                        wait_until(functools.partial(has_seen, number))
    finally:
        ended.set()
        looking.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 20


def test_a_folder_in_which_no_server_ever_ran_holds_nothing(tmp_path: Path) -> None:
    assert recorded.files_of(tmp_path).read() is None
    (tmp_path / "zookeeper" / "version-2").mkdir(parents=True)
    assert recorded.files_of(tmp_path).read() is None


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a snapshot and a log of ten writes."""
    data_dir = tmp_path_factory.mktemp("used")
    with embedded.EmbeddedZooKeeper(data_dir) as zookeeper, client_of(zookeeper.hosts) as client:
        client.create("/current", b"0")
        for value in range(1, 11):
            client.set("/current", b"x" * 50 + str(value).encode())
    return data_dir


@pytest.fixture
def copy(used: Path, tmp_path: Path) -> Path:
    return shutil.copytree(used, tmp_path / "copy")


def current_of(data_dir: Path) -> int:
    return int(read(data_dir)["/current"][0].removeprefix(b"x" * 50))


def end_of_writes(log: Path) -> int:
    """Where the log's last transaction ends."""
    return len(log.read_bytes().rstrip(b"\0"))


@pytest.mark.parametrize("padding", [b"", b"\0" * 4096])
def test_an_unfinished_transaction_of_the_log_does_not_count_at_any_cut(
    copy: Path, padding: bytes
) -> None:
    log = last_log(copy)
    end = end_of_writes(log)
    whole = log.read_bytes()
    # The last but the session's end: each cut falls into the last transactions, at every byte.
    for cut in range(end - 300, end):
        log.write_bytes(whole[:cut] + padding)
        assert 5 <= current_of(copy) <= 10
    log.write_bytes(whole[:end] + padding)
    assert current_of(copy) == 10


def test_a_log_that_was_cut_before_its_first_transaction_ended_holds_nothing(copy: Path) -> None:
    log = last_log(copy)
    whole = log.read_bytes()
    for cut in range(64):
        log.write_bytes(whole[:cut])
        assert set(read(copy)) == {"", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"}, (
            f"cut at byte {cut}"
        )


@pytest.mark.rule(25)
def test_a_damaged_transaction_of_the_log_is_reported_and_never_skipped(copy: Path) -> None:
    log = last_log(copy)
    whole = log.read_bytes()
    at = whole.index(b"x" * 50)
    for flipped in (at, at + 49):
        log.write_bytes(whole[:flipped] + b"y" + whole[flipped + 1 :])
        with pytest.raises(
            errors.ZooKeeperUnavailableError,
            match="is damaged\n  Restore the data directory",
        ):
            read(copy)


@pytest.mark.rule(25)
def test_logs_without_a_whole_snapshot_are_not_taken_for_nothing(copy: Path) -> None:
    for snapshot in (copy / "zookeeper" / "version-2").glob("snapshot.*"):
        snapshot.write_bytes(snapshot.read_bytes()[:200])
    with pytest.raises(errors.ZooKeeperUnavailableError, match="no whole snapshot"):
        read(copy)


def test_a_snapshot_that_is_being_written_is_passed_over_for_the_one_before(copy: Path) -> None:
    folder = copy / "zookeeper" / "version-2"
    snapshot = min(folder.glob("snapshot.*"))
    for size in (0, 4, 20, 60, 200):
        (folder / "snapshot.ff").write_bytes(snapshot.read_bytes()[:size])
        assert current_of(copy) == 10


@pytest.mark.rule(37)
@pytest.mark.parametrize(
    ("refusal", "is_read"), [(errno.EINVAL, True), (errno.EROFS, True), (errno.EIO, False)]
)
def test_a_copy_on_a_file_system_that_is_only_read_is_read(
    copy: Path, refusal: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "fsync", refuse)
    if is_read:
        assert current_of(copy) == 10
    else:
        with pytest.raises(OSError, match=os.strerror(refusal)):
            read(copy)


def test_a_file_that_may_not_be_read_is_told_with_its_place(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: znode_files.ZnodeFiles) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(znode_files.ZnodeFiles, "read", refused)
    with pytest.raises(errors.SetupError, match="cannot be used: Permission denied"):
        recorded.RecordedStateStore(copy, "/txtopo", recorded.files_of(copy))


@pytest.mark.rule(37)
def test_files_that_are_still_are_read_once_and_those_just_written_again(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    log, files = last_log(copy), recorded.files_of(copy)
    whole, end = log.read_bytes(), end_of_writes(log)

    def write(content: bytes, written_at_ns: int) -> None:
        log.write_bytes(content)
        for file in log.parent.iterdir():
            os.utime(file, ns=(written_at_ns, written_at_ns))

    write(whole, now)
    first = files.read()
    write(whole[: end - 300] + b"\0" * (len(whole) - end + 300), now)
    second = files.read()
    assert first != second, "two writes within one tick of the file system's clock look alike"
    write(whole, now - 10_000_000_000)
    still = files.read()
    assert still == first
    assert files.read() is still
