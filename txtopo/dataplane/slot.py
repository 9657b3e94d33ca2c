"""Runs one slot in a job's level: receive, execute, send.

In a slot, first every task begins. Then inboxes execute complete lanes. Then each component takes
its turn, task by task: a spout emits, and a bolt takes the remaining tuples and finishes, or is
held. A component's turn comes after its sources' turns, so a bolt finishes only after it has
received all its tuples (R11).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from txtopo.dataplane import out_of_resources, outbox, receive, stopwatch, wire
from txtopo.dataplane.columns.task import ArrowBoltTask
from txtopo.dataplane.guard import Guard
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import AbortedError, FailureInTaskError, Report
from txtopo.dataplane.receive import Received
from txtopo.dataplane.spill import SpillBuffer
from txtopo.dataplane.spout_task import SpoutTask
from txtopo.dataplane.task import BoltTask
from txtopo.dataplane.wire import Frame
from txtopo.dataplane.wiring import Wiring
from txtopo.dataplane.worker import WorkerRun
from txtopo.topology.context import Phase
from txtopo.topology.graph import Component


class SlotRun:
    """``task_attempt`` is Spark's unique id for this computation of the slot (R33)."""

    def __init__(
        self, worker: WorkerRun, job: Job, level: int, slot: int, task_attempt: int
    ) -> None:
        self.worker = worker
        self.job = job
        self.level = level
        self.slot = slot
        self.task_attempt = task_attempt
        self.plan = worker.plan(job.task_counts, job.cores)
        self.levels = self.plan.levels_of(job.part)
        self.here = self.levels.levels[level]
        self.is_last = level + 1 == len(self.levels.levels)
        self.phase: Phase = "commit" if job.part == "commit" else "processing"
        self.guard = Guard(job, self.phase)
        self.components = [self.plan.graph.components[id] for id in self.here.components]
        self.bolts: dict[tuple[str, int], BoltTask] = {}
        self.spouts: dict[int, SpoutTask] = {}
        self.report = Report(job.name, slot, task_attempt)
        self.watch = stopwatch.for_transaction(job.attempt.txid, worker.clock)

    # -- the three steps --------------------------------------------------------------------------

    def run(self, incoming: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        """Take the slot's input. Yields (receiving slot, bytes) or, on the last level, (own slot,
        report and frames)."""
        limits, began = self.worker.run.limits, self.worker.clock()
        sending = (
            self.levels.levels[self.level - 1].slots if self.level else self.job.forwarding_slots
        )
        expected = (
            self.job.expected[self.slot]
            if self.level == 0 and self.job.expected is not None and not sending
            else None
        )
        receiving = self.here.slots if self.is_last else self.levels.levels[self.level + 1].slots
        identity = (self.report.job, self.level, self.slot, self.task_attempt)
        self.outbox = outbox.Outbox(*identity, receiving, self.worker.run.token, limits)
        try:
            with contextlib.closing(SpillBuffer(limits.spill_bytes)) as buffer:
                try:
                    received = receive.receive(
                        self.job, self.level, sending, expected, incoming, buffer
                    )
                except out_of_resources.RAN_OUT as error:
                    self.fail("taking what was sent", error)
                else:
                    self.report.before = received.before
                    self.report.lineage = received.lineage
                    self.report.failure = received.failure
                    if self.report.failure is None:
                        self.execute(received)
        except BaseException:
            self.outbox.close()
            raise
        self.report.own.busy_s[self.phase] = self.worker.clock() - began
        return self.results() if self.is_last else self.outbox.chunks(self.report)

    def execute(self, received: Received) -> None:
        """Run the tasks. After a failure, the report has the failure, and no emitted row leaves the
        slot."""
        self.wiring = Wiring(self.worker, self.plan, self.job, self.level, self.slot, self.outbox)
        try:
            for frame in received.frames_not_for(frozenset(self.here.components)):
                self.outbox.add(frame)
            self.begin_tasks(received)
            for receiver in self.wiring.inboxes:
                self.advance(*receiver)
            for component in self.components:
                for index in self.wiring.tasks_here(component):
                    self.at_work(component.id)
                    self.complete(component, index, received)
                    self.at_work("")
            self.guard.call(
                self.components[-1].id, self.slot, "sending what was emitted", self.outbox.pack
            )
        except AbortedError:
            self.fail()
        except out_of_resources.RAN_OUT as error:
            self.fail("handing over tuples and held bolts", error)
        if self.watch is not None:
            self.report.own.work_s = self.watch.work_s
        for task in self.all_tasks():
            self.report.own.add_task(
                task.component.id,
                task.index if self.job.task_counts[task.component.id] > 1 else None,
                task.executed,
                task.collector.emitted,
                task.context.touched_stores,
                task.context.counters.close(),
            )
        self.let_go()

    def let_go(self) -> None:
        """Drop all tasks. In the cycles between them, rows would wait until Python looks for
        garbage."""
        for task in self.all_tasks():
            task.collector.disconnect()
        self.guard.on_failure.clear()
        self.wiring.inboxes.clear()
        self.bolts.clear()
        self.spouts.clear()

    def fail(self, doing: str = "", error: BaseException | None = None) -> None:
        """Put the failure into the report: the guard's recorded failure, or ``error``, which was
        raised around user code."""
        if error is not None:
            self.guard.record(self.components[0].id, self.slot, doing, error)
        self.report.failure = self.guard.failure
        self.worker.resources.discard(
            {name for task in self.all_tasks() for name in task.used_resources}
        )
        if self.phase == "processing" and self.here.slots > 1 and self.report.failure is not None:
            raise FailureInTaskError(self.report.failure.to_text(self.worker.run.secret)) from None

    def results(self) -> Iterator[tuple[int, bytes]]:
        """Yield the last level's results: first the frames, unless they may not come back or the
        slot has failed, then the report."""
        if self.report.failure is None:
            yield from self.pinned_results() if self.job.pinned else self.inline_results()
        self.outbox.close()
        yield self.slot, wire.pack_report(self.report)

    def pinned_results(self) -> Iterator[tuple[int, bytes]]:
        """Yield frames that stay in Spark, group by group: all frames together may not fit in
        memory."""
        for frames in self.outbox.frames():
            yield self.slot, self.result(frames)

    def inline_results(self) -> Iterator[tuple[int, bytes]]:
        """Yield frames that travel through the driver: all of them or, if they are too large,
        none."""
        groups: list[bytes] = []
        for frames in self.outbox.frames():
            groups.append(self.result(frames))
            if (
                self.report.result_bytes
                > self.worker.run.limits.inline_bytes_max // self.here.slots
            ):
                self.report.outgrown = True
                return
        for group in groups:
            yield self.slot, group

    def result(self, frames: list[Frame]) -> bytes:
        """Pack a group of frames, and note them in the report."""
        group = wire.pack_frames(frames)
        self.report.result_bytes += len(group)
        self.report.late_rows = self.report.late_rows or any(
            frame.kind == "rows" for frame in frames
        )
        return group

    # -- tasks ------------------------------------------------------------------------------------

    def all_tasks(self) -> list[BoltTask | SpoutTask]:
        return [*self.spouts.values(), *self.bolts.values()]

    def begin_tasks(self, received: Received) -> None:
        """Make every task, downstream tasks first, so that even emits in ``prepare`` have a
        receiver."""
        for component in reversed(self.components):
            for index in self.wiring.tasks_here(component):
                if component.kind == "spout":
                    spout = SpoutTask(
                        self.worker, self.job, self.guard, component, index, self.phase
                    )
                    self.spouts[index] = spout
                    self.connect(spout)
                    continue
                bolt = (ArrowBoltTask if component.takes_columns else BoltTask)(
                    self.worker, self.job, self.guard, component, index, self.phase
                )
                self.bolts[component.id, index] = bolt
                self.wiring.add_inbox(
                    bolt,
                    received,
                    stopwatch.MeasuredBolt(self.watch, component.id, bolt) if self.watch else bolt,
                )
                self.connect(bolt)
                self.at_work(component.id)
                bolt.begin(received.held_file(component.id, index))
                self.at_work("")

    def at_work(self, component: str) -> None:
        if self.watch is not None:
            self.watch.switch(component)

    def connect(self, task: BoltTask | SpoutTask) -> None:
        self.wiring.connect(task)

    def advance(self, component: str, index: int) -> None:
        """Execute a task's lanes that are next in order. Guarded, because a value may change on the
        way to another machine."""
        self.guard.call(
            component,
            index,
            "taking the tuples that were sent",
            self.wiring.inboxes[component, index].advance,
        )

    def complete(self, component: Component, index: int, received: Received) -> None:
        """Take one task's turn, after every earlier turn."""
        if component.kind == "spout":
            self.complete_spout(self.spouts[index], received)
        else:
            bolt = self.bolts[component.id, index]
            self.advance(component.id, index)
            assert self.wiring.inboxes[component.id, index].complete, (
                f"{component.id}/{index} is not complete at its turn"
            )
            if component.id in self.plan.held and self.phase == "processing":
                bolt.hold(self.held_pieces(component.id, index))
            else:
                bolt.finish()
        for receiver in self.components:
            if any(
                s.source == component.id and self.wiring.is_fused(s, receiver)
                for s in receiver.inputs
            ):
                for task in self.wiring.tasks_here(receiver):
                    inbox = self.wiring.inboxes[receiver.id, task]
                    self.guard.call(
                        receiver.id,
                        task,
                        "taking the tuples that were sent",
                        inbox.close,
                        (component.id, index),
                    )

    def held_pieces(self, component: str, task: int) -> wire.PieceWriter:
        """A writer that sends a held instance to the commit phase, in pieces with bounded size."""
        bound = min(self.worker.run.limits.blob_bytes_max, outbox.Outbox.PACK_BYTES)
        return wire.PieceWriter(
            bound, lambda piece: self.outbox.add(Frame("held", component, task, "", -1, piece))
        )

    def complete_spout(self, spout: SpoutTask, received: Received) -> None:
        """Let a spout emit, send its recorded tuples, or commit its batch."""
        key = (spout.component.id, spout.index)
        if self.phase == "commit":
            held = received.held_file(*key)
            assert held is not None, f"the held emitter of {key} is missing"
            spout.commit(held)
        elif self.job.batch is not None and self.job.batch.mode == "recorded":
            for handle in received.lanes.get(key, {}).get(key, []):
                data = received.buffer.read(handle)
                self.wiring.make_room(len(data))
                runs = spout.call("taking the tuples that were recorded", wire.unpack_runs, data)
                spout.call("sending the tuples that were recorded", spout.replay, runs)
        else:
            spout.emit(self.held_pieces(*key))
            self.report.own.metadata.update(spout.metadata)
            if spout.num_partitions is not None:
                self.report.own.partition_counts.add(spout.num_partitions)


def forward(
    worker: WorkerRun,
    job: Job,
    slot: int,
    task_attempt: int,
    receiving_slots: int,
    incoming: Iterator[bytes],
) -> Iterator[tuple[int, bytes]]:
    """Send pinned results on to the first level's slots, as the job's level -1."""
    assert job.expected is not None
    run, limits = worker.run, worker.run.limits
    onward = outbox.Outbox(job.name, -1, slot, task_attempt, receiving_slots, run.token, limits)
    with contextlib.closing(SpillBuffer(limits.spill_bytes)) as buffer:
        received = receive.receive(job, -1, 0, job.expected[slot], incoming, buffer)
        for frame in received.frames_not_for(frozenset()):
            onward.add(frame)
    return onward.chunks(Report(job.name, slot, task_attempt))
