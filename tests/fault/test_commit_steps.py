"""SIGKILL of the driver at every point of a commit, for every kind of spout and store: restarts
resume, and everything counts once.

Topologies over all kinds of spouts run side by side in one driver, each up to a point of its own,
where it waits. When all have got there the driver is killed, and the next one begins at once over
the same state, until every kind was killed at every point. The last driver runs to the end of the
input, although answers of ZooKeeper are lost and workers die in the middle of a commit.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import get_args

import pytest

from tests.processes.drivers import drive_steps
from tests.servers.places import PLACES
from tests.topologies.step_results import History, Kept, check_batches
from tests.topologies.step_spouts import KEYS, TAKE_MAX
from tests.topologies.steps import VARIANTS, Variant
from txtopo.faults import FaultPoint
from txtopo.topology.transaction import ATTEMPTS_PER_EPOCH

POINTS: tuple[FaultPoint, ...] = get_args(FaultPoint)
RECORDED = POINTS[POINTS.index("record.inside") :]
"""A driver that is killed at one of these has committed the transaction."""
SURVIVED = (
    ("seal.inside", "lose"),
    ("record.inside", "lose"),
    ("apply.inside", "kill"),
    ("seal.inside", "lose"),
)
"""Faults of the last driver, at one txid after the other: of the kill only a worker dies."""
NOTHING, A_PART, EVERYTHING = "nothing", "a part", "everything"


def target(point: FaultPoint, began_at: int) -> int:
    """The txid at which a driver that begins with ``began_at`` is killed: the second where it can
    be, whose seal may ride along with a record."""
    return began_at if point == "seal.before" else began_at + 1


def next_begin(point: FaultPoint, txid: int) -> int:
    """The start of the next driver."""
    return txid + 1 if point in RECORDED else txid


def effects_at(point: FaultPoint) -> str:
    """The expected content of the stores at ``point`` of a transaction that was not tried
    before.
    """
    return (
        A_PART
        if point == "apply.inside"
        else NOTHING
        if POINTS.index(point) < POINTS.index("apply.inside")
        else EVERYTHING
    )


class Chain:
    """Drivers over one state, in turn; and by variant the next txid, and the txids of
    strikes."""

    def __init__(self, directory: Path, databases: list[str], kills: int) -> None:
        self.directory, self.databases = directory, databases
        self.begins = dict.fromkeys(VARIANTS, 1)
        self.struck: dict[Variant, dict[FaultPoint, int]] = {variant: {} for variant in VARIANTS}
        self.lives = 0
        # However much every batch takes, something is left for the last faults; and not much more.
        # A kill takes two transactions at most.
        recorded = min(kills, len(RECORDED))
        self.size = TAKE_MAX * (kills + recorded + len(SURVIVED)) + KEYS

    def run_up_to(self, points: dict[Variant, FaultPoint]) -> None:
        """One driver, killed when every topology has reached its point."""
        txids = {variant: target(point, self.begins[variant]) for variant, point in points.items()}
        faults = [
            f"{point}@{variant.topology_id}:{txids[variant]}=hold"
            for variant, point in points.items()
        ]
        status, lines, stderr = self._run(faults)
        assert (status, len(lines)) == (-signal.SIGKILL, 1), f"{faults}: {lines}\n{stderr}"
        for variant, point in points.items():
            if point != "seal.before":
                effects = self._effects_of(variant, txids[variant])
                assert effects == effects_at(point), (
                    f"{variant}: at {point} the stores hold {effects} of txid {txids[variant]}"
                )
            self.begins[variant] = next_begin(point, txids[variant])
            self.struck[variant][point] = txids[variant]

    def run_to_the_end(self) -> None:
        """One driver, with the faults that the driver survives."""
        began = dict(self.begins)
        faults = [
            f"{point}@{variant.topology_id}:{begin + number}={action}"
            for variant, begin in began.items()
            for number, (point, action) in enumerate(SURVIVED)
        ]
        status, lines, stderr = self._run(faults)
        assert status == 0, stderr
        missed = [fault for fault in faults if not (self.directory / "faults" / fault).exists()]
        assert missed == [], "these faults did not strike"
        ended = json.loads(lines[1])
        self.begins = {variant: ended[variant.name] for variant in VARIANTS}
        for variant, begin in began.items():
            attempts = History(variant.journal(self.directory)).contents("kept", begin + 2)
            ours = [
                attempt for attempt in attempts if attempt >= (self.lives - 1) * ATTEMPTS_PER_EPOCH
            ]
            assert len(ours) == 2, (
                f"{variant}: a worker died in the middle of txid {begin + 2}, which was applied by {list(attempts)}"
            )

    def _effects_of(self, variant: Variant, txid: int) -> str:
        stores = variant.stores(self.databases)
        seen = stores.pop("seen").get(("seen", txid))
        keys = sum(len(Kept.of(store).batches.get(txid, {})) for store in stores.values())
        if not keys and seen is None:
            return NOTHING
        return EVERYTHING if keys == len(stores) * KEYS and seen is not None else A_PART

    def _run(self, faults: list[str]) -> tuple[int, list[str], str]:
        done = drive_steps(self.directory, self.databases, self.size, self.lives, faults)
        self.lives += 1
        lines = done.stdout.splitlines()
        assert lines, done.stderr
        expected = {variant.name: [begin, self.lives] for variant, begin in self.begins.items()}
        assert json.loads(lines[0]) == expected, "(txid, epoch) that a driver began with"
        return done.returncode, lines, done.stderr


# -- what must be true in the end ----------------------------------------------------------------


def check(variant: Variant, chain: Chain) -> None:
    """Every tuple counts once, in one of the topologies."""
    stores, history, committed = (
        variant.stores(chain.databases),
        History(variant.journal(chain.directory)),
        chain.begins[variant] - 1,
    )
    kept = Kept.of(stores["first"])
    assert Kept.of(stores["second"]) == kept
    if "plain" in stores:
        latest = {key: txid for txid, batch in kept.batches.items() for key in batch}
        assert Kept.of(stores["plain"]) == Kept(
            sums={}, counts={}, batches=kept.batches, latest=latest
        )
    assert list(kept.batches) == list(range(1, committed + 1))
    check_batches(variant.partitions, chain.size, kept)
    results = kept.results()
    for txid in kept.batches:
        seen = sorted([store, *result] for store in (0, 1) for result in results[txid])
        assert stores["seen"].get(("seen", txid)) == seen, (
            f"{variant}: what came of txid {txid} is not what the stores made of it"
        )
        check_replays(variant, history, txid, kept.numbers(txid), seen)
    check_attempts(variant, history, chain.struck[variant])


def check_replays(
    variant: Variant, history: History, txid: int, numbers: list[int], seen: list[list[int]]
) -> None:
    """Committed is the content of the last attempt; where batches do not change, every attempt had
    this content and the same results."""
    attempts = history.contents("kept", txid)
    last = max(attempts)
    assert sorted(n for part in attempts[last].values() for n in part) == numbers
    results = {attempt: tasks[0] for attempt, tasks in history.contents("seen", txid).items()}
    assert results[last] == seen
    if not variant.is_opaque:
        # An attempt that was broken off need not have begun every task.
        different = {
            attempt: tasks
            for attempt, tasks in attempts.items()
            if not tasks.items() <= attempts[last].items()
        }
        assert different == {}, f"{variant}: attempts of txid {txid} that are not {attempts[last]}"
        assert all(result == seen for result in results.values())
    if variant.kind == "committer":
        commits = history.contents("committed", txid)
        assert max(commits) == last
        assert sorted(n for part in commits[last].values() for n in part) == numbers
        assert all(tasks.items() <= commits[last].items() for tasks in commits.values())


def check_attempts(variant: Variant, history: History, struck: dict[FaultPoint, int]) -> None:
    """A transaction that was struck between its first effect and its record is applied again, by
    the next driver; any other is applied once."""
    differing = 0
    for point, txid in struck.items():
        attempts = history.contents("kept", txid)
        expected = 2 if effects_at(point) != NOTHING and point not in RECORDED else 1
        assert (
            len({attempt // ATTEMPTS_PER_EPOCH for attempt in attempts})
            == len(attempts)
            == expected
        ), f"{variant}: after a kill at {point} txid {txid} was applied by {list(attempts)}"
        contents = [
            sorted(n for part in tasks.values() for n in part) for tasks in attempts.values()
        ]
        differing += contents[0] != contents[-1]
    assert not variant.is_opaque or differing, (
        f"{variant}: replays were all equal; the test shows less than it says"
    )


ALL = "+".join(PLACES)
"""The stores of a topology are in different places: each place meets every point, though not with
every kind of spout."""


@pytest.mark.rule(1, 3, 4, 18, 22, 23, 25, 26, 28, 30, 31)
@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "places", [ALL, *(pytest.param(name, marks=pytest.mark.thorough) for name in PLACES)]
)
def test_killed_at_every_point_of_a_commit_every_kind_of_spout_counts_once_in_every_kind_of_store(
    tmp_path: Path, places: str, turn: int
) -> None:
    """Of the two topologies over a kind of spout, one is killed at every other point and one at the
    points between; in the other turn vice versa."""
    kills = len(POINTS) // 2
    chain = Chain(tmp_path, [PLACES[name](tmp_path) for name in places.split("+")], kills)
    for number in range(kills):
        # No two variants are at the same point at once. So at most one variant occupies workers
        # while waiting.
        chain.run_up_to(
            {
                variant: POINTS[(2 * number + index + turn) % len(POINTS)]
                for index, variant in enumerate(VARIANTS)
            }
        )
    chain.run_to_the_end()
    for kind in {variant.kind for variant in VARIANTS}:
        assert {
            point for variant in VARIANTS if variant.kind == kind for point in chain.struck[variant]
        } == set(POINTS)
    for variant in VARIANTS:
        check(variant, chain)
