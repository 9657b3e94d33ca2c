"""The soak's report: the matrix is whole, a violation can be run again, numbers add up, and a
driver that ends by itself is judged."""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.soak import __main__ as command
from tests.soak import matrix, nemeses, report
from tests.soak.drivers import STARTS_IN_VAIN_MAX, Driver, Drivers
from tests.soak.reader import Reader
from tests.soak.trial import Outcome, Plan, Trial
from tests.soak.workloads import WORKLOADS
from tests.soak.world import World

STORES = ("sqlite", "postgresql", "mariadb")


def outcome(violations: list[str] | None = None, store: str = "sqlite") -> Outcome:
    plan = Plan(
        World("", 7, ("bank", "words"), store=store), ("driver", "pauses"), 12.5, outside=True
    )
    return Outcome(
        plan,
        violations=violations or [],
        history=["    1.0 s  driver 1 starts"],
        tally=Counter(
            {"driver killed": 3, "driver paused": 2, "drivers started": 4, "rival started": 0}
        ),
        transactions={"bank": 20, "words": 10},
        reads=100,
        replays=5,
        seconds=20.0,
        directory="kept" if violations else None,
    )


# -- plans ---------------------------------------------------------------------------------------


def test_the_matrix_has_every_nemesis_on_sqlite_and_on_a_server_against_every_workload() -> None:
    plans = list(matrix.plans(1, STORES, tuple(WORKLOADS)))
    places = [
        ("sqlite" if plan.world.store == "sqlite" else "server", plan.nemeses[0]) for plan in plans
    ]
    assert places == [(place, kind) for place in ("sqlite", "server") for kind in matrix.SECONDS]
    assert {*matrix.SECONDS, "none"} == set(nemeses.NEMESES)
    for kind in matrix.SECONDS:
        together = [plan.world.workloads for plan in plans if plan.nemeses == (kind,)]
        assert all({"bank", "append", "words"} < set(each) for each in together)
        assert {name for each in together for name in each} == set(WORKLOADS)
    assert len({plan.world.seed for plan in plans}) == len(plans)
    assert all(
        plan.world.master.startswith("local-cluster")
        for plan in plans
        if plan.nemeses == ("executors",)
    )
    assert {plan.outside for plan in plans if plan.nemeses == ("zookeeper",)} == {True, False}


def test_in_the_matrix_every_nemesis_meets_every_kind_of_server_in_turn() -> None:
    seeds = range(len(STORES) - 1)
    met = [
        {
            plan.nemeses[0]: plan.world.store
            for plan in matrix.plans(seed, STORES, ("bank",))
            if plan.world.store != "sqlite"
        }
        for seed in seeds
    ]
    assert all(set(each.values()) == set(STORES[1:]) for each in met)
    assert all({each[kind] for each in met} == set(STORES[1:]) for kind in matrix.SECONDS)
    assert [plan.world.store for plan in matrix.plans(1, ("mariadb",), ("bank",))] == [
        "mariadb"
    ] * len(matrix.SECONDS)


def test_a_soak_takes_turns_with_stores_masters_and_zookeepers() -> None:
    plans = [matrix.mixed(1, number, STORES, tuple(WORKLOADS), 60.0) for number in range(12)]
    seen = {(plan.world.store, plan.outside) for plan in plans}
    assert seen == {(store, outside) for store in STORES for outside in (True, False)}
    assert len({plan.world.master for plan in plans}) == 2
    assert {name for plan in plans for name in plan.world.workloads} == set(WORKLOADS)
    for plan in plans:
        assert ("executors" in plan.nemeses) == plan.world.master.startswith("local-cluster")
        assert ("rivals" in plan.nemeses) == plan.outside


# -- saying it -----------------------------------------------------------------------------------


def test_a_violation_is_told_with_seed_history_and_command() -> None:
    wrong = outcome(["bank: the total is 801, it was 800"])
    told = report.violation(wrong, command.again(wrong.plan))
    assert told.splitlines()[:3] == [
        "VIOLATION with seed 7, driver+pauses against bank+words, sqlite, ZooKeeper outside, local[2]",
        "  bank: the total is 801, it was 800",
        "what was done (1 events):",
    ]
    assert "driver 1 starts" in told
    assert "all files: kept" in told


def test_the_told_command_runs_the_same_plan_again() -> None:
    for plan in [outcome().plan, *matrix.plans(5, STORES, ("bank", "opaque"))]:
        words = shlex.split(command.again(plan))
        assert words[:3] == ["python", "-m", "tests.soak"]
        options = command.parser().parse_args(words[3:])
        assert list(command.trials(options, options.seed)) == [
            Plan(plan.world, tuple(plan.nemeses), plan.seconds, plan.outside)
        ]


def test_a_trial_in_which_nothing_was_struck_is_told_and_is_no_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = dict[str, str]()
    for name in nemeses.NEMESES:
        trial = Trial(Plan(World("", 7, ("bank",)), (name,), 1.0, outside=False))
        trial._drivers.finished = True
        trial._count()
        told[name] = report.in_a_line(trial.outcome).partition(":")[0]
    assert told == {
        "none": "ok",
        **dict.fromkeys(nemeses.NEMESES.keys() - {"none"}, "NOTHING WAS STRUCK"),
    }
    assert list(tmp_path.iterdir()) == [], "no files are kept"


def test_numbers_are_added_up_over_trials() -> None:
    told = dict(
        line.strip().split("  ", 1)
        for line in report.totals([outcome(), outcome(["wrong"])]).splitlines()
    )
    numbers = {name: value.strip() for name, value in told.items()}
    assert numbers["driver killed"] == "6"
    assert numbers["transactions committed"] == "60 (bank 40, words 20)"
    assert numbers["reads checked"] == "200"
    assert numbers["violations"] == "1"
    assert "rival started" not in numbers


def test_the_table_has_a_row_for_each_trial_and_shows_violations() -> None:
    head, first, second = report.table([outcome(), outcome(["wrong"], "postgresql")]).splitlines()
    assert head.split() == [
        "nemesis",
        "store",
        "bank",
        "words",
        "replays",
        "reads",
        "struck",
        "seconds",
    ]
    assert first.split() == ["driver+pauses", "sqlite", "20", "10", "5", "100", "5", "20"]
    assert second.split()[:4] == ["driver+pauses", "postgresql", "VIOLATED", "VIOLATED"]


# -- drivers that end by themselves --------------------------------------------------------------


class Ended(Driver):
    """A driver process that has ended."""

    def __init__(
        self, number: int, code: int, was_killed: bool = False, committed: int = 0
    ) -> None:
        self.number, self.role, self.pid, self.was_killed, self.code = (
            number,
            "first",
            0,
            was_killed,
            code,
        )
        self.statuses: dict[str, dict[str, Any]] = {
            "bank": {"committed": committed, "current": committed + 1, "state": "running"}
        }
        self.news: dict[str, Any] = {"failed": {"error": "UserCodeError: something\nmore"}}

    @property
    def exit_code(self) -> int | None:
        return self.code


@pytest.fixture
def drivers(tmp_path: Path) -> Drivers:
    wrong = "refused, although its copy lacks nothing"
    return Drivers(
        World(str(tmp_path), 1, ("bank",)),
        lambda sentence: None,
        lambda said: wrong if "something" in said else None,
    )


@pytest.mark.parametrize(
    ("code", "is_wrong"),
    [(4, False), (5, False), (1, True), (3, True), (6, True), (0, True), (-9, True)],
)
def test_a_driver_may_end_by_itself_when_it_is_fenced_or_has_no_zookeeper(
    drivers: Drivers, code: int, is_wrong: bool
) -> None:
    drivers._judge(Ended(1, code, committed=1))
    assert bool(drivers.violations) == is_wrong


@pytest.mark.rule(34)
def test_a_driver_may_end_with_a_refusal_that_is_right(drivers: Drivers) -> None:
    ended = Ended(1, 6, committed=1)
    ended.news = {"failed": {"error": "StateMismatchError: store a.db#a is behind"}}
    drivers._judge(ended)
    assert (drivers.violations, drivers.exits) == ([], {"exit 6": 1})


def test_a_driver_that_was_killed_is_not_to_blame(drivers: Drivers) -> None:
    drivers._judge(Ended(1, -9, was_killed=True))
    assert drivers.violations == []


def test_a_driver_that_was_asked_to_finish_finishes(drivers: Drivers, tmp_path: Path) -> None:
    (tmp_path / "finish").touch()
    drivers._judge(Ended(1, 0))
    assert (drivers.finished, drivers.violations) == (True, [])


def test_drivers_that_get_nowhere_are_noticed(drivers: Drivers) -> None:
    for number in range(STARTS_IN_VAIN_MAX):
        assert drivers.violations == []
        drivers._judge(Ended(number, 4))
    assert drivers.violations[0].startswith(
        f"{STARTS_IN_VAIN_MAX} drivers in a row ended without having committed anything"
    )


# -- striking and reading ------------------------------------------------------------------------


def struck_with(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nemeses that a trial with this seed calls, in order."""
    called: list[str] = []

    def nemesis(name: str) -> Any:
        def strike(it: nemeses.Field) -> nemeses.Pauses:
            called.append(f"{name} {it.dice.random()}")
            yield 0.0

        return strike

    monkeypatch.setattr(
        nemeses, "NEMESES", {"driver": tuple(nemesis(f"nemesis {n}") for n in range(5))}
    )
    striking = Trial(Plan(World("", seed, ("bank",)), ("driver",), 1.0, outside=False))._strikes()
    assert all(0 <= next(striking) <= 2 for _ in range(40))
    return called


def test_targets_come_from_the_seed_and_every_target_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, again, other = (struck_with(seed, monkeypatch) for seed in (1, 1, 2))
    assert first == again != other
    assert len({name.rpartition(" ")[0] for name in first[:5]}) == 5


def test_the_reader_reports_the_violations_of_its_checker(tmp_path: Path) -> None:
    world = World(str(tmp_path), 1, ("bank",), sabotage="blind-store")
    store = WORKLOADS["bank"].stores(world)["bank"]
    reader = Reader(world)
    reader._look("bank", "bank", store)
    assert (reader.violations, reader.reads["bank"]) == ([], 1)
    with store.transaction(None, None) as opened:
        opened.update("account 3", lambda old: 5)
    reader._look("bank", "bank", store)
    assert reader.violations[0] == "bank: the total is 805, it was 800"
    assert reader.end() == [*reader.violations]


def test_a_reader_that_cannot_read_says_so(tmp_path: Path) -> None:
    world = World(str(tmp_path), 1, ("append",))
    (tmp_path / "append.db").write_text(
        "this is no database, but it is long enough to be taken for one " * 20
    )
    reader = Reader(world)
    reader._look("append", "append", WORKLOADS["append"].stores(world)["append"])
    assert reader.violations[0].startswith("append: reading failed: ")


def test_a_reader_that_was_paused_looks_at_nothing_and_then_has_seen_nothing(
    tmp_path: Path,
) -> None:
    world = World(str(tmp_path), 1, ("bank",), sabotage="blind-store")
    store = WORKLOADS["bank"].stores(world)["bank"]
    reader = Reader(world)
    world.feed("bank").publish(9)
    with store.transaction(None, None) as opened:
        opened.update("rows 0", lambda old: 1)
    reader._look("bank", "bank", store)
    reader.violations.clear()
    reader.pause()
    with store.transaction(None, None) as opened:
        opened.update("rows 0", lambda old: 0)
    reader.go_on()
    reader._look("bank", "bank", store)
    assert reader.violations == [], (
        "what was seen before the pause is forgotten, so nothing goes back"
    )
