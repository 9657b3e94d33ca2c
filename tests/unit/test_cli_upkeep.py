"""Looking at stored state, starting it over, and making stores fit it again: nothing changes
without ``--execute``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import patience
from tests.canned_run import CannedRun
from txtopo import FencedError, StateMismatchError, TopologyContext, TransactionAttempt, UsageError
from txtopo.command import cli, maintain, show_state
from txtopo.journal import live
from txtopo.state import acceptance, administration
from txtopo.state.base import Set
from txtopo.state.components import Component, Components, Spout
from txtopo.state.layout import Layout
from txtopo.state.memory import MemoryServer, MemoryStateStore
from txtopo.state.opening import Opened
from txtopo.state.records import GenerationRecord, TxidRecord
from txtopo.state.topology import End, Holder, TopologyState
from txtopo.stores import SqliteStore, by_address

ALICE = Holder("alpha.example", 11, "2024-05-01T10:00:00+00:00", "words-run")
TASKS = {"spout": 1, "count": 1}


class Stored:
    """A topology ``words`` that has committed two transactions, of which the third is sealed; its
    count is in an SQLite file."""

    def __init__(self, place: Path) -> None:
        self.server = MemoryServer()
        self.sqlite = SqliteStore(place / "words.db", "counts")
        self._kept: dict[str, Any] = {}
        self.state = self.run()

    def run(self) -> TopologyState:
        """The state, taken by a coordinator that runs until it is closed."""
        return TopologyState.open(MemoryStateStore(self.server), "words", ALICE, wait_s=1.0)

    def run_once(self) -> int:
        """The epoch of an idle run."""
        state = self.run()
        state.close()
        return state.epoch

    def commit(self, txid: int) -> None:
        attempt = TransactionAttempt(txid, 0)
        self.state.txids.get_state(
            txid, lambda txid, last: TxidRecord(txid=txid, metadata={"batch": txid})
        )
        self.state.seal(attempt, TASKS, {"batch": txid})
        self.count(attempt)
        self.state.record(attempt, {0: {"offset": txid}, 1: None}, {"count/counts": 1}, None)

    def count(self, attempt: TransactionAttempt) -> None:
        """What the committer of ``attempt`` writes."""
        known = self.state.known_stores
        context = TopologyContext(
            "words",
            self.state.generation,
            "count",
            0,
            TASKS,
            "commit",
            self._resource,
            known_stores=known,
        )
        with self.sqlite.transaction(context, attempt) as transaction:
            transaction.update("all", lambda count: (count or 0) + 10)

    def _resource(self, name: str, factory: Callable[[], Any]) -> Any:
        return self._kept.setdefault(name, factory())

    def opened(self, is_live: bool = True) -> Opened:
        """The same, from another process."""
        return Opened(MemoryStateStore(self.server), "memory", is_live)

    def close(self) -> None:
        for resource in self._kept.values():
            resource.close()


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    stored = Stored(tmp_path)
    stored.commit(1)
    stored.commit(2)
    stored.state.txids.get_state(
        3, lambda txid, last: TxidRecord(txid=txid, metadata={"batch": txid})
    )
    stored.state.seal(TransactionAttempt(3, 5), TASKS, {"batch": 3})
    yield stored
    stored.close()


# -- looking -------------------------------------------------------------------------------------


def test_the_status_of_a_running_topology_names_its_coordinator_and_its_open_transactions(
    stored: Stored,
) -> None:
    status = show_state.status_of(stored.opened(), "words")
    assert (status["current"], status["committed"], status["running"], status["epoch"]) == (
        3,
        2,
        True,
        1,
    )
    assert status["transactions"] == {"3": {"status": "sealed", "attempt_id": 5}}
    assert show_state.status_text(status).splitlines() == [
        "topology words",
        "  committed     2",
        "  next txid     3",
        "  coordinator   pid 11 on alpha.example since 2024-05-01T10:00:00+00:00, run 'words-run'",
        f"  generation    {stored.state.generation}, epoch 1",
        "  open          3 sealed (by attempt 5)",
    ]


def test_the_status_of_a_run_that_fails_has_its_attempts_and_the_newest_failure(
    stored: Stored, tmp_path: Path
) -> None:
    status = show_state.status_of(stored.opened(), "words")
    run = CannedRun(tmp_path)
    run.update(current=3, last_error="ValueError: x\n  in 'a'", last_error_txid=3)
    run.fail(3)
    run.fail(3, 1)
    run.wait_until_written(3)
    assert show_state.failing(status, run.path) is None, "that is another run's journal"
    patience.wait_until(lambda: (live.read(run.path) or {}).get("tried") == 2)
    status["generation"] = "bf9d9217"
    status["failing"] = show_state.failing(status, run.path)
    assert show_state.status_text(status, " --data-dir here").splitlines()[-2:] == [
        "  failing       3, attempts ended: 2, newest error: ValueError: x",
        "  to learn more, type: txtopo why words 3 --data-dir here",
    ]
    assert show_state.failing({**status, "running": False}, run.path) is None
    run.update(last_error_txid=4)  # of a later transaction
    run.end()
    assert show_state.failing(status, run.path) is None


def test_the_status_of_a_stopped_topology_says_that_it_does_not_run(stored: Stored) -> None:
    stored.state.close()
    assert "coordinator   not running" in show_state.status_text(
        show_state.status_of(stored.opened(), "words")
    )


def test_the_status_of_a_failed_run_says_how_it_ended_and_where_its_journal_is(
    stored: Stored,
) -> None:
    error = "transaction 3 failed 2 times, which is max_attempts\n  Mend the cause"
    stored.state.close(End("2024-05-01T12:00:00+00:00", 3, error, "/data of words", 2, 2, 5))
    status = show_state.status_of(stored.opened(), "words")
    assert (status["ended"]["exit_code"], status["died"]) == (3, False)
    assert show_state.status_text(status).splitlines()[3:-1] == [
        "  coordinator   not running: run 'words-run', pid 11 on alpha.example, ended with exit code 3 at 2024-05-01T12:00:00+00:00",
        f"  generation    {stored.state.generation}, epoch 1",
        "  its run       2 transactions committed; attempts: 2 failed, 5 behind",
        "  its error     transaction 3 failed 2 times, which is max_attempts",
        "                  Mend the cause",
        "  to learn more, type: txtopo why words 3 --data-dir '/data of words'",
    ]
    stored.run()
    status = show_state.status_of(stored.opened(), "words")
    assert (status["running"], status["ended"], status["died"]) == (True, None, False)
    status = show_state.status_of(stored.opened(is_live=False), "words")
    assert (status["running"], status["ended"], status["died"]) == (False, None, True)
    text = show_state.status_text(status, " --data-dir here")
    assert "coordinator   not running: the run died without a word" in text
    assert "  to learn more, type: txtopo history words --data-dir here" in text.splitlines()


@pytest.mark.parametrize(
    ("end", "command"),
    [
        ((0, None, "/data", 2, 0), None),
        ((0, None, "/data", 2, 1), "history words --data-dir /data --zookeeper alpha:2181/streams"),
        (
            (1, "ValueError", "/data", 2, 1),
            "why words 3 --data-dir /data --zookeeper alpha:2181/streams",
        ),
        (
            (1, "SparkLostError", "/data", 2, 0),
            "history words --data-dir /data --zookeeper alpha:2181/streams",
        ),
        (
            (2, "InputError", "/data", 2, 0),
            "history words --data-dir /data --zookeeper alpha:2181/streams",
        ),
        ((3, "PoisonBatchError", None, 2, 2), "state show words --zookeeper alpha:2181/streams"),
        (
            (4, "FencedError", "/data", 2, 0),
            "history words --data-dir /data --zookeeper alpha:2181/streams",
        ),
        ((5, "no room", "/my data", 2, 3), "doctor --data-dir '/my data'"),
        ((6, "older", "/data", 2, 1), "state show words --zookeeper alpha:2181/streams"),
        ((None, None, None, 2, 1), None),
    ],
)
def test_the_status_of_a_failed_run_names_the_command_that_tells_more(
    stored: Stored, end: tuple[Any, ...], command: str | None
) -> None:
    stored.state.close(End("2024-05-01T12:00:00+00:00", *end))
    status = show_state.status_of(stored.opened(), "words")
    text = show_state.status_text(status, "", " --zookeeper alpha:2181/streams")
    commands = [line.partition("type: ")[2] for line in text.splitlines() if "type: " in line]
    assert commands == ([] if command is None else [f"txtopo {command}"])


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ([], ""),
        (["--data-dir", "my data"], " --data-dir 'my data'"),
        (["--zookeeper", "a:1", "--zookeeper-root", "/r"], " --zookeeper a:1 --zookeeper-root /r"),
        (["--data-dir", "b", "--zookeeper-root", "/r"], " --data-dir b --zookeeper-root /r"),
    ],
)
def test_status_prints_commands_with_the_options_that_it_was_given(
    options: list[str],
    printed: str,
    stored: Stored,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    died = show_state.status_of(stored.opened(is_live=False), "words")
    monkeypatch.setattr(cli, "_statuses", lambda parsed: ([died], ""))
    assert cli.main(["status", *options]) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if "type: " in line]
    assert commands == [f"  to learn more, type: txtopo history words{printed}"]


def test_a_restored_copy_is_no_run_that_died(stored: Stored) -> None:
    stored.state.close(End("2024-05-01T12:00:00+00:00", 0))
    administration.restored(stored.opened().store, "words")
    status = show_state.status_of(stored.opened(), "words")
    assert (status["ended"], status["died"]) == (None, False)


def test_how_a_run_ended_may_be_unreadable(stored: Stored) -> None:
    stored.state.close(End("2024-05-01T12:00:00+00:00", 0))
    opened = stored.opened()
    opened.store.multi([Set(Layout("words").ended, b"{}")])
    status = show_state.status_of(opened, "words")
    assert (status["ended"], status["died"]) == (None, False)
    shown = administration.show(opened.store, "words")
    assert "  ended         unreadable: " in show_state.state_text(shown, is_live=True)


def test_a_lease_in_a_server_that_runs_for_the_look_alone_is_that_of_the_dead(
    stored: Stored,
) -> None:
    status = show_state.status_of(stored.opened(is_live=False), "words")
    assert (status["running"], status["lease"]) == (False, None)


def test_a_new_topology_has_committed_nothing(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    assert (
        "  committed     nothing yet"
        in show_state.status_text(show_state.status_of(stored.opened(), "words")).splitlines()
    )


def test_all_that_is_stored_can_be_shown(stored: Stored) -> None:
    shown = administration.show(stored.opened().store, "words")
    text = show_state.state_text(shown, is_live=True)
    stores = "stores        count/counts (at 2:0, 1 store transaction)"
    for part in [
        stored.state.generation,
        stores,
        f"sealed attempt 5, tasks {TASKS}, metadata {{'batch': 3}}",
        "{'offset': 2}",
    ]:
        assert part in text


@pytest.mark.rule(25)
def test_unreadable_records_are_shown_as_unreadable(stored: Stored) -> None:
    opened = stored.opened()
    paths = Layout("words")
    opened.store.multi(
        [
            Set(path, b"{}")
            for path in (paths.current, paths.lease, paths.stores, f"{paths.txids}/0000000003")
        ]
    )
    text = show_state.status_text(show_state.status_of(opened, "words"))
    assert text.count("unreadable: ") == 4
    assert "open          2 sealed (by attempt 0), 3 unreadable: " in text
    assert (
        show_state.state_text(administration.show(opened.store, "words"), is_live=True).count(
            "unreadable: "
        )
        == 4
    )
    stored.state.close()
    opened.store.multi([Set(paths.current, b"{}")])
    with pytest.raises(
        StateMismatchError, match="cannot be read\n  Look at the state: `txtopo state show words`"
    ):
        maintain.adopt_store(
            stored.sqlite, stored.opened(is_live=False), "words", [], None, execute=True
        )


@pytest.mark.rule(1, 27)
def test_after_restoring_a_copy_attempts_have_numbers_that_none_before_had(stored: Stored) -> None:
    with pytest.raises(FencedError, match="is running"):
        maintain.restored_state(stored.opened(), "words", execute=True)
    stored.state.close()
    assert "would begin with transaction 3" in maintain.restored_state(
        stored.opened(), "words", execute=False
    )
    assert stored.run_once() == 2, "a dry run changes nothing"
    told = maintain.restored_state(stored.opened(), "words", execute=True)
    assert (
        "begins with transaction 3, in attempts whose numbers no earlier run can have used" in told
    )
    kept = stored.opened().store.get(Layout("words").generation)
    assert kept is not None
    assert GenerationRecord.decode("generation", kept.data).restored, "exporters are told"
    assert stored.run_once() == 3 + administration.RESTORED_EPOCHS
    stored.state = stored.run()
    assert (stored.state.current, stored.state.epoch) == (3, 4 + administration.RESTORED_EPOCHS), (
        "all else is as it was"
    )
    assert stored.state.sealed() is not None
    with pytest.raises(FencedError, match="is held by"):
        administration.restored(stored.opened().store, "words")


# -- the state -----------------------------------------------------------------------------------


class Remembered(Stored):
    """The same, and the state remembers the components of the topology."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        spout = Spout(id="spout", kind="partitioned")
        self.state.remember(
            Components(
                spout=spout,
                components={"spout": Component(), "count": Component(stores=["counts"])},
            )
        )
        self.commit(1)
        self.commit(2)
        self.state.close()

    def accepts(self, execute: bool, **changes: Any) -> str:
        return maintain.accept_state(
            self.opened(), "words", acceptance.Accepted(**changes), execute
        )

    @property
    def made_of(self) -> dict[str, Any]:
        made_of: dict[str, Any] = administration.show(self.opened().store, "words")["components"]
        return made_of


@pytest.fixture
def remembered(tmp_path: Path) -> Iterator[Remembered]:
    remembered = Remembered(tmp_path)
    yield remembered
    remembered.close()


@pytest.mark.rule(35)
def test_accepting_is_a_dry_run_unless_it_is_executed(remembered: Remembered) -> None:
    changes = {
        "stores": ("count/totals", "count/day_*"),
        "spout": Spout(id="letters", kind="opaque"),
    }
    before = remembered.made_of
    told = remembered.accepts(False, **changes)
    assert told.splitlines() == [
        "would accept for topology 'words':",
        "  the spout 'letters' (partitions, opaque) goes on from the positions of 'spout' (partitions)",
        "  component 'count' may begin totals empty",
        "  component 'count' may begin day_* empty",
    ]
    assert remembered.made_of == before
    assert remembered.accepts(True, **changes) == told.replace("would accept", "accepted")
    assert remembered.made_of["spout"] == {"id": "letters", "kind": "opaque"}
    assert remembered.made_of["components"]["count"]["accepted"] == ["totals", "day_*"]
    text = show_state.state_text(
        administration.show(remembered.opened().store, "words"), is_live=True
    )
    for line in [
        "spout         letters: partitions, opaque",
        "component     count: may begin counts, totals (accepted), day_* (accepted)",
    ]:
        assert f"  {line}" in text.splitlines()


@pytest.mark.rule(26, 35)
def test_nothing_is_accepted_of_a_topology_that_runs_or_is_taken_meanwhile(
    remembered: Remembered,
) -> None:
    before = remembered.made_of
    running = remembered.run()
    with pytest.raises(FencedError, match="'words' is running"):
        remembered.accepts(True, stores=("count/totals",))
    running.close()

    class TakenMeanwhile(MemoryStateStore):
        def multi(self, operations: Any) -> None:
            taker.close() if (taker := remembered.run()) else None
            super().multi(operations)

    with pytest.raises(FencedError, match="a coordinator has just taken topology"):
        acceptance.accept(
            TakenMeanwhile(remembered.server),
            "words",
            acceptance.Accepted(stores=("count/totals",)),
            execute=True,
        )
    assert remembered.made_of == before
    assert remembered.accepts(True, stores=("count/totals",)).startswith("accepted")


@pytest.mark.rule(35)
def test_a_state_without_a_record_of_components_needs_no_acceptance(stored: Stored) -> None:
    stored.state.close()
    with pytest.raises(UsageError, match="a new topology needs no acceptance"):
        maintain.accept_state(
            stored.opened(), "words", acceptance.Accepted(stores=("count/totals",)), execute=True
        )


@pytest.mark.parametrize("arguments", [["--spout", "letters"], ["--kind", "opaque"]])
def test_a_spout_is_accepted_by_its_id_and_its_kind(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["state", "accept", "words", *arguments]) == 2
    assert "--spout and --kind go together" in capsys.readouterr().err


@pytest.mark.rule(27)
def test_a_reset_is_a_dry_run_unless_it_is_executed(stored: Stored) -> None:
    stored.state.close()
    told = maintain.reset_state(stored.opened(), "words", execute=False)
    assert told.splitlines() == [
        "would remove from memory, of topology 'words':",
        f"  generation {stored.state.generation}, which has committed 2 transactions",
        "  2 transaction records",
        "  the source's positions, for 2 partitions",
        "The topology's results stay in these stores and sinks. Until they are cleared or adopted, the next run refuses to write there.",
        "`txtopo reset TARGET` finds and clears all stores and sinks. To clear one by one:",
        "  counts, written by count: `txtopo store clear ADDRESS counts --topology words`",
    ]
    assert administration.topologies(stored.opened().store) == ["words"]
    assert maintain.reset_state(stored.opened(), "words", execute=True) == told.replace(
        "would remove", "removed"
    )
    assert administration.topologies(stored.opened().store) == []


@pytest.mark.rule(26)
def test_a_running_topology_is_not_touched(stored: Stored) -> None:
    for execute in (False, True):
        with pytest.raises(FencedError, match=r"'words' is running: pid 11 on alpha\.example"):
            maintain.reset_state(stored.opened(), "words", execute)
        with pytest.raises(FencedError, match="'words' is running"):
            maintain.adopt_store(stored.sqlite, stored.opened(), "words", [], None, execute)
    assert stored.sqlite.get("all") == 20
    stored.state.renew()


def test_the_lease_of_a_coordinator_that_was_killed_does_not_keep_a_state_from_being_reset(
    stored: Stored,
) -> None:
    maintain.reset_state(stored.opened(is_live=False), "words", execute=True)
    assert administration.topologies(stored.opened().store) == []


def test_a_topology_without_state_is_refused_naming_those_that_have_one(stored: Stored) -> None:
    with pytest.raises(UsageError, match="There is state of: 'words'"):
        show_state.status_of(stored.opened(), "wrds")
    with pytest.raises(UsageError, match="There is state of: 'words'"):
        maintain.reset_state(stored.opened(), "wrds", execute=True)


# -- stores --------------------------------------------------------------------------------------


def test_clearing_a_store_is_a_dry_run_unless_it_is_executed(stored: Stored) -> None:
    told = maintain.clear_store(stored.sqlite, "words", [], execute=False)
    assert told.splitlines() == [
        f"would remove from {stored.sqlite.address}, of topology 'words': 1 row, 1 fence",
        f"  component count: at transaction 2 of generation {stored.state.generation}",
        "The state is unchanged. `txtopo state reset words` lets the next run begin with the first batch.",
    ]
    assert stored.sqlite.get("all") == 20
    assert maintain.clear_store(stored.sqlite, "words", [], execute=True) == told.replace(
        "would remove", "removed"
    )
    assert list(stored.sqlite.items()) == []


def test_clearing_says_whose_results_a_store_holds_if_not_those_of_the_topology(
    stored: Stored,
) -> None:
    assert maintain.clear_store(stored.sqlite, "wrds", [], execute=True).endswith(
        "0 rows, 0 fences\n  Topologies with results there: 'words'."
    )
    assert (
        maintain.clear_store(stored.sqlite, "words", ["other"], execute=True)
        .splitlines()[0]
        .endswith("0 rows, 0 fences")
    )
    assert stored.sqlite.get("all") == 20


@pytest.mark.rule(27)
def test_after_a_reset_an_adopted_store_is_written_again_on_top_of_its_content(
    stored: Stored,
) -> None:
    stored.state.close()
    maintain.reset_state(stored.opened(), "words", execute=True)
    stored.state = stored.run()
    with pytest.raises(StateMismatchError, match="txtopo store adopt"):
        stored.count(TransactionAttempt(1, 0))
    stored.state.close()
    told = maintain.adopt_store(stored.sqlite, stored.opened(), "words", [], None, execute=False)
    assert told.splitlines() == [
        f"would adopt {stored.sqlite.address}, for component count of topology 'words': 1 row, 1 fence",
        f"its content would count as the result of all transactions before 1, generation {stored.state.generation}",
    ]
    stored.state = stored.run()
    with pytest.raises(StateMismatchError):
        stored.count(TransactionAttempt(1, 0))
    stored.state.close()
    assert "counts as the result" in maintain.adopt_store(
        stored.sqlite, stored.opened(), "words", [], None, execute=True
    )
    stored.state = stored.run()
    stored.commit(1)
    assert stored.sqlite.get("all") == 30


@pytest.mark.rule(27)
def test_a_store_that_was_emptied_on_purpose_is_adopted_for_the_components_the_state_knows(
    stored: Stored,
) -> None:
    maintain.clear_store(stored.sqlite, "words", [], execute=True)
    with pytest.raises(StateMismatchError, match="The store was emptied"):
        stored.count(TransactionAttempt(3, 5))
    stored.state.close()
    told = maintain.adopt_store(stored.sqlite, stored.opened(), "words", [], None, execute=True)
    assert "for component count of topology 'words': 0 rows, 1 fence" in told
    stored.state = stored.run()
    stored.count(TransactionAttempt(3, 5))
    assert stored.sqlite.get("all") == 10


def test_a_store_of_another_topology_is_taken_over(stored: Stored, tmp_path: Path) -> None:
    words, others = (
        stored.opened().store,
        TopologyState.open(MemoryStateStore(stored.server), "others", ALICE, wait_s=1.0),
    )
    others.close()
    assert administration.topologies(words) == ["others", "words"]
    told = maintain.adopt_store(stored.sqlite, stored.opened(), "others", [], "words", execute=True)
    assert "for component count of topology 'others': 1 row, 1 fence" in told
    assert [fence.topology_id for fence in stored.sqlite.fences()] == ["others"]
    assert stored.sqlite.get("all") == 20


def test_adopting_a_store_without_a_known_writer_asks_for_the_components(
    stored: Stored, tmp_path: Path
) -> None:
    stored.state.close()
    other = SqliteStore(tmp_path / "other.db", "others")
    with pytest.raises(
        UsageError,
        match=r"Name them with --component ID, which may be repeated\. Topologies with results there: none",
    ):
        maintain.adopt_store(other, stored.opened(), "words", [], None, execute=True)
    told = maintain.adopt_store(other, stored.opened(), "words", ["a", "b"], None, execute=True)
    assert (
        "for components a, b of topology 'words': 0 rows, 2 fences\nthere was no such store: it begins empty\n"
        in told
    )
    assert [fence.component for fence in other.fences()] == ["a", "b"]


def test_a_store_is_named_by_its_path_or_url_and_must_exist(stored: Stored, tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    assert by_address.open_store(str(path), "counts").get("all") == 20
    assert by_address.open_store(f"sqlite:///{path}", "counts").get("all") == 20
    for address, table, message in [
        (str(tmp_path / "no.db"), "counts", "there is no file"),
        (str(path), "other", "words.db#other is no store of txtopo"),
        (
            "gopher://host/db",
            "counts",
            r"stores at gopher:// addresses are not known here\n  Give postgresql\+psycopg://user@host:port/database, or mysql\+pymysql://",
        ),
        (
            "postgresql://host/db",
            "counts",
            r"does not begin with postgresql\+psycopg:// or mysql\+pymysql://",
        ),
        (
            "mysql://host/db",
            "counts",
            r"does not begin with postgresql\+psycopg:// or mysql\+pymysql://",
        ),
    ]:
        with pytest.raises(UsageError, match=message):
            by_address.open_store(address, table)
    assert not (tmp_path / "no.db").exists()


def test_the_command_clears_only_when_told_to(
    stored: Stored,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["store", "clear", "words.db", "counts", "--topology", "words"]) == 0
    assert capsys.readouterr().out.endswith(
        "nothing was changed: type the same command with --execute to do it\n"
    )
    assert stored.sqlite.get("all") == 20
    assert (
        cli.main(["store", "clear", "words.db", "counts", "--topology", "words", "--execute"]) == 0
    )
    assert "nothing was changed" not in capsys.readouterr().out
    assert stored.sqlite.get("all") is None
