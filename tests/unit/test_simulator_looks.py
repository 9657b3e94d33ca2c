"""The subject of a verdict of the simulator, and the parts outside of the verdict: both are
named.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.numbered_lines import LINES, Numbering, Putting, topology
from txtopo import BaseTransactionalBolt, ICommitter, TransactionalTopologyBuilder
from txtopo.connectors.sql import SqlSink
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout, simulate
from txtopo.testing.simulator.compared import CURE
from txtopo.testing.simulator.substitutes import Substitutes
from txtopo.topology import pickling
from txtopo.topology.destination import Destination, Guarantee

WRITTEN: list[str] = []


def effects() -> Any:
    return {"lines": list(WRITTEN)}


def reset() -> None:
    WRITTEN.clear()


class Mailbox(Destination):
    """A user's own destination, with capabilities, that is no store."""

    def guarantee(self) -> Guarantee:
        return Guarantee("a mailbox", "mail", takes_back=False, is_keyed=False, cure="")


class Bolt(BaseTransactionalBolt):
    """Keeps nothing and emits nothing."""

    def execute(self, tup: Any) -> None:
        """Take the tuple."""


class Mailing(Bolt, ICommitter):
    """Would send mail."""

    def __init__(self) -> None:
        self.box = Mailbox()


class FilingBox(Mailbox):
    """Has a substitute of its own, on files of the simulator."""

    def __init__(self, directory: str = "") -> None:
        self.directory = directory

    def simulated(self, world: Any) -> Any:
        return FilingBox(world.directory())


class FilesMail(Bolt, ICommitter):
    """Files each mail in a folder."""

    def __init__(self) -> None:
        self.box = FilingBox()

    def finish_batch(self) -> None:
        Path(self.box.directory, "mail").mkdir(exist_ok=True)


class Filing(Bolt, ICommitter):
    """Would write into a file. ``tests.topologies.recording`` has such a committer too, whose
    journals are globals: the more tests have filled them, the longer a simulation takes."""


def with_bolt(bolt: Any) -> Any:
    declared = TransactionalTopologyBuilder(
        "report", "spout", MemoryTransactionalSpout({0: [(1,), (2,)]}, ["n"], 1)
    )
    declared.set_bolt("report", bolt).global_grouping("spout")
    return declared.build_topology()


def test_a_destination_of_a_users_own_may_bring_a_substitute_that_every_schedule_finds_empty() -> (
    None
):
    substitutes = Substitutes(with_bolt(FilesMail()), has_reset=False)
    bolt = pickling.loads(substitutes.graph.components["report"].template)
    assert (set(substitutes.uncompared), os.listdir(bolt.box.directory)) == ({"report"}, [])
    bolt.finish_batch()
    substitutes.empty()
    assert os.listdir(bolt.box.directory) == []
    substitutes.close()
    assert not Path(bolt.box.directory).exists()


@pytest.mark.parametrize("bolt", [Filing, Mailing, FilesMail])
def test_a_committer_that_writes_elsewhere_is_named_and_nothing_is_said_of_it(
    bolt: Callable[[], Any],
) -> None:
    report = simulate(with_bolt(bolt()), seeds=3, other_processes=False)
    assert [unseen.component for unseen in report.unseen] == ["report"]
    assert report.exit_code == 7
    text = str(report)
    assert "no violation in the compared effects\n" in text
    assert text.endswith(f"\ncomponent 'report' writes where the simulator cannot look\n  {CURE}")


def test_effects_that_the_user_gives_are_compared_and_named() -> None:
    report = simulate(
        with_bolt(Filing()), seeds=3, other_processes=False, effects=effects, reset=reset
    )
    assert (report.unseen, report.exit_code) == ((), 0)
    assert "no violation\n  compared: effects()" in str(report)


def test_the_compared_results_are_named(tmp_path: Path) -> None:
    report = simulate(
        topology(Putting(SqliteStore(tmp_path / "a.db", "counts"))), seeds=1, other_processes=False
    )
    assert (report.compared.stores, report.compared.sinks, report.exit_code) == (
        (f"{tmp_path}/a.db#counts",),
        (),
        0,
    )
    report = simulate(
        topology(SqlSink(tmp_path / "a.db", "lines", ["word", "number"])),
        seeds=1,
        other_processes=False,
    )
    assert (report.compared.stores, report.compared.sinks, report.exit_code) == (
        (),
        (f"{tmp_path}/a.db#lines",),
        0,
    )
    assert f"no violation\n  compared: sink {tmp_path}/a.db#lines\n" in str(report)
    assert str(report).endswith("\n  compared: what 'write' emits")


def test_a_topology_in_which_nothing_is_compared_gets_no_verdict() -> None:
    report = simulate(with_bolt(Bolt()), seeds=1, other_processes=False)
    assert report.exit_code == 7
    assert "nothing is compared: no component has a store, a sink or a commit" in str(report)


def test_a_violation_comes_first(tmp_path: Path) -> None:
    declared = TransactionalTopologyBuilder(
        "report", "spout", MemoryTransactionalSpout(LINES, ["word"], 1)
    )
    declared.set_bolt("number", Numbering(is_wrong=True)).global_grouping("spout")
    declared.set_bolt("write", Putting(SqliteStore(tmp_path / "a.db", "counts"))).global_grouping(
        "number"
    )
    declared.set_bolt("report", Filing()).global_grouping("spout")
    report = simulate(declared.build_topology(), seeds=60, other_processes=False)
    assert [unseen.component for unseen in report.unseen] == ["report"]
    assert report.violation is not None
    assert report.exit_code == 1
