"""Gives an exporter to ``txtopo export`` that waits, or is stopped by SIGSTOP, before, inside or after
a call of ``export``, to be killed or continued there."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from txtopo.command import target
from txtopo.exports import Exporter, ExportQueue, PostgresExporter, SequencedExport, leases

STEPS = ("before", "inside", "after")
REMOVING = ("removing", "removed")
"""Before and after the exchange that removes told entries."""
CALL = 2
"""The call that waits. The first one takes two entries, so that there is a second one."""


class HeldExporter(Exporter):
    """Tells what the exporter of the queue ``queue`` tells, and waits at ``step``, or ``stops``
    there. Inside a call the first entry was taken, and the second is asked for. A
    ``PostgresExporter`` has another step: ``committing``. The process has :data:`REMOVING`."""

    def __init__(self, queue: str, step: str, stops: bool = False) -> None:
        self.exporter: Exporter = target.instance(queue, ExportQueue, "an ExportQueue").exporter
        self.step, self.stops, self.calls = step, stops, 0
        if isinstance(self.exporter, PostgresExporter):
            self._hold_before_commit(self.exporter)
        self._hold_around_removal(leases.Leases)

    def export(self, entries: Iterator[SequencedExport]) -> None:
        self.calls += 1
        if self.calls < CALL:
            entries = itertools.islice(entries, 2)
        self._reach("before")
        self.exporter.export(self._handed_out(entries))
        self._reach("after")

    def _handed_out(self, entries: Iterator[SequencedExport]) -> Iterator[SequencedExport]:
        for entry in entries:
            yield entry
            self._reach("inside")

    def _hold_before_commit(self, exporter: Any) -> None:
        write = exporter._write

        def held(*arguments: Any) -> None:
            write(*arguments)
            self._reach("committing")

        exporter._write = held

    def _hold_around_removal(self, kind: Any) -> None:
        change = kind.change

        def held(leases: Any, rows: Any, visible: Any, new: Any, removed: Any = ()) -> Any:
            if removed:
                self._reach("removing")
            done = change(leases, rows, visible, new, removed)
            if removed:
                self._reach("removed")
            return done

        kind.change = held

    def _reach(self, step: str) -> None:
        if self.calls == CALL and step == self.step:
            os.write(2, f"held {step} export\n".encode())
            if not self.stops:
                threading.Event().wait()
            self.step = ""  # once
            os.kill(os.getpid(), signal.SIGSTOP)
