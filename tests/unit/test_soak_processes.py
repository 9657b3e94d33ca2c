"""Targets of a nemesis: descendants of the started processes, identified for good, and no dead
process taken for a living one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.soak import processes

FAMILY = """
import subprocess, sys
program = "import sys; print('up', flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", program, "-m", "txtopo.spark.daemon"], stdin=subprocess.PIPE)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """A process with one child."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        yield parent
        if parent.poll() is None:
            assert parent.stdin is not None
            parent.stdin.close()
            parent.wait(PATIENCE_S)


def test_descendants_are_found_with_their_roles(family: subprocess.Popen[str]) -> None:
    (child,) = processes.below(family.pid)
    assert child.parent == family.pid
    assert child.kind == "python"
    assert child.pid in {process.pid for process in processes.below(os.getpid())}
    assert processes.workers([child]) == [], "it is nobody's worker: its parent is no daemon"


def test_a_worker_is_the_child_of_a_daemon() -> None:
    daemon = processes.Process(10, 9, 1, "python -m txtopo.spark.daemon pyspark.worker")
    worker = processes.Process(11, 10, 2, "python -m txtopo.spark.daemon pyspark.worker")
    java = processes.Process(9, 1, 0, "java org.apache.spark.deploy.SparkSubmit pyspark-shell")
    executor = processes.Process(
        12, 9, 3, "java org.apache.spark.executor.CoarseGrainedExecutorBackend --cores 1"
    )
    server = processes.Process(
        13, 8, 3, "java -Xmx1g org.apache.zookeeper.server.quorum.QuorumPeerMain zookeeper.cfg"
    )
    assert processes.workers([java, daemon, worker, executor]) == [worker]
    assert [process.kind for process in (java, executor, server)] == [
        "jvm",
        "executor",
        "zookeeper",
    ]
    gateway = processes.Process(
        1,
        0,
        0,
        "java org.apache.spark.deploy.SparkSubmit --conf spark.python.daemon.module=txtopo.spark.daemon",
    )
    assert gateway.kind == "jvm", (
        "the driver's JVM knows the name of the process that workers are forked from"
    )
    shell = processes.Process(
        14,
        8,
        3,
        "bash bin/spark-submit --conf spark.python.daemon.module=txtopo.spark.daemon pyspark-shell",
    )
    fork = processes.Process(15, 14, 4, shell.command)
    assert processes.workers([shell, fork]) == [], "the shell that becomes the JVM knows it too"


def test_a_dead_process_is_not_alive_and_is_not_sent_anything(
    family: subprocess.Popen[str],
) -> None:
    (child,) = processes.below(family.pid)
    assert child.send(signal.SIGKILL)
    family.kill()
    family.wait(PATIENCE_S)
    wait_until(lambda: not child.is_alive)
    assert not child.send(signal.SIGKILL)


def test_another_process_with_the_same_pid_is_not_struck() -> None:
    earlier = processes.Process(os.getpid(), os.getppid(), 1, "somebody who had this pid before us")
    assert not earlier.is_alive
    assert not earlier.send(signal.SIGKILL)
