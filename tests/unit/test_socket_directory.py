"""Unix sockets of a driver are in a directory of its own, which no other user may enter, and which
goes with the driver however that ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.processes.drivers import ROOT
from txtopo.spark import session, sockets

MAKING = """
import os, sys
os.umask(0)
from txtopo.spark import sockets
print(sockets.directory(), flush=True)
if sys.argv[1] == "dies":
    os.kill(os.getpid(), 9)
sys.stdin.read()
"""


def start(place: Path, end: str = "ends") -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", MAKING, end], env=environment, stdin=pipe, stdout=pipe, text=True
    )


def told(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


@pytest.fixture
def place() -> Path:
    """Where sockets of processes that a test starts are: a short path, as they need."""
    return Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))


def test_the_directory_is_private_under_any_umask_and_goes_with_its_process(place: Path) -> None:
    with start(place) as process:
        path = told(process)
        assert path.parent == place
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        process.communicate()
    assert process.returncode == 0
    assert list(place.iterdir()) == []
    place.rmdir()


def test_directories_of_killed_processes_are_removed_by_the_next_and_living_ones_stay(
    place: Path,
) -> None:
    with start(place, "dies") as killed:
        left = told(killed)
    assert killed.returncode == -signal.SIGKILL
    assert left.is_dir()
    with start(place) as living, start(place) as next_one:
        others, own = told(living), told(next_one)
        assert not left.exists()
        assert others.is_dir()
        assert own.is_dir()
        for process in (living, next_one):
            process.communicate()
    assert list(place.iterdir()) == []
    place.rmdir()


def test_a_directory_that_is_removed_while_it_is_made_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp
    removed: list[str] = []

    def made_and_removed_once(prefix: str, dir: Path) -> str:
        path = make(prefix=prefix, dir=dir)
        if not removed:
            removed.append(path)
            sockets.remove_leftovers(place)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_removed_once)
    path, lock = sockets._make_in(place)
    assert list(place.iterdir()) == [path]
    assert str(path) not in removed
    sockets.remove_leftovers(place)
    assert path.is_dir()
    lock.close()
    sockets.remove_leftovers(place)
    place.rmdir()


def test_a_directory_that_is_removed_before_it_is_locked_is_not_taken_for_ours(place: Path) -> None:
    path = place / "made"
    path.mkdir()
    lock = sockets.Lock(path)
    path.rmdir()
    assert not lock.acquire()
    lock.close()
    place.rmdir()


def test_where_temporary_files_have_long_paths_sockets_are_elsewhere(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    with start(long) as process:
        path = told(process)
        assert sockets.is_short_enough(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        process.communicate()
    assert not path.exists()
    assert len(os.fsencode(path)) + len("/.") + 36 + len(".sock") < 108, (
        "as long as Spark's names are"
    )


def test_a_fork_has_a_directory_of_its_own() -> None:
    ours = sockets.directory()
    reading, writing = os.pipe()
    fork = os.fork()
    if not fork:
        os.write(writing, os.fsencode(sockets.directory()))
        os._exit(0)
    os.close(writing)
    os.waitpid(fork, 0)
    with open(reading, "rb") as pipe:
        theirs = Path(os.fsdecode(pipe.read()))
    assert theirs != ours
    assert ours.is_dir()
    sockets.remove_leftovers(theirs.parent)
    assert not theirs.exists()
    assert ours.is_dir()


def test_spark_is_told_to_put_the_sockets_of_python_workers_there() -> None:
    assert session.our_settings("local[2]")["spark.python.unix.domain.socket.dir"] == str(
        sockets.directory()
    )
