"""Jobs in this process: the data plane without Spark.

The same ``SlotRun`` that Spark's workers run, level after level, with everything that would cross a process pickled as it would be.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from txtopo.dataplane import execute, outcome, wire
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import Report
from txtopo.dataplane.wire import Frame
from txtopo.dataplane.worker import WorkerRun


class InProcessJobs:
    """Runs jobs one at a time. ``rng``, if given, shuffles the order in which slots run and chunks arrive, as Spark would."""

    def __init__(self, worker: WorkerRun, rng: random.Random | None = None) -> None:
        self.worker = worker
        self._rng = rng
        self._task_attempts = itertools.count()

    def run(self, job: Job, seeds: Sequence[Frame] = ()) -> tuple[list[Report], list[Frame]]:
        """The reports of the last level's slots, and the frames that came out of it."""
        levels = self.worker.plan(job.task_counts).levels_of(job.part).levels
        inputs: list[list[bytes]] = [[] for _ in range(levels[0].slots)]
        for slot, seeded in enumerate(inputs):
            mine = [frame for frame in seeds if frame.task % levels[0].slots == slot]
            seeded.append(wire.pack_frames(mine, wire.SEED) if mine else b"")
        for index, level in enumerate(levels):
            last = index + 1 == len(levels)
            outputs: list[list[bytes]] = [[] for _ in range(level.slots if last else levels[index + 1].slots)]
            slots = list(range(level.slots))
            if self._rng is not None:
                self._rng.shuffle(slots)
            for slot in slots:
                run = execute.SlotRun(self.worker, job, index, slot, next(self._task_attempts))
                try:
                    for receiver, data in run.run(iter(inputs[slot])):
                        outputs[receiver].append(data)
                except outcome.FailureInTaskError as error:
                    report = Report(job.name, slot, run.task_attempt, failure=outcome.from_text(str(error)))
                    return [report], []
            if self._rng is not None and not last:
                for arriving in outputs:
                    self._rng.shuffle(arriving)
            inputs = outputs
        reports: list[Report] = []
        frames: list[Frame] = []
        for data in itertools.chain.from_iterable(inputs):
            if data[:1] == wire.REPORT:
                reports.append(wire.unpack_report(data))
            else:
                frames.extend(wire.unpack_frames(data))
        return reports, frames
