"""Count every word with an aggregate of the library: the shortest topology.

::

    lines ──shuffle──► split ×2 ──none──► count-of-split ×2 ──fields(word)──► count ×2 (committer)

``set_aggregate`` makes the last two components. The first of them adds up the words of each task
of ``split``, so that one number per word travels; the second, a committer, adds these numbers to
the store, exactly once per transaction. The starter ``transactional_words.py`` does the same by
hand.

Type ``txtopo run starter/word_count.py``; run the topology again, and no word is counted twice.
Append a line to ``lines.txt``, and the next run counts that line alone. The store is the file that
TXTOPO_STARTER_STORE names, otherwise .txtopo/word-count.db.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseBasicBolt,
    BasicOutputCollector,
    Config,
    Count,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.connectors.files import FileTransactionalSpout
from txtopo.stores import SqliteStore

LINES = Path(__file__).with_name("lines.txt")
STORE_PATH = ".txtopo/word-count.db"


class Split(BaseBasicBolt):
    """A line in, each word of the line out."""

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
    """The topology, over ``spout`` (default: the lines of ``lines.txt``), counting into the store
    at ``store_path``."""
    # A real file takes bytes_per_batch of a megabyte, the default; 24 bytes make a batch per line.
    spout = spout or FileTransactionalSpout(LINES, bytes_per_batch=24)
    builder = TransactionalTopologyBuilder("word-count", "lines", spout)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_aggregate("count", Count(), open_store(store_path), 2).group_by(
        "split", Fields("word")
    )
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
