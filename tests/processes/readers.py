"""Readers of a data directory in processes of their own, which never pause; and owners of it that
record transactions and are then killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.patience import wait_until

ID = "words"

RECORDING = """
import json, os, sys
from txtopo import TransactionAttempt
from txtopo.state import embedded, liveness
from txtopo.state.records import TxidRecord
from txtopo.state.topology import Holder, TopologyState
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.stores import SqliteStore
from txtopo.testing.contracts.worker_process import WorkerProcess

owned = embedded.EmbeddedZooKeeper(sys.argv[1]).start()
holder = Holder("here", os.getpid(), "2024-05-01T10:00:00+00:00", "words", liveness.process_identity())
state = TopologyState.open(ZooKeeperStateStore(owned.hosts), "words", holder, True)
process, store = WorkerProcess(), SqliteStore(sys.argv[1] + ".db", "counts")
for txid in range(state.current, state.current + 3):
    attempt = TransactionAttempt(txid, (state.epoch - 1) * 1_000_000)
    state.txids.get_state(txid, lambda txid, last: TxidRecord(txid=txid))
    state.seal(attempt, {"spout": 1}, None)
    task = process.task(generation=state.generation, known_stores=dict(state.known_stores))
    with store.transaction(task, attempt) as opened:
        opened.update("transactions", lambda old: (old or 0) + 1)
    state.record(attempt, {}, task.touched_stores, None)
print(json.dumps({"committed": txid, "pid": owned.pid, "hosts": owned.hosts, "owner": os.getpid()}), flush=True)
sys.stdin.readline()
owned.stop()
"""
"""An owner that records three transactions, which a store beside its directory counts, reports the
last one, and waits for its end."""

LIVES = RECORDING.replace(
    "import json, os, sys\n", "import json, os, sys\nfrom txtopo.state import java\n"
).replace(
    "owned = embedded",
    "java.require_java()\nwhile sys.stdin.readline() and os.fork():\n    os.wait()\nowned = embedded",
)
"""The same, again and again: a new process for each line of input, forked from one that has
imported everything, so that a life costs little more than its server. A forked owner waits for a
line to end by itself."""

POLLING = """
import sys, txtopo
with txtopo.Visibility("words", data_dir=sys.argv[1]) as visibility:
    while True:
        print(int(visibility.txid()), flush=True)
"""
LOOKING = """
import sys, txtopo
while True:
    print(int(txtopo.visible_txid("words", data_dir=sys.argv[1])), flush=True)
"""
TYPING = """
import contextlib, io, json, sys
from txtopo.command import cli
while True:
    shown, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(error):
        code = cli.main(["status", "words", "--data-dir", sys.argv[1], "--json"])
    if code:
        sys.exit(error.getvalue())
    print(json.loads(shown.getvalue())["topologies"][0]["committed"], flush=True)
"""


AS_OF = """
import contextlib, io, json, sys
from txtopo.command import cli
while True:
    shown, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(error):
        code = cli.main(["store", "get", sys.argv[1] + ".db", "counts", "transactions", "--as-of", "words", "--data-dir", sys.argv[1]])
    if code:
        sys.exit(error.getvalue())
    print(json.loads(shown.getvalue())["value"], flush=True)
"""


class Reader:
    """A process that runs ``program``, which prints the txid it sees again and again. Ended at the
    end of a ``with``."""

    def __init__(self, data_dir: Path, program: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seen: list[int] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.seen.extend(int(line) for line in self.process.stdout)

    def wait_for(self, txid: int) -> None:
        """Until the reader has seen ``txid``."""

        def has_seen() -> bool:
            assert self.process.poll() is None, self.words()
            return bool(self.seen) and self.seen[-1] >= txid

        wait_until(has_seen, f"a reader to see txid {txid}")

    def words(self) -> str:
        """The standard error of an ended reader."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def stop(self) -> None:
        """Suspend it, wherever it is."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._listening.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


__all__ = ["AS_OF", "ID", "LIVES", "LOOKING", "POLLING", "RECORDING", "TYPING", "Reader"]
