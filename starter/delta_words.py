"""Append the words of a file to a Delta table, each once.

::

    lines ──none──► split ×2 ──none──► write ×2 (committer)

``DeltaSink`` makes one commit of the table for each transaction, with the transaction's number in
it: a replay adds nothing, also if the topology is killed. Every reader of Delta tables reads the
table, for example ``deltalake.DeltaTable(".txtopo/delta-words").to_pyarrow_table()``.

Run it with ``txtopo run starter/delta_words.py``; append a line to ``lines.txt``, run it again, and
its words are added. It needs ``pip install 'txtopo[delta]'``. The table is in the folder that
DELTA_TABLE names, otherwise in .txtopo/delta-words.
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
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.connectors.delta import DeltaSink
from txtopo.connectors.files import FileTransactionalSpout

LINES = Path(__file__).with_name("lines.txt")
DELTA_TABLE = os.environ.get("DELTA_TABLE") or ".txtopo/delta-words"


class Split(BaseBasicBolt):
    """A line in, its words out."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup["line"].split():
            collector.emit([tup.attempt, word])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word"))


def make_topology(table: str | Path = DELTA_TABLE, spout: Any = None) -> Any:
    """The topology, over ``spout`` (default: the lines of ``lines.txt``), writing to ``table``."""
    # A real file takes bytes_per_batch of a megabyte, the default; 24 bytes make a batch per line.
    spout = spout or FileTransactionalSpout(LINES, bytes_per_batch=24)
    builder = TransactionalTopologyBuilder("delta-words", "lines", spout)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("write", DeltaSink(table), 2).none_grouping("split")
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
