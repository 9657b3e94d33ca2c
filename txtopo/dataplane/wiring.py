"""A slot's wiring: where emitted tuples go, within this process and out of it.

A stream leads to inboxes on the same slot or, through the outbox's lanes, to other slots. For each
tuple, the grouping chooses among them.
"""

from __future__ import annotations

from txtopo.dataplane import collector, column_runs, outbox, route
from txtopo.dataplane.inbox import Bolt, Inbox
from txtopo.dataplane.job import Job
from txtopo.dataplane.receive import LaneKey, Received
from txtopo.dataplane.spout_task import SpoutTask
from txtopo.dataplane.task import BoltTask
from txtopo.dataplane.worker import WorkerRun
from txtopo.plan.compiler import Plan
from txtopo.topology.graph import Component, Subscription
from txtopo.topology.stream import TupleSource


class Wiring:
    """Connects the tasks on ``slot`` of ``level``."""

    def __init__(
        self,
        worker: WorkerRun,
        plan: Plan,
        job: Job,
        level: int,
        slot: int,
        sending: outbox.Outbox,
    ) -> None:
        self._worker, self.job, self._slot, self._outbox = worker, job, slot, sending
        self.plan, self.levels = plan, plan.levels_of(job.part)
        self._slots = self.levels.levels[level].slots
        # Topological order, by which tuples are sorted first (R17).
        self._order = {id: rank for rank, id in enumerate(self.plan.graph.components)}
        self.inboxes: dict[tuple[str, int], Inbox] = {}
        self._sources: dict[tuple[LaneKey, str], TupleSource] = {}
        self._heavy_bytes = 0

    def tasks_here(self, component: Component) -> range:
        return range(self._slot, component.parallelism, self._slots)

    def add_inbox(self, bolt: BoltTask, received: Received, reader: Bolt) -> None:
        """Give ``bolt`` an inbox, for arrived tuples and for tuples from this slot's tasks.
        ``reader`` takes them: the bolt, or a bolt that measures it."""
        component, key = bolt.component, (bolt.component.id, bolt.index)
        live = {
            (s.source, task)
            for s in component.inputs
            if self.is_fused(s, component)
            for task in self.tasks_here(self.plan.graph.components[s.source])
        }
        self.inboxes[key] = Inbox(
            received.lanes.get(key, {}),
            live,
            self._order,
            received.buffer,
            self._source,
            reader,
            self._worker.run.token,
        )

    def make_room(self, weight: int) -> None:
        """Before heavy rows are sent: if the rows since the last time weigh enough, turn all
        waiting rows into bytes, which may spill."""
        self._heavy_bytes += weight
        if self._heavy_bytes > outbox.Outbox.PACK_BYTES:
            self._heavy_bytes = weight
            self._outbox.pack()
            for inbox in self.inboxes.values():
                inbox.pack()

    def is_fused(self, subscription: Subscription, receiver: Component) -> bool:
        """Whether ``subscription``'s tuples reach ``receiver`` without leaving this process."""
        return (subscription.source, subscription.stream, receiver.id) in self.levels.fused

    def _source(self, key: LaneKey, stream: str) -> TupleSource:
        """The source of a lane's tuples. All tuples on one stream share the object."""
        if (key, stream) not in self._sources:
            spec = self.plan.graph.components[key[0]].outputs[stream]
            self._sources[key, stream] = TupleSource(key[0], key[1], stream, spec.fields)
        return self._sources[key, stream]

    def connect(self, task: BoltTask | SpoutTask) -> None:
        component, index = task.component, task.index
        task.collector.on_heavy = self.make_room
        task.collector.on_many = self._outbox.pack_if_many
        out_lanes: dict[tuple[str, int], outbox.OutLane] = {}
        memories: dict[tuple[str, str], route.SenderMemory] = {}
        task.collector.connect_columns = lambda: column_runs.load_ports().ports(
            self, task, out_lanes, memories
        )
        if self.job.part == "emission":
            self._connect_recorder(task)
            return
        only_streams = self._worker.only_streams(component.id)
        for stream, spec in component.outputs.items():
            for receiver, grouping in self.plan.graph.receivers(component.id, stream):
                if (component.id, stream, receiver.id) in self.levels.fused:
                    only = route.fixed_task(grouping, index, receiver.parallelism)
                    lanes = [
                        self.inboxes[receiver.id, t].sender((component.id, index), stream)
                        if only in (None, t)
                        else unreachable
                        for t in range(receiver.parallelism)
                    ]
                    if grouping.traits.many_tasks and receiver.parallelism > 1:
                        lanes = [
                            collector.with_own_copies(lane, self._worker.run.token)
                            for lane in lanes
                        ]
                else:
                    lanes = []
                    for t in range(receiver.parallelism):
                        if (receiver.id, t) not in out_lanes:
                            out_lanes[receiver.id, t] = self._outbox.lane(
                                receiver.id, t, component.id, index, only_streams.get(receiver.id)
                            )
                        lanes.append(out_lanes[receiver.id, t].sender(stream))
                if spec.direct:
                    task.collector.connect_direct(stream, receiver.id, lanes)
                else:
                    edge = route.Edge(component.id, stream, receiver.id)
                    memory = memories[stream, receiver.id] = route.SenderMemory(
                        grouping, index, self.job.attempt.txid, receiver.parallelism, edge
                    )
                    task.collector.connect(
                        stream, route.make_send(grouping, spec.fields, index, lanes, memory)
                    )

    def _connect_recorder(self, task: BoltTask | SpoutTask) -> None:
        """Connect every stream to one lane, which records a spout task's rows for the processing
        job."""
        component = task.component
        streams = list(component.outputs)
        only = (
            streams[0] if len(streams) == 1 and not component.outputs[streams[0]].direct else None
        )
        lane = self._outbox.lane(component.id, task.index, component.id, task.index, only)
        task.collector.connect_columns = lambda: column_runs.load_ports().recording_ports(
            self, task, lane
        )
        for stream, spec in component.outputs.items():
            if not spec.direct:
                task.collector.connect(stream, lane.sender(stream))
                continue
            for number, (receiver, _) in enumerate(self.plan.graph.receivers(component.id, stream)):
                # One receiver is enough to record the emit. The other receivers only check the task
                # index.
                senders = [
                    lane.sender(collector.direct_stream(stream, t)) if number == 0 else ignore
                    for t in range(receiver.parallelism)
                ]
                task.collector.connect_direct(stream, receiver.id, senders)


def ignore(_: object) -> None:
    """Send a row or a RecordBatch nowhere."""


def unreachable(_: object) -> None:
    """Stand for a task on another slot, which a fused edge never leads to."""
    raise AssertionError("a fused edge led to a task of another slot")
