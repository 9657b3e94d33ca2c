"""``check_sink`` passes right sinks, and names the mistakes of wrong sinks."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests import strides
from tests.starter.test_snippets import ROOT, snippets
from tests.wrong import sinks
from txtopo import UsageError
from txtopo.connectors.sql import SqlSink
from txtopo.testing import ContractError, check_sink

WRONG = {
    sinks.Undeclared: (32, "there is no Destination"),
    sinks.Appending: (28, "written once"),
    sinks.SettingAside: (28, "the rows after attempt 1:0"),
    sinks.Unfenced: (29, "after attempt 2:1 has written"),
    sinks.Halving: (28, "died at line"),
    sinks.Keeping: (31, "a replay with other tuples"),
}


@pytest.mark.rule(28, 29, 31, 32, 40)
def test_a_sink_that_keeps_the_contract_passes() -> None:
    report = check_sink(sinks.Right, sinks.ROWS, fields=sinks.FIELDS, contents=sinks.contents)
    assert (report.clauses, report.takes_back) == (8, True)
    assert report.points > 20


@pytest.mark.in_gate("Undeclared", "Appending", "SettingAside", "Unfenced")
@pytest.mark.rule(28, 29, 31, 32, 40)
@pytest.mark.parametrize("sink", WRONG, ids=lambda sink: sink.__name__)
def test_a_sink_that_breaks_a_promise_is_told_the_promise(sink: Any) -> None:
    rule, named = WRONG[sink]
    with pytest.raises(ContractError) as caught:
        check_sink(sink, sinks.ROWS, fields=sinks.FIELDS, contents=sinks.contents)
    assert (caught.value.contract, caught.value.rule) == ("sink", rule)
    assert named in str(caught.value)


@pytest.mark.in_gate("undoes-every 12th")
@pytest.mark.rule(28, 29, 31, 32, 40)
@pytest.mark.parametrize("stride", [12, 1], ids=strides.NAMES)
@pytest.mark.parametrize(
    "form",
    [{}, {"opaque": True, "mark": "written_by"}, {"opaque": True, "key": ["name"]}],
    ids=["inserts", "marks", "undoes"],
)
def test_the_sink_of_txtopo_keeps_the_contract(
    monkeypatch: pytest.MonkeyPatch, form: dict[str, Any], stride: int
) -> None:
    strides.kill_at_every(stride, monkeypatch)

    def make(directory: Path) -> SqlSink:
        with contextlib.closing(sqlite3.connect(directory / "shop.db")) as shop:
            shop.execute(
                "CREATE TABLE IF NOT EXISTS sales (name TEXT PRIMARY KEY, cents INTEGER, written_by TEXT)"
            )
        return SqlSink(directory / "shop.db", "sales", ["name", "cents"], **form)

    def contents(directory: Path) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(directory / "shop.db")) as shop:
            return shop.execute("SELECT name, cents FROM sales").fetchall()

    report = check_sink(make, sinks.ROWS, fields=sinks.FIELDS, contents=contents)
    assert (report.takes_back, report.points > 60 // stride) == (bool(form), True)


@pytest.mark.rule(40)
def test_the_sink_on_the_page_about_your_own_is_short_and_keeps_the_contract(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strides.kill_at_every(12, monkeypatch)
    example = next(iter(snippets(ROOT / "docs" / "your-own-sink.md")))
    assert len(example.code.splitlines()) <= 150
    example.run({"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("False ")


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(UsageError, match=r"was given 3 rows\n  Give at least 4"):
        check_sink(sinks.Right, sinks.ROWS[:3], fields=sinks.FIELDS, contents=sinks.contents)
