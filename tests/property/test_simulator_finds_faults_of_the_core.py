"""The simulator is worth something only if it finds faults: here the core has one fault at a time,
and a schedule shows the fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.topologies.simulated import generated
from txtopo.coordinator import messages
from txtopo.coordinator.coordinator import TransactionCoordinator
from txtopo.coordinator.messages import Command
from txtopo.engine.batches import Batches
from txtopo.state.lease import Lease
from txtopo.state.topology import TopologyState
from txtopo.stores import stamps
from txtopo.testing import Simulation, stores
from txtopo.topology import transaction

SCHEDULES_MAX = 1_000
"""So many schedules find every fault of the list."""
OF_EACH_TOPOLOGY = 40

Patch = Callable[[pytest.MonkeyPatch], None]


def of_kinds(*kinds: int) -> list[int]:
    """Numbers of topologies whose spouts are of these kinds (places in ``SPOUTS``)."""
    return [number for number in range(120) if number % 6 in kinds]


def nothing_is_taken_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stores._Session, "take_back", lambda session, void: None)


def a_late_attempt_passes_the_fence(patch: pytest.MonkeyPatch) -> None:
    right = stamps.fence_standing

    def wrong(*args: Any) -> Any:
        where = right(*args)
        return "replayed" if where == "above" else where

    patch.setattr(stamps, "fence_standing", wrong)


def what_is_applied_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    right = stamps.standing

    def wrong(*args: Any) -> Any:
        where = right(*args)
        return "past" if where == "mine" else where

    patch.setattr(stamps, "standing", wrong)


def a_stale_answer_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        TransactionCoordinator,
        "_live",
        lambda coordinator, attempt: coordinator._active.get(attempt.txid),
    )


def later_transactions_are_kept_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    def discard(coordinator: Any, txid: int, commands: list[Command]) -> None:
        if txid in coordinator._active:
            commands.append(messages.Cancel(coordinator._active.pop(txid).attempt))

    patch.setattr(TransactionCoordinator, "_discard_from", discard)


def attempt_ids_begin_at_0_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction, "attempt_id", lambda epoch, n: n)


def metadata_that_survived_is_made_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Batches, "known_txids", lambda batches: [])


def a_restart_ignores_the_sealed_task_counts(patch: pytest.MonkeyPatch) -> None:
    right = TopologyState.sealed

    def wrong(state: TopologyState) -> Any:
        sealed = right(state)
        return None if sealed is None else sealed.model_copy(update={"tasks": {}})

    patch.setattr(TopologyState, "sealed", wrong)


def the_epoch_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "checks", lambda lease: [])


ANY = list(range(120))
WRONG: list[tuple[Patch, Sequence[int]]] = [
    (nothing_is_taken_back, of_kinds(4, 5)),
    (a_late_attempt_passes_the_fence, ANY),
    (what_is_applied_is_applied_again, ANY),
    (a_stale_answer_is_not_compared, of_kinds(3)),
    (later_transactions_are_kept_after_a_failure, ANY),
    (attempt_ids_begin_at_0_after_a_restart, ANY),
    (metadata_that_survived_is_made_again, ANY),
    (a_restart_ignores_the_sealed_task_counts, of_kinds(1, 3)),
    (the_epoch_is_not_checked, ANY),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("wrong", "numbers"), WRONG, ids=[wrong.__name__ for wrong, _ in WRONG])
@pytest.mark.rule(1, 3, 4, 6, 23, 26, 28, 29, 30, 31)
def test_a_schedule_shows_that_the_core_is_wrong(
    wrong: Patch, numbers: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch)
    played = 0
    for number in numbers:
        varies = number % 2 == 1
        topology = generated(number, tasks_matter=not varies)
        with Simulation(
            topology, {"max_spout_pending": 1 + number % 3}, vary_parallelism=varies
        ) as simulation:
            report = simulation.run(OF_EACH_TOPOLOGY, 1000 * number)
        played += report.schedules
        if report.violation is not None:
            print(
                f"{wrong.__name__}: found by schedule {played}, {report.violation.differences[0]}"
            )
            assert report.violation.script.faults
            return
        assert played < SCHEDULES_MAX, f"{played} schedules have not shown it"
