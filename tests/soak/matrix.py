"""Trials of ``make thorough`` and ``make soak``: nemesis, workloads, store and duration of each.

The workloads of a trial run in the same driver, side by side, each a topology of its own: a strike
at the driver hits all of them, and the start of Spark, by far the largest cost here, is paid once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from tests.soak.nemeses import OUTSIDE_ONLY
from tests.soak.trial import Plan
from tests.soak.world import World

SECONDS = {
    "driver": 16.0,
    "workers": 18.0,
    "executors": 12.0,
    "zookeeper": 12.0,
    "pauses": 22.0,
    "rivals": 34.0,
    "fail-over": 60.0,
}
"""For how long each nemesis strikes: long enough for each thing it does to be done at least once on
a machine of two cores."""
OPAQUE = ("opaque", "planned-opaque")
INSIDE = frozenset({"driver", "workers", "executors"})
"""These run with each driver's own ZooKeeper."""


def plans(seed: int, stores: Sequence[str], workloads: tuple[str, ...]) -> Iterator[Plan]:
    """One plan for each nemesis over SQLite, and one over a server, of which the kinds take turns;
    against every workload, where one opaque workload in turn stands for both: each nemesis meets
    both, on different stores. With the next seed each nemesis meets the next server. Each plan has
    a seed of its own, counted from ``seed``."""
    servers = [store for store in stores if store != "sqlite"]
    places = [
        *(["sqlite"] for store in stores if store == "sqlite"),
        *([servers] if servers else []),
    ]
    for number, (place, kind) in enumerate(itertools.product(places, SECONDS)):
        store = place[(seed + list(SECONDS).index(kind)) % len(place)]
        master = "local-cluster[2,1,512]" if kind == "executors" else "local[2]"
        # With one store the driver's own ZooKeeper is struck, with the other one that outlives the
        # driver.
        outside = kind in OUTSIDE_ONLY or (kind not in INSIDE and store != "sqlite")
        rests = OPAQUE[(list(SECONDS).index(kind) + (store != "sqlite")) % 2]
        chosen = tuple(
            name for name in workloads if name != rests or not set(OPAQUE) <= set(workloads)
        )
        yield Plan(
            World("", seed + number, chosen, store=store, master=master),
            (kind,),
            SECONDS[kind],
            outside,
        )


def mixed(
    seed: int, number: int, stores: Sequence[str], workloads: tuple[str, ...], seconds: float
) -> Plan:
    """Trial ``number`` of a soak: all nemeses at once, over stores, masters and ZooKeepers in turn."""
    outside = number % 3 != 2
    master = "local-cluster[2,1,512]" if number % 4 == 1 else "local[2]"
    strikes = tuple(
        kind
        for kind in SECONDS
        if (outside or kind not in OUTSIDE_ONLY) and (kind != "executors" or master != "local[2]")
    )
    # Every third trial has the driver's own ZooKeeper; a store must not always have the same one.
    store = stores[(number + number // math.lcm(3, len(stores))) % len(stores)]
    return Plan(
        World("", seed + number, workloads, store=store, master=master), strikes, seconds, outside
    )
