"""Threads that talk to Spark: a thread without a connection is an error where it is started, and
no thread that ended without a word."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.topologies import recording
from txtopo import Config, LocalCluster
from txtopo.runtime.requests import Requests
from txtopo.spark import threads as spark_threads
from txtopo.spark.threads import WorkThreads
from txtopo.state import layout, lease
from txtopo.state.zookeeper import ZooKeeperStateStore


def no_socket(*args: object, **named: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_threads_without_a_connection_are_an_error_at_their_start(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as lacks:
        lacks.setattr(socket, "socket", no_socket)
        with pytest.raises(OSError, match="the thread txtopo-words-0 has no connection to Spark"):
            WorkThreads("words", 2, print)
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("txtopo-words")
    ]
    threads, done = WorkThreads("words", 2, print), threading.Event()
    threads.submit(done.set)
    done.wait()
    assert threads.close(PATIENCE_S)


@pytest.mark.parametrize("lacking", ["thread", "requests"])
def test_a_run_that_cannot_begin_holds_neither_its_topology_nor_threads(
    lacking: str, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = recording.builder().build_topology()
    before = set(threading.enumerate())
    with monkeypatch.context() as lacks:
        start = spark_threads.start

        def refuse(work: Callable[[], None], name: str) -> threading.Thread:
            if name == "txtopo-words":
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return start(work, name)

        if lacking == "thread":
            lacks.setattr(spark_threads, "start", refuse)
        else:
            lacks.setattr(Requests, "look", no_socket)
        with pytest.raises(OSError, match="Too many open files"):
            cluster.submit_topology("words", Config(), topology)
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert cluster.zookeeper is not None
    with contextlib.closing(ZooKeeperStateStore(cluster.zookeeper)) as store:
        assert lease.live_holder(store, layout.Layout(topology.id)) is None
