"""Reads a journal of many records, as ``txtopo why`` and ``txtopo history`` do."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

from bench.line import check
from txtopo import TransactionAttempt
from txtopo.engine.observer import EndedAttempt
from txtopo.journal import fold, reader, records, writer

_POLL_S = 0.001


class Journals:
    """A contender (see :class:`bench.process.Contender`)."""

    def __init__(self, directory: str, transactions: int) -> None:
        self._path, self._last = Path(directory) / "journal", transactions
        facts = {"host": "bench", "pid": 1}
        head = records.run_began(facts, 0.0, "first", 1, 1, is_resumed=False)
        written = writer.Writer("bench", self._path, 1 << 30, head)
        for txid in range(1, transactions + 1):
            while len(written._waiting) >= writer.WAITING_MAX:
                time.sleep(_POLL_S)
            written.put(functools.partial(records.attempt, _ended(txid), 0.0, "full"))
        written.close()

    def block(self) -> dict[str, float]:
        """The seconds that each question takes."""
        questions: dict[str, Callable[[reader.Reader], list[records.Record]]] = {
            "why, an old transaction": lambda each: each.about([5]),
            "why, a new transaction": lambda each: each.about([self._last]),
            "history": lambda each: each.recent(20),
            "history --failed": lambda each: each.failed(20),
            "history --from": lambda each: each.about(range(5, 25)),
        }
        taken = {}
        for name, ask in questions.items():
            journal = reader.Reader(self._path)
            began = time.perf_counter()
            view = fold.fold(ask(journal), "first", self._last + 1)
            journal.extent("first")
            taken[name] = time.perf_counter() - began
            check(bool(view.transactions) or "failed" in name, True)
        return taken

    def close(self) -> None:
        """There is nothing to close."""


def _ended(txid: int) -> EndedAttempt:
    counts = {"lines": 100, "split": 100, "count": 500}
    return EndedAttempt(
        TransactionAttempt(txid, 0),
        tuples=100,
        steps=(("processing", 0.1), ("sealing", 0.01), ("applying", 0.1), ("recording", 0.01)),
        executed=counts,
        emitted=counts,
        stores={"count/counts": 1},
        busy_s={"processing": 0.1, "commit": 0.1},
        metadata={"num_partitions": 1, "partitions": {"0": {"index": txid, "amount": 100}}},
    )
