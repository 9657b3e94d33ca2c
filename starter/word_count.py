"""Count every word, with the library: the smallest topology that is worth running.

::

    lines ×2 ──none──► split ×2 ──none──► count-of-split ×2 ──fields(word)──► count ×2 (committer)

``set_aggregate`` makes the last two: each task of ``split`` has its words combined where they are
made, so that one number per word travels, and a committer adds these to the store, exactly once per
transaction. ``transactional_words.py`` shows what this takes by hand.

Run it with ``txtopo run starter/word_count.py``; run it again, and nothing is counted twice. The
store is the file that TXTOPO_STARTER_STORE names, otherwise .txtopo/word-count.db.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import txtopo
from txtopo import BaseBasicBolt, BasicOutputCollector, Config, Count, Fields, OutputFieldsDeclarer, TransactionalTopologyBuilder, Tuple
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout

LINES = {0: [("the cat sat on the mat",), ("the dog sat on the cat",)], 1: [("a cat is not a dog",)]}
STORE_PATH = ".txtopo/word-count.db"


class Split(BaseBasicBolt):
    """One line in, its words out."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit_all([tup.attempt, word] for word in tup["line"].split())

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word"))


def open_store(path: str | Path | None = None) -> SqliteStore:
    """The store of word → count."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "word_count")


def make_topology(store_path: str | Path | None = None, spout: Any = None) -> Any:
    """The topology, over ``spout`` (default: the three lines of ``LINES``), counting into the store
    at ``store_path``."""
    spout = spout or MemoryTransactionalSpout(LINES, Fields("line"), take_per_partition=1)
    builder = TransactionalTopologyBuilder("word-count", "lines", spout, 2)
    builder.set_bolt("split", Split(), 2).none_grouping("lines")
    builder.set_aggregate("count", Count(), open_store(store_path), 2).group_by("split", Fields("word"))
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
