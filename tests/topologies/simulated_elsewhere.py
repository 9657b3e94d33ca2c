"""Topologies for ``txtopo test`` as a command, in other processes too: named after their verdicts."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any, ClassVar

from tests.topologies.simulated import Bolt, Committer, PlainSpout, Source
from txtopo import BaseTransactionalBolt, Fields, ICommitter, TransactionalTopologyBuilder
from txtopo.stores import SqliteStore

STORE = SqliteStore("/nowhere/elsewhere.db", "sums")


class ByAttempt(Committer):
    """Wrong: its emissions and writes depend on the number of tries."""

    def finish_batch(self) -> None:
        self.sums["tries"] = self.attempt.attempt_id
        super().finish_batch()


class Outside(Bolt, BaseTransactionalBolt, ICommitter):
    """Writes where nobody can look."""


class Keeps(Bolt):
    """Wrong: emits sums that a class attribute keeps from attempt to attempt."""

    kept: ClassVar[Counter[str]] = Counter()

    def finish_batch(self) -> None:
        self.kept.update(self.sums)
        for key in sorted(self.sums):
            self.collector.emit([self.attempt, key, self.kept[key]])


class Slow(Committer):
    """Takes its time."""

    def finish_batch(self) -> None:
        time.sleep(float(os.environ.get("SLOW_S", "0.05")))
        super().finish_batch()


def made(bolt: Any) -> Any:
    builder = TransactionalTopologyBuilder("elsewhere", "spout", PlainSpout(Source([4, 3], 1)), 2)
    builder.set_bolt("sums", bolt).fields_grouping("spout", Fields("key"))
    return builder.build_topology()


def behind(bolt: Any) -> Any:
    """A right committer behind ``bolt``, which only processes."""
    builder = TransactionalTopologyBuilder("elsewhere", "spout", PlainSpout(Source([4, 3], 1)), 2)
    builder.set_bolt("processing", bolt).fields_grouping("spout", Fields("key"))
    builder.set_bolt("sums", Committer(STORE)).fields_grouping("processing", Fields("key"))
    return builder.build_topology()


right = made(Committer(STORE))
wrong = made(ByAttempt(STORE))
unseen = made(Outside())
slow = made(Slow(STORE))
keeps = behind(Keeps())
