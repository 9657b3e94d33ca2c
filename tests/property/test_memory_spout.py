"""For any rows, appended at any time: every row exactly once, in order within its partition, and
the same again on replay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from tests.topologies.planned_spouts import Drive, Row
from txtopo.testing import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

ROWS = st.lists(
    st.tuples(st.none() | st.integers() | st.text("aé\n", max_size=3), st.binary(max_size=3)),
    max_size=6,
)


class MemorySpoutMachine(RuleBasedStateMachine):
    """Appends, transactions, replays and restarts in any order, against lists."""

    transactions: Bundle[tuple[dict[int, Any], dict[int, list[Row]]]] = Bundle("transactions")

    @initialize(
        partitions=st.dictionaries(st.integers(0, 3), ROWS, max_size=3), take=st.integers(1, 4)
    )
    def begin(self, partitions: dict[int, list[Row]], take: int) -> None:
        self.spout = MemoryTransactionalSpout(partitions, ["a", "b"], take)
        self.take = take
        self.given = {partition: list(rows) for partition, rows in partitions.items()}
        self.emitted: dict[int, list[Row]] = {}
        self.drive = Drive(self.spout)

    @rule(partition=st.integers(0, 5), rows=ROWS)
    def append(self, partition: int, rows: list[Row]) -> None:
        self.spout.append(partition, rows)
        self.given.setdefault(partition, []).extend(rows)

    @precondition(lambda self: self.drive.coordinator.is_ready())
    @rule(target=transactions)
    def transact(self) -> Any:
        plan = self.drive.plan()
        batch = self.drive.emitted(plan)
        assert any(batch.values()), "ready, but nothing to emit"
        for partition, rows in batch.items():
            assert len(rows) <= self.take
            self.emitted.setdefault(partition, []).extend(rows)
        return plan, batch

    @rule(transaction=transactions)
    def replay(self, transaction: tuple[dict[int, Any], dict[int, list[Row]]]) -> None:
        plan, batch = transaction
        assert self.drive.emitted(plan, attempt_id=1) == batch

    @rule(target=transactions)
    def restart(self) -> Any:
        self.drive = Drive(self.spout, self.drive.positions)
        return multiple()

    @invariant()
    def what_was_emitted_is_how_each_partition_begins(self) -> None:
        for partition, rows in self.emitted.items():
            assert rows == self.given.get(partition, [])[: len(rows)]

    @invariant()
    def it_is_ready_exactly_while_rows_are_left(self) -> None:
        left = any(
            len(rows) > len(self.emitted.get(partition, []))
            for partition, rows in self.given.items()
        )
        assert self.drive.coordinator.is_ready() is left

    def teardown(self) -> None:
        self.spout.close()


TestMemorySpout = pytest.mark.rule(9, 18, 19, 20, 21)(MemorySpoutMachine.TestCase)


class OpaqueMemorySpoutMachine(RuleBasedStateMachine):
    """Appends, partitions that go and come, transactions and attempts that are given up, in any
    order, against lists."""

    @initialize(take=st.integers(1, 4))
    def begin(self, take: int) -> None:
        self.spout = OpaqueMemoryTransactionalSpout({}, ["a", "b"], take)
        self.take = take
        self.given: dict[int, list[Row]] = {}
        self.emitted: dict[int, list[Row]] = {}
        self.disabled: set[int] = set()
        self.drive = Drive(self.spout)

    @rule(partition=st.integers(0, 3), rows=ROWS)
    def append(self, partition: int, rows: list[Row]) -> None:
        self.spout.append(partition, rows)
        self.given.setdefault(partition, []).extend(rows)

    @rule(partition=st.integers(0, 3), disabled=st.booleans())
    def switch(self, partition: int, disabled: bool) -> None:
        self.spout.set_disabled(partition, disabled)
        (self.disabled.add if disabled else self.disabled.discard)(partition)

    @rule()
    def give_up(self) -> None:
        before = dict(self.drive.positions)
        self.drive.emitted(self.drive.plan())
        self.drive.positions.clear()
        self.drive.positions.update(before)

    @rule()
    def transact(self) -> None:
        for partition, rows in self.drive.emitted(self.drive.plan()).items():
            assert len(rows) <= (0 if partition in self.disabled else self.take)
            self.emitted.setdefault(partition, []).extend(rows)

    @rule()
    def restart(self) -> None:
        self.drive = Drive(self.spout, self.drive.positions)

    @invariant()
    def what_was_emitted_is_how_each_partition_begins(self) -> None:
        for partition, rows in self.emitted.items():
            assert rows == self.given.get(partition, [])[: len(rows)]

    @invariant()
    def it_is_ready_exactly_while_rows_are_left_that_can_be_had(self) -> None:
        left = any(
            len(rows) > len(self.emitted.get(p, []))
            for p, rows in self.given.items()
            if p not in self.disabled
        )
        assert self.drive.coordinator.is_ready() is left

    def teardown(self) -> None:
        self.spout.close()


TestOpaqueMemorySpout = pytest.mark.rule(4, 9, 18, 19, 20, 21)(OpaqueMemorySpoutMachine.TestCase)
