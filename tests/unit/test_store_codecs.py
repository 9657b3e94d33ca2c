"""Allowed codecs, and the description of a store's content."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from txtopo import StateMismatchError, TransactionAttempt, UsageError
from txtopo.stores import SqliteStore, Store, codecs, rows, visible
from txtopo.testing.contracts.store_forms import ComplexCodec
from txtopo.testing.contracts.store_subject import block
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.testing.simulator.simulated_store import SimulatedStore


class Nameless:
    def dumps(self, value: Any) -> str:
        return str(value)

    def loads(self, text: str) -> Any:
        return text


class Pretender(Nameless):
    name = "json"


class Spaced(Nameless):
    name = "my codec"


class Mute:
    name = "mute"


@pytest.mark.parametrize(
    ("codec", "told"),
    [
        (Nameless(), "no name that can be kept: None"),
        (Spaced(), "no name that can be kept: 'my codec'"),
        (Pretender(), "calls itself 'json'"),
        (Mute(), "has no dumps"),
        (object(), "no name that can be kept"),
    ],
)
def test_an_object_that_is_no_codec_is_refused_when_the_store_is_made(
    tmp_path: Path, codec: Any, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        SqliteStore(tmp_path / "store.db", "things", codec=codec)
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_of_one_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="opaque and plain"):
        SqliteStore(tmp_path / "store.db", "things", opaque=True, plain=True)
    forms: list[dict[str, Any]] = [{}, {"opaque": True}, {"plain": True}]
    stores = [SqliteStore(tmp_path / "store.db", "things", **form) for form in forms]
    assert [(store.kind, store.form) for store in stores] == [
        ("transactional", "json"),
        ("opaque", "json"),
        ("plain", "plain json"),
    ]
    assert [str(store).rpartition("things")[2] for store in stores] == [">", " opaque>", " plain>"]


def test_json_is_one_object_also_when_it_was_pickled() -> None:
    assert pickle.loads(pickle.dumps(codecs.JSON)) is codecs.JSON
    assert codecs.checked(None) is codecs.JSON


class Texts(Nameless):
    name = "texts"


class NeverRead(Texts):
    def loads(self, text: str) -> Any:
        raise AssertionError(f"{text} was decoded")


def test_keys_are_counted_without_decoding_a_value(tmp_path: Path) -> None:
    process = WorkerProcess()
    written = SqliteStore(tmp_path / "store.db", "things", codec=Texts())
    block(
        written,
        process.task(),
        1,
        0,
        lambda opened: opened.put_many({"a": 1, "ab": 2, ("a", 1): 3}),
    )
    process.close()
    store = SqliteStore(tmp_path / "store.db", "things", codec=NeverRead())
    assert (store.count(), store.count("a"), store.count(("a",))) == (3, 2, 1)
    as_of = visible.VisibleTxid(1, "words", "first", {"count/things": TransactionAttempt(1, 0)})
    assert (store.count(as_of=as_of), store.count("ab", as_of=as_of)) == (3, 1)


def test_a_store_without_a_kind_of_values_cannot_be_made(tmp_path: Path) -> None:
    formless = type("Formless", (SqliteStore,), {"stored_form": Store.stored_form})
    with pytest.raises(TypeError, match="stored_form"):
        formless(tmp_path / "store.db", "things")


def test_a_simulated_store_is_of_the_same_form(tmp_path: Path) -> None:
    for form in ({"plain": True}, {"codec": ComplexCodec()}):
        original: Store = SqliteStore(tmp_path / "store.db", "things", **form)
        simulated = SimulatedStore(original, "simulated")
        assert (simulated.kind, simulated.form, simulated.codec) == (
            original.kind,
            original.form,
            original.codec,
        )


@pytest.mark.parametrize(
    ("stored", "cure"),
    [
        ("json", "neither plain=True nor a codec="),
        ("plain json", "plain=True"),
        ("roots-1", "codec= the one called 'roots-1'"),
        ("plain roots-1", "plain=True and codec= the one called 'roots-1'"),
    ],
)
def test_opening_a_store_of_another_form_is_refused_with_the_right_form(
    stored: str, cure: str
) -> None:
    with pytest.raises(
        StateMismatchError,
        match=rf"^the store here holds .*, but was opened for .*\n.*Open the store with {cure}, or use another store",
    ):
        rows.check_form("here", stored, "other-1")
    rows.check_form("here", stored, stored)
