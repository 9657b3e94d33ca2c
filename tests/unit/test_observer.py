"""Observers of a run: each hears everything, in order, and none of them disturbs the run."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.local_engine import run_to_idle
from tests.servers.clusters import Journal
from tests.topologies.spouts import Keep, Ranges
from txtopo import TransactionalTopologyBuilder
from txtopo.engine.observer import Observer
from txtopo.runtime.run import TopologyRun
from txtopo.state.memory import MemoryStateStore
from txtopo.stores import SqliteStore


class Heard(Observer):
    """Keeps the calls. If a call is about no transaction, only the name is kept."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in vars(Observer) or name.startswith("_"):
            return super().__getattribute__(name)
        return lambda *arguments, **named: self.calls.append((name, arguments[:1]))


class Broken(Observer):
    """Raises at every call."""

    def __getattribute__(self, name: str) -> Any:
        if name in vars(Observer) and not name.startswith("_"):
            raise RuntimeError(f"this observer is broken, at {name}")
        return super().__getattribute__(name)


def test_a_broken_observer_ends_neither_the_run_nor_what_the_others_hear(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal, heard = Journal(tmp_path / "journal"), Heard()
    builder = TransactionalTopologyBuilder("words", "numbers", Ranges(journal, 6, 2))
    builder.set_bolt(
        "keep", Keep(SqliteStore(tmp_path / "kept.db", "kept"), journal, ((2, "after"),))
    ).global_grouping("numbers")
    with caplog.at_level(logging.ERROR, "txtopo"):
        assert (
            run_to_idle(
                builder.build_topology(),
                MemoryStateStore(),
                observers=[Broken(), heard],
                max_spout_pending=1,
            )
            == 4
        )
    names = [name for name, _ in heard.calls]
    assert names[0] == "began"
    assert [
        str(arguments[0].attempt) for name, arguments in heard.calls if name == "committed"
    ] == [
        "1:0",
        "2:1",
        "3:0",
    ]
    assert [
        str(arguments[0].attempt) for name, arguments in heard.calls if name == "attempt_ended"
    ] == ["2:0"]
    assert {"question", "answered", "in_flight", "idle", "draining"} <= set(names)
    assert len(
        [
            record
            for record in caplog.records
            if "Broken failed, but the run goes on" in record.getMessage()
        ]
    ) == len(names)


class Exits(Observer):
    def ended(self, error: BaseException | None) -> None:
        raise SystemExit("of an observer")


def test_an_observer_that_exits_leaves_no_run_open() -> None:
    closed: list[str] = []
    run: Any = object.__new__(TopologyRun)
    run._engine, run._error, run._exports, run._shown = None, None, [], None
    run._observers, run._stand_by = [Exits()], lambda: None
    run._store = SimpleNamespace(close=lambda: closed.append("store"))
    run._run()
    assert (str(run._error), closed) == ("of an observer", ["store"])
