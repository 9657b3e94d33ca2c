"""Differences of outcomes, and the component at fault."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from txtopo import TransactionAttempt
from txtopo.testing.emissions import in_rows
from txtopo.testing.simulator import mistakes
from txtopo.testing.simulator.diagnosis import Diagnosis, Touch, diagnose
from txtopo.testing.simulator.mistakes import Mistake
from txtopo.testing.simulator.outcome import Difference, Outcome, differences, shown


def outcome(**values: Any) -> Outcome:
    changed = Outcome(
        committed=1,
        stores={"s": {"a": 1}},
        writers={("s", "a"): "count"},
        effects={"x": [1]},
        emitted={1: {"count": ["(1)"]}},
    )
    for name, value in values.items():
        setattr(changed, name, value)
    return changed


@pytest.mark.parametrize("stream", ["default", "other"])
def test_columns_are_taken_down_as_their_rows(stream: str) -> None:
    rows = [
        ("spout", 1, stream, (word, number)) for word, number in (("b", 1), ("a", None), ("b", 1))
    ]
    batch = pa.RecordBatch.from_pydict(
        {"word": ["x", "b", "a", "b"], "number": [0, 1, None, 1]}
    ).slice(1)
    other = pa.RecordBatch.from_pydict({"word": ["b", "a", "b"], "number": [1.0, None, 1.0]})
    assert list(in_rows([("spout", 1, stream, batch)])) == rows
    taken = [outcome(), outcome(), outcome()]
    for recording, emissions in zip(
        taken, (rows, [("spout", 1, stream, batch)], [("spout", 1, stream, other)]), strict=True
    ):
        recording.add_emissions(1, emissions, ["spout"])
    assert differences(taken[1], taken[0], compares_outputs=True) == []
    assert len(differences(taken[2], taken[0], compares_outputs=True)) == 1, "1.0 is not 1"


def test_equal_outcomes_do_not_differ() -> None:
    assert differences(outcome(), outcome(), compares_outputs=True) == []


@pytest.mark.parametrize(
    ("change", "text", "component"),
    [
        ({"stores": {"s": {"a": 2}}}, "key 'a' of store s is 2; without failures it is 1", "count"),
        ({"stores": {"s": {}}}, "key 'a' of store s is absent; without failures it is 1", "count"),
        ({"effects": {"x": [1, 1]}}, "effects()['x'] is [1, 1]; without failures it is [1]", None),
        ({"effects": 3}, "effects() is 3; without failures it is {'x': [1]}", None),
        (
            {"emitted": {1: {"count": []}}},
            "what 'count' emitted in transaction 1 is nothing; without failures it is (1)",
            "count",
        ),
        (
            {"committed": 2},
            "the number of transactions committed is 2; without failures it is 1",
            None,
        ),
        (
            {"error": "ValueError: no", "error_component": "sum"},
            "the run ended with an error: ValueError: no",
            "sum",
        ),
    ],
)
def test_a_difference_names_its_place_and_values(
    change: dict[str, Any], text: str, component: str | None
) -> None:
    (difference,) = differences(outcome(**change), outcome(), compares_outputs=True)
    assert (str(difference), difference.component) == (text, component)


def test_outputs_are_compared_only_where_that_means_something() -> None:
    assert (
        differences(
            outcome(emitted={1: {"count": []}}, committed=2), outcome(), compares_outputs=False
        )
        == []
    )


def test_equal_values_look_equal_whatever_their_order() -> None:
    assert (
        shown({"b": {2, 1}, "a": (frozenset({"y", "x"}), [None])})
        == "{'a': ({'x', 'y'}, [None]), 'b': {1, 2}}"
    )


EFFECT = [Difference("effects()['x']", "2", "1", effect="x")]
OUTPUT = [Difference("what 'c' emitted in transaction 1", "2", "1", component="c")]
STORE = [Difference("key 'a' of store s", "2", "1", component="c")]


def touch(
    attempt: tuple[int, int], phase: str = "commit", component: str = "c", **fields: Any
) -> Touch:
    return Touch(
        component,
        0,
        "finish_batch",
        phase,
        TransactionAttempt(*attempt),
        **{"effects": frozenset({"x"}), **fields},
    )


@pytest.mark.parametrize(
    ("deviations", "touches", "expected"),
    [
        (EFFECT, [touch((1, 0)), touch((1, 1))], mistakes.APPLIED_AGAIN),
        (EFFECT, [touch((1, 0)), touch((2, 0)), touch((1, 1))], mistakes.OLDER_AFTER_NEWER),
        (EFFECT, [touch((1, 0), "processing"), touch((1, 1))], mistakes.WRITE_WHILE_PROCESSING),
        (
            EFFECT,
            [touch((1, 0), has_written_store=True), touch((1, 1))],
            mistakes.OUTSIDE_THE_STORE,
        ),
        (EFFECT, [touch((1, 0), variables=("m.x",)), touch((1, 1))], mistakes.MODULE_GLOBAL),
        (STORE, [touch((1, 0), effects=frozenset(), variables=("m.x",))], mistakes.MODULE_GLOBAL),
        (OUTPUT, [], mistakes.EMITS_SOMETHING_ELSE),
    ],
)
def test_the_pattern_of_touches_tells_the_mistakes_apart(
    deviations: list[Difference], touches: list[Touch], expected: Mistake
) -> None:
    diagnosis = diagnose(deviations, touches)
    assert (diagnosis.component, diagnosis.mistakes[0]) == ("c", expected)


def test_a_component_that_writes_once_per_transaction_is_not_suspected() -> None:
    touches = [
        touch((1, 0), component="good"),
        touch((1, 0)),
        touch((1, 1)),
        touch((2, 0), component="good"),
    ]
    assert diagnose(EFFECT, touches).component == "c"


def test_an_unexplained_difference_has_a_name_and_a_cure_too() -> None:
    assert diagnose(STORE, []) == Diagnosis("c", (mistakes.LEFT_BEHIND,))
    assert diagnose([Difference("effects()", "2", "1", effect="")], []).mistakes == (
        mistakes.LEFT_BEHIND,
    )
