"""A late task of a Kafka sink beside the live one, in every order of their steps, on a real broker:
rows are there once, in order, and the live attempt needs one replay at most."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.servers.kafka import MEMORY_AND_BROKER, KafkaServer
from tests.topologies.kafka_sinks import Sales
from tests.topologies.stepped_tasks import Task, set_points
from txtopo.connectors.kafka import auxiliary
from txtopo.errors import FailedException, StaleAttemptError
from txtopo.testing.contracts.worker_process import WorkerProcess

pytestmark = MEMORY_AND_BROKER

STEPS = 4


SCHEDULES = [
    "".join("Z" if place in chosen else "L" for place in range(2 * STEPS))
    for chosen in itertools.combinations(range(2 * STEPS), STEPS)
]
"""Every order of the steps of a zombie, Z, and a live task, L."""
KINDS = {
    "an older attempt of the same transaction": ((2, 0), (2, 1)),
    "the transaction before": ((1, 0), (2, 0)),
    "the same attempt, once more": ((2, 0), (2, 0)),
}


def play(kafka: KafkaServer, kind: str, schedule: str) -> tuple[Sales, object, object]:
    """Transaction 1 is there; zombie and live task then run as ``schedule`` says, and the live one
    is replayed if it failed. Then comes transaction 3."""
    sales, (late, live) = Sales(kafka), KINDS[kind]
    texts = {1: ["a"], 2: ["b1", "b2"]}
    processes = [WorkerProcess() for _ in range(4)]
    sales.write(processes[0], 1, 1, texts[1], tasks=1)
    with pytest.MonkeyPatch.context() as patch:
        set_points(patch)
        # The two tasks do not wait long for each other; a replay does.
        patch.setattr(auxiliary, "DECIDED_S", 0.1)
        tasks = {
            "Z": Task(lambda: sales.write(processes[1], *late, texts[late[0]], tasks=1)),
            "L": Task(lambda: sales.write(processes[2], *live, texts[live[0]], tasks=1)),
        }
        for letter in schedule:
            tasks[letter].step()
        for task in tasks.values():
            task.finish()
    latest, attempt = processes[2], live[1]
    if isinstance(tasks["L"].outcome, FailedException):
        latest, attempt = processes[3], live[1] + 1
        assert sales.write(latest, 2, attempt, texts[2], tasks=1) == 2
    known: dict[str, Any] = {} if live == late else {"known_stores": sales.known(2, attempt, 1)}
    try:
        sales.write(latest, 3, 0, ["c"], tasks=1, **known)
    except FailedException:
        # The zombie has come last, and has fenced the producer that was kept.
        latest.close()
        sales.write(latest, 3, 1, ["c"], tasks=1, **known)
    for process in processes:
        process.close()
    return sales, tasks["Z"].outcome, tasks["L"].outcome


def check(kafka: KafkaServer, kind: str, schedule: str) -> None:
    """Play, and compare."""
    sales, late, live = play(kafka, kind, schedule)
    assert sales.values == ["a", "b1", "b2", "c"], (late, live)
    assert not isinstance(live, StaleAttemptError), "the live attempt was taken for a late one"
    assert live == 2 or isinstance(live, FailedException), live
    if kind == "the transaction before":
        assert isinstance(late, FailedException), late


SOME = [(kind, schedule) for number, kind in enumerate(KINDS) for schedule in SCHEDULES[number::5]]


@pytest.mark.in_gate(
    "*memory",
    "*-ZZZZLLLL-broker",
    "the transaction before-ZLLLZZZL-broker",
    "the same attempt, once more-ZLLLZZLZ-broker",
)
@pytest.mark.rule(28, 29, 40)
@pytest.mark.parametrize(("kind", "schedule"), SOME)
def test_rows_are_there_once(kafka: KafkaServer, kind: str, schedule: str) -> None:
    check(kafka, kind, schedule)


@pytest.mark.in_gate("*memory")
@pytest.mark.rule(28, 29, 40)
@pytest.mark.parametrize(
    ("kind", "schedule"),
    sorted({(kind, schedule) for kind in KINDS for schedule in SCHEDULES} - set(SOME)),
)
def test_rows_are_there_once_in_every_other_order(
    kafka: KafkaServer, kind: str, schedule: str
) -> None:
    check(kafka, kind, schedule)
