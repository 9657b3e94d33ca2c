"""What differs, and whose mistake it is."""

from __future__ import annotations

from typing import Any

import pytest

from txtopo import TransactionAttempt
from txtopo.testing.simulator import mistakes
from txtopo.testing.simulator.diagnosis import Touch, diagnose
from txtopo.testing.simulator.mistakes import Mistake
from txtopo.testing.simulator.outcome import Difference, Outcome, differences, shown


def outcome(**values: Any) -> Outcome:
    made = Outcome(committed=1, stores={"s": {"a": 1}}, writers={("s", "a"): "count"}, effects={"x": [1]}, emitted={1: {"count": ["(1)"]}})
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_equal_outcomes_do_not_differ() -> None:
    assert differences(outcome(), outcome(), compares_outputs=True) == []


@pytest.mark.parametrize(
    ("change", "text", "component"),
    [
        ({"stores": {"s": {"a": 2}}}, "key 'a' of store s is 2; without failures it is 1", "count"),
        ({"stores": {"s": {}}}, "key 'a' of store s is absent; without failures it is 1", "count"),
        ({"effects": {"x": [1, 1]}}, "effects()['x'] is [1, 1]; without failures it is [1]", None),
        ({"effects": 3}, "effects() is 3; without failures it is {'x': [1]}", None),
        ({"emitted": {1: {"count": []}}}, "what 'count' emitted in transaction 1 is nothing; without failures it is (1)", "count"),
        ({"committed": 2}, "the number of transactions committed is 2; without failures it is 1", None),
        ({"error": "ValueError: no", "error_component": "sum"}, "the run ended with an error: ValueError: no", "sum"),
    ],
)
def test_a_difference_says_where_and_what(change: dict[str, Any], text: str, component: str | None) -> None:
    (found,) = differences(outcome(**change), outcome(), compares_outputs=True)
    assert (str(found), found.component) == (text, component)


def test_outputs_are_compared_only_where_that_means_something() -> None:
    assert differences(outcome(emitted={1: {"count": []}}, committed=2), outcome(), compares_outputs=False) == []


def test_equal_values_look_equal_whatever_their_order() -> None:
    assert shown({"b": {2, 1}, "a": (frozenset({"y", "x"}), [None])}) == "{'a': ({'x', 'y'}, [None]), 'b': {1, 2}}"


EFFECT = [Difference("effects()['x']", "2", "1", effect="x")]
OUTPUT = [Difference("what 'c' emitted in transaction 1", "2", "1", component="c")]
STORE = [Difference("key 'a' of store s", "2", "1", component="c")]


def touch(attempt: tuple[int, int], phase: str = "commit", component: str = "c", **what: Any) -> Touch:
    return Touch(component, 0, "finish_batch", phase, TransactionAttempt(*attempt), **{"effects": frozenset({"x"}), **what})


@pytest.mark.parametrize(
    ("found", "touches", "expected"),
    [
        (EFFECT, [touch((1, 0)), touch((1, 1))], mistakes.APPLIED_AGAIN),
        (EFFECT, [touch((1, 0)), touch((2, 0)), touch((1, 1))], mistakes.OLDER_AFTER_NEWER),
        (EFFECT, [touch((1, 0), "processing"), touch((1, 1))], mistakes.WRITE_WHILE_PROCESSING),
        (EFFECT, [touch((1, 0), has_written_store=True), touch((1, 1))], mistakes.OUTSIDE_THE_STORE),
        (EFFECT, [touch((1, 0), variables=("m.x",)), touch((1, 1))], mistakes.MODULE_GLOBAL),
        (STORE, [touch((1, 0), effects=frozenset(), variables=("m.x",))], mistakes.MODULE_GLOBAL),
        (OUTPUT, [], mistakes.EMITS_SOMETHING_ELSE),
    ],
)
def test_the_pattern_of_touches_tells_the_mistakes_apart(found: list[Difference], touches: list[Touch], expected: Mistake) -> None:
    diagnosis = diagnose(found, touches)
    assert (diagnosis.component, diagnosis.mistakes[0]) == ("c", expected)


def test_who_writes_once_per_transaction_is_not_suspected() -> None:
    touches = [touch((1, 0), component="good"), touch((1, 0)), touch((1, 1)), touch((2, 0), component="good")]
    assert diagnose(EFFECT, touches).component == "c"


def test_what_cannot_be_explained_is_not() -> None:
    assert diagnose(STORE, []).mistakes == ()
    assert diagnose(STORE, []).component == "c"
