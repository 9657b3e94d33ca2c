"""The data directory: one owner at a time; the second is told the owner's name, and readers find
the owner's server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.processes import owners
from txtopo import errors
from txtopo.state import directory, embedded


def acquired(path: Path) -> directory.DataDirectory:
    owned = directory.DataDirectory(path)
    owned.acquire()
    return owned


def test_a_second_owner_in_another_process_is_refused_with_the_pid_of_the_first(
    tmp_path: Path,
) -> None:
    with owners.Owner(tmp_path) as owner:
        owner.report()
        with pytest.raises(errors.FencedError) as caught:
            embedded.EmbeddedZooKeeper(tmp_path).start()
        first_line, cure = str(caught.value).splitlines()
        assert f"in use by process {owner.pid} on host " in first_line
        assert " since 20" in first_line
        assert "--data-dir" in cure
        # The first owner is not disturbed by any of this.
        server = directory.running(tmp_path)
        assert server is not None
        assert server.owner_pid == owner.pid
        assert owner.wait() == 0


def test_a_second_owner_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    first = acquired(tmp_path)
    with pytest.raises(errors.FencedError, match=f"process {os.getpid()} on host"):
        acquired(tmp_path)
    first.release()
    acquired(tmp_path).release()


def test_owning_twice_through_one_object_is_a_mistake_that_loses_nothing(tmp_path: Path) -> None:
    owned = acquired(tmp_path)
    with pytest.raises(errors.UsageError, match="already"):
        owned.acquire()
    with pytest.raises(errors.FencedError):
        acquired(tmp_path)
    owned.release()


def test_an_owner_that_has_not_said_who_it_is_is_refused_as_well(tmp_path: Path) -> None:
    owned = acquired(tmp_path)
    (tmp_path / "lock").write_bytes(b"\xff{")
    with pytest.raises(errors.FencedError, match="in use by another process"):
        acquired(tmp_path)
    owned.release()


def test_a_directory_that_cannot_be_made_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    data_dir = tmp_path / "file" / "sub"
    with pytest.raises(errors.SetupError) as caught:
        embedded.EmbeddedZooKeeper(data_dir).start()
    assert str(data_dir) in str(caught.value).splitlines()[0]
    assert "--data-dir" in str(caught.value)


def test_a_directory_whose_lock_cannot_be_opened_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(errors.SetupError, match="--data-dir") as caught:
        acquired(tmp_path)
    assert str(tmp_path) in str(caught.value).splitlines()[0]


def test_a_reader_finds_the_running_server(tmp_path: Path) -> None:
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        assert directory.running(tmp_path) == directory.Endpoint(
            zookeeper.hosts, zookeeper.pid, os.getpid()
        )
    assert directory.running(tmp_path) is None


def test_a_reader_makes_no_directory_and_no_file(tmp_path: Path) -> None:
    assert directory.running(tmp_path / "nowhere") is None
    assert directory.running(tmp_path) is None
    (tmp_path / "file").touch()
    assert directory.running(tmp_path / "file") is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_endpoint_file_without_an_owner_is_stale(tmp_path: Path) -> None:
    acquired(tmp_path).release()
    (tmp_path / "endpoint.json").write_text(
        json.dumps({"hosts": "127.0.0.1:1", "pid": 1, "owner_pid": os.getpid()})
    )
    assert directory.running(tmp_path) is None


def test_a_new_owner_does_not_pass_on_the_endpoint_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "endpoint.json").write_text(
        json.dumps({"hosts": "127.0.0.1:1", "pid": 1, "owner_pid": os.getpid()})
    )
    owned = acquired(tmp_path)
    assert directory.running(tmp_path) is None
    owned.release()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"hosts": "127.0.0.1:1"}',
        b'{"hosts": "h", "pid": [], "owner_pid": 1}',
    ],
)
def test_a_garbled_endpoint_file_is_no_endpoint(tmp_path: Path, garbage: bytes) -> None:
    owned = acquired(tmp_path)
    (tmp_path / "endpoint.json").write_bytes(garbage)
    assert directory.running(tmp_path) is None
    owned.release()


def test_a_garbled_endpoint_file_does_not_stop_the_next_owner(tmp_path: Path) -> None:
    for name in ("endpoint.json", "lock", "server.lock", "zookeeper.cfg"):
        (tmp_path / name).write_bytes(b"\xff\x00garbage")
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        server = directory.running(tmp_path)
        assert server is not None
        assert server.hosts == zookeeper.hosts


def test_readers_never_turn_an_owner_away(tmp_path: Path) -> None:
    program = """
import sys
from txtopo.state import directory
print("{}", flush=True)
while directory.running(sys.argv[1]) is None:
    pass
"""
    with owners.Owner(tmp_path, program) as reader:
        reader.report()
        for _ in range(200):
            acquired(tmp_path).release()
        owned = acquired(tmp_path)
        owned.publish("127.0.0.1:1", 1)
        assert reader.wait() == 0
        owned.release()
