"""SIGKILL around and in the middle of a transaction that runs in one task: a restart resumes, and
everything counts once.

Topologies over two kinds of spouts run side by side in one driver, each up to a point of its own,
where it waits; when all have got there the driver is killed. The next one runs to the end of the
input, although workers die in the middle of such tasks.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.processes.drivers import drive_small
from tests.topologies.small import Small
from tests.topologies.step_results import Kept, check_batches
from tests.topologies.step_spouts import PARTITIONS, TAKE_MAX
from txtopo.faults import FaultPoint
from txtopo.topology.transaction import ATTEMPTS_PER_EPOCH

POINTS: tuple[FaultPoint, ...] = (
    "seal.after",
    "apply.before",
    "apply.after",
    "record.before",
    "record.inside",
    "record.after",
)
BEFORE_ANY_EFFECT, RECORDED = POINTS[:2], POINTS[4:]
STRUCK = 7
"""Three small transactions, as many that may have begun by then, and one."""
SIZE = TAKE_MAX * 2 * STRUCK
KINDS = {"plain": 1, "opaque-planned": PARTITIONS}
"""Partitions by kind of spout: some for transactional stores, some for opaque stores."""


class Struck:
    """The topology that is struck at ``POINTS[number]``; one over each kind may have a second
    transaction pending, whose seal rides along."""

    def __init__(self, directory: Path, kind: str, number: int) -> None:
        self.kind, self.point = kind, POINTS[number]
        # Of two neighbouring points the other kind has the other number.
        self.name = f"{kind}-{number}-{1 + (number + len(kind)) % 2}"
        self.topology = Small(self.name, directory, kind, SIZE)
        self.fault = f"{self.point}@{self.topology.id}:{STRUCK}=hold"
        self.resumes_at = STRUCK + 1 if self.point in RECORDED else STRUCK
        self.worker_dies_at = self.resumes_at + STRUCK - 1
        self.worker_fault = f"apply.inside@{self.topology.id}:{self.worker_dies_at}=kill"

    def check_the_killed_driver(self) -> None:
        """The struck transaction was deferred: no work was done before its seal, and then all work
        in one task."""
        ran = self.topology.ran(STRUCK)
        if self.point in BEFORE_ANY_EFFECT:
            assert ran == {}, f"{self.name}: at {self.point} it had been processed"
        else:
            assert ran[0].is_one_task, f"{self.name}: it was not one task: {ran}"
            assert ran[0].tasks["executed"] == ran[0].tasks["finished"]

    def check_the_next(self, worker_died: bool) -> None:
        """A transaction with possible effects is processed by itself; so is a transaction struck in
        the middle of its one task, the second time."""
        resumed = self.topology.ran(self.resumes_at, life=2)
        assert resumed[0].is_apart, f"{self.name}: {resumed}"
        ran = self.topology.ran(self.worker_dies_at, life=2)
        assert ran[0].is_one_task, (
            f"{self.name}: txid {self.worker_dies_at} was not one task: {ran}"
        )
        assert [attempt.is_apart for attempt in ran.values()] == (
            [False, True] if worker_died else [False]
        ), f"{self.name}: {ran}"

    def check_effects(self, committed: int) -> None:
        """Each number once, in both stores; and downstream, the results of each number."""
        stores, history = self.topology.stores, self.topology.history
        kept = Kept.of(stores["first"])
        assert Kept.of(stores["second"]) == kept
        assert list(kept.batches) == list(range(1, committed + 1))
        check_batches(KINDS[self.kind], SIZE, kept)
        results = kept.results()
        for txid in kept.batches:
            assert stores["seen"].get(("seen", txid)) == sorted(
                [store, *result] for store in (0, 1) for result in results[txid]
            )
        attempts = history.contents("kept", STRUCK)
        expected = (
            [1] if self.point in BEFORE_ANY_EFFECT else [0] if self.point in RECORDED else [0, 1]
        )
        assert [attempt // ATTEMPTS_PER_EPOCH for attempt in attempts] == expected, (
            f"{self.name}: {list(attempts)} were applied"
        )


@pytest.mark.rule(3, 4, 23, 25, 28, 30, 31)
def test_drivers_and_workers_that_die_around_a_transaction_in_one_task_leave_each_effect_once(
    tmp_path: Path,
) -> None:
    all_struck = [Struck(tmp_path, kind, number) for kind in KINDS for number in range(len(POINTS))]
    names = [struck.name for struck in all_struck]

    killed = drive_small(tmp_path, SIZE, 1, names, [struck.fault for struck in all_struck])
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    for struck in all_struck:
        struck.check_the_killed_driver()

    # A worker for each kind of spout, whose transaction is applied in part when it dies.
    dying = [next(struck for struck in all_struck if struck.kind == kind) for kind in KINDS]
    last = drive_small(tmp_path, SIZE, 2, names, [struck.worker_fault for struck in dying])
    assert last.returncode == 0, last.stdout + last.stderr
    began, ended = map(json.loads, last.stdout.splitlines())
    assert began == {struck.name: [struck.resumes_at, 2] for struck in all_struck}, (
        "(txid, epoch) that the second driver began with"
    )
    assert [
        struck.worker_fault
        for struck in dying
        if not (tmp_path / "faults" / struck.worker_fault).exists()
    ] == []
    for struck in all_struck:
        struck.check_the_next(worker_died=struck in dying)
        struck.check_effects(ended[struck.name] - 1)
