"""The memory spout: batches, readiness, and rows that arrive while a topology runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.planned_spouts import Drive
from txtopo import TransactionalTopologyBuilder
from txtopo.engine.spout_hooks import SpoutHooks
from txtopo.errors import ConfigError, InputError
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology import pickling
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer

ROOT = Path(__file__).parents[2]
WORDS: dict[int, list[tuple[Any, ...]]] = {
    0: [("cat",), ("dog",), ("chicken",), ("cat",), ("dog",), ("apple",)],
    1: [("cat",), ("dog",), ("apple",), ("banana",)],
    2: [("cat",)] * 5 + [("dog",)] * 4,
}


class Spouts:
    """Makes spouts and removes their files when the test is over."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(
        self,
        partitions: dict[int, list[tuple[Any, ...]]],
        take: int,
        fields: Fields | list[str] | None = None,
        always_ready: bool = False,
    ) -> MemoryTransactionalSpout:
        spout = MemoryTransactionalSpout(partitions, fields or Fields("word"), take, always_ready)
        self._stack.callback(spout.close)
        return spout


@pytest.fixture
def spouts() -> Iterator[Spouts]:
    with ExitStack() as stack:
        yield Spouts(stack)


@pytest.mark.rule(18, 20)
def test_batches_are_those_of_storms_example(spouts: Spouts) -> None:
    batches = Drive(spouts(WORDS, 3)).run()
    assert [
        [[word for (word,) in batch[partition]] for partition in range(3)] for batch in batches
    ] == [
        [["cat", "dog", "chicken"], ["cat", "dog", "apple"], ["cat", "cat", "cat"]],
        [["cat", "dog", "apple"], ["banana"], ["cat", "cat", "dog"]],
        [[], [], ["dog", "dog", "dog"]],
    ]


@pytest.mark.rule(21)
def test_a_partition_without_new_rows_has_no_metadata_and_keeps_its_position(
    spouts: Spouts,
) -> None:
    spout = spouts({0: [("a",)], 1: [("b",), ("c",)]}, 1)
    drive = Drive(spout)
    assert drive.plan() == {0: {"index": 0, "amount": 1}, 1: {"index": 0, "amount": 1}}
    assert drive.plan() == {0: None, 1: {"index": 1, "amount": 1}}
    spout.append(0, [("d",)])
    assert drive.plan() == {0: {"index": 1, "amount": 1}, 1: None}


@pytest.mark.rule(18)
def test_a_replay_emits_the_same_rows_although_more_have_come(spouts: Spouts) -> None:
    spout = spouts(WORDS, 5)
    drive = Drive(spout)
    plan = drive.plan()
    before = drive.emitted(plan)
    spout.append(1, [("late",)])
    assert drive.emitted(plan, attempt_id=1) == before


@pytest.mark.rule(9)
def test_it_is_not_ready_with_nothing_left_and_ready_again_after_an_append(spouts: Spouts) -> None:
    spout = spouts({0: [("a",)]}, 4)
    drive = Drive(spout)
    assert drive.run() == [{0: [("a",)]}]
    assert not drive.coordinator.is_ready()
    spout.append(0, [("b",), ("c",)])
    assert drive.run() == [{0: [("b",), ("c",)]}]


@pytest.mark.rule(5, 9)
@pytest.mark.parametrize(("read", "is_ready"), [(3, False), (2, True)])
def test_after_a_restart_readiness_follows_from_the_stored_position(
    spouts: Spouts, read: int, is_ready: bool
) -> None:
    drive = Drive(spouts({0: [("a",), ("b",), ("c",)]}, 1), {0: {"index": 0, "amount": read}})
    assert drive.coordinator.is_ready() is is_ready


@pytest.mark.rule(9)
def test_always_ready_makes_empty_transactions_as_storm_does(spouts: Spouts) -> None:
    drive = Drive(spouts({0: [("a",)]}, 1, always_ready=True))
    assert drive.emitted(drive.plan()) == {0: [("a",)]}
    assert drive.coordinator.is_ready()
    assert drive.emitted(drive.plan()) == {0: []}


@pytest.mark.rule(19)
def test_a_new_partition_joins_and_the_ones_left_out_are_empty(spouts: Spouts) -> None:
    spout = spouts({0: [("a",)]}, 4)
    drive = Drive(spout)
    drive.run()
    spout.append(3, [("z",)])
    assert drive.run() == [{0: [], 1: [], 2: [], 3: [("z",)]}]


@pytest.mark.rule(19)
def test_a_partition_appended_after_the_number_was_fixed_waits_for_the_next_transaction(
    spouts: Spouts,
) -> None:
    spout = spouts({0: [("a",), ("b",)]}, 1)
    graph = TransactionalTopologyBuilder("topology", "spout", spout).build_topology()
    hooks = SpoutHooks(graph)
    hooks.begin({}, CoordinatorContext("topology", "generation", "spout", dict), 1)

    def positions() -> dict[int, Any]:
        spout.append(1, [("z",)])
        return {}

    assert hooks.plan(1, positions) == (1, {0: {"index": 0, "amount": 1}})
    assert hooks.plan(2, lambda: {0: {"index": 0, "amount": 1}}) == (
        2,
        {0: {"index": 1, "amount": 1}, 1: {"index": 0, "amount": 1}},
    )


def test_a_spout_may_begin_without_any_partition(spouts: Spouts) -> None:
    spout = spouts({}, 1)
    drive = Drive(spout)
    assert not drive.coordinator.is_ready()
    spout.append(0, [("a",)])
    assert drive.run() == [{0: [("a",)]}]


@pytest.mark.rule(14)
def test_changing_a_row_after_it_was_given_changes_nothing(spouts: Spouts) -> None:
    row: list[Any] = [["inner"]]
    spout = spouts({}, 1)
    spout.append(0, [row])
    row[0].append("changed")
    assert Drive(spout).run() == [{0: [(["inner"],)]}]


def test_a_copy_made_before_appends_to_the_same_rows(spouts: Spouts) -> None:
    spout = spouts({0: []}, 2)
    drive = Drive(spout)
    copy = pickling.loads(pickling.dumps(spout))
    spout.append(0, [("mine",)])
    copy.append(0, [("the copy's",)])
    assert drive.run() == [{0: [("mine",), ("the copy's",)]}]


READ_IN_ANOTHER_PROCESS = """
import sys
from tests.topologies.planned_spouts import Collected, task_context
from txtopo.topology import pickling
from txtopo.topology.transaction import TransactionAttempt
collector = Collected()
spout = pickling.loads(sys.stdin.buffer.read())
spout.get_emitter(None, task_context()).emit_partition_batch(TransactionAttempt(1, 0), collector, 0, {"index": 1, "amount": 2})
sys.stdout.write(repr([row[1:] for row in collector.rows]))
"""


def test_an_emitter_in_another_process_sees_rows_appended_after_the_spout_was_pickled(
    spouts: Spouts,
) -> None:
    spout = spouts({0: [("a",)]}, 2)
    template = pickling.dumps(spout)
    spout.append(0, [("b",), ("c",)])
    done = subprocess.run(
        [sys.executable, "-c", READ_IN_ANOTHER_PROCESS],
        input=template,
        capture_output=True,
        cwd=ROOT,
    )
    assert (done.stdout, done.stderr) == (b"[('b',), ('c',)]", b"")
    assert spout._spool.count(0) == 3, "the reading process must not remove the rows when it ends"


ROWS_OF_MAIN = """
import subprocess, sys
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology import pickling
class Point:
    def __init__(self, x): self.x = x
    def __repr__(self): return f"Point({self.x})"
spout = MemoryTransactionalSpout({0: [(Point(n),) for n in range(3)]}, ["point"], 2)
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]], input=pickling.dumps(spout)).returncode)
"""


def test_rows_may_hold_classes_of_main() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ROWS_OF_MAIN, READ_IN_ANOTHER_PROCESS], capture_output=True, cwd=ROOT
    )
    assert (done.stdout, done.stderr) == (b"[(Point(1),), (Point(2),)]", b"")


ENDS_WITH_A_FORKED_CHILD = """
import os, sys
from txtopo.testing import MemoryTransactionalSpout
spout = MemoryTransactionalSpout({0: [("a",)]}, ["word"], 1)
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(spout._spool.directory, spout._spool.count(0))
"""


def test_the_rows_end_with_the_process_that_made_them_and_not_with_its_children() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_A_FORKED_CHILD], capture_output=True, text=True, cwd=ROOT
    )
    directory, count = done.stdout.split()
    assert count == "1"
    assert not os.path.exists(directory)


def test_a_row_without_its_index_entry_is_not_there_and_the_next_append_takes_its_place(
    spouts: Spouts,
) -> None:
    spout = spouts({0: [("a",)]}, 9)
    with open(os.path.join(spout._spool.directory, "0.rows"), "ab") as rows:
        rows.write(b"half of a row, left by a writer that died")
    with open(os.path.join(spout._spool.directory, "0.index"), "ab") as index:
        index.write(b"\0\0\0")
    drive = Drive(spout)
    assert drive.run() == [{0: [("a",)]}]
    spout.append(0, [("b",)])
    assert drive.run() == [{0: [("b",)]}]


def test_a_planned_row_that_is_not_there_is_an_input_error_that_names_it(spouts: Spouts) -> None:
    drive = Drive(spouts({0: [("a",)]}, 1))
    with pytest.raises(
        InputError,
        match=r"partition 0 has 1 rows, but the batch was planned as rows 1 to 2\n.*state reset",
    ):
        drive.emitted({0: {"index": 1, "amount": 2}})


def test_rows_that_are_gone_are_an_input_error(spouts: Spouts) -> None:
    spout = spouts({0: [("a",)]}, 1)
    drive = Drive(spout)
    spout.close()
    with pytest.raises(InputError, match="the rows are gone"):
        drive.coordinator.is_ready()
    with pytest.raises(InputError, match="the rows are gone"):
        drive.emitted({0: {"index": 0, "amount": 1}})
    with pytest.raises(InputError, match="the rows are gone"):
        spout.append(0, [("b",)])


def test_it_declares_the_attempt_before_its_fields(spouts: Spouts) -> None:
    declarer = OutputFieldsDeclarer()
    spouts({}, 1, ["word", "length"]).declare_output_fields(declarer)
    assert declarer.streams["default"].fields == Fields("tx", "word", "length")


def test_it_says_why_it_needs_executors_on_the_drivers_machine(spouts: Spouts) -> None:
    assert "temporary files on the driver's machine" in spouts({}, 1).local_only_reason


@pytest.mark.parametrize("take", [0, -1, 1.5, True, None])
def test_take_per_partition_is_at_least_one(take: Any) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        MemoryTransactionalSpout({}, ["word"], take)


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ({-1: []}, "-1 is not a partition"),
        ({"0": []}, "'0' is not a partition"),
        ({True: []}, "True is not a partition"),
        ({0: ["cat"]}, r"row 0 given for partition 0 is 'cat'\n.*\('cat',\)"),
        ({0: [7]}, "row 0 given for partition 0 is 7"),
        (
            {0: [("cat",), ("a", "b")]},
            r"row 1 given for partition 0 has 2 values.*\n.*each field: word",
        ),
    ],
)
def test_an_object_that_is_no_row_is_refused_with_the_cure(partitions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemoryTransactionalSpout(partitions, ["word"], 1)


def test_an_append_that_is_refused_adds_nothing(spouts: Spouts) -> None:
    spout = spouts({0: [("a",)]}, 9)
    with pytest.raises(ConfigError):
        spout.append(0, [("fine",), ("not", "fine")])
    assert Drive(spout).run() == [{0: [("a",)]}]


def test_the_coordinator_of_the_instance_itself_works_without_pickling(spouts: Spouts) -> None:
    spout = spouts({0: [("a",)]}, 1)
    drive = Drive(spout)
    coordinator: Any = spout.get_coordinator(TopologyConf({}), drive.coordinator._context)
    assert coordinator.is_ready()
