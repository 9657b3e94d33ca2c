"""Bolts and a grouping that go by ``hash()``, in ways that one process cannot show."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.topologies.numbered_lines import LINES, Putting
from txtopo import (
    BaseBasicBolt,
    BasicOutputCollector,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology.graph import TopologyGraph


class First(BaseBasicBolt):
    """Emits one of some words that begin with the word: the first out of a set, or the least."""

    def __init__(self, sort: bool) -> None:
        self.sort = sort

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        words = {tup["word"] + ending for ending in ("", "s", "ed", "ing", "er", "est")}
        word = min(words) if self.sort else next(iter(words))
        collector.emit([tup[0], word, len(word)])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "number"))


class ByHash:
    """Deals by ``hash()`` of the word, which is the classic mistake; or by its length."""

    def __init__(self, by_length: bool) -> None:
        self.by_length = by_length

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        """One of three tasks."""
        return [(len(values[1]) if self.by_length else hash(values[1])) % 3]


class Dice(First):
    """Wrong in every process."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([tup[0], tup["word"], random.randrange(1 << 30)])


def topology(first: Any, grouping: Any = None) -> TopologyGraph:
    """spout ×1 → first ×2 → write ×3, by ``grouping`` or by fields."""
    builder = TransactionalTopologyBuilder(
        "hashing", "spout", MemoryTransactionalSpout(LINES, ["word"], 1)
    )
    builder.set_bolt("first", first, 2).shuffle_grouping("spout")
    declared = builder.set_bolt("write", Putting(SqliteStore("/nowhere/hashing.db", "numbers")), 3)
    if grouping is None:
        declared.fields_grouping("first", ["word"])
    else:
        declared.custom_grouping("first", grouping)
    return builder.build_topology()
