"""``txtopo store get|scan|count``: the content of a store, as JSON lines; with ``--as-of``,
committed transactions only."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_cli_upkeep import Stored
from txtopo import TransactionAttempt, UsageError
from txtopo.command import cli, store_commands
from txtopo.state import opening
from txtopo.stores import SqliteStore, Store, by_address
from txtopo.testing.contracts.store_forms import ComplexCodec
from txtopo.testing.contracts.store_subject import block, put
from txtopo.testing.contracts.worker_process import WorkerProcess

VALUES: dict[Any, Any] = {
    "dog": 1,
    "dog\nhouse": {"ž": [1, None]},
    "7": "text",
    7: "number",
    ("dog", 7): [2],
    ("dog", 8): None,
}


def filled(store: Store, process: WorkerProcess, values: dict[Any, Any]) -> Store:
    block(store, process.task(), 1, 0, lambda opened: opened.put_many(values))
    return store


@pytest.fixture
def animals(tmp_path: Path, process: WorkerProcess) -> list[str]:
    """Where the store is, as arguments."""
    filled(SqliteStore(tmp_path / "animals.db", "animals"), process, VALUES)
    return [str(tmp_path / "animals.db"), "animals"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Any], str]:
    code = cli.main(["store", *arguments])
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        ("dog", "dog", 1),
        ('"dog"', "dog", 1),
        ("7", 7, "number"),
        ('"7"', "7", "text"),
        ('["dog",7]', ["dog", 7], [2]),
        ("dog\nhouse", "dog\nhouse", {"ž": [1, None]}),
        ('["dog", 8]', ["dog", 8], None),
    ],
)
def test_get_shows_the_value_of_a_key(
    capsys: pytest.CaptureFixture[str], animals: list[str], typed: str, key: Any, value: Any
) -> None:
    assert run(capsys, "get", *animals, typed) == (0, [{"key": key, "value": value}], "")


def test_get_says_that_there_is_none_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], animals: list[str]
) -> None:
    assert run(capsys, "get", *animals, "cat") == (
        1,
        [],
        f"txtopo: {animals[0]}#animals has no value of cat\n",
    )


def test_scan_and_count_show_all_keys_or_the_keys_with_a_prefix(
    capsys: pytest.CaptureFixture[str], animals: list[str]
) -> None:
    code, lines, _ = run(capsys, "scan", *animals)
    assert (code, len(lines)) == (0, len(VALUES))
    assert {json.dumps(line["key"]): line["value"] for line in lines} == {
        json.dumps(key): value for key, value in VALUES.items()
    }
    assert run(capsys, "scan", *animals, "dog")[1] == [
        {"key": "dog", "value": 1},
        {"key": "dog\nhouse", "value": {"ž": [1, None]}},
    ]
    assert run(capsys, "scan", *animals, "7")[1] == [{"key": "7", "value": "text"}], (
        "a number as a prefix is the beginning of a text"
    )
    assert run(capsys, "scan", *animals, '["dog"]')[1] == [
        {"key": ["dog", 7], "value": [2]},
        {"key": ["dog", 8], "value": None},
    ]
    assert run(capsys, "scan", *animals, "--limit", "2")[1] == lines[:2]
    for prefix, count in ((), len(VALUES)), (("dog",), 2), (('["dog"]',), 2), (("cat",), 0):
        assert run(capsys, "count", *animals, *prefix) == (0, [count], "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["get", "nowhere.db", "animals", "dog"], "there is no file nowhere.db"),
        (["get", "ANIMALS", "plants", "dog"], "is no store of txtopo"),
        (["scan", "gopher://x/y", "animals"], "stores at gopher:// addresses are not known here"),
        (["get", "ANIMALS", "animals", "[dog"], "[dog looks like JSON and is not"),
        (["scan", "ANIMALS", "animals", "--limit", "-1"], "--limit is -1"),
        (
            ["count", "ANIMALS", "animals", "--as-of", "words", "--data-dir", "."],
            "nothing is stored in .",
        ),
    ],
)
def test_a_value_that_cannot_be_shown_is_refused_with_2(
    capsys: pytest.CaptureFixture[str],
    animals: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    code, lines, error = run(
        capsys, *(animals[0] if argument == "ANIMALS" else argument for argument in arguments)
    )
    assert (code, lines) == (2, [])
    assert told in error
    assert os.listdir() == [], "looking makes nothing"


def test_a_store_is_opened_in_its_own_form(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, process: WorkerProcess
) -> None:
    file = tmp_path / "forms.db"
    filled(SqliteStore(file, "plain", plain=True), process, {"dog": 1})
    filled(SqliteStore(file, "roots", codec=ComplexCodec()), process, {"i": 1j})
    assert run(capsys, "get", str(file), "plain", "dog") == (0, [{"key": "dog", "value": 1}], "")
    assert run(capsys, "count", str(file), "roots") == (0, [1], "")
    assert run(capsys, "scan", f"sqlite:///{file}", "roots") == (
        0,
        [{"key": "i", "text": "0.0 1.0"}],
        "",
    )
    with pytest.raises(UsageError, match="the codec 'contract-complex' is not at hand"):
        put(by_address.open_store(str(file), "roots"), process.task(), 2, 0, i=1j)
    assert (
        cli.main(
            [
                "store",
                "clear",
                str(file),
                "roots",
                "--topology",
                "words",
                "--execute",
                "--data-dir",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert SqliteStore(file, "roots", codec=ComplexCodec()).get("i") is None


@pytest.mark.rule(3)
def test_as_of_shows_committed_transactions_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(tmp_path)
    monkeypatch.setattr(opening, "opened", lambda *where: contextlib.nullcontext(stored.opened()))
    place = [str(tmp_path / "words.db"), "counts"]
    stored.commit(1)
    stored.commit(2)
    stored.count(TransactionAttempt(3, 0))
    under_way, committed = {"key": "all", "value": 30}, {"key": "all", "value": 20}
    cases: list[tuple[str, list[str], Any, Any]] = [
        ("get", ["all"], under_way, committed),
        ("scan", [], under_way, committed),
        ("count", [], 1, 1),
    ]
    for action, more, now, as_of in cases:
        assert run(capsys, action, *place, *more) == (0, [now], "")
        assert run(capsys, action, *place, *more, "--as-of", "words") == (0, [as_of], "")
    stored.close()


def test_a_typed_key_is_json_only_where_it_looks_like_it() -> None:
    assert [
        store_commands.key_of(text) for text in ("-7", "0", "7a", "", "null", "7.5", "true")
    ] == [
        -7,
        0,
        "7a",
        "",
        "null",
        "7.5",
        "true",
    ]


@pytest.mark.parametrize("text", ["007", "-007", "00", "-0", "+7", "٧", "9" * 5000, "7 ", "7\n"])
def test_text_that_no_number_is_written_as_stays_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, process: WorkerProcess, text: str
) -> None:
    filled(SqliteStore(tmp_path / "agents.db", "agents"), process, {text: "Bond", 7: "nobody"})
    place = [str(tmp_path / "agents.db"), "agents"]
    line = {"key": text, "value": "Bond"}
    for action in ("get", "scan"):
        for typed in ("--", text), (json.dumps(text),):
            assert run(capsys, action, *place, *typed) == (0, [line], "")
    assert run(capsys, "count", *place, "--", text) == (0, [1], "")


def test_a_number_that_is_not_there_is_told_from_its_text(
    capsys: pytest.CaptureFixture[str], animals: list[str]
) -> None:
    said = (
        f"txtopo: {animals[0]}#animals has no value of the number 8; for the text, type '\"8\"'\n"
    )
    assert run(capsys, "get", *animals, "8") == (1, [], said)


def test_no_prefix_is_that_of_all_keys() -> None:
    assert store_commands.prefix_of(None) is None
