"""Aggregates over words with a day and a price, and the results of a plain loop over the same
rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txtopo import (
    CombinerAggregator,
    Count,
    Fields,
    Max,
    Min,
    ReducerAggregator,
    Sum,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.testing import MemoryStore, MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

FIELDS = Fields("word", "day", "cents")
ROWS: dict[int, list[tuple[Any, ...]]] = {
    0: [
        ("cat", 1, 5),
        ("dog", 1, 7),
        ("cat", 2, 1),
        ("cat", 1, 9),
        ("ant", 2, 2),
        ("dog", 2, -3),
        ("cat", 1, 4),
    ],
    1: [("dog", 1, 11), ("cat", 2, 2), ("bee", 1, 6)],
}


class Mean(CombinerAggregator):
    """A value that is made of two."""

    fields = ("cents",)

    def init(self, tup: Tuple) -> list[int]:
        return [tup["cents"], 1]

    def combine(self, left: Any, right: Any) -> list[int]:
        return [left[0] + right[0], left[1] + right[1]]


class Longest(CombinerAggregator):
    """Words joined in the order of their days: associative, and not commutative."""

    fields = ("day",)

    def init(self, tup: Tuple) -> str:
        return f"{tup['day']}"

    def combine(self, left: Any, right: Any) -> str:
        return f"{left}{right}"


class History(ReducerAggregator):
    """The changes of an aggregate, as it emits them: they depend on the order of transactions."""

    fields = ("prev", "curr")

    def init(self) -> list[Any]:
        return []

    def reduce(self, value: Any, tup: Tuple) -> list[Any]:
        return [*value, [tup["prev"], tup["curr"]]]


class Balance(ReducerAggregator):
    """Never below zero, which is why order matters."""

    fields = ("cents",)

    def init(self) -> int:
        return 0

    def reduce(self, value: Any, tup: Tuple) -> int:
        return max(0, int(value) + int(tup["cents"]))


BY_NAME: dict[str, Any] = {
    "count": Count(),
    "sum": Sum("cents"),
    "min": Min("cents"),
    "max": Max("cents"),
    "mean": Mean(),
    "longest": Longest(),
    "balance": Balance(),
}


def aggregated(
    directory: Path,
    aggregator: Any,
    keys: tuple[str, ...] = ("word",),
    *,
    take: int = 2,
    tasks: int = 2,
    opaque: bool = False,
    history: bool = True,
) -> TransactionalTopologyBuilder:
    """rows → aggregate → its emissions, by key, in stores of ``directory``."""
    spout = (OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout)(
        ROWS, FIELDS, take
    )
    builder = TransactionalTopologyBuilder("aggregated", "rows", spout, 2)
    values, changes = (
        MemoryStore(name, str(directory), opaque=opaque) for name in ("kept", "changes")
    )
    if keys:
        builder.set_aggregate("kept", aggregator, values, tasks).group_by("rows", Fields(keys))
    else:
        builder.set_aggregate("kept", aggregator, values, tasks).of_all("rows", "everything")
    if history:
        builder.set_aggregate("changes", History(), changes, tasks).group_by(
            "kept", Fields(keys or ("key",))
        )
    return builder


def effects(directory: Path) -> dict[str, dict[Any, Any]]:
    """The content of the stores of ``directory``."""
    return {name: dict(MemoryStore(name, str(directory)).items()) for name in ("kept", "changes")}


def in_a_plain_loop(
    aggregator: Any, keys: tuple[str, ...] = ("word",), take: int = 2
) -> dict[str, dict[Any, Any]]:
    """The same, computed batch by batch without any of it."""
    kept: dict[Any, Any] = {}
    changes: dict[Any, list[Any]] = {}
    for start in range(0, max(map(len, ROWS.values())), take):
        before: dict[Any, Any] = dict(kept)
        changed: dict[Any, None] = {}
        for partition in sorted(ROWS):
            for row in ROWS[partition][start : start + take]:
                tup: Any = dict(zip(FIELDS, row, strict=True))
                key: Any = (
                    tuple(tup[name] for name in keys)
                    if len(keys) > 1
                    else tup[keys[0]]
                    if keys
                    else "everything"
                )
                changed[key] = None
                if isinstance(aggregator, ReducerAggregator):
                    kept[key] = aggregator.reduce(kept.get(key, aggregator.init()), tup)
                else:
                    kept[key] = (
                        aggregator.combine(kept[key], aggregator.init(tup))
                        if key in kept
                        else aggregator.init(tup)
                    )
        for key in changed:
            changes.setdefault(key, []).append([before.get(key), kept[key]])
    return {"kept": kept, "changes": changes}
