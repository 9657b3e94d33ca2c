"""A worker whose socket Spark has closed, because its job was cancelled or Spark stops, ends
without a traceback on the user's terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WORKER = """
import socket, sys, types
from pyspark import daemon as sparks
from txtopo.spark import daemon

def main(infile, outfile):
    outfile.write(b"a result")
    {then}

sys.modules["pyspark.worker"] = types.ModuleType("pyspark.worker")
sys.modules["pyspark.worker"].main = main
ours, spark = socket.socketpair()
spark.close()
daemon.ending_quietly(sparks.worker)(ours, True)
print("goes on")
"""


@pytest.mark.parametrize(
    "then",
    ["outfile.flush()", "sys.exit(-1)", "pass"],
    ids=["while it writes", "after an exception", "when all is written"],
)
def test_a_worker_whose_socket_was_closed_ends_without_a_word(then: str) -> None:
    # Spark sets it, by default: a worker that cannot write its results ends.
    environment = {**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", WORKER.format(then=then)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
