"""The standard error of our JVM reaches the user, but for one line; and none of it after this
process is dead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.patience import PATIENCE_S
from txtopo.spark.jvm_output import LineFilter

WARNING = b"WARNING: Using incubator modules: jdk.incubator.vector\n"


def shown(chunks: Sequence[bytes]) -> bytes:
    lines = LineFilter()
    return b"".join([*(lines.passed(chunk) for chunk in chunks), lines.rest()])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (WARNING, b""),
        (WARNING + b"hello\n", b"hello\n"),
        (b"hello\n" + WARNING + b"bye", b"hello\nbye"),
        (
            b"WARNING: Using incubator modules: jdk.incubator.foreign\n",
            b"WARNING: Using incubator modules: jdk.incubator.foreign\n",
        ),
        (
            b"WARNING: A terminally deprecated method\n",
            b"WARNING: A terminally deprecated method\n",
        ),
        (b"a user said: " + WARNING, b"a user said: " + WARNING),
        (b"WARNING: Using", b"WARNING: Using"),
        (WARNING.rstrip(), b""),
        (b"\n\n\r\n\xff\x00\n", b"\n\n\r\n\xff\x00\n"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_only_the_warning_about_the_vector_module_is_left_out(
    written: bytes, expected: bytes, size: int
) -> None:
    assert shown([written[i : i + size] for i in range(0, len(written), size)]) == expected


def test_a_line_without_an_end_is_shown_at_once() -> None:
    lines = LineFilter()
    assert [lines.passed(b"."), lines.passed(b"."), lines.passed(b"W")] == [b".", b".", b"W"]


PARENT = """
import os, signal, subprocess, sys
from txtopo.spark import jvm_output
output = jvm_output.PassedOn()
with output as stderr:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stderr=stderr, stdin=subprocess.PIPE)
{then}
"""

COMPLAINING = """
import os, signal, sys
fork = sys.stdin.read()
try:
    for _ in range(100_000):
        os.write(2, b"ERROR: the driver has gone")
    os.write(1, b"a reader")
except BrokenPipeError:
    os.write(1, b"no reader")
if fork:
    os.kill(int(fork), signal.SIGKILL)
"""
"""Linux closes the files of a killed process one after the other: the child's input may end a
moment before the pipe has no reader any more."""


def run(then: str, child: str) -> subprocess.CompletedProcess[str]:
    """A process with a child; returns when neither has standard output open any more."""
    return subprocess.run(
        [sys.executable, "-c", PARENT.format(then=then), child],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_all_that_a_child_said_has_been_passed_on_when_it_has_ended() -> None:
    done = run(
        "child.wait()\noutput.finish()\nos._exit(0)",
        "import sys; sys.stderr.write('no memory\\n' * 50_000)",
    )
    assert done.stderr == "no memory\n" * 50_000


def test_what_a_muted_child_says_is_dropped() -> None:
    done = run(
        "output.is_muted = True\nchild.stdin.close()\nchild.wait()\noutput.finish()",
        "import sys; sys.stdin.read(); sys.stderr.write('a task was rejected')",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_output_of_a_killed_process_child_reaches_no_terminal() -> None:
    """The child ends with its standard input, as Spark's JVM does, and complains before that."""
    done = run("os.kill(os.getpid(), signal.SIGKILL)", COMPLAINING)
    assert (done.returncode, done.stdout, done.stderr) == (-9, "no reader", "")


def test_a_fork_of_the_killed_process_does_not_keep_its_child_waiting_for_a_reader() -> None:
    """As a process of multiprocessing may live on; a JVM whose pipe is full would wait for it."""
    lives_on = f"    child.stdin.close()\n    os.close(1), os.close(2)\n    signal.alarm({int(2 * PATIENCE_S)})\n    signal.pause()\n"
    tells = "child.stdin.write(b'%d' % fork), child.stdin.flush()\n"
    done = run(
        f"if (fork := os.fork()) == 0:\n{lives_on}{tells}os.kill(os.getpid(), signal.SIGKILL)",
        COMPLAINING,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-9, "no reader", "")


def test_an_exception_in_the_block_comes_after_the_output_of_the_child() -> None:
    starts = "with jvm_output.PassedOn() as again:\n    subprocess.run(child.args, stderr=again)\n"
    done = run(
        f"child.wait()\n{starts}    raise OSError('no JVM')",
        "import sys; print('no memory', file=sys.stderr)",
    )
    assert done.stderr.startswith("no memory\nno memory\nTraceback")


def test_a_program_without_standard_error_starts_a_child_all_the_same() -> None:
    """As a service may be started: ``2>&-``."""
    done = subprocess.run(
        [
            "sh",
            "-c",
            'exec "$0" "$@" 2>&-',
            sys.executable,
            "-c",
            PARENT.format(then="print(child.wait())"),
            "import os; os.write(2, b'lost')",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "0\n")
