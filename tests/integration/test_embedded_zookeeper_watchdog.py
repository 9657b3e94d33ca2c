"""The watchdog's log: bounded, for any output of the server and any state of the disk."""

from __future__ import annotations

import os
from pathlib import Path

from txtopo.state import watchdog


def test_the_log_keeps_at_most_twice_its_bound_and_always_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "zookeeper.log"
    log = watchdog.BoundedLog(str(path), bytes_max=1000)
    for number in range(500):
        log.write(f"line {number:04}\n".encode())
    assert path.stat().st_size <= 1000
    assert (tmp_path / "zookeeper.log.1").stat().st_size <= 1000
    assert path.read_bytes().endswith(b"line 0499\n")
    assert sorted(os.listdir(tmp_path)) == ["zookeeper.log", "zookeeper.log.1"]


def test_a_log_that_exists_counts_towards_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "zookeeper.log"
    path.write_bytes(b"x" * 995)
    watchdog.BoundedLog(str(path), bytes_max=1000).write(b"newest\n")
    assert path.read_bytes() == b"newest\n"
    assert (tmp_path / "zookeeper.log.1").stat().st_size == 995


def test_the_tail_is_kept_when_the_disk_refuses_the_log(tmp_path: Path) -> None:
    log = watchdog.BoundedLog("/dev/full")
    log.write(b"last words\n")
    assert log.tail == b"last words\n"


def test_the_tail_is_bounded(tmp_path: Path) -> None:
    log = watchdog.BoundedLog(str(tmp_path / "zookeeper.log"))
    for _ in range(10):
        log.write(b"x" * watchdog.TAIL_BYTES)
    assert len(log.tail) == watchdog.TAIL_BYTES
