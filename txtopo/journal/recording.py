"""Records a run in its journal.

Runs on: driver, the engine's loop, which only passes events on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

from txtopo.engine.observer import EndedAttempt, Observer
from txtopo.journal import live, records, writer
from txtopo.state import layout

FOLDER = "journal"
"""The journals' folder, in the data directory."""


def place(data_dir: Path, topology_id: str) -> Path:
    """Where the journal of ``topology_id`` is."""
    return data_dir / FOLDER / layout.encode_name(topology_id)


class Recording(Observer):
    """Writes a run's journal below ``data_dir``. ``facts`` come from ``records.facts``. ``look``
    gives the run's present moment, from any thread."""

    def __init__(
        self,
        topology_id: str,
        data_dir: Path,
        bytes_max: int,
        fullness: records.Fullness,
        facts: records.Record,
        look: Callable[[], live.Moment],
    ) -> None:
        self._topology_id, self._facts, self._look = topology_id, facts, look
        self.data_dir = data_dir.absolute()
        self._path = place(self.data_dir, topology_id)
        self._bytes_max, self._fullness = bytes_max, fullness
        self._writer: writer.Writer | None = None

    def began(self, generation: str, epoch: int, current: int, is_resumed: bool) -> None:
        head = records.run_began(self._facts, time.time(), generation, epoch, current, is_resumed)
        self._live = live.Live(self._path, head, self._look, self._fullness)
        self._writer = writer.Writer(
            self._topology_id, self._path, self._bytes_max, head, self._live.write
        )

    def attempt_ended(self, ended: EndedAttempt) -> None:
        if self._writer is not None:
            self._writer.put(functools.partial(self._record, ended, time.time()))

    def _record(self, ended: EndedAttempt, at: float) -> records.Record:
        """On the writer's thread."""
        record = records.attempt(ended, at, self._fullness)
        self._live.add(ended, record["at"])
        return record

    def committed(self, ended: EndedAttempt) -> None:
        self.attempt_ended(ended)

    def ended(self, error: BaseException | None) -> None:
        if self._writer is not None:
            self._writer.put(
                functools.partial(records.run_ended, error, time.time(), self._fullness)
            )
            self._writer.close()
