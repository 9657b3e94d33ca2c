"""Does what people ask of a run from elsewhere: pause, resume, drain.

Runs on: driver, on the thread that renews the lease.
"""

from __future__ import annotations

from collections.abc import Callable

from txtopo import errors
from txtopo.engine.engine import Engine
from txtopo.engine.observer import LOGGER, Observer
from txtopo.state import base, layout, records
from txtopo.state import requests as requested


class Requests(Observer):
    """Reads requests to a topology's run, once a second, and has the engine carry them out. ``asked``
    is told each request, its author and its time."""

    def __init__(
        self, store: base.StateStore, topology_id: str, asked: Callable[[str, str, str], object]
    ) -> None:
        self._asked = asked
        self._store, self._paths = store, layout.Layout(topology_id)
        self._is_paused = self._is_quiet = self._drains = False
        self._unreadable = ""
        self.standbys = 0
        """How many runs wait for the topology."""

    def paused(self) -> None:
        self._is_quiet = True

    def question(self, number: int) -> None:
        self._is_quiet = False

    def look(self, engine: Engine, epoch: int) -> None:
        """Do what is asked now."""
        try:
            self.standbys = len(self._store.children(self._paths.standbys))
            record = requested.read(self._store, self._paths)
            self._obey(record, engine, epoch)
            self._answer(record, epoch)
        except (errors.UnreadableStateError, errors.FencedError) as error:
            if str(error) != self._unreadable:
                LOGGER.warning("requests to topology %r: %s", self._paths.topology_id, error)
            self._unreadable = str(error)

    def _obey(self, record: records.RequestRecord, engine: Engine, epoch: int) -> None:
        id, pause, drain = self._paths.topology_id, record.pause, record.drain
        if pause is not None and not self._is_paused:
            LOGGER.warning("topology %r is paused: %s asked for it at %s", id, pause.by, pause.at)
            self._asked("pause", pause.by, pause.at)
            engine.opening.pause()
        if pause is None and self._is_paused:
            LOGGER.warning("topology %r is resumed", id)
            self._asked("resume", "", "")
            engine.opening.resume()
        self._is_paused = pause is not None
        if drain is not None and drain.epoch == epoch and not self._drains:
            LOGGER.warning("topology %r ends: %s asked for it at %s", id, drain.by, drain.at)
            self._asked("drain", drain.by, drain.at)
            self._drains = True
            engine.drain()

    def _answer(self, record: records.RequestRecord, epoch: int) -> None:
        """Say that a pause is reached, and forget what was asked of an earlier run."""

        def answered(now: records.RequestRecord) -> records.RequestRecord:
            pause, drain = now.pause, now.drain
            if pause is not None and pause == record.pause and self._is_quiet:
                pause = pause.model_copy(update={"is_reached": True})
            if drain is not None and drain.epoch < epoch:
                drain = None
            return now.model_copy(update={"pause": pause, "drain": drain})

        if answered(record) != record:
            requested.change(self._store, self._paths, answered)
