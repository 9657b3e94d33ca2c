"""Bolts of columns between the phases, the spout over columns in memory, and the imports of
workers.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from tests.topologies.columns import ColumnsSpout, NotingArrowBolt, NotingArrowCommitter
from tests.topologies.planned_spouts import Drive
from tests.topologies.recording import NotingBolt, builder, run_once
from txtopo import BaseBatchBolt, ConfigError, Fields
from txtopo.plan import compiler, explain
from txtopo.testing import ArrowMemoryTransactionalSpout

WORDS = pa.table({"word": ["a", "b", "c", "d", "e"], "n": [1, 2, 3, 4, 5]})


@pytest.mark.rule(12)
def test_a_kept_slice_of_a_large_batch_is_held_without_the_rest() -> None:
    def keep_two(bolt: NotingArrowBolt, batch: pa.RecordBatch) -> None:
        bolt.kept[:] = [batch.slice(1000, 2)]

    topology = builder(ColumnsSpout())
    topology.set_bolt("bolt", NotingArrowCommitter(keep_two)).none_grouping("spout")
    ran = run_once(
        topology.build_topology(), {0: [["default", [[f"k{n}", n] for n in range(20_000)]]]}
    )
    assert ran.failure is None, ran.failure
    assert [event.details for event in ran.events if event.hook == "finish_batch"] == [
        (("k1000", 1000), ("k1001", 1001))
    ]
    (held,) = [frame for frame in ran.frames["processing"] if frame.kind == "held"]
    assert len(held.payload) < 5000


@pytest.mark.rule(12)
def test_a_bolt_of_tuples_may_keep_columns_too() -> None:
    class Keeping(NotingBolt):
        def execute(self, tup: Any) -> None:
            self.kept = [pa.array(range(tup[2], tup[2] + 3)), WORDS.slice(1, 2), WORDS.column("n")]

        def finish_batch(self) -> None:
            self.seen = [
                self.kept[0].to_pylist(),
                self.kept[1].to_pylist(),
                self.kept[2].to_pylist(),
            ]
            super().finish_batch()

    topology = builder(ColumnsSpout())
    topology.set_committer_bolt("bolt", Keeping()).none_grouping("spout")
    ran = run_once(topology.build_topology(), {0: [["default", [["a", 7]]]]})
    assert ran.failure is None, ran.failure
    assert [event.details for event in ran.events if event.hook == "finish_batch"] == [
        ([7, 8, 9], WORDS.slice(1, 2).to_pylist(), [1, 2, 3, 4, 5])
    ]


@pytest.mark.rule(17)
def test_rows_of_one_call_are_of_one_task_and_stream() -> None:
    topology = builder(ColumnsSpout(), 2)
    topology.set_bolt("bolt", NotingArrowBolt()).global_grouping("spout")
    topology.set_bolt("next", BaseBatchBoltThatEmitsTuples(), 2).global_grouping("spout")
    topology.set_bolt("last", NotingArrowBolt()).global_grouping("bolt").global_grouping("next")
    one, other = [["default", [["a", 1], ["b", 2]]]], [["default", {"key": "c", "value": 3}]]
    ran = run_once(topology.build_topology(), {0: one, 1: other}, cores=2)
    calls = [
        event.details[:4]
        for event in ran.events
        if event.component == "bolt" and event.hook == "execute_batch"
    ]
    assert calls == [
        ("spout", 0, "default", (("a", 1), ("b", 2))),
        ("spout", 1, "default", (("c", 3),)),
    ]


class BaseBatchBoltThatEmitsTuples(BaseBatchBolt):
    """Passes tuples on."""

    def prepare(self, conf: Any, context: Any, collector: Any, attempt: Any) -> None:
        self.collector = collector

    def execute(self, tup: Any) -> None:
        self.collector.emit(list(tup))

    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare(Fields("tx", "key", "value"))


def test_explain_says_where_columns_become_tuples_and_tuples_columns() -> None:
    topology = builder(ColumnsSpout())
    topology.set_bolt("taken", NotingArrowBolt()).none_grouping("spout")
    topology.set_bolt("apart", NotingBolt(), 2).fields_grouping("spout", Fields("key"))
    topology.set_bolt("together", NotingArrowBolt(), 2).shuffle_grouping("apart")
    topology.set_bolt("plain", NotingBolt()).shuffle_grouping("apart")
    plan = compiler.compile_plan(topology.build_topology(), 2)
    lines = [line.strip() for line in explain.explain(plan).splitlines() if "<-" in line]
    assert lines == [
        "<- spout, none: stays in the process, in columns",
        "<- spout, fields(key): crosses the shuffle, in columns, which become tuples here",
        "<- apart, shuffle: crosses the shuffle, as tuples, which become columns here",
        "<- apart, shuffle: crosses the shuffle",
    ]
    assert 'fields(key)<br/>in columns, which become tuples here"' in explain.mermaid(plan)


# -- the spout over columns in memory ------------------------------------------------------------


@pytest.mark.rule(20)
def test_a_transaction_has_so_many_record_batches_of_each_partition() -> None:
    spout = ArrowMemoryTransactionalSpout(
        {0: WORDS, 2: WORDS.slice(3).to_batches()[0]}, 2, rows_per_record_batch=2
    )
    drive = Drive(spout)
    assert drive.run() == [
        {0: [("a", 1), ("b", 2), ("c", 3), ("d", 4)], 1: [], 2: [("d", 4), ("e", 5)]},
        {0: [("e", 5)], 1: [], 2: []},
    ]
    assert drive.plans[0][0] == {"index": 0, "amount": 2}
    spout.append(1, WORDS.to_batches())
    assert drive.run() == [{0: [], 1: [tuple(row.values()) for row in WORDS.to_pylist()], 2: []}]
    spout.close()


@pytest.mark.parametrize(
    ("partitions", "said"),
    [
        ({}, "no RecordBatch at all"),
        ({0: []}, "no RecordBatch at all"),
        (
            {0: WORDS, 1: WORDS.select(["n"])},
            "part 0 given for partition 1 has another schema",
        ),
        (
            {0: [WORDS.to_batches()[0], WORDS]},
            "part 1 given for partition 0 is a Table",
        ),
        ({0: WORDS, -1: WORDS}, "-1 is not a partition"),
    ],
)
def test_columns_that_do_not_go_together_are_refused(partitions: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ArrowMemoryTransactionalSpout(partitions)
    spout = ArrowMemoryTransactionalSpout({0: WORDS})
    with pytest.raises(ConfigError, match="has another schema"):
        spout.append(0, WORDS.select(["n"]))
    spout.close()


# -- what workers import -------------------------------------------------------------------------


def imported_by(code: str) -> list[str]:
    """Whether pyarrow, and pyspark.worker, are imported after ``code``, and how many threads there
    are."""
    report = "import sys, threading, os; print('pyarrow' in sys.modules, 'pyspark.worker' in sys.modules, len(os.listdir('/proc/self/task')))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_the_process_that_forks_workers_has_imported_the_worker_and_no_pyarrow() -> None:
    assert imported_by("from txtopo.spark import daemon; daemon.warm_up()") == [
        "False",
        "True",
        "1",
    ]


@pytest.mark.parametrize(
    "probing", ["import pyarrow", "import importlib.util; importlib.util.find_spec('pyarrow')"]
)
def test_a_worker_module_that_would_import_pyarrow_is_left_to_the_workers(probing: str) -> None:
    fake = f"""
import sys, types, importlib.abc, importlib.machinery

class Fake(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "pyspark.worker" else None
    def create_module(self, spec):
        return types.ModuleType(spec.name)
    def exec_module(self, module):
        import pyspark.worker_util
        try:
            {probing}
        except ImportError:
            module.has_arrow = False

sys.meta_path.insert(0, Fake())
from txtopo.spark import daemon
daemon.warm_up()
assert "pyspark.worker_util" not in sys.modules, "what has seen that pyarrow is missing is forgotten"
import pyarrow
del sys.modules["pyarrow"]
"""
    assert imported_by(fake)[:2] == ["False", "False"]


def test_a_topology_of_tuples_imports_no_pyarrow() -> None:
    code = """
from txtopo import *
from txtopo.testing import MemoryTransactionalSpout
from txtopo.testing.in_process import InProcessJob
from txtopo.dataplane import slot, column_runs
assert not column_runs.is_arrow(1)
assert column_runs.told_apart([("s", [(1,), (2,)])]) == [("s", [(1,), (2,)])]
"""
    assert imported_by(code)[0] == "False"
