"""Threads that talk to Spark: a thread without a connection is an error where it is started, and
no thread that ended without a word."""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import NoReturn

import pytest

from tests.patience import PATIENCE_S
from txtopo import LocalCluster
from txtopo.spark.threads import WorkThreads


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
