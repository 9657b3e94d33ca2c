"""The content of the znodes, and their paths."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from txtopo import errors, plain_json
from txtopo.state import base, layout, records
from txtopo.state.memory import MemoryStateStore
from txtopo.state.positions import SHARDS, Positions
from txtopo.topology.transaction import RecordedAttempt

PLAIN = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "äß\U0001f600",
    [],
    [1, [2]],
    {},
    {"a": {"b": [None]}},
    "\udc80",
    {"\udc80": 1},
]


@pytest.mark.parametrize("value", PLAIN)
def test_json_values_come_back_as_they_were(value: Any) -> None:
    assert records.decode_json("/p", plain_json.encode(value)) == value


def test_tuples_come_back_as_lists() -> None:
    assert records.decode_json("/p", plain_json.encode({"range": (1, (2, 3))})) == {
        "range": [1, [2, 3]]
    }


def test_text_is_stored_as_text_a_person_can_read() -> None:
    assert plain_json.encode({"datei": "Straße"}) == '{"datei":"Straße"}'.encode()


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), "$"),
        ({1: "a"}, "$"),
        ({"a": [0, {"b": {2, 3}}]}, "$.a[1].b"),
        ([float("nan")], "$[0]"),
        (float("inf"), "$"),
        (b"bytes", "$"),
        ({"n": 10**5000}, "$.n"),
        ("\ud83d\ude00", "$"),
        (CYCLE, "$[0]"),
    ],
)
def test_a_value_that_would_come_back_different_is_refused_with_its_place(
    value: Any, where: str
) -> None:
    with pytest.raises(plain_json.NotJsonError) as refused:
        plain_json.encode(value)
    assert refused.value.path == where
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize("data", [b"", b"{", b"NaN", b"\xff", b"garbage", b"[" * 100_000])
@pytest.mark.rule(25)
def test_data_that_is_not_json_is_unreadable_and_names_the_path(data: bytes) -> None:
    with pytest.raises(errors.UnreadableStateError, match="/some/path") as refused:
        records.decode_json("/some/path", data)
    assert refused.value.exit_code == 6


def test_a_txid_record_is_the_json_it_is_documented_to_be() -> None:
    opened_at = "2026-03-01T12:00:00+00:00"
    record = records.TxidRecord(
        txid=8,
        status="sealed",
        attempt_id=3,
        tasks={"spout": 2},
        metadata={"0": [1, 5]},
        opened_at=opened_at,
    )
    assert json.loads(record.encode()) == {
        "version": 2,
        "txid": 8,
        "status": "sealed",
        "attempt_id": 3,
        "tasks": {"spout": 2},
        "metadata": {"0": [1, 5]},
        "opened_at": opened_at,
    }
    assert records.TxidRecord.decode("/p", record.encode()) == record


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"null", "TxidRecord"),
        (b"7", "TxidRecord"),
        (
            b'{"version":3,"txid":8}',
            "it has format version 3, but this txtopo reads 2: run the txtopo version that wrote the record",
        ),
        (b'{"version":1,"txid":8}', "it has format version 1, but this txtopo reads 2"),
        (b'{"version":2,"txid":8,"opened_at":"2026-03-01T12:00:00"}', "no time zone"),
        (b'{"version":2,"txid":8,"opened_at":"noon"}', "noon"),
        (b'{"version":2}', "txid"),
        (b'{"version":2,"txid":"8"}', "txid"),
        (b'{"version":2,"txid":0}', "txid"),
        (b'{"version":2,"txid":8,"status":"done"}', "status"),
        (b'{"version":2,"txid":8,"status":"sealed"}', "names its attempt"),
        (b'{"version":2,"txid":8,"surprise":1}', "surprise"),
    ],
)
@pytest.mark.rule(25)
def test_a_record_of_another_shape_or_version_is_unreadable_and_says_why(
    data: bytes, why: str
) -> None:
    with pytest.raises(errors.UnreadableStateError, match=why):
        records.TxidRecord.decode("/p", data)


def test_the_record_of_stores_names_the_attempt_that_opened_each_last() -> None:
    record = records.StoresRecord.of(
        {"sum/totals": RecordedAttempt(7, 2, 0), "count/counts": RecordedAttempt(8, 1_000_000, 3)}
    )
    assert json.loads(record.encode()) == {
        "version": 2,
        "stores": {
            "count/counts": {"txid": 8, "attempt_id": 1_000_000, "count": 3},
            "sum/totals": {"txid": 7, "attempt_id": 2, "count": 0},
        },
    }
    assert records.StoresRecord.decode("/p", record.encode()).attempts == record.attempts
    assert list(record.attempts) == ["count/counts", "sum/totals"]


@pytest.mark.parametrize(
    "stores",
    [
        '{"count/counts":{"txid":8,"attempt_id":0,"count":-1}}',
        '{"count/counts":{"txid":8,"attempt_id":0}}',
        '["count/counts"]',
        '{"count/counts":[8,0]}',
        '{"count/counts":{"txid":8}}',
        '{"count/counts":{"txid":0,"attempt_id":0,"count":0}}',
    ],
)
@pytest.mark.rule(25)
def test_a_record_of_stores_that_names_no_attempts_is_unreadable(stores: str) -> None:
    with pytest.raises(errors.UnreadableStateError, match="not a StoresRecord"):
        records.StoresRecord.decode("/p", f'{{"version":2,"stores":{stores}}}'.encode())


def test_a_generation_is_stored_as_earlier_versions_read_it() -> None:
    record = records.GenerationRecord(generation="first")
    assert record.encode() == b'{"version":1,"generation":"first"}'
    restored = records.GenerationRecord(generation="first", restored="ab")
    assert records.GenerationRecord.decode("/p", restored.encode()) == restored


def test_metadata_that_is_no_json_is_not_quietly_turned_into_some() -> None:
    with pytest.raises(plain_json.NotJsonError, match="metadata"):
        records.TxidRecord(txid=1, metadata=records.GenerationRecord).encode()


@pytest.mark.parametrize("name", ["words", "a/b", "..", ".", "ä ö", "50%", "x\0y", "%2F", "a.b"])
def test_every_topology_id_has_a_path_of_its_own_and_comes_back(name: str) -> None:
    path = base.check_path(layout.Layout(name).lease)
    assert path.count("/") == 2
    assert layout.decode_name(path.split("/")[1]) == name


def test_an_empty_topology_id_is_refused() -> None:
    with pytest.raises(errors.ConfigError):
        layout.Layout("")


def _stored(store: MemoryStateStore) -> dict[str, Any]:
    nodes = {name: store.get(f"/positions/{name}") for name in store.children("/positions")}
    return {name: json.loads(node.data) for name, node in nodes.items() if node}


@pytest.mark.rule(25)
def test_only_the_shards_of_partitions_that_moved_are_written() -> None:
    store = MemoryStateStore()
    store.multi([base.Create("/positions")])
    positions = Positions(store, "/positions")
    for moved in ({p: [p, 0] for p in range(100)}, {3: [3, 1], 19: [19, 1]}):
        operations = positions.operations(moved)
        store.multi(operations)
        positions.apply(moved)
    assert [operation.path for operation in operations] == ["/positions/3"]
    assert len(_stored(store)) == SHARDS
    assert _stored(store)["3"] == {
        "version": 1,
        "positions": {str(p): [p, int(p in (3, 19))] for p in range(3, 100, 16)},
    }
    assert (
        Positions(store, "/positions").all()
        == positions.all()
        == {p: [p, int(p in (3, 19))] for p in range(100)}
    )


def test_positions_given_out_or_put_in_cannot_be_changed_from_outside() -> None:
    positions = Positions(MemoryStateStore(), "/positions")
    metadata = {"offset": 1}
    positions.apply({0: metadata})
    metadata["offset"] = 2
    positions.all()[0]["offset"] = 3
    assert positions.all() == {0: {"offset": 1}}


BAD_SHARDS = [
    ("16", b"{}"),
    ("x", b"{}"),
    ("1", b""),
    ("1", b'{"version":1,"positions":{"2":0}}'),
    ("1", b'{"version":1,"positions":{"01":0}}'),
]


@pytest.mark.parametrize(("name", "data"), BAD_SHARDS)
@pytest.mark.rule(25)
def test_a_position_shard_that_cannot_be_understood_is_not_taken_as_empty(
    name: str, data: bytes
) -> None:
    store = MemoryStateStore()
    store.multi([base.Create("/positions"), base.Create(f"/positions/{name}", data)])
    with pytest.raises(errors.UnreadableStateError, match=f"/positions/{name}"):
        Positions(store, "/positions")
