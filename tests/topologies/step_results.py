"""Results of the topologies of ``step_topologies``: the notes of their workers, and the content of
their stores."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.topologies.step_spouts import KEYS
from txtopo.stores import Store


@dataclass(frozen=True)
class Noted:
    """One line of a journal."""

    what: str
    txid: int
    attempt_id: int
    task: int
    values: Any


class History:
    """Notes of the workers in the commit phase. A killed worker may have noted an attempt in part."""

    def __init__(self, journal: Path) -> None:
        self.lines = [Noted(*json.loads(line)) for line in journal.read_text().splitlines()]

    def contents(self, note: str, txid: int) -> dict[int, dict[int, Any]]:
        """By attempt id and task, the notes for ``txid``."""
        contents: defaultdict[int, dict[int, Any]] = defaultdict(dict)
        for line in self.lines:
            if (line.what, line.txid) == (note, txid):
                contents[line.attempt_id][line.task] = line.values
        return dict(sorted(contents.items()))


@dataclass(frozen=True)
class Kept:
    """What a store of ``keep`` holds: the sum of each key, how often each number was counted, and
    the numbers of each txid by key; in a plain store only these, and the last txid of each key."""

    sums: dict[int, int]
    counts: dict[int, int]
    batches: dict[int, dict[int, list[int]]]
    latest: dict[int, int]

    @classmethod
    def of(cls, store: Store) -> Kept:
        """Read it."""
        sums, counts, latest, batches = {}, {}, {}, defaultdict[int, dict[int, list[int]]](dict)
        for key, value in store.items():
            assert isinstance(key, tuple)
            match key:
                case ("sum", int(number)):
                    sums[number] = value
                case ("number", int(number)):
                    counts[number] = value
                case ("batch", int(txid), int(number)):
                    batches[txid][number] = value
                case ("latest", int(number)):
                    latest[number] = value
                case _:
                    raise AssertionError(f"nobody wrote {key}")
        return cls(sums, counts, dict(sorted(batches.items())), latest)

    def numbers(self, txid: int) -> list[int]:
        """The batch of ``txid``, sorted."""
        return sorted(n for numbers in self.batches[txid].values() for n in numbers)

    def results(self) -> dict[int, list[list[int]]]:
        """By txid, the results of updates with these batches in turn: ``[key, before, after]`` of
        each."""
        running: dict[int, int] = dict.fromkeys(range(KEYS), 0)
        results: dict[int, list[list[int]]] = {}
        for txid, batch in self.batches.items():
            results[txid] = []
            for key, numbers in sorted(batch.items()):
                before = running[key]
                running[key] += sum(numbers)
                results[txid].append([key, before, running[key]])
        return results


def check_batches(partitions: int, size: int, kept: Kept) -> None:
    """Batch follows batch in every partition, without a gap, to the end of the input; and the sums
    are those of the input."""
    position = [0] * partitions
    for txid in kept.batches:
        for partition in range(partitions):
            part = [n - 1000 * partition for n in kept.numbers(txid) if n // 1000 == partition]
            assert part == list(range(position[partition], position[partition] + len(part))), (
                f"partition {partition} in txid {txid}"
            )
            position[partition] += len(part)
    assert position == [size] * partitions, f"the partitions were read up to {position}"
    source = [1000 * partition + i for partition in range(partitions) for i in range(size)]
    assert kept.counts == dict.fromkeys(source, 1), "numbers were lost, or counted twice"
    expected = {key: sum(n for n in source if n % KEYS == key) for key in range(KEYS)}
    assert kept.sums == expected, f"the sums are {kept.sums}, not {expected}"
