"""Topologies that write to sinks, made to be killed in the middle of a commit, with another number
of tasks in every life.

::

    numbers ×2 ──shuffle──► note ×2 ──fields──► write ×2, 3 or 4 (sink) ──global──► told ×1 (sink)

``note`` makes ``(id, cents)`` of every number, where cents is the txid; ``told`` writes what
``write`` says it wrote. Workers import this.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.topologies.sinks import KINDS, LOOSE, SALES, Shop
from tests.topologies.step_spouts import SPOUTS, Source
from txtopo import (
    BaseBasicBolt,
    BasicOutputCollector,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.connectors.sql import SqlSink


@dataclass(frozen=True)
class Writing:
    """One of the topologies: a spout of kind ``spout`` over a sink of kind ``sink``."""

    spout: str
    sink: str
    backend: str

    @property
    def name(self) -> str:
        """Short and unique."""
        return f"{self.spout}-{self.sink}-{self.backend}".replace(" ", "-")

    @property
    def topology_id(self) -> str:
        """The id of its state."""
        return f"sinks-{self.name}"

    def shop(self, addresses: dict[str, str]) -> Shop:
        """Where its rows go; of a database there is one for every topology."""
        return Shop(addresses[self.name], None)

    def prepare(self, addresses: dict[str, str]) -> None:
        """Make the tables."""
        self.shop(addresses).execute(
            SALES.replace("CHECK (cents >= 0)", "") if KINDS[self.sink].get("key") else LOOSE
        )
        self.shop(addresses).execute(
            'CREATE TABLE told (txid INTEGER, "rows" INTEGER, written_by TEXT)'
        )


WRITING = (
    Writing("plain", "inserts", "sqlite"),
    Writing("storm", "inserts", "postgresql"),
    Writing("opaque-storm", "marks", "sqlite"),
    Writing("opaque-planned", "marks", "postgresql"),
    Writing("opaque-storm", "undo log", "postgresql"),
    Writing("planned", "upserts", "mariadb"),
    Writing("opaque-planned", "marks", "mariadb"),
)


class Note(BaseBasicBolt):
    """Says of every number which transaction it came in."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([tup.attempt, tup["n"], tup.attempt.txid])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "id", "cents"))


class Total(BaseBasicBolt):
    """Reports the writes of each task of the sink."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([tup.attempt, tup.attempt.txid, tup["rows"]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "txid", "rows"))


def make_topology(
    writing: Writing, directory: Path, addresses: dict[str, str], size: int, life: int
) -> Any:
    """The topology ``writing`` in life ``life``."""
    shop, opaque = writing.shop(addresses), writing.spout.startswith("opaque")
    source = Source(directory / f"journal-{writing.name}", size, life)
    told = SqlSink(shop.address, "told", ["txid", "rows"], mark="written_by", opaque=opaque)
    builder = TransactionalTopologyBuilder(
        writing.topology_id, "numbers", SPOUTS[writing.spout](source), 2
    )
    builder.set_bolt("note", Note(), 2).shuffle_grouping("numbers")
    builder.set_bolt("write", shop.sink(writing.sink), 2 + life % 3).fields_grouping(
        "note", Fields("id")
    )
    builder.set_bolt("total", Total()).global_grouping("write")
    builder.set_bolt("told", told).global_grouping("total")
    return builder.build_topology()
