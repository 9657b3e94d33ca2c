"""Output that is read no longer, or that a full disk does not take, ends a command with one exit
code and one clear message."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from txtopo import LocalCluster, UserCodeError, errors
from txtopo.command import main
from txtopo.dataplane import out_of_resources

ROOT = Path(__file__).parents[2]

READ_NO_LONGER = 128 + signal.SIGPIPE
"""The exit code in a shell of a program that writes to a pipe without a reader."""

LONG = """
import sys
from txtopo.command import main

def say():
    for n in range(20_000):
        print("line", n)
    return 0

sys.exit(main.exit_code_of(say, verbose=False))
"""

FULL = "there is no room left"


def txtopo(
    *arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> tuple[int, str]:
    """The exit code of a command, and its standard error."""
    command = [sys.executable, "-m", "txtopo", *arguments]
    done = subprocess.run(
        command, stdout=stdout, stderr=stderr, text=True, check=False, env=dict(os.environ)
    )
    return done.returncode, done.stderr or ""


@pytest.fixture(params=["buffered", "unbuffered"], autouse=True)
def buffering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffered output is written at the end, when Python ends too."""
    if request.param == "buffered":
        monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    else:
        monkeypatch.setenv("PYTHONUNBUFFERED", "1")


@pytest.fixture
def unread() -> int:
    """The end of a pipe whose reader has gone."""
    reads, writes = os.pipe()
    os.close(reads)
    return writes


@pytest.mark.in_gate("buffered")
def test_a_long_output_that_is_read_no_longer_ends_quietly() -> None:
    command = subprocess.Popen(
        [sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    assert command.stdout.readline() == "line 0\n"
    command.stdout.close()
    _, complaints = command.communicate()
    assert (command.returncode, complaints) == (READ_NO_LONGER, "")


@pytest.mark.in_gate("buffered-*0")
@pytest.mark.parametrize("arguments", [("--help",), ("config", "show")])
def test_a_short_output_that_is_not_read_at_all_ends_quietly(
    arguments: tuple[str, ...], unread: int
) -> None:
    assert txtopo(*arguments, stdout=unread) == (READ_NO_LONGER, "")


@pytest.mark.in_gate("buffered")
def test_an_error_that_cannot_be_told_ends_quietly(unread: int) -> None:
    assert txtopo("rnu", stderr=unread) == (READ_NO_LONGER, "")
    assert txtopo("rnu", stdout=unread)[0] == errors.UsageError.exit_code, (
        "nothing was written to standard output"
    )


def test_a_pipe_of_the_program_that_breaks_is_an_error_like_any_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def action() -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    assert main.exit_code_of(action, verbose=False) == 1
    assert "txtopo: error: BrokenPipeError: [Errno 32] Broken pipe\n" in capsys.readouterr().err


@pytest.mark.in_gate("buffered-*")
@pytest.mark.parametrize(
    "program",
    [LONG, "import sys\nfrom txtopo.command import cli\nsys.exit(cli.main(['--help']))"],
    ids=["long", "short"],
)
def test_output_that_a_full_disk_does_not_take_says_so_once(program: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"txtopo: error: {FULL} on a disk: No space left on device\n  Find it with `df -h`"
    )
    assert "the output may go to a file" in done.stderr
    assert done.stderr.count("No space left") == 1
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


CLOSED = """
import os, sys
from txtopo.command import main

def say():
    print("told"), print("complained", file=sys.stderr)
    os.open("opened", os.O_WRONLY | os.O_CREAT)
    os.system("echo by a child; echo by a child >&2")
    return 0

sys.exit(main.exit_code_of(say, verbose=False))
"""


@pytest.mark.in_gate("buffered-*2>&-")
@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_a_program_whose_standard_streams_are_closed_runs_and_writes_into_no_other_file(
    closed: str, tmp_path: Path
) -> None:
    """The next file that is opened would get the number of a closed stream."""
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", CLOSED]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "opened").read_text() == ""
    assert sorted(done.stdout.split("\n")) == (
        ["", "by a child", "told"] if closed == "2>&-" else [""]
    )
    assert done.stderr == ("complained\nby a child\n" if closed == ">&-" else "")


def test_a_program_that_has_closed_its_standard_error_may_be_told_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)
    assert main.exit_code_of(failing(OSError("lost")), verbose=False) == 1
    sys.stderr.close()


def failing(error: OSError) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_with_its_directory(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(number, os.strerror(number), str(tmp_path / "not-there" / "rows"))
    assert main.exit_code_of(failing(error), verbose=False) == 1
    assert capsys.readouterr().err.startswith(
        f"txtopo: error: {FULL} in {tmp_path}: {os.strerror(number)}\n  Make room there"
    )


def test_a_full_disk_without_a_name_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An error from a write to an open file names no file."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fact, cure = out_of_resources.of_disk(error).split("\n", 1)
    assert fact == f"{FULL} on a disk: No space left on device"
    assert f"temporary files are in {tmp_path}" in cure
    assert "df -h" in cure

    def full(place: str | int) -> os.statvfs_result:
        free = 0 if place in (str(tmp_path), 1) else 10**9
        return os.statvfs_result((4096, 4096, 10**9, free, free, 10**6, 10**6, 10**6, 0, 255))

    monkeypatch.setattr(os, "statvfs", full)
    assert (
        out_of_resources.of_disk(error).splitlines()[0]
        == f"{FULL} in {tmp_path} and for standard output: No space left on device"
    )


def test_a_hook_that_met_a_full_disk_says_where(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "rows"))
    told = out_of_resources.of(error)
    assert told is not None
    assert f"{FULL} in {tmp_path}" in told
    assert out_of_resources.of(OSError(errno.ENOENT, "x")) is None
    assert out_of_resources.of(UserCodeError("a", 0, "1:0", "commit", "execute", "x", "")) is None


def test_a_temporary_state_on_a_full_disk_names_the_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(prefix: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"/tmp/{prefix}0")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(
        errors.ZooKeeperUnavailableError, match="no room left in the data directory /tmp"
    ):
        LocalCluster(progress=False)
