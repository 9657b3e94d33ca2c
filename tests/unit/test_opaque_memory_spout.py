"""The opaque memory spout: partitions that are disabled and come back, seen by every process at
once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.planned_spouts import Drive
from txtopo.errors import ConfigError, FailedException, InputError
from txtopo.testing import OpaqueMemoryTransactionalSpout
from txtopo.topology import pickling
from txtopo.topology.stream import Fields, OutputFieldsDeclarer

ROOT = Path(__file__).parents[2]
LETTERS: dict[int, list[tuple[Any, ...]]] = {
    0: [("a",), ("b",), ("c",)],
    1: [("x",), ("y",), ("z",)],
}

MakeSpout = Callable[..., OpaqueMemoryTransactionalSpout]


@pytest.fixture
def make() -> Iterator[MakeSpout]:
    with ExitStack() as stack:

        def made(
            partitions: dict[int, list[tuple[Any, ...]]], take: int, always_ready: bool = False
        ) -> OpaqueMemoryTransactionalSpout:
            spout = OpaqueMemoryTransactionalSpout(partitions, Fields("letter"), take, always_ready)
            stack.callback(spout.close)
            return spout

        yield made


@pytest.mark.rule(18, 20)
def test_undisturbed_it_emits_every_row_once_in_order(make: MakeSpout) -> None:
    assert Drive(make(LETTERS, 2)).run() == [
        {0: [("a",), ("b",)], 1: [("x",), ("y",)]},
        {0: [("c",)], 1: [("z",)]},
    ]


@pytest.mark.rule(21)
def test_a_disabled_partition_is_left_out_and_goes_on_where_it_stopped(make: MakeSpout) -> None:
    spout = make(LETTERS, 1)
    drive = Drive(spout)
    assert drive.emitted(drive.plan()) == {0: [("a",)], 1: [("x",)]}
    spout.set_disabled(1, True)
    assert drive.plan() == {0: {"index": 1, "amount": 1}, 1: None}
    spout.set_disabled(1, False)
    assert drive.plan() == {0: {"index": 2, "amount": 1}, 1: {"index": 1, "amount": 1}}


@pytest.mark.rule(9)
def test_it_is_not_ready_while_only_disabled_partitions_have_rows(make: MakeSpout) -> None:
    spout = make({0: [], 1: [("x",)]}, 1)
    drive = Drive(spout)
    spout.set_disabled(1, True)
    assert not drive.coordinator.is_ready()
    spout.append(0, [("a",)])
    assert drive.coordinator.is_ready()
    drive.plan()
    assert not drive.coordinator.is_ready()
    spout.set_disabled(1, False)
    assert drive.coordinator.is_ready()


@pytest.mark.rule(9)
def test_always_ready_is_ready_without_any_partition(make: MakeSpout) -> None:
    spout = make({0: [("a",)]}, 1, always_ready=True)
    spout.set_disabled(0, True)
    drive = Drive(spout)
    assert drive.coordinator.is_ready()
    assert drive.plan() == {0: None}


@pytest.mark.rule(4, 18)
def test_a_plan_from_before_its_partition_was_disabled_cannot_be_emitted(make: MakeSpout) -> None:
    spout = make(LETTERS, 2)
    drive = Drive(spout)
    plan = drive.plan()
    spout.set_disabled(1, True)
    with pytest.raises(
        FailedException, match="partition 1 was disabled after transaction 1 was planned"
    ):
        drive.emitted(plan)
    assert drive.emitted({0: plan[0]}) == {0: [("a",), ("b",)]}


@pytest.mark.rule(4)
def test_a_batch_is_planned_with_the_present_rows(make: MakeSpout) -> None:
    spout = make({0: [("a",)]}, 3)
    first, again = Drive(spout), Drive(spout)
    assert first.plan() == {0: {"index": 0, "amount": 1}}
    spout.append(0, [("b",)])
    assert again.plan() == {0: {"index": 0, "amount": 2}}


def test_disabling_twice_enabling_twice_and_disabling_in_advance(make: MakeSpout) -> None:
    spout = make({0: [("a",)]}, 1)
    for _ in range(2):
        spout.set_disabled(3, True)
    spout.append(3, [("z",)])
    drive = Drive(spout)
    assert drive.plan() == {0: {"index": 0, "amount": 1}, 1: None, 2: None, 3: None}
    for _ in range(2):
        spout.set_disabled(3, False)
    assert drive.plan()[3] == {"index": 0, "amount": 1}


SWITCH_IN_ANOTHER_PROCESS = """
import sys
from txtopo.topology import pickling
spout = pickling.loads(sys.stdin.buffer.read())
print(spout._spool.is_disabled(0))
spout.set_disabled(1, True)
"""


def test_every_process_sees_and_may_turn_the_switch(make: MakeSpout) -> None:
    spout = make(LETTERS, 1)
    drive = Drive(spout)
    template = pickling.dumps(spout)
    spout.set_disabled(0, True)
    done = subprocess.run(
        [sys.executable, "-c", SWITCH_IN_ANOTHER_PROCESS],
        input=template,
        capture_output=True,
        cwd=ROOT,
    )
    assert (done.stdout, done.stderr) == (b"True\n", b"")
    assert drive.plan() == {0: None, 1: None}


@pytest.mark.parametrize("partition", [-1, "0", True, None])
def test_a_number_that_is_no_partition_is_refused(make: MakeSpout, partition: Any) -> None:
    with pytest.raises(ConfigError, match="is not a partition"):
        make(LETTERS, 1).set_disabled(partition, True)


def test_a_switch_whose_rows_are_gone_is_an_input_error(make: MakeSpout) -> None:
    spout = make(LETTERS, 1)
    spout.close()
    for disabled in (True, False):
        with pytest.raises(InputError, match="the rows are gone"):
            spout.set_disabled(0, disabled)


def test_it_declares_its_fields_and_its_need_of_executors_on_the_drivers_machine(
    make: MakeSpout,
) -> None:
    spout = make({}, 1)
    declarer = OutputFieldsDeclarer()
    spout.declare_output_fields(declarer)
    assert declarer.streams["default"].fields == Fields("tx", "letter")
    assert "temporary files on the driver's machine" in spout.local_only_reason
