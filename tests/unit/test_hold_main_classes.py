"""Classes defined in the program itself cannot be imported by a worker: they travel once, with the
topology, and are then named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

DRIVER = """
import dataclasses, enum, pathlib, pickle, sys
import txtopo
from txtopo.dataplane.job import Run
from txtopo.topology import pickling

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int

class Spout(txtopo.BasePartitionedTransactionalSpout):
    def get_coordinator(self, conf, context): ...
    def get_emitter(self, conf, context):
        return Emitter()
    def declare_output_fields(self, declarer):
        declarer.declare(txtopo.Fields("tx", "point"))

class Emitter(txtopo.PartitionedSpoutEmitter):
    def emit_partition_batch(self, attempt, collector, partition, metadata):
        for x in metadata:
            collector.emit([attempt, Point(x)])

class Move(txtopo.BaseBasicBolt):
    def execute(self, tup, collector):
        assert type(tup[1]) is Point, type(tup[1])
        collector.emit([tup[0], Point(tup[1].x + 1), Colour.RED])
    def declare_output_fields(self, declarer):
        declarer.declare(txtopo.Fields("tx", "point", "colour"))

class Sum(txtopo.BaseTransactionalBolt, txtopo.ICommitter):
    def prepare(self, conf, context, collector, attempt):
        self.collector, self.context, self.attempt = collector, context, attempt
        self.points = []
    def execute(self, tup):
        assert tup["colour"] is Colour.RED
        self.points.append(tup["point"])
    def finish_batch(self):
        assert all(type(point) is Point for point in self.points)
        path = self.context.resource("path", lambda: None)
        pathlib.Path(sys.argv[1], f"sum-{self.context.task_index}").write_text(str(sum(point.x for point in self.points)))

builder = txtopo.TransactionalTopologyBuilder("main", "spout", Spout(), 2)
builder.set_bolt("move", Move(), 2).none_grouping("spout")
builder.set_bolt("sum", Sum(), 2).shuffle_grouping("move")
graph = builder.build_topology()
print(sorted(cls.__qualname__ for cls in graph.by_value))
pathlib.Path(sys.argv[1], "run").write_bytes(pickling.dumps(Run("token", graph, 2, {}, "generation")))
"""

WORKER = """
import pathlib, pickle, random, sys
from txtopo import TransactionAttempt
from txtopo.dataplane import worker
from txtopo.dataplane.job import Batch, Job
from tests.topologies.recording import InProcessJobs

known = worker.worker_run("token", pathlib.Path(sys.argv[1], "run").read_bytes)
assert worker.worker_run("token", lambda: b"is not loaded again") is known
jobs = InProcessJobs(known, random.Random(1))
counts = known.run.graph.task_counts
attempt = TransactionAttempt(1, 0)
result = jobs.run(Job("token", "processing", attempt, counts, batch=Batch("planned", partitions={0: list(range(500)), 1: [1000]})))
assert result.failure is None, result
for frame in result.frames:
    assert b"prepare" not in frame.payload and b"co_code" not in frame.payload, "code travels with the held bolt"
    assert len(frame.payload) < 20_000, len(frame.payload)
result = jobs.run(Job("token", "commit", attempt, counts), result.frames)
assert result.failure is None, result
print(sum(int(path.read_text()) for path in pathlib.Path(sys.argv[1]).glob("sum-*")))
"""


@pytest.mark.rule(12)
def test_a_topology_of_classes_of_the_program_runs_in_a_process_that_cannot_import_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "worker.py").write_text(WORKER)
    environment = {"PYTHONPATH": str(ROOT)}
    outputs = [
        subprocess.run(
            [sys.executable, str(tmp_path / name), str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
        )
        for name in ("driver.py", "worker.py")
    ]
    assert [output.returncode for output in outputs] == [0, 0], "\n".join(
        output.stderr for output in outputs
    )
    assert outputs[0].stdout.strip() == "['Colour', 'Emitter', 'Move', 'Point', 'Spout', 'Sum']"
    assert int(outputs[1].stdout) == sum(range(500)) + 1000 + 501
