"""A run that a test makes up: its journal, and its ``live.json``, without Spark and ZooKeeper."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

from tests import patience
from txtopo import TransactionAttempt
from txtopo.dataplane.outcome import Failure
from txtopo.engine.attempts import AttemptFailedError
from txtopo.engine.observer import EndedAttempt
from txtopo.engine.status import RunStatus
from txtopo.journal import live, recording, records, writer
from txtopo.state import liveness
from txtopo.topology import redaction

SCRIPT = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
"""A text that a page must show, and not run."""

TRACEBACK = f"""Traceback (most recent call last):
  File "words.py", line 16, in execute
    raise ValueError(f"cannot parse {{line!r}}")
ValueError: cannot parse {SCRIPT}
"""

PLAN = [
    ("lines", "spout", 2, []),
    ("split", "bolt", 2, [("lines", "shuffle")]),
    ("longest", "bolt", 1, [("lines", "none")]),
    ("count-of-split", "bolt", 2, [("split", "fields(word)")]),
    ("count", "committer", 2, [("count-of-split", "fields(word)"), ("longest", "global")]),
]

STEPS = (
    ("processing", 1.0),
    ("processed", 0.4),
    ("sealing", 0.05),
    ("applying", 0.2),
    ("recording", 0.1),
)


class CannedRun:
    """A run of topology ``words`` in ``data_dir``, which this process seems to be."""

    def __init__(
        self, data_dir: Path, began_at: float | None = None, epoch: int = 1, **more: Any
    ) -> None:
        self.path = recording.place(data_dir, "words")
        facts = {
            "topology_id": "words",
            "name": "words",
            "host": "alpha",
            "pid": 28807,
            "started": liveness.process_identity(),
            "txtopo": "0.1.0",
            "python": "3.11.7",
            "spark": "4.3.0",
            "master": "local[2]",
            "settings": {"max_spout_pending": 3, "message_timeout_s": 25.0},
            "tasks": {id: tasks for id, _, tasks, _ in PLAN},
            "plan": {
                "components": [
                    {
                        "id": id,
                        "kind": kind,
                        "tasks": tasks,
                        "inputs": [{"from": source, "grouping": name} for source, name in inputs],
                    }
                    for id, kind, tasks, inputs in PLAN
                ]
            },
            **redaction.redacted(more),
        }
        at = time.time() if began_at is None else began_at
        head = records.run_began(facts, at, "bf9d9217", epoch, 1, False)
        self.moment = live.Moment(at, RunStatus("words", "words", state="running"), at, False, 0)
        self._live = live.Live(self.path, head, self._look, "full")
        self._writer = writer.Writer("words", self.path, 2**22, head, self._live.write)

    def _look(self) -> live.Moment:
        now = time.time()
        return dataclasses.replace(self.moment, at=now, turned_at=now)

    def update(self, **changes: Any) -> None:
        """Change fields of the run's status."""
        status = dataclasses.replace(self.moment.status, **changes)
        self.moment = dataclasses.replace(self.moment, status=status)

    def attempt(
        self,
        txid: int,
        n: int = 0,
        outcome: Any = "committed",
        at: float | None = None,
        **more: Any,
    ) -> None:
        """Let an attempt end."""
        facts: dict[str, Any] = {"steps": STEPS, "tuples": 400, **more}
        facts["latency_s"] = sum(length_s for _, length_s in facts["steps"])
        counts = {id: 400 * (2 + place) for place, (id, *_) in enumerate(PLAN)}
        ended = EndedAttempt(
            TransactionAttempt(txid, n),
            outcome,
            tasks={id: tasks for id, _, tasks, _ in PLAN},
            executed={**counts, "lines": 0},
            emitted={**counts, "count": 0},
            widest={"split": (900, 1), "count": (1700, 0)},
            work_s={"split": 0.012},
            stores={"count/counts": 2, "count/totals": 1} if outcome == "committed" else {},
            **facts,
        )
        at = time.time() if at is None else at
        self._writer.put(functools.partial(self._record, ended, at))
        if outcome == "committed":
            self.update(
                committed=self.moment.status.committed + 1, current=txid + 1, tuples_per_s=812.5
            )
        elif outcome == "behind":
            self.update(behind=self.moment.status.behind + 1)
        else:
            self.update(failed=self.moment.status.failed + 1)

    def _record(self, ended: EndedAttempt, at: float) -> records.Record:
        record = records.attempt(ended, at, "full")
        self._live.add(ended, record["at"])
        return record

    def fail(self, txid: int, n: int = 0, at: float | None = None) -> None:
        """Let an attempt fail in user code, with an error that is made of markup."""
        attempt = TransactionAttempt(txid, n)
        failure = Failure(
            "error",
            "split",
            1,
            attempt,
            "processing",
            "execute",
            f"ValueError: cannot parse {SCRIPT}",
            TRACEBACK,
        )
        failed = AttemptFailedError("failed", str(failure), failure=failure)
        self.attempt(txid, n, "failed", at, failure=failed, steps=(("processing", 0.8),))

    def wait_until_written(self, txid: int) -> None:
        """Wait until the last record, about ``txid``, is in the journal."""
        text = b'"txid":%d,' % txid
        patience.wait_until(
            lambda: any(text in each.read_bytes() for each in writer.segments(self.path))
        )

    def end(self, error: BaseException | None = None) -> None:
        """End the run."""
        self.update(state="stopped" if error is None else "failed", active=())
        self._writer.put(functools.partial(records.run_ended, error, time.time(), "full"))
        self._writer.close()


def of_a_while(data_dir: Path, transactions: int = 30) -> CannedRun:
    """A run that has committed transactions, three at the same time. 5 failed once, so that 6 was
    discarded with it, and the next two transactions are in flight."""
    began = time.time() - transactions * 0.6 - 5
    run = CannedRun(data_dir, began)
    for txid in range(1, transactions + 1):
        at = began + 2 + 0.6 * txid
        if txid == 5:
            run.fail(5, 0, at - 1.8)
        if txid == 6:
            steps = (("processing", 0.5),)
            run.attempt(6, 0, "behind", at - 2.4, because_of=TransactionAttempt(5, 0), steps=steps)
        run.attempt(txid, int(txid in (5, 6)), at=at)
    run.update(
        active=((transactions + 1, 0, "processed"), (transactions + 2, 0, "processing")),
        lag={"orders/0": 1200, "orders/1": 0},
        fraction_done=0.42,
    )
    run.wait_until_written(transactions)
    return run
