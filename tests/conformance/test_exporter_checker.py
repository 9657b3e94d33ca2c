"""``check_exporter`` passes right exporters, and names the mistakes of wrong exporters."""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from txtopo.errors import UsageError
from txtopo.exports import Exporter, SequencedExport
from txtopo.testing import ContractError, check_exporter

TARGETS: dict[int, tuple[dict[Any, int], dict[Any, Any]]] = {}
"""Sequences and values. A pickled exporter finds the same target."""


class Memory(Exporter):
    """Keeps the contract in a dict of this process, unless it was given ``mistakes``.

    ``newer`` compares sequences, ``place`` has an entry's sequence, ``pick`` takes entries."""

    def __init__(self, **mistakes: Any) -> None:
        self.mistakes, self.number = mistakes, len(TARGETS)
        self.own: dict[Any, int] = {}
        TARGETS[self.number] = {}, {}

    def export(self, entries: Iterator[SequencedExport]) -> None:
        (sequences, values), mistakes = TARGETS[self.number], self.mistakes
        sequences = self.own if mistakes.get("remembers") else sequences
        for entry in mistakes.get("pick", iter)(entries):
            place = mistakes.get("place", lambda entry: entry.key)(entry)
            if mistakes.get("newer", operator.lt)(sequences.get(place, 0), entry.sequence):
                sequences[place], values[entry.key] = entry.sequence, entry.value
            elif mistakes.get("fails"):
                raise ValueError(f"duplicate key {entry.key}")
            if mistakes.get("forgets") and entry.value is None:
                sequences.pop(entry.key, None)

    def read(self) -> dict[Any, Any]:
        """The target's contents."""
        return {key: value for key, value in TARGETS[self.number][1].items() if value is not None}


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"pick": lambda entries: list(itertools.islice(entries, 2))[:1]},
    ],
    ids=["whole", "the last one taken is told later"],
)
def test_a_right_exporter_passes(form: dict[str, Any]) -> None:
    check_exporter(exporter := Memory(**form), exporter.read)


WRONG: list[tuple[str, int, dict[str, Any]]] = [
    ("a repeated entry changes nothing", 2, {"newer": lambda stored, sequence: True}),
    ("it raised ValueError: duplicate key", 2, {"fails": True}),
    ("a key that is gone stays gone", 2, {"forgets": True}),
    ("every entry that export took", 1, {"pick": lambda entries: list(entries)[:2]}),
    ("without asking for a second entry", 1, {"pick": lambda entries: []}),
    (
        "without asking for a second entry",
        1,
        {"pick": lambda entries: itertools.islice(entries, 1)},
    ),
    ("an empty iterator changes nothing", 1, {"pick": lambda entries: [next(entries)]}),
    ("up to 63 bits", 2, {"newer": lambda stored, sequence: float(stored) < float(sequence)}),
    ("up to 63 bits", 2, {"newer": lambda stored, sequence: str(stored) < str(sequence)}),
    ("entries of different buckets", 2, {"place": lambda entry: "last"}),
    ("entries of a replay share a sequence", 1, {"place": lambda entry: entry.bucket}),
    ("two exporters", 2, {"remembers": True}),
]
"""The promise, the calls of a shortest history that breaks the promise, and the mistake."""


@pytest.mark.parametrize(("promise", "calls", "mistakes"), WRONG)
def test_a_wrong_exporter_is_told_the_promise_and_a_shortest_history(
    promise: str, calls: int, mistakes: dict[str, Any]
) -> None:
    with pytest.raises(ContractError) as caught:
        check_exporter(exporter := Memory(**mistakes), exporter.read)
    assert promise in str(caught.value)
    assert (caught.value.contract, str(caught.value).count("export by")) == ("exporter", calls)


def test_a_target_with_contents_and_an_exporter_with_a_connection_are_refused() -> None:
    exporter = Memory()
    exporter.export(iter([SequencedExport("queue", 0, "dog", 1, 1, "g")]))
    with pytest.raises(UsageError, match=r"a target with 1 keys\n  Give an empty target"):
        check_exporter(exporter, exporter.read)
    with pytest.raises(ContractError, match="Memory cannot be pickled"):
        check_exporter(Memory(link=threading.Lock()), dict)
