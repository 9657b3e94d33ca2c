"""Records a run in its journal.

Runs on: driver, the engine's loop, which only passes events on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

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
        self._away_since: float | None = None
        self._early: list[Callable[[], records.Record]] = []
        """Records from before the run began, as of a run that begins paused."""

    def began(self, generation: str, epoch: int, current: int, is_resumed: bool) -> None:
        head = records.run_began(self._facts, time.time(), generation, epoch, current, is_resumed)
        self._live = live.Live(self._path, head, self._present, self._fullness)
        self._writer = writer.Writer(
            self._topology_id, self._path, self._bytes_max, head, self._live.write
        )
        for make in self._early:
            self._writer.put(make)

    def _present(self) -> live.Moment:
        """The present moment, on the writer's thread. Keeps the changes of ZooKeeper's connection."""
        moment = self._look()
        since = self._away_since
        if moment.is_away != (since is not None):
            self._away_since = moment.at if moment.is_away else None
            lasted_s = None if since is None else round(moment.at - since, 3)
            facts = {"is_away": moment.is_away, "lasted_s": lasted_s}
            self._keep("zookeeper", moment.at, facts)
        return moment

    def note_request(self, want: str, by: str, asked_at: str) -> None:
        """Keep what ``by`` has asked of the run. From any thread."""
        self._keep("request", time.time(), {"want": want, "by": by, "asked_at": asked_at})

    def note_takeover(self, holder: records.Record) -> None:
        """Keep that ``holder`` had the topology before this run."""
        self._keep("lease", time.time(), holder)

    def _keep(
        self, kind: Literal["lease", "request", "zookeeper"], at: float, facts: records.Record
    ) -> None:
        record = {"kind": kind, "at": records.time_of(at), **facts}
        (self._early.append if self._writer is None else self._writer.put)(lambda: record)

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
