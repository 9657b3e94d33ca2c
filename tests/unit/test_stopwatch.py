"""The time that each component is at work: nested, arrived, held and collected tuples, in each
job."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from tests.topologies import recording
from tests.topologies.columns import NotingArrowBolt, NotingArrowCommitter, pass_on
from tests.topologies.recording import VALUE, InProcessTopology, NotingBolt, NotingCommitter
from txtopo import TransactionAttempt
from txtopo.dataplane import stopwatch
from txtopo.dataplane.outcome import Tally

COST_S = {"spout": 1, "split": 100, "rows": 10_000, "columns": 10**6, "last": 10**8}
"""How long each call of a component's hook lasts."""


def emit_in_the_middle(bolt: Any, tup: Any) -> None:
    bolt.collector.emit([tup.values[0], tup.values[1]])
    recording.note(bolt.context, "execute goes on")


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("txid", [1, 2, 2 + stopwatch.EVERY])
def test_the_time_of_each_call_counts_for_its_component(
    cores: int, is_whole: bool, txid: int
) -> None:
    topology = recording.builder(parallelism=2)
    topology.set_bolt("split", NotingBolt(emit_in_the_middle), 3).shuffle_grouping("spout")
    topology.set_bolt("rows", NotingCommitter(emit_in_the_middle), 2).all_grouping("split")
    topology.set_bolt("columns", NotingArrowBolt(pass_on, streams=VALUE), 2).all_grouping("split")
    topology.set_bolt("last", NotingArrowCommitter(), 2).all_grouping("columns")
    graph = topology.build_topology()
    with InProcessTopology(graph, cores=cores) as running:
        journal = recording.journals[graph.id]
        running.worker.clock = lambda: float(sum(COST_S[event.component] for event in journal))
        batch = recording.planned({0: recording.rows("a", "b"), 1: recording.rows("c")})
        ran = running.run(batch, TransactionAttempt(txid, 0), whole=is_whole)
    assert ran.failure is None
    total = Tally()
    for reports in ran.reports.values():
        total.add(reports[0].before)
        for report in reports:
            total.add(report.own)
    if txid == 1:
        assert total.work_s == {}
        return
    calls = collections.Counter(event.component for event in ran.events)
    assert {*calls} == {*COST_S}
    assert total.work_s == {id: n * COST_S[id] for id, n in calls.items()}


def test_of_many_calls_a_few_are_measured_and_stand_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looking at the clock would cost more than they do. Components whose calls come first, last, or
    many to a call, are measured alike."""
    for name, calls in {"CALLS_FIRST": 4_000, "CALLS_LATER": 50, "CALLS_BETWEEN": 450}.items():
        monkeypatch.setattr(stopwatch, name, calls)
    looks, now = 0, 0.0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return now

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    watch = stopwatch.Stopwatch(clock)
    inner = watch.measured("inner", work)

    def emit(times: int) -> None:
        for _ in range(times):
            work(3.0)
            inner(2.0)

    early, late = watch.measured("early", work), watch.measured("late", emit)
    last = watch.measured("last", work)
    for turns in (1, 100):
        watch.switch("spout")
        for _ in range(4_000 // turns):
            work(1.0)
            early(5.0)
        for _ in range(4_000 // turns):
            late(10)
        watch.switch("")
    watch.switch("spout")
    for _ in range(4_450):
        early(5.0)
    last(50.0)  # the first call that is measured again, and the last of its turn
    watch.switch("")
    watch.switch("early")
    work(5.0)
    watch.switch("")
    assert sum(watch.work_s.values()) == pytest.approx(now)
    exact = {
        "spout": 4_040.0,
        "early": 42_455.0,
        "late": 121_200.0,
        "inner": 80_800.0,
        "last": 50.0,
    }
    assert watch.work_s == {
        id: pytest.approx(seconds, rel=0.05, abs=10.0) for id, seconds in exact.items()
    }
    assert looks < 30_000
