"""A Kafka spout's two halves without an engine: transactions are planned, read and committed one
step at a time, so that a test can change the topic between any two steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pytest

from tests.patience import wait_until
from tests.servers.kafka import KafkaServer
from txtopo.connectors.kafka import (
    KafkaTransactionalSpout,
    OpaqueKafkaTransactionalSpout,
    planning,
    reading,
)
from txtopo.errors import FailedException
from txtopo.topology.transaction import TransactionAttempt

Spout = KafkaTransactionalSpout | OpaqueKafkaTransactionalSpout
REFRESH_S = 30.0
Plan = dict[int, dict[str, Any]]
T = TypeVar("T")


class _Collector:
    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def emit_all(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self.rows += [tuple(row)[1:] for row in rows]


class _Context:
    """As much of a context as the spout asks for."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.topology_id = "words"

    def resource(self, name: str, factory: Any) -> Any:
        if name not in self.kept:
            self.kept[name] = factory()
        return self.kept[name]


class Drive:
    """Runs ``spout``. ``positions`` are the committed positions, as in ZooKeeper."""

    def __init__(self, spout: Spout) -> None:
        self.spout = spout
        self.positions: Plan = {}
        self.txid = 1
        self.now = 0.0
        self._context = _Context()
        self.planner = self._new_planner()

    def _new_planner(self) -> planning.Planner:
        return planning.Planner(
            self.spout.source,
            lambda: dict(self.positions),
            clock=lambda: self.now,
            topology_id="words",
        )

    def restart(self) -> None:
        """Begin anew with the driver and the workers, and keep the positions."""
        self.close()
        self.planner = self._new_planner()

    def close(self) -> None:
        """Give connections back."""
        for kept in self._context.kept.values():
            kept.close()
        self._context = _Context()

    def wait(self, seconds: float) -> None:
        """Let the planner's clock go on."""
        self.now += seconds

    @property
    def is_ready(self) -> bool:
        """Whether a new transaction may begin."""
        return self.planner.is_ready()

    def plan(self) -> Plan:
        """A batch, planned for a new transaction or, if it was planned before, once more."""
        count = self.planner.num_partitions()
        plan = self.planner.plan_batch(self.txid, dict(self.positions))
        assert all(0 <= index < count for index in plan), (
            f"{plan} has partitions beyond the {count} that were told"
        )
        # As in ZooKeeper.
        return {
            index: json.loads(json.dumps(metadata))
            for index, metadata in plan.items()
            if metadata is not None
        }

    def read(self, plan: Mapping[int, Mapping[str, Any]]) -> list[Any]:
        """The tuples of a batch, partition by partition, without the attempt. A tuple of one field
        is the bare value."""
        collector = _Collector()
        spout: Any = self.spout
        emitter = spout.get_emitter(None, self._context)
        for index in sorted(plan):
            emitter.emit_partition_batch(
                TransactionAttempt(self.txid, 0), collector, index, plan[index]
            )
        return [row[0] if len(row) == 1 else row for row in collector.rows]

    def commit(self, plan: Plan) -> None:
        """Record a batch."""
        self.positions.update(plan)
        self.txid += 1

    def next(self) -> list[Any]:
        """A whole transaction; its tuples."""
        plan = self.plan()
        rows = self.read(plan)
        self.commit(plan)
        return rows

    def pin(self) -> None:
        """An opaque spout's first transaction, which reads nothing."""
        if self.spout.source.is_opaque:
            assert self.is_ready
            assert self.next() == []

    def rest(self) -> list[Any]:
        """Transactions until nothing is left; their tuples."""
        rows: list[Any] = []
        for _ in range(200):
            if not self.is_ready:
                return rows
            rows += self.next()
        raise AssertionError(
            f"200 transactions were not enough; the positions are {self.positions}"
        )

    def tried(self, step: Callable[[], T]) -> T:
        """The outcome of ``step``, tried again after each ``FailedException`` as an engine does."""
        outcomes: list[T] = []

        def succeeds() -> bool:
            try:
                outcomes.append(step())
            except FailedException:
                self.wait(1)
            return bool(outcomes)

        wait_until(succeeds, "an attempt that succeeds")
        return outcomes[0]

    def next_elsewhere(self) -> list[Any]:
        """A whole transaction that another worker reads. Its tuples."""
        here, self._context = self._context, _Context()
        try:
            return self.next()
        finally:
            self.close()
            self._context = here

    def fresh_readers(self) -> None:
        """The workers begin anew, without anything that was fetched ahead."""
        self.close()


__all__ = ["Drive", "Plan", "Spout", "reading"]


@pytest.fixture
def drives() -> Iterator[list[Drive]]:
    """Drives to be closed when the test ends."""
    drives: list[Drive] = []
    yield drives
    for drive in drives:
        drive.close()


@pytest.fixture
def driven(kafka: KafkaServer, drives: list[Drive]) -> Any:
    """Makes a drive of a spout over a topic."""

    def make(kind: Any, topics: Any, **arguments: Any) -> Drive:
        drives.append(
            Drive(
                kind(
                    kafka.servers, topics, **{"format": "text", "refresh_s": REFRESH_S, **arguments}
                )
            )
        )
        return drives[-1]

    return make
