"""A store that failed in an attempt has failed the attempt, also if user code swallows the
exception (R39)."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.recording import NotingBolt, NotingCommitter, Ran, builder, rows, run_once
from tests.wrong.failing_stores import (
    PLACES,
    Failing,
    FailingMemoryStore,
    FailingSqliteStore,
    Place,
    Swallowing,
)
from txtopo import FailedException, StateMismatchError, TransactionalTopologyBuilder
from txtopo.stores import SqliteStore, StoreConflict
from txtopo.testing import MemoryTransactionalSpout, Simulation
from txtopo.testing.simulator.decisions import Fault, Script

pytestmark = pytest.mark.rule(39)


def store(kind: str, directory: Path) -> Failing:
    return (
        FailingSqliteStore(directory / "sum.db", "sums")
        if kind == "sqlite"
        else FailingMemoryStore("sums", str(directory))
    )


def ran_with(bolt: Any) -> Ran:
    topology = builder()
    topology.set_bolt("sum", bolt).global_grouping("spout")
    return run_once(topology.build_topology(), {0: rows(1, 2)})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_a_failure_of_a_store_that_is_swallowed_fails_the_attempt(
    kind: str, place: Place, tmp_path: Path
) -> None:
    failing = store(kind, tmp_path).told_to(place, tmp_path / "failed")
    ran = ran_with(Swallowing(failing))
    assert (tmp_path / "failed").exists(), "the fault was hit"
    assert ran.failed_in == "commit"
    assert ran.failure is not None
    assert (ran.failure.kind, ran.failure.component, ran.failure.hook) == (
        "failed",
        "sum",
        "finish_batch",
    )
    assert ran.failure.error.endswith(f"no luck in {place}")
    assert "failing_stores.py" in ran.failure.traceback
    assert failing.get("sum") is None


@pytest.mark.parametrize("swallows", [True, False])
def test_an_error_of_user_code_in_its_place_does_not_hide_it(
    swallows: bool, tmp_path: Path
) -> None:
    ran = ran_with(
        Swallowing(
            store("sqlite", tmp_path).told_to("reading", tmp_path / "failed"),
            replaces=True,
            swallows=swallows,
        )
    )
    assert ran.failure is not None
    assert (ran.failure.kind, ran.failure.error.rpartition(": ")[2]) == (
        "failed",
        "no luck in reading",
    )


@pytest.mark.parametrize("error", [StateMismatchError, StoreConflict])
def test_a_refusal_of_a_store_cannot_be_swallowed_either(
    error: type[Exception], tmp_path: Path
) -> None:
    ran = ran_with(
        Swallowing(store("sqlite", tmp_path).told_to("reading", tmp_path / "failed", error=error))
    )
    assert ran.failure is not None
    assert ran.failure.kind == "error"


def test_an_emit_after_a_swallowed_failure_does_not_hide_it(tmp_path: Path) -> None:
    failing = store("sqlite", tmp_path).told_to("opening", tmp_path / "failed")

    def finish(bolt: Any) -> None:
        with (
            contextlib.suppress(FailedException),
            failing.transaction(bolt.context, bolt.attempt) as transaction,
        ):
            transaction.put("sum", 1)
        bolt.emit(0)

    topology = builder()
    topology.set_bolt("sum", NotingCommitter(on_finish=finish)).global_grouping("spout")
    topology.set_bolt("after", NotingBolt()).global_grouping("sum")
    ran = run_once(topology.build_topology(), {0: rows(1, 2)})
    assert ran.failure is not None
    assert (ran.failure.kind, ran.failure.hook) == ("failed", "finish_batch")


def _rolls_back(path: Path, bolt: Any) -> None:
    """User code may change its mind: the block is rolled back, and nothing has failed."""
    with (
        contextlib.suppress(LookupError),
        SqliteStore(path, "sums").transaction(bolt.context, bolt.attempt) as transaction,
    ):
        transaction.put("sum", 1)
        raise LookupError("on purpose")


def _fails(path: Path, bolt: Any) -> None:
    with (
        contextlib.suppress(FailedException),
        SqliteStore(path, "sums").transaction(bolt.context, bolt.attempt),
    ):
        raise FailedException("of user code")


def test_an_exception_of_user_code_that_rolls_back_its_block_may_be_swallowed(
    tmp_path: Path,
) -> None:
    ran = ran_with(NotingCommitter(on_finish=functools.partial(_rolls_back, tmp_path / "sum.db")))
    assert ran.failure is None
    assert SqliteStore(tmp_path / "sum.db", "sums").get("sum") is None


def test_a_failed_exception_that_leaves_a_block_counts_from_any_origin(tmp_path: Path) -> None:
    ran = ran_with(NotingCommitter(on_finish=functools.partial(_fails, tmp_path / "sum.db")))
    assert ran.failure is not None
    assert (ran.failure.kind, ran.failure.error) == (
        "failed",
        "txtopo.errors.FailedException: of user code",
    )


@pytest.mark.parametrize("how", ["before it began", "after it committed"])
def test_a_swallowed_failure_of_a_store_is_replayed_in_the_simulator(
    how: str, tmp_path: Path
) -> None:
    spout = MemoryTransactionalSpout({0: [(1,), (2,), (3,)]}, ["n"], 1)
    topology = TransactionalTopologyBuilder("sums", "spout", spout)
    topology.set_bolt("sum", Swallowing(SqliteStore(tmp_path / "sum.db", "sums"))).global_grouping(
        "spout"
    )
    address = f"{tmp_path}/sum.db#sums"
    with Simulation(topology.build_topology()) as simulation:
        assert simulation.expected.stores[address] == {"sum": 6}
        script = Script((Fault("store", f"transaction 2 of the schedule on store {address}", how),))
        trace: list[str] = []
        assert simulation.replay(script, trace.append) == []
    assert any("commit job of attempt 2:0 fails" in line for line in trace), trace
    assert any("commit job of attempt 2:1 is done" in line for line in trace), trace
