"""The guards of R33, each of which can be removed for one run, to show the effect of the others
alone and the damage without any.

``job check``, ``agreement`` and ``held-state fence`` are removed in the workers, by a level
function that puts substitutes in their place while it runs; ``local checkpoint`` and the driver's
part of the agreement in the driver. The required settings belong to a Spark context, and are
elsewhere. Workers import this module, and need its directory on their path.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import pyspark

from txtopo.dataplane import receive, wire, worker
from txtopo.dataplane.spill import SpillBuffer
from txtopo.spark import imports, task

GUARDS = ("job check", "agreement", "held-state fence", "local checkpoint")

_receive = receive.receive


class WeakenedLevel(task.LevelFunction):
    """A level without the guards in ``removed``."""

    removed: frozenset[str] = frozenset()

    def __call__(self, slot: int, incoming: Iterator[bytes]) -> Iterator[bytes]:
        with _removed_from_data_plane(self.removed):
            if "job check" not in self.removed:
                yield from super().__call__(slot, incoming)
                return
            context = pyspark.TaskContext.get()
            assert context is not None
            known = worker.worker_run(self._job.run, lambda: imports.data_of(self._run))
            for receiver, data in self.send(known, slot, context.taskAttemptId(), incoming):
                if not self._is_last:
                    yield struct.pack("!q", receiver)
                yield data


def weakened(removed: frozenset[str]) -> contextlib.ExitStack:
    """In the driver: while this is entered, jobs are made without the guards in ``removed``."""
    assert removed <= set(GUARDS)
    stack = contextlib.ExitStack()
    if not removed:
        return stack
    stack.enter_context(mock.patch.object(task, "LevelFunction", _level_without(removed)))
    stack.enter_context(_removed_from_data_plane(removed))
    if "local checkpoint" in removed:
        stack.enter_context(mock.patch.object(pyspark.RDD, "localCheckpoint", _keep_lineage))
    return stack


def _level_without(removed: frozenset[str]) -> Any:
    def make(*arguments: Any, **named: Any) -> WeakenedLevel:
        level = WeakenedLevel(*arguments, **named)
        level.removed = removed
        return level

    return make


@contextlib.contextmanager
def _removed_from_data_plane(removed: frozenset[str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if "agreement" in removed:
            stack.enter_context(mock.patch.object(receive, "merge_lineage", _take_the_last))
            stack.enter_context(mock.patch.object(receive._Sender, "check_complete", _accept))
        if "held-state fence" in removed:
            stack.enter_context(mock.patch.object(receive, "receive", _expecting_nothing))
        yield


def _keep_lineage(rdd: Any) -> None:
    """Instead of ``RDD.localCheckpoint``."""


def _accept(sender: Any, where: str) -> None:
    """Instead of the check that chunks are complete and of one computation."""


def _take_the_last(
    into: dict[tuple[int, int], int], lineage: Mapping[tuple[int, int], int]
) -> None:
    into.update(lineage)


def _expecting_nothing(
    job: Any,
    level: int,
    sending: int,
    expected: int | None,
    incoming: Iterator[bytes],
    buffer: SpillBuffer,
) -> receive.Received:
    return _receive(
        job,
        level,
        sending,
        None,
        _without_report(incoming),
        buffer,
    )


def _without_report(incoming: Iterator[bytes]) -> Iterator[bytes]:
    """A pinned result as if it came from the driver, which sends an empty record for no tuples."""
    is_empty = True
    for data in incoming:
        if data[:1] != wire.REPORT:
            is_empty = False
            yield data
    if is_empty:
        yield b""
