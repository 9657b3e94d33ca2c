"""A sink that replaces rows by a key which the table compares without case: rows of two spellings
go to two tasks, and are one row (R32)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.sinks import BACKENDS, Shop, WorkerProcess, shop
from txtopo.connectors.sql import SqlSink
from txtopo.connectors.sql import target as sql_target
from txtopo.errors import RowRefusedError
from txtopo.topology.transaction import TransactionAttempt

EXACT = {"sqlite": "TEXT", "postgresql": "TEXT", "mariadb": "VARCHAR(40) COLLATE utf8mb4_nopad_bin"}
LOOSE = {
    "sqlite": "TEXT COLLATE NOCASE",
    "postgresql": "citext",
    "mariadb": "VARCHAR(40) COLLATE utf8mb4_general_ci",
}
COMPARING = ("sqlite", "mariadb")
"""Those of our servers that have texts without case: our PostgreSQL is built without ICU, and has
no citext of its own."""


def names(backend: str, directory: Path, kind: dict[str, str]) -> Shop:
    """A shop with a table of sales (buyer, article, price), whose texts are compared by the rules
    of ``kind``."""
    buyers = shop(backend, directory, None)
    if backend == "postgresql" and kind is LOOSE:
        buyers.execute("CREATE DOMAIN citext AS text")
    text = kind[backend]
    buyers.execute(
        f"CREATE TABLE buyers (name {text} NOT NULL, day INTEGER NOT NULL, cents INTEGER, PRIMARY KEY (name, day))"
    )
    return buyers


def write(buyers: Shop, context: Any, txid: int, rows: Sequence[tuple[Any, ...]]) -> None:
    sink = SqlSink(buyers.address, "buyers", ["name", "day", "cents"], key=["name", "day"])
    sink.ledger.apply(context, TransactionAttempt(txid, 0), ("name", "day", "cents"), list(rows))


def rows_of(buyers: Shop) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in buyers.execute("SELECT name, day, cents FROM buyers"))


@pytest.mark.rule(32)
@pytest.mark.parametrize("backend", COMPARING)
def test_two_spellings_of_a_key_from_two_tasks_are_noticed(
    backend: str, tmp_path: Path, process: WorkerProcess
) -> None:
    buyers = names(backend, tmp_path, LOOSE)
    write(buyers, process.task(task=0, num_tasks=2), 1, [("adam", 1, 5), ("eve", 1, 10)])
    with pytest.raises(RowRefusedError, match=r"'eve'.*compares .*without") as caught:
        write(buyers, process.task(task=1, num_tasks=2), 1, [("bob", 1, 7), ("Eve", 1, 20)])
    assert "Eve" in str(caught.value)
    assert rows_of(buyers) == [("adam", 1, 5), ("eve", 1, 10)], "nothing of the task is kept"
    write(buyers, process.task(task=1, num_tasks=2), 1, [("bob", 1, 7), ("Eve", 2, 20)])
    write(buyers, process.task(task=0, num_tasks=2), 2, [("eve", 1, 11)])
    assert rows_of(buyers) == [("Eve", 2, 20), ("adam", 1, 5), ("bob", 1, 7), ("eve", 1, 11)]


@pytest.mark.rule(32)
def test_spaces_at_the_end_of_a_key_are_noticed_in_a_binary_collation_that_pads(
    tmp_path: Path, process: WorkerProcess
) -> None:
    buyers = names("mariadb", tmp_path, {"mariadb": "VARCHAR(40) COLLATE utf8mb4_bin"})
    write(buyers, process.task(task=0, num_tasks=2), 1, [("eve", 1, 10), ("Eve", 1, 11)])
    with pytest.raises(RowRefusedError, match=r"'eve'.*compares .*spaces"):
        write(buyers, process.task(task=1, num_tasks=2), 1, [("eve ", 1, 20)])
    assert rows_of(buyers) == [("Eve", 1, 11), ("eve", 1, 10)]


@pytest.mark.rule(32)
def test_in_postgresql_a_row_is_compared_letter_by_letter_with_the_one_it_has_replaced(
    tmp_path: Path, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cast of the name does not compare as citext does, so that both rows are stored; the test
    states which spellings are equal."""
    buyers = names("postgresql", tmp_path, LOOSE)
    write(buyers, process.task(task=0, num_tasks=2), 1, [("adam", 1, 5), ("eve", 1, 10)])
    write(buyers, process.task(task=1, num_tasks=2), 1, [("Adam", 2, 7)])
    same = "lower({0}.name) = lower({1}.name) AND {0}.day = {1}.day"
    monkeypatch.setattr(
        sql_target.Target,
        "matches",
        lambda target, one, other, collations=None: same.format(one, other),
    )
    with pytest.raises(RowRefusedError, match=r"'eve'.*compares .*without"):
        write(buyers, process.task(task=1, num_tasks=2), 2, [("adam", 1, 7), ("Eve", 1, 20)])
    assert rows_of(buyers) == [("Adam", 2, 7), ("adam", 1, 5), ("eve", 1, 10)], (
        "nothing of the task is kept"
    )


@pytest.mark.rule(32)
@pytest.mark.parametrize("backend", COMPARING)
def test_a_single_task_may_spell_as_it_likes(
    backend: str, tmp_path: Path, process: WorkerProcess
) -> None:
    buyers = names(backend, tmp_path, LOOSE)
    write(buyers, process.task(num_tasks=1), 1, [("eve", 1, 10), ("Eve", 1, 20)])
    assert [row[1:] for row in rows_of(buyers)] == [(1, 20)]


@pytest.mark.rule(32)
@pytest.mark.parametrize("backend", BACKENDS)
def test_where_keys_are_compared_exactly_two_spellings_are_two_rows(
    backend: str, tmp_path: Path, process: WorkerProcess
) -> None:
    buyers = names(backend, tmp_path, EXACT)
    for task, name in enumerate(["eve", "Eve"]):
        write(buyers, process.task(task=task, num_tasks=2), 1, [(name, 1, task)])
    assert rows_of(buyers) == [("Eve", 1, 1), ("eve", 1, 0)]
