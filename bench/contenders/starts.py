"""Whole programs, each in a process of its own: from the start of the process to the first result.

``run_topology`` runs a topology on a ``LocalCluster``, with a ZooKeeper of its own, until the first
commit. ``run_empty_job`` makes a Spark context and runs one job with one empty Python task. Time is
taken from the start of the interpreter until the program has written its line: imports, JVMs and
the first Python worker count, the end of the program does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.line import WrongResultError
from bench.process import ROOT

_TIMEOUT_S = 120.0
ANSWER = "first result"
"""The line that a program writes when it has the first result."""


class Starts:
    """Programs that are started anew in each block."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def block(self, program: str) -> dict[str, Any]:
        """Start ``program`` of this module in an empty directory."""
        place = tempfile.mkdtemp(dir=self._directory)
        began = time.perf_counter()
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from bench.contenders import starts; starts.{program}()",
                place,
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        with child.stdout as output:
            line = output.readline().strip()
            seconds = time.perf_counter() - began
            output.read()
        if child.wait(_TIMEOUT_S) or line != ANSWER:
            raise WrongResultError(
                f"{program} ended with exit code {child.returncode} and wrote {line!r}"
            )
        return {"seconds": seconds}

    def close(self) -> None:
        """Every program has ended with its block."""


def run_topology() -> None:
    """The program of txtopo: one transaction of ten tuples, up to its commit."""
    from bench import spouts, topologies
    from starter.transactional_global_count import GLOBAL_COUNT_KEY
    from txtopo import Config, LocalCluster

    place = Path(sys.argv[1])
    store = topologies.store_of(place / "store.db")
    topology = topologies.global_count("start", spouts.RateSpout(10, 1), store)
    with LocalCluster(data_dir=place / "zookeeper") as cluster:
        cluster.submit_topology("start", Config(max_transactions=1), topology).wait_for_txid(
            1, _TIMEOUT_S
        )
        print(ANSWER, flush=True)
        if store.get(GLOBAL_COUNT_KEY) != 10:
            raise WrongResultError(f"counted {store.get(GLOBAL_COUNT_KEY)} of 10")


def run_empty_job() -> None:
    """The program of the peer: a Spark context, and one job with one empty Python task."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark import SparkConf, SparkContext

    from bench.spark import PEER_SETTINGS

    context = SparkContext(
        conf=SparkConf()
        .setMaster("local[2]")
        .setAppName("peer")
        .setAll(list(PEER_SETTINGS.items()))
    )
    counted = context.parallelize([0], 1).mapPartitions(list).count()
    print(ANSWER, flush=True)
    if counted != 1:
        raise WrongResultError(f"counted {counted} of 1")
    context.stop()
