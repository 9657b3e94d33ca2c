"""Records a run in its journal.

Runs on: driver, the engine's loop, which only passes events on.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

from txtopo.engine.observer import EndedAttempt, Observer
from txtopo.journal import records, writer
from txtopo.state import layout

FOLDER = "journal"
"""The journals' folder, in the data directory."""


def place(data_dir: Path, topology_id: str) -> Path:
    """Where the journal of ``topology_id`` is."""
    return data_dir / FOLDER / layout.encode_name(topology_id)


class Recording(Observer):
    """Writes a run's journal below ``data_dir``. ``facts`` come from ``records.facts``."""

    def __init__(
        self,
        topology_id: str,
        data_dir: Path,
        bytes_max: int,
        fullness: records.Fullness,
        facts: records.Record,
    ) -> None:
        self._topology_id, self._facts = topology_id, facts
        self.data_dir = data_dir.absolute()
        self._path = place(self.data_dir, topology_id)
        self._bytes_max, self._fullness = bytes_max, fullness
        self._writer: writer.Writer | None = None

    def began(self, generation: str, epoch: int, current: int, is_resumed: bool) -> None:
        head = records.run_began(self._facts, time.time(), generation, epoch, current, is_resumed)
        self._writer = writer.Writer(self._topology_id, self._path, self._bytes_max, head)

    def attempt_ended(self, ended: EndedAttempt) -> None:
        if self._writer is not None:
            self._writer.put(functools.partial(records.attempt, ended, time.time(), self._fullness))

    def committed(self, ended: EndedAttempt) -> None:
        self.attempt_ended(ended)

    def ended(self, error: BaseException | None) -> None:
        if self._writer is not None:
            self._writer.put(
                functools.partial(records.run_ended, error, time.time(), self._fullness)
            )
            self._writer.close()
