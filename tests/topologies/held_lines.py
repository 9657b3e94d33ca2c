"""A topology that writes the records of a topic to a second topic, and whose sink is held twice, to
be killed: before Kafka's commit and after it.

The tests of clusters copy this file into a project of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from txtopo import Fields, TopologyContext, TransactionalTopologyBuilder, TransactionAttempt
from txtopo.connectors.kafka import KafkaSink, KafkaTransactionalSpout, producing

BEFORE, AFTER = 3, 6
"""The transactions in which one task is held before its commit, and after its commit."""


class HeldSink(KafkaSink):
    """The first task that comes to the commit of a transaction writes the process id of its
    executor to a file, which has the name of the transaction. Then the task waits for its end."""

    def __init__(self, directory: str, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.directory = directory

    def write(
        self,
        context: TopologyContext,
        attempt: TransactionAttempt,
        fields: Sequence[str],
        rows: Collection[Any],
    ) -> bool:
        commit = producing.TaskProducer._commit

        def held(producer: producing.TaskProducer, deadline: float) -> None:
            if attempt.txid == AFTER:
                commit(producer, deadline)
            else:
                producer._producer.flush()
            self._wait_if_first(attempt.txid)
            if attempt.txid != AFTER:
                commit(producer, deadline)

        if attempt.txid not in (BEFORE, AFTER):
            return super().write(context, attempt, fields, rows)
        with mock.patch.object(producing.TaskProducer, "_commit", held):
            return super().write(context, attempt, fields, rows)

    def _wait_if_first(self, txid: int) -> None:
        file = Path(self.directory, str(txid))
        try:
            file.touch(exist_ok=False)
        except FileExistsError:
            return
        # The worker was forked from a process that the executor has started.
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        file.write_text(f"{stat.rpartition(')')[2].split()[1]}\n")
        threading.Event().wait()


def make(servers: str, source: str, target: str, directory: str) -> Any:
    """A topology from topic ``source`` to topic ``target``; the files are in ``directory``."""
    spout = KafkaTransactionalSpout(servers, source, 25, fields=("partition", "value"))
    builder = TransactionalTopologyBuilder("held-lines", "lines", spout, 2)
    sink = HeldSink(directory, servers, target, partition="partition")
    builder.set_bolt("write", sink, 2).fields_grouping("lines", Fields("partition"))
    return builder.build_topology()
