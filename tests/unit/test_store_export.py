"""A store as a table of pandas or Arrow."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest

from txtopo import SetupError, TransactionAttempt, UsageError
from txtopo.stores import SqliteStore, export
from txtopo.testing.contracts.store_subject import block, visible_at
from txtopo.testing.contracts.worker_process import WorkerProcess


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    process = WorkerProcess()
    yield process
    process.close()


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db", "things")


def fill(store: SqliteStore, process: WorkerProcess, values: dict[Any, Any], txid: int = 1) -> None:
    block(store, process.task(), txid, 0, lambda opened: opened.put_many(values))


def test_tuples_of_one_length_become_columns(store: SqliteStore, process: WorkerProcess) -> None:
    fill(store, process, {("ann", 7): 1.5, ("ann", 8): None, ("bob", 1): 2.5})
    table = store.to_arrow()
    assert table.schema == pyarrow.schema({"key_0": pyarrow.string(), "key_1": pyarrow.int64(), "value": pyarrow.float64()})
    assert table.to_pydict() == {"key_0": ["ann", "ann", "bob"], "key_1": [7, 8, 1], "value": [1.5, None, 2.5]}
    frame = store.to_pandas()
    assert list(frame.columns) == ["key_0", "key_1", "value"]
    assert frame[["key_0", "key_1"]].to_dict("list") == {"key_0": ["ann", "ann", "bob"], "key_1": [7, 8, 1]}
    assert frame["value"].sum() == 4


def test_other_keys_are_one_column_and_dicts_are_structs(store: SqliteStore, process: WorkerProcess) -> None:
    fill(store, process, {"cat": {"legs": 4}, "dog": {"legs": 3}})
    assert store.to_arrow().to_pydict() == {"key": ["cat", "dog"], "value": [{"legs": 4}, {"legs": 3}]}
    assert store.to_pandas().set_index("key")["value"].to_dict() == {"cat": {"legs": 4}, "dog": {"legs": 3}}


@pytest.mark.parametrize(("column", "values"), [("value", {"a": 1, "b": "x"}), ("value", {"b": 2**70}), ("key", {7: 1, "b": 2})])
def test_what_arrow_has_no_type_for_is_refused_and_pandas_takes_it(
    store: SqliteStore, process: WorkerProcess, column: str, values: dict[Any, Any]
) -> None:
    fill(store, process, values)
    with pytest.raises(UsageError, match=rf"column '{column}' of the store .* is not of one type(?s:.*)\n  Use to_pandas\(\)"):
        store.to_arrow()
    frame = store.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert dict(zip(frame["key"], frame["value"], strict=True)) == values


def test_keys_of_several_shapes_are_one_column(store: SqliteStore, process: WorkerProcess) -> None:
    fill(store, process, {("a",): 1, ("a", "b"): 2, "c": 3})
    assert store.to_pandas()["key"].tolist() == ["c", ("a", "b"), ("a",)]


def test_an_empty_store_has_columns_and_no_rows(store: SqliteStore) -> None:
    assert store.to_arrow().to_pydict() == {"key": [], "value": []}
    assert list(store.to_pandas().columns) == ["key", "value"]
    assert export.columns([((), 1)]) == {"key": [()], "value": [1]}


@pytest.mark.rule(3)
def test_both_can_be_as_of_a_transaction(store: SqliteStore, process: WorkerProcess) -> None:
    fill(store, process, {"dog": 1})
    visible = visible_at(1, {f"count/{store.name}": TransactionAttempt(1, 0)})
    fill(store, process, {"dog": 2}, txid=2)
    assert store.to_arrow(as_of=visible).to_pydict() == {"key": ["dog"], "value": [1]}
    assert store.to_pandas(as_of=visible)["value"].tolist() == [1]


@pytest.mark.parametrize(("method", "extra"), [("to_pandas", "pandas"), ("to_arrow", "arrow")])
def test_where_the_library_is_missing_the_command_to_type_is_named(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, method: str, extra: str
) -> None:
    def import_module(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(SetupError, match=rf"cannot be imported.*\n  Type: pip install 'txtopo\[{extra}\]'"):
        getattr(store, method)()
