"""Reads of ZooKeeper fail in schedules, and the threads that make batches meet records that are
written meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.topologies.simulated import generated
from txtopo.engine import batches
from txtopo.engine.batches import Batches
from txtopo.testing import Simulation
from txtopo.testing.simulator.decisions import Decisions, Fault, Script
from txtopo.testing.simulator.fault_kinds import READ_FAULTS, WAITS, FaultKind
from txtopo.testing.simulator.outcome import Difference
from txtopo.testing.simulator.schedule import Schedule

PLANNED_OPAQUE = 5
NOTHING = Script()


class Listing(Decisions):
    """Plays ``script``; where ``kind`` could have struck is written down."""

    def __init__(self, kind: FaultKind, script: Script = NOTHING) -> None:
        super().__init__(script)
        self.listed, self.places = kind, list[str]()

    def strike(self, kind: FaultKind, where: str, ways: Sequence[Any]) -> Any:
        if kind == self.listed:
            self.places.append(where)
        return super().strike(kind, where, ways)


def played(
    simulation: Simulation, kind: FaultKind, script: Script = NOTHING
) -> tuple[list[str], list[Difference]]:
    """The places where ``kind`` could strike in one schedule, and how the schedule differs."""
    listing = Listing(kind, script)
    schedule = Schedule(simulation.subject, listing)
    schedule.play()
    return listing.places, simulation._judge.differences(schedule)


def places_of(simulation: Simulation, kind: FaultKind) -> list[str]:
    return played(simulation, kind)[0]


def at(kind: FaultKind, place: str, how: str) -> Script:
    return Script((Fault(kind, place, how),))


@pytest.mark.in_gate("*-1")
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("how", READ_FAULTS)
@pytest.mark.rule(25, 26)
def test_a_read_of_zookeeper_may_fail_anywhere(number: int, how: str) -> None:
    with Simulation(generated(number)) as simulation:
        places = places_of(simulation, "read")
        assert len(places) > 5
        for place in places:
            places_then, differences = played(simulation, "read", at("read", place, how))
            assert differences == []
            assert len(places_then) > len(places), "what failed was read again"


@pytest.mark.in_gate("*1*")
@pytest.mark.parametrize("number", range(6))
@pytest.mark.rule(4, 5, 20)
def test_a_batch_may_be_made_while_another_is_recorded(number: int) -> None:
    with Simulation(generated(number), {"max_spout_pending": 3}) as simulation:
        places = places_of(simulation, "opening")
        assert len(places) > 5
        for place in places:
            assert simulation.replay(at("opening", place, WAITS)) == []


def committed_first(planner: Any, txid: int) -> dict[int, Any]:
    """Wrong: a record between the two readings is in neither."""
    committed, positions = planner._state.committed_positions()
    open_txids = list(planner._in_use) if planner.is_opaque else planner._state.txids.txids()
    for earlier in sorted(open_txids):
        metadata: Mapping[str, Any] | None = (
            planner._metadata_in_use(earlier) if earlier < txid else None
        )
        if earlier > committed and metadata is not None:
            positions.update(batches._by_number(metadata["partitions"]))
    return dict(positions)


@pytest.mark.thorough
@pytest.mark.rule(4, 20)
def test_positions_that_are_read_in_the_wrong_order_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Batches, "_positions_before", committed_first)
    with Simulation(generated(PLANNED_OPAQUE), {"max_spout_pending": 2}) as simulation:
        places = [
            place
            for place in places_of(simulation, "opening")
            if simulation.replay(at("opening", place, WAITS))
        ]
        assert any("committed_positions was read" in place for place in places)
        report = simulation.run(250)
    assert report.violation is not None, str(report)
    assert any(fault.kind == "opening" for fault in report.violation.script.faults)
