"""A refusal of a store names the place in the topology and the cure that helps, and shows no frame
of txtopo."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.topologies.recording import NotingCommitter, builder, rows, run_once
from txtopo import Count, Fields, StoreConflictError, TxtopoError, UsageError
from txtopo.stores import SqliteStore, keys, stamps
from txtopo.testing import MemoryStore


def counted(store: Any, *values: Any) -> TxtopoError | None:
    """The error of a count of ``values`` in ``store``."""
    topology = builder()
    topology.set_aggregate("kept", Count(), store).group_by("spout", Fields("value"))
    failure = run_once(topology.build_topology(), {0: rows(*values)}).failure
    return None if failure is None else failure.to_error()


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
@pytest.mark.rule(32)
def test_a_key_of_another_topology_asks_for_a_store_of_its_own(kind: str, tmp_path: Path) -> None:
    store = (
        SqliteStore(tmp_path / "counts.db", "counts")
        if kind == "sqlite"
        else MemoryStore("counts", str(tmp_path))
    )
    assert counted(store, "ant") is None
    error = counted(store, "ant")
    assert isinstance(error, StoreConflictError)
    fact, cure, *more = str(error).splitlines()
    assert fact.startswith(
        f"store {store.address}: key \"ant\" was written by component 'kept' task 0 of topology"
    )
    assert cure.startswith("  Give each topology its own store")
    assert "fields_grouping" not in str(error)
    assert "component 'kept', task 0, attempt 1:0" in more[-1], "no frame of txtopo follows"


def test_a_key_of_another_task_asks_for_a_grouping(tmp_path: Path) -> None:
    def write(bolt: Any) -> None:
        with MemoryStore("counts", str(tmp_path)).transaction(
            bolt.context, bolt.attempt
        ) as transaction:
            transaction.put("ant", 1)

    topology = builder()
    topology.set_bolt("kept", NotingCommitter(on_finish=write), 2).shuffle_grouping("spout")
    failure = run_once(topology.build_topology(), {0: rows("a")}).failure
    assert failure is not None
    assert (
        "Group the writer's input with fields_grouping on the key" in failure.error.splitlines()[1]
    )
    assert "in write" in failure.traceback, "the line of the user's code is shown"


@pytest.mark.parametrize("key", [1.5, True, b"ant", float("nan")], ids=repr)
def test_a_key_that_no_store_keeps_is_told_with_component_task_and_transaction(
    key: Any, tmp_path: Path
) -> None:
    error = counted(MemoryStore("counts", str(tmp_path)), "ant", key)
    assert type(error) is UsageError
    assert f"a store key cannot hold {key!r} of type" in str(error)
    assert "in component 'kept-of-spout', task 0, attempt 1:0, processing phase, execute" in str(
        error
    )


def test_the_cure_for_a_key_of_none_does_not_mix_it_up_with_a_text() -> None:
    with pytest.raises(UsageError, match=r"Use \(None,\)"):
        keys.encode_key(cast(Any, None))


class CountsReaders(MemoryStore):
    """Counts the readings that are open."""

    open_readers = 0

    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        self.open_readers += 1
        try:
            yield from super().read_from(text)
        finally:
            self.open_readers -= 1


@pytest.mark.parametrize("prefix", [None, "an", ("an", None)])
def test_a_refused_reading_keeps_no_reader_open(prefix: Any, tmp_path: Path) -> None:
    store = CountsReaders("counts", str(tmp_path))
    assert counted(store, "ant", "anna") is None
    with pytest.raises(UsageError, match="cannot be read as of 3") as caught:
        store.count(prefix, as_of=cast(Any, 3))
    assert (store.open_readers, bool(caught.tb)) == (0, True)
