"""The soak's sources: their rows are a function of the seed, the feed and the attempt, so that the
right results can be computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.soak.sources import Moody, Planned, Whole
from tests.soak.stores import SABOTAGES, open_store
from tests.soak.workloads import WORKLOADS
from tests.soak.workloads.append import TAKE, Keys
from tests.soak.workloads.opaque import Animals
from tests.soak.world import Feed, World
from txtopo import (
    Config,
    CoordinatorContext,
    Fields,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
)


class Collected:
    """A collector with a list of all tuples."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []

    def emit(self, values: list[Any]) -> None:
        self.rows.append(values)


def conf() -> TopologyConf:
    return TopologyConf(Config().as_mapping())


def emitter_context() -> TopologyContext:
    return TopologyContext(
        "t", "g", "spout", 0, {"spout": 1}, "processing", lambda name, factory: factory()
    )


def coordinator_context(last: Any) -> CoordinatorContext:
    return CoordinatorContext("t", "g", "spout", lambda: last)


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(str(tmp_path / "rows.available"))


def test_a_feed_only_grows(feed: Feed) -> None:
    assert feed.available() == 0
    for rows in (5, 3, 8):
        feed.publish(rows)
    assert feed.available() == 8


def test_a_world_is_read_as_it_was_written(tmp_path: Path) -> None:
    world = World(
        str(tmp_path), 3, ("bank", "words"), zookeeper="127.0.0.1:1", sabotage="blind-store"
    )
    world.save()
    assert World.load(str(tmp_path)) == world


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_workload_builds_its_topology_over_every_store(tmp_path: Path, name: str) -> None:
    for sabotage in ("", *SABOTAGES):
        world = World(str(tmp_path), 3, (name,), sabotage=sabotage)
        assert WORKLOADS[name].topology(world, 1).id == f"soak-{name}"
        assert all(dict(store.items()) == {} for store in WORKLOADS[name].stores(world).values())


def test_a_plan_ends_where_the_feed_does(feed: Feed) -> None:
    source = Planned(Keys(1), feed, 4)
    feed.publish(6)
    assert [source.after(last, 4) for last in (None, [0, 4], [4, 6])] == [[0, 4], [4, 6], None]


def test_the_whole_source_waits_for_a_full_batch(feed: Feed) -> None:
    source = Whole(Keys(1), feed, TAKE)
    ready = []
    for rows in (TAKE - 1, TAKE):
        feed.publish(rows)
        ready.append(source.get_coordinator(conf(), coordinator_context(None)).is_ready())
    assert ready == [False, True]


@pytest.mark.rule(18)
def test_an_opaque_batch_differs_from_attempt_to_attempt_and_begins_where_the_last_one_ended(
    feed: Feed,
) -> None:
    feed.publish(100)
    source = Moody(Animals(1), feed, 4, "seed", planned=False)
    batches: dict[int, list[list[Any]]] = {}
    for attempt_id in range(20):
        collected, attempt = Collected(), TransactionAttempt(7, attempt_id)
        span = source.get_emitter(conf(), emitter_context()).emit_partition_batch(
            attempt, cast(Any, collected), 1, [3, 10]
        )
        assert [row[2] for row in collected.rows] == [
            f"1/{index}" for index in range(*(span or (0, 0)))
        ]
        assert span is None or span[0] == 10
        batches.setdefault(len(collected.rows), []).append(collected.rows)
    assert len(batches) > 3, "every attempt gets the same"


def test_a_blind_store_applies_an_update_twice(tmp_path: Path) -> None:
    counted = {}
    for sabotage in ("", "blind-store"):
        store = open_store(
            World(str(tmp_path), 1, (), sabotage=sabotage), "counts" + sabotage.replace("-", "")
        )
        for attempt_id in range(2):
            context = TopologyContext(
                "t", "g", "count", 0, {"count": 1}, "commit", lambda name, factory: factory()
            )
            with store.transaction(context, TransactionAttempt(1, attempt_id)) as opened:
                opened.update_many({"cat": 1}, lambda old, more: (old or 0) + more)
        counted[sabotage] = dict(store.items())
    assert counted == {"": {"cat": 1}, "blind-store": {"cat": 2}}


def test_rows_have_the_fields_that_are_declared() -> None:
    for rows in (Keys(1), Animals(1)):
        assert len(Fields(rows.fields)) == len(rows.row(0, 0))
        assert rows.row(0, 5) == rows.row(0, 5)
