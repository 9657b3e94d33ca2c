"""Topologies that write the lines of files to a directory, while new files appear or logs are
rotated.

The environment names the place, FILES_IN_MOTION: lines are read from its folder ``in``, and written
to ``out``.
"""

from __future__ import annotations

import os
from pathlib import Path

from txtopo import Config, Fields, TransactionalTopologyBuilder
from txtopo.connectors.files import FileSink, FileTransactionalSpout

PLACE = Path(os.environ["FILES_IN_MOTION"])
LOGS = [PLACE / "in" / name for name in ("app.log", "web.log")]
COLUMNS, BYTES_PER_BATCH = ("log", "n"), 500


def grown() -> TransactionalTopologyBuilder:
    """Reads a directory that grows."""
    return _copying(
        "grown-files",
        FileTransactionalSpout(
            PLACE / "in" / "*.jsonl", BYTES_PER_BATCH, 2, COLUMNS, format="json", growing=True
        ),
    )


def followed() -> TransactionalTopologyBuilder:
    """Follows two logs."""
    return _copying(
        "followed-files",
        FileTransactionalSpout(LOGS, BYTES_PER_BATCH, fields=COLUMNS, format="json", follow=True),
    )


def _copying(name: str, spout: FileTransactionalSpout) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder(name, "lines", spout, 2)
    sink = FileSink(PLACE / "out")
    builder.set_bolt("write", sink, 2).fields_grouping("lines", Fields(COLUMNS[0]))
    return builder


conf = Config(max_spout_pending=3, poll_interval_s=0.02, backoff_min_s=0.01)
