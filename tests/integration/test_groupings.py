"""Every grouping and several streams, across real Spark tasks."""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import Journal, fast, run_to_idle
from tests.topologies.spouts import Ranges
from txtopo import (
    BaseBatchBolt,
    BatchOutputCollector,
    EmitError,
    Fields,
    LocalCluster,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
    submit_topology,
)
from txtopo.topology.grouping import two_tasks_for_key


class Fork(BaseBatchBolt):
    """Even numbers on the default stream, odd ones on ``odd``."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        self.collector.emit(tup.values, stream="odd" if tup["n"] % 2 else "default")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))
        declarer.declare_stream("odd", Fields("tx", "n"))


class Sink(BaseBatchBolt):
    """Writes down the tuples of each task, in order, each with its source."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.got: list[Any] = []

    def execute(self, tup: Tuple) -> None:
        self.got.append((tup.source_component, tup.source_task, tup.source_stream_id, tup["n"]))

    def finish_batch(self) -> None:
        self.journal.write(
            json.dumps(
                [self.context.component_id, self.context.task_index, self.attempt.txid, self.got]
            )
        )


GROUPINGS = ("shuffle", "fields", "global", "all", "none", "local_or_shuffle")
NUMBERS = 40


@pytest.mark.rule(9, 10, 16, 17)
def test_every_grouping_over_several_streams_and_tasks(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    builder = TransactionalTopologyBuilder(
        "groupings", "numbers", Ranges(journal, 2 * NUMBERS, NUMBERS), 2
    )
    builder.set_bolt("fork", Fork(), 3).shuffle_grouping("numbers")
    for kind in GROUPINGS:
        declarer = builder.set_bolt(kind, Sink(journal), 3)
        fields: tuple[Any, ...] = (Fields("n"),) if kind == "fields" else ()
        getattr(declarer, f"{kind}_grouping")("fork", *fields)
        getattr(declarer, f"{kind}_grouping")("fork", *fields, stream="odd")
    run_to_idle(cluster, builder.build_topology(), max_spout_pending=2)
    lines = [json.loads(line) for line in journal.lines() if line.startswith("[")]
    got = {(component, task, txid): rows for component, task, txid, rows in lines}
    assert len(got) == len(lines) == len(GROUPINGS) * 3 * 2, (
        "every task finishes once per transaction, also with no tuples"
    )
    for txid in (1, 2):
        batch = range(NUMBERS * (txid - 1), NUMBERS * txid)
        for kind in GROUPINGS:
            rows = [got[kind, task, txid] for task in range(3)]
            numbers = collections.Counter(row[3] for of_task in rows for row in of_task)
            assert numbers == dict.fromkeys(batch, 3 if kind == "all" else 1), kind
            assert all(
                row[2] == ("odd" if row[3] % 2 else "default")
                for of_task in rows
                for row in of_task
            )
            assert all(of_task == sorted(of_task, key=lambda row: row[:2]) for of_task in rows), (
                "not in the order of source and task"
            )
        assert [len(got["global", task, txid]) for task in range(3)] == [NUMBERS, 0, 0]
        per_sender = collections.Counter(
            (task, row[1], row[2]) for task in range(3) for row in got["shuffle", task, txid]
        )
        for sender in range(3):
            for stream in ("default", "odd"):
                counts = [per_sender[task, sender, stream] for task in range(3)]
                assert max(counts) - min(counts) <= 1, "shuffle is not even"


class Direct(BaseBatchBolt):
    """Sends each number, by name, to the task that its last digit says; and all to a stream of the
    usual kind."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.tasks = collector, len(context.component_tasks("direct"))

    def execute(self, tup: Tuple) -> None:
        self.collector.emit_direct(tup["n"] % 10 % self.tasks, tup.values, stream="named")
        self.collector.emit(tup.values)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))
        declarer.declare_stream("named", Fields("tx", "n"), direct=True)


class Thirds:
    """A custom grouping: by the number's remainder."""

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        return [values[1] % 3]


@pytest.mark.rule(16)
def test_the_sender_has_a_say_in_direct_partial_key_and_custom_groupings(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    builder = TransactionalTopologyBuilder(
        "senders-say", "numbers", Ranges(journal, NUMBERS, NUMBERS), 2
    )
    builder.set_bolt("fork", Direct(), 3).shuffle_grouping("numbers")
    builder.set_bolt("direct", Sink(journal), 3).direct_grouping("fork", stream="named")
    builder.set_bolt("custom", Sink(journal), 3).custom_grouping("fork", Thirds())
    builder.set_bolt("partial", Sink(journal), 3).partial_key_grouping("fork", Fields("n"))
    run_to_idle(cluster, builder.build_topology())
    lines = [json.loads(line) for line in journal.lines() if line.startswith("[")]
    got = {(component, task): sorted(row[3] for row in rows) for component, task, _, rows in lines}
    assert [got["direct", task] for task in range(3)] == [
        [n for n in range(NUMBERS) if n % 10 % 3 == task] for task in range(3)
    ]
    assert [got["custom", task] for task in range(3)] == [
        [n for n in range(NUMBERS) if n % 3 == task] for task in range(3)
    ]
    assert sorted(n for task in range(3) for n in got["partial", task]) == list(range(NUMBERS))
    assert all(
        task in two_tasks_for_key((n,), 3) for task in range(3) for n in got["partial", task]
    )


class WrongFirstValue(Fork):
    """Emits without the attempt."""

    def execute(self, tup: Tuple) -> None:
        self.collector.emit(["not the attempt", tup["n"]])


class WrongArity(Fork):
    """Emits a value too many."""

    def execute(self, tup: Tuple) -> None:
        self.collector.emit([*tup.values, 1], stream="odd")


class WrongStream(Fork):
    """Emits on a stream it does not declare."""

    def execute(self, tup: Tuple) -> None:
        self.collector.emit(tup.values, stream="even")


@pytest.mark.rule(14)
@pytest.mark.parametrize(
    ("bolt", "says"),
    [
        (WrongFirstValue, r"stream 'default' with 'not the attempt' as first value"),
        (WrongArity, r"stream 'odd' 3 values for the 2 fields \(tx, n\)"),
        (WrongStream, r"stream 'even', which it does not declare\n  It declares 'default', 'odd'"),
    ],
)
def test_a_wrong_emit_stops_the_topology_and_names_component_stream_and_expected_values(
    cluster: LocalCluster, tmp_path: Path, bolt: Any, says: str
) -> None:
    builder = TransactionalTopologyBuilder(
        bolt.__name__, "numbers", Ranges(Journal(tmp_path / "journal"), 4, 4), 1
    )
    builder.set_bolt("fork", bolt(), 1).shuffle_grouping("numbers")
    run = cluster.submit_topology(bolt.__name__, fast(), builder.build_topology())
    with pytest.raises(EmitError, match=says) as caught:
        run.join(PATIENCE_S)
    assert caught.value.component == "fork"


def test_submit_topology_uses_the_context_there_is_and_returns_when_the_input_is_exhausted(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    builder = TransactionalTopologyBuilder("submitted", "numbers", Ranges(journal, 20, 5), 1)
    builder.set_bolt("sink", Sink(journal)).global_grouping("numbers")
    topology = builder.build_topology()
    status = submit_topology(
        "submitted", fast(until="exhausted", zookeeper=cluster.zookeeper), topology
    )
    assert (status.state, status.committed, status.current) == ("stopped", 4, 5)


def test_max_transactions_ends_a_run_after_so_many_commits(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    builder = TransactionalTopologyBuilder("bounded", "numbers", Ranges(journal, 40, 5), 1)
    builder.set_bolt("sink", Sink(journal)).global_grouping("numbers")
    topology = builder.build_topology()
    for committed in (3, 6):
        run = cluster.submit_topology(
            "bounded", fast(max_transactions=3, max_spout_pending=5), topology
        )
        status = run.join(PATIENCE_S)
        assert (status.committed, status.current) == (3, committed + 1)
