"""A copy of a sink's database that lacks the rows of a task of the newest recorded transaction is
refused (R34), in every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.test_store_copies import Topology
from tests.topologies.sinks import KINDS, Shop, cases, shop, write
from txtopo.connectors.sql import SqlSink
from txtopo.errors import StateMismatchError
from txtopo.topology.context import TopologyContext


class Shopping(Topology):
    """Each task of component ``count`` writes a row of every transaction."""

    def __init__(self, sales: Shop, sink: SqlSink, backend: str) -> None:
        super().__init__(sink.ledger, backend)
        self.sales, self.sink = sales, sink

    def attempt(
        self, txid: int, attempt: int, ends_after: int | None = None
    ) -> list[TopologyContext]:
        contexts = self.contexts()
        for context in contexts:
            write(self.sink, context, txid, attempt, [rows_of(txid)[context.task_index]])
            self.copies.append(self._copier(self.store))
        return contexts


def rows_of(txid: int) -> list[tuple[int, int]]:
    return [(100 * txid + task, txid) for task in range(2)]


@pytest.fixture(params=cases(KINDS), ids=lambda case: f"{case[0]}-{case[1]}")
def topology(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shopping]:
    backend, kind = request.param
    sales = shop(backend, tmp_path)
    topology = Shopping(sales, sales.sink(kind), backend)
    yield topology
    topology.process.close()


@pytest.mark.in_gate("sqlite-*")
@pytest.mark.rule(27, 34)
def test_a_copy_taken_between_the_tasks_of_a_recorded_transaction_is_refused(
    topology: Shopping,
) -> None:
    for txid in (1, 2):
        topology.copies.clear()
        topology.record(topology.attempt(txid, 0), txid, 0)
    lagging, complete = topology.copies
    topology.fail_over(lagging)
    assert topology.sales.sales == [*rows_of(1), rows_of(2)[0]], "a row that was recorded is lost"
    for context in topology.contexts():
        with pytest.raises(
            StateMismatchError, match=r"is behind: .*, but ZooKeeper has recorded 2\b"
        ) as caught:
            write(topology.sink, context, 3, 0, [rows_of(3)[context.task_index]])
        assert caught.value.exit_code == 6
    assert topology.sales.sales == [*rows_of(1), rows_of(2)[0]], "nothing was written"
    topology.fail_over(complete)
    topology.record(topology.attempt(3, 0), 3, 0)
    assert topology.sales.sales == [*rows_of(1), *rows_of(2), *rows_of(3)]


@pytest.mark.in_gate("sqlite-*")
@pytest.mark.rule(28, 31, 34)
def test_a_copy_that_lacks_all_of_an_attempt_that_failed_goes_on_right(topology: Shopping) -> None:
    topology.record(topology.attempt(1, 0), 1, 0)
    before = topology.copies[-1]
    topology.attempt(2, 0)
    topology.fail_over(before)
    topology.record(topology.attempt(2, 1), 2, 1)
    assert topology.sales.sales == [*rows_of(1), *rows_of(2)]
