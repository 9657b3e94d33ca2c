"""A batch is routed the same way when it is computed again, in another process, and under another
hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from txtopo import Fields, TransactionAttempt
from txtopo.dataplane import route
from txtopo.topology.grouping import Grouping

FIELDS = Fields("tx", "word", "number")


class ByLength:
    """A custom grouping with a count of all sent tuples."""

    def __init__(self) -> None:
        self.sent = 0

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        self.sent += 1
        return [(len(values[1]) + self.sent) % 3, 0][: 1 + self.sent % 2]


GROUPINGS = [
    Grouping("shuffle"),
    Grouping("fields", Fields("word")),
    Grouping("fields", Fields("word", "number")),
    Grouping("fields", Fields("tx", "number")),
    Grouping("partial_key", Fields("word")),
    Grouping("global"),
    Grouping("all"),
    Grouping("none"),
    Grouping("local_or_shuffle"),
    Grouping("custom", custom=ByLength()),
]

Batch = list[tuple[str, float]]


def routed(batch: Batch, txid: int, sender: int, tasks: int) -> list[list[list[int]]]:
    """For every grouping and task, the numbers of the rows that it receives."""
    received: list[list[list[int]]] = []
    for grouping in GROUPINGS:
        lanes: list[list[route.Row]] = [[] for _ in range(tasks)]
        memory = route.SenderMemory(grouping, sender, txid, tasks)
        send = route.make_send(grouping, FIELDS, sender, [lane.append for lane in lanes], memory)
        for number, values in enumerate(batch):
            send((TransactionAttempt(txid, 0), *values, number))
        received.append([[row[-1] for row in lane] for lane in lanes])
    return received


BATCHES = st.lists(
    st.tuples(
        st.text(max_size=6),
        st.one_of(st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False)),
    ),
    max_size=40,
)
CASES = st.tuples(BATCHES, st.integers(1, 50), st.integers(0, 4), st.integers(3, 5))


@pytest.mark.rule(16, 17)
@examples(3)
@given(cases=st.lists(CASES, min_size=30, max_size=60))
def test_a_batch_is_routed_alike_in_every_process_and_under_every_hash_seed(
    cases: list[tuple[Batch, int, int, int]],
) -> None:
    routes = [routed(*case) for case in cases]
    assert routes == [routed(*case) for case in cases], "computed again, it goes elsewhere"
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        command = [sys.executable, "-m", "tests.property.test_routing_elsewhere"]
        done = subprocess.run(
            command,
            input=json.dumps(cases),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == routes, f"PYTHONHASHSEED={seed} routes otherwise"


if __name__ == "__main__":
    print(
        json.dumps(
            [
                routed([(word, number) for word, number in batch], *rest)
                for batch, *rest in json.load(sys.stdin)
            ]
        )
    )
