"""The steps of a store transaction, without any database: rows that others changed meanwhile, steps
that are gone, and the keys that a database may combine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from txtopo import errors
from txtopo.stores import StoreConflict, codecs, sessions, stamps
from txtopo.stores.steps import Steps
from txtopo.topology.transaction import TransactionAttempt

KEY = '"dog"'


def stamp(txid: int, attempt: int, task: int = 0) -> stamps.Stamp:
    return stamps.Stamp("words", "first", "count", task, txid, attempt)


def steps_of(earlier: Mapping[str, int], *fences: stamps.Fence) -> Steps:
    """The steps of attempt 2:1, whose task has taken ``earlier`` steps in blocks before."""
    return Steps(
        "file#counts",
        "transactional",
        codecs.JSON,
        stamp(2, 1),
        earlier,
        None,
        lambda topology_id: fences,
    )


def row(by: stamps.Stamp) -> stamps.Row:
    return stamps.Row(KEY, by, None, 0, ["1"])


@pytest.mark.rule(29, 32)
@pytest.mark.parametrize(
    ("by", "error", "fact"),
    [
        (stamp(2, 1, task=1), StoreConflict, "wants to write it in transaction 2"),
        (stamp(2, 2), errors.StaleAttemptError, "2:2"),
        (stamp(1, 0), errors.FailedException, 'key "dog" was changed by others'),
        (None, errors.FailedException, 'key "dog" was changed by others'),
    ],
    ids=["sibling", "newer attempt", "earlier transaction", "removed"],
)
def test_a_row_that_changed_since_its_reading_is_refused_according_to_its_new_writer(
    by: stamps.Stamp | None, error: type[Exception], fact: str
) -> None:
    steps = steps_of({})
    changed = {KEY: None if by is None else row(by)}
    with pytest.raises(error, match=fact) as caught, steps.all_or_nothing():
        raise sessions.RowsChangedError(changed)
    assert steps.doom is caught.value


@pytest.mark.rule(32)
def test_a_step_that_is_gone_under_no_newer_fence_is_blamed_on_another_program() -> None:
    own = stamps.Fence("words", "count", "first", 2, 1)
    steps = steps_of({KEY: 1}, own)
    steps.rows[KEY] = None
    with pytest.raises(errors.StateMismatchError, match=r"updates committed: 1") as caught:
        steps.delete(KEY)
    assert (steps.doom, steps.unwritten) == (caught.value, {})


@pytest.mark.rule(32)
def test_a_database_combines_no_key_that_was_loaded_or_changed_even_in_an_earlier_block() -> None:
    steps = steps_of({'"earlier"': 1})
    steps.rows['"loaded"'] = None
    steps.note_merged(['"merged"'])
    keys = ['"earlier"', '"loaded"', '"merged"', KEY]
    assert [key for key in keys if steps.are_untouched([key])] == [KEY]


@pytest.mark.rule(30, 31)
@pytest.mark.parametrize(
    ("recorded", "txid"),
    [
        (None, 4),
        ({}, 0),
        ({"other": TransactionAttempt(3, 0)}, 0),
        ({"count": TransactionAttempt(2, 0)}, 2),
        ({"count": TransactionAttempt(5, 0)}, 4),
    ],
    ids=["no record", "nothing", "other component", "void rows after it", "own transaction"],
)
def test_rows_up_to_the_last_recorded_transaction_before_the_writers_own_are_settled(
    recorded: stamps.Recorded | None, txid: int
) -> None:
    assert stamps.settled_txid(stamp(5, 1), recorded) == txid
