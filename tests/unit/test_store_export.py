"""A store as a table of pandas or Arrow."""

from __future__ import annotations

import base64
import datetime
import http
import importlib
import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from txtopo import SetupError, TransactionAttempt, UsageError
from txtopo.stores import SqliteStore, export
from txtopo.testing.contracts.store_subject import block, visible_at
from txtopo.testing.contracts.worker_process import WorkerProcess


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db", "things")


def fill(store: SqliteStore, process: WorkerProcess, values: dict[Any, Any], txid: int = 1) -> None:
    block(store, process.task(), txid, 0, lambda opened: opened.put_many(values))


def test_tuples_of_one_length_become_columns(store: SqliteStore, process: WorkerProcess) -> None:
    fill(store, process, {("ann", 7): 1.5, ("ann", 8): None, ("bob", 1): 2.5})
    table = store.to_arrow()
    assert table.schema == pyarrow.schema(
        {"key_0": pyarrow.string(), "key_1": pyarrow.int64(), "value": pyarrow.float64()}
    )
    assert table.to_pydict() == {
        "key_0": ["ann", "ann", "bob"],
        "key_1": [7, 8, 1],
        "value": [1.5, None, 2.5],
    }
    frame = store.to_pandas()
    assert list(frame.columns) == ["key_0", "key_1", "value"]
    assert frame[["key_0", "key_1"]].to_dict("list") == {
        "key_0": ["ann", "ann", "bob"],
        "key_1": [7, 8, 1],
    }
    assert frame["value"].sum() == 4


def test_other_keys_are_one_column_and_dicts_are_structs(
    store: SqliteStore, process: WorkerProcess
) -> None:
    fill(store, process, {"cat": {"legs": 4}, "dog": {"legs": 3}})
    assert store.to_arrow().to_pydict() == {
        "key": ["cat", "dog"],
        "value": [{"legs": 4}, {"legs": 3}],
    }
    assert store.to_pandas().set_index("key")["value"].to_dict() == {
        "cat": {"legs": 4},
        "dog": {"legs": 3},
    }


class Pickled:
    """Keeps any value."""

    name = "pickled"

    def dumps(self, value: Any) -> str:
        return base64.b64encode(pickle.dumps(value)).decode()

    def loads(self, text: str) -> Any:
        return pickle.loads(base64.b64decode(text))


UTC = datetime.UTC
NOON = datetime.datetime(2026, 1, 1, 12)
MIXED: dict[str, list[Any]] = {
    "a truth value among broken numbers": [1.5, True],
    "a truth value among integers": [1, True],
    "an integer among broken numbers": [1.5, 1],
    "an integer among broken numbers that is none of them": [1.5, 2**53 + 1],
    "an integer beyond 64 bits": [1, 2**64],
    "a negative integer beyond 64 bits": [1, -(2**63) - 1],
    "text and bytes": ["a", b"a"],
    "text and a number": [1, "x"],
    "a time without a zone after one with a zone": [NOON.replace(tzinfo=UTC), NOON],
    "a time after a date": [NOON.date(), NOON],
    "a time of day with a zone": [NOON.time(), NOON.time().replace(tzinfo=UTC)],
    "a truth value in a list": [[1], [True]],
    "a number in a struct": [{"a": 1}, {"a": 1.5}],
    "other fields": [{"a": 1}, {"b": 1}],
    "half of a surrogate pair": ["a", "\ud800"],
    "an enum": [1, http.HTTPStatus.OK],
    "a set": [{1}],
}


def filled(tmp_path: Path, process: WorkerProcess, values: list[Any]) -> SqliteStore:
    """A store with keys ``k0``, ``k1``, …"""
    store = SqliteStore(tmp_path / "any.db", "things", codec=Pickled())
    fill(store, process, {f"k{i}": value for i, value in enumerate(values)})
    return store


@pytest.mark.parametrize("values", MIXED.values(), ids=MIXED)
def test_a_value_that_a_column_of_arrow_would_change_is_refused_by_its_key(
    tmp_path: Path, process: WorkerProcess, values: list[Any]
) -> None:
    store = filled(tmp_path, process, values)
    with pytest.raises(UsageError) as raised:
        store.to_arrow()
    fact, cure = str(raised.value).split("\n")
    assert fact.startswith(
        f"column 'value' of the store {store.address} cannot hold the value of key 'k{len(values) - 1}', "
    )
    assert "to_arrow(schema=pa.schema([('value', pa.float64())]))" in cure


@pytest.mark.parametrize(
    "values",
    [
        *MIXED.values(),
        [1, None],
        [2**53 + 1, None],
        [1.5, float("nan"), None],
        [True, None],
        [NOON, None],
    ],
)
def test_a_value_in_pandas_is_the_one_in_the_store(
    tmp_path: Path, process: WorkerProcess, values: list[Any]
) -> None:
    column = filled(tmp_path, process, values).to_pandas()["value"].tolist()
    assert list(map(repr, column)) == list(map(repr, values))
    assert list(map(type, column)) == list(map(type, values))


def test_columns_of_one_type_are_of_this_type_in_pandas(
    tmp_path: Path, process: WorkerProcess
) -> None:
    frame = filled(tmp_path, process, [1.5, None, 2.5]).to_pandas()
    assert frame["value"].dtype == "float64"
    assert frame["value"].isna().tolist() == [False, True, False]
    (tmp_path / "other").mkdir()
    assert filled(tmp_path / "other", process, [1, 2]).to_pandas()["value"].dtype == "int64"


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pyarrow.float64(), [1.5, 1, None]),
        (pyarrow.float64(), [1, 2**53]),
        (pyarrow.decimal128(25, 0), [1, 2**70]),
        (pyarrow.int8(), [1, None]),
        (pyarrow.string(), [None, None]),
        (pyarrow.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC)]),
    ],
)
def test_a_schema_decides_the_types_of_the_columns(
    tmp_path: Path, process: WorkerProcess, type: pyarrow.DataType, values: list[Any]
) -> None:
    table = filled(tmp_path, process, values).to_arrow(
        schema=pyarrow.schema([pyarrow.field("value", type, metadata={"a": "b"})])
    )
    assert table.schema.names == ["key", "value"]
    assert table.schema.field("value").type == type
    assert table.schema.field("value").metadata == {b"a": b"b"}
    assert table["value"].to_pylist() == values


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pyarrow.float64(), 2**53 + 1),
        (pyarrow.int64(), 1.0),
        (pyarrow.int64(), True),
        (pyarrow.int8(), 128),
    ],
)
def test_a_value_that_a_declared_column_would_change_is_refused_by_its_key(
    tmp_path: Path, process: WorkerProcess, type: pyarrow.DataType, value: Any
) -> None:
    with pytest.raises(
        UsageError,
        match=rf"column 'value' of the store .* cannot hold the value of key 'k1', {re.escape(repr(value))}, as {type}: ",
    ):
        filled(tmp_path, process, [1, value]).to_arrow(schema=pyarrow.schema([("value", type)]))


def test_keys_are_looked_at_like_values(store: SqliteStore, process: WorkerProcess) -> None:
    fill(store, process, {7: 1, "b": 2})
    with pytest.raises(
        UsageError,
        match=r"column 'key' of the store .* cannot hold the key 7: values are of several types: int, str",
    ):
        store.to_arrow()


@pytest.mark.parametrize(
    "schema", [pyarrow.schema([("price", pyarrow.int64())]), {"value": pyarrow.int64()}]
)
def test_a_schema_of_other_columns_is_refused(
    store: SqliteStore, process: WorkerProcess, schema: Any
) -> None:
    fill(store, process, {"a": 1})
    with pytest.raises(
        UsageError,
        match=r"to_arrow\(schema=\.\.\.\) of the store .*\n  The store's columns are 'key', 'value'",
    ):
        store.to_arrow(schema=schema)


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
    with pytest.raises(
        SetupError, match=rf"cannot be imported.*\n  Type: pip install 'txtopo\[{extra}\]'"
    ):
        getattr(store, method)()
