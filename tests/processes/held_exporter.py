"""Gives an exporter to ``txtopo export`` that waits before, inside or after a call of ``export``, to
be killed there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from txtopo.command import target
from txtopo.exports import Exporter, ExportQueue, SequencedExport

STEPS = ("before", "inside", "after")
CALL = 2
"""The call that waits. The first one tells its entries."""


class HeldExporter(Exporter):
    """Tells what the exporter of the queue ``queue`` tells, and waits at ``step``. Inside a call
    the first entry was taken, and the second is asked for."""

    def __init__(self, queue: str, step: str) -> None:
        self.exporter: Exporter = target.instance(queue, ExportQueue, "an ExportQueue").exporter
        self.step, self.calls = step, 0

    def export(self, entries: Iterator[SequencedExport]) -> None:
        self.calls += 1
        self._reach("before")
        self.exporter.export(self._handed_out(entries))
        self._reach("after")

    def _handed_out(self, entries: Iterator[SequencedExport]) -> Iterator[SequencedExport]:
        for entry in entries:
            yield entry
            self._reach("inside")

    def _reach(self, step: str) -> None:
        if self.calls == CALL and step == self.step:
            os.write(2, f"held {step} export\n".encode())
            threading.Event().wait()
