"""A changed topology: a new spout, new components, a renamed store. It goes on right,
or is refused with the command."""

from __future__ import annotations

import itertools
import json
import logging
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests import local_engine
from tests.local_engine import run_to_idle
from tests.servers.clusters import Journal
from tests.topologies.spouts import Keep, Pass, Ranges, keeping_topology
from tests.topologies.step_spouts import SPOUTS, Source
from txtopo import (
    BaseBasicBolt,
    BasicOutputCollector,
    Count,
    Fields,
    StateMismatchError,
    TransactionalTopologyBuilder,
    Tuple,
    UsageError,
    UserCodeError,
)
from txtopo.command import cli
from txtopo.connectors.files import FileTransactionalSpout, ParquetTransactionalSpout
from txtopo.connectors.sql import SqlSink
from txtopo.errors import UnreadableStateError
from txtopo.state import acceptance, administration, base
from txtopo.state.acceptance import Accepted
from txtopo.state.components import Spout
from txtopo.state.memory import MemoryStateStore
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology.graph import SpoutKind

pytestmark = pytest.mark.rule(35)

KIND_OF: dict[str, SpoutKind] = {
    "plain": "transactional",
    "committer": "transactional",
    "storm": "partitioned",
    "planned": "partitioned",
    "opaque-storm": "opaque",
    "opaque-planned": "opaque",
}


class Place:
    """The place where one topology runs again and again: with state, files and journal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = MemoryStateStore()
        self.journal = Journal(directory / "journal")
        self.end = 0

    def store(self, name: str = "counts", opaque: bool = False) -> SqliteStore:
        return SqliteStore(self.directory / "kept.db", name, opaque=opaque)

    def keep(self, graph_of: Callable[[Any], Any], batches: int = 3, **settings: Any) -> int:
        """Run ``graph_of`` a spout that has ``batches`` more batches of two numbers."""
        self.end += 2 * batches
        return run_to_idle(graph_of(Ranges(self.journal, self.end, 2)), self.state, **settings)

    def rewritten(self, path: str, **changes: Any) -> None:
        """Change fields of a record by hand; those that are None go."""
        node = self.state.get(path)
        assert node is not None
        record = {**json.loads(node.data), **changes}
        self.state.multi(
            [
                base.Set(
                    path,
                    json.dumps(
                        {key: value for key, value in record.items() if value is not None}
                    ).encode(),
                )
            ]
        )

    def contents(self) -> dict[str, bytes]:
        """The whole stored state, but for the number and holders of takings."""
        data = {}
        for path in (
            "/words/current",
            "/words/stores",
            "/words/components",
            *(
                f"/words/{d}/{n}"
                for d in ("txids", "positions")
                for n in self.state.children(f"/words/{d}")
            ),
        ):
            node = self.state.get(path)
            if node is not None:
                data[path] = node.data
        return data

    def accept(self, accepted: Accepted) -> list[str]:
        return acceptance.accept(self.state, "words", accepted, execute=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def keeping(
    store: Any, journal: Journal, id: str = "keep", bolt: type[Keep] = Keep
) -> Callable[[Any], Any]:
    """numbers → pass → ``id``, a committer that keeps the numbers in ``store``."""

    def graph_of(spout: Any) -> Any:
        builder = TransactionalTopologyBuilder("words", "numbers", spout, 2)
        builder.set_bolt("pass", Pass(), 2).shuffle_grouping("numbers")
        builder.set_bolt(id, bolt(store, journal)).global_grouping("pass")
        return builder.build_topology()

    return graph_of


class EndsInside(Keep):
    """Raises after its write of transaction 2, each time but the first ``lives`` ends."""

    def fail_once(self, hook: str) -> None:
        if (self.attempt.txid, hook) == (2, "after") and self.journal.claim("ended"):
            raise RuntimeError("ended inside the commit")


# -- stores --------------------------------------------------------------------------------------


def test_a_table_of_another_name_is_refused_however_often_it_is_started_and_the_command_accepts_it(
    place: Place,
) -> None:
    assert place.keep(keeping(place.store("counts"), place.journal)) == 4
    renamed = keeping(place.store("totals"), place.journal)
    for batches in (2, 0):
        new = r"totals is new to component 'keep', whose results before transaction 4 are in counts"
        with pytest.raises(StateMismatchError, match=new) as refused:
            place.keep(renamed, batches)
    assert refused.value.exit_code == 6
    assert not list(place.store("totals").items())
    assert "txtopo state accept words --store keep/totals`" in str(refused.value)
    assert "txtopo store adopt" in str(refused.value)
    place.accept(Accepted(stores=("keep/totals",)))
    assert place.keep(renamed) == 9
    assert place.store("totals").get("total") == sum(range(6, 16))
    assert place.keep(renamed) == 12, "it is known now"
    assert place.store("counts").get("total") == sum(range(6))


def test_the_old_name_is_welcome_after_the_new_one_was_refused(place: Place) -> None:
    """The transaction sealed by the refused run is completed by the unchanged topology."""
    place.keep(keeping(place.store("counts"), place.journal))
    with pytest.raises(StateMismatchError, match="totals is new to"):
        place.keep(keeping(place.store("totals"), place.journal))
    assert place.keep(keeping(place.store("counts"), place.journal), 0) == 7
    assert place.store("counts").get("total") == sum(range(12))


def test_a_table_that_was_renamed_in_the_database_goes_on_when_it_is_adopted(place: Place) -> None:
    place.keep(keeping(place.store("counts"), place.journal))
    file = sqlite3.connect(place.directory / "kept.db")
    for suffix in ("", "_written"):
        file.execute(f"ALTER TABLE counts{suffix} RENAME TO totals{suffix}")
    file.execute("UPDATE txtopo_schema SET store = 'totals'")
    file.commit()
    file.close()
    new = place.store("totals")
    with pytest.raises(StateMismatchError, match="if the store was renamed in its database"):
        place.keep(keeping(new, place.journal))
    new.adopt("words", administration.show(place.state, "words")["generation"], 3, ["keep"])
    assert place.keep(keeping(new, place.journal), 0) == 7
    assert new.get("total") == sum(range(12))


class KeepsErrors(Keep):
    """Opens a second store, ``errors``, only when a number is in ``wrong``."""

    def __init__(
        self, store: SqliteStore, journal: Journal, errors: Any = None, wrong: int = -1
    ) -> None:
        super().__init__(store, journal)
        self.errors, self.wrong = errors, wrong

    def finish_batch(self) -> None:
        super().finish_batch()
        if self.wrong in self.numbers:
            with self.errors.transaction(self.context, self.attempt) as transaction:
                transaction.put(self.wrong, "wrong")


def with_errors(place: Place, errors: str | None, wrong: int = -1) -> Callable[[Any], Any]:
    bolt = KeepsErrors(
        place.store("counts"), place.journal, None if errors is None else place.store(errors), wrong
    )
    return lambda spout: keeping_topology("words", spout, bolt)


def test_a_store_that_was_always_there_may_be_opened_for_the_first_time_late(place: Place) -> None:
    for _ in range(3):
        place.keep(with_errors(place, "errors"))
    place.keep(with_errors(place, "errors", wrong=19))
    assert place.store("errors").get(19) == "wrong"


def test_a_second_store_of_a_component_that_has_results_is_accepted_by_its_name(
    place: Place,
) -> None:
    place.keep(with_errors(place, None))
    for batches in (3, 0):
        with pytest.raises(StateMismatchError, match="errors is new to"):
            place.keep(with_errors(place, "errors", wrong=7), batches)
    place.accept(Accepted(stores=("keep/errors",)))
    assert place.keep(with_errors(place, "errors", wrong=7), 0) == 7
    assert (place.store("errors").get(7), place.store("counts").get("total")) == (
        "wrong",
        sum(range(12)),
    )


def test_a_component_without_results_may_change_its_store(place: Place) -> None:
    """Nothing that it could lack."""

    class Seldom(Keep):
        def finish_batch(self) -> None:
            if self.attempt.txid > 3:
                super().finish_batch()

    place.keep(keeping(place.store("counts"), place.journal, bolt=Seldom))
    assert place.keep(keeping(place.store("totals"), place.journal, bolt=Seldom)) == 7
    with pytest.raises(
        StateMismatchError, match="whose results before transaction 7 are in totals"
    ):
        place.keep(keeping(place.store("counts"), place.journal, bolt=Seldom))


class KeepsByBatch(Keep):
    """Makes a store of its own for every transaction, named after it."""

    def finish_batch(self) -> None:
        store = SqliteStore(self.journal.path.with_name("kept.db"), f"batch_{self.attempt.txid}")
        with store.transaction(self.context, self.attempt) as transaction:
            transaction.put("sum", sum(self.numbers))


def test_names_made_of_data_are_free_in_the_first_run_and_accepted_by_a_pattern_after_it(
    place: Place,
) -> None:
    graph_of = keeping(None, place.journal, bolt=KeepsByBatch)
    assert place.keep(graph_of) == 4
    with pytest.raises(StateMismatchError, match=re.escape("--store 'keep/*'`")):
        place.keep(graph_of)
    place.accept(Accepted(stores=("keep/batch_*",)))
    assert place.keep(graph_of, 0) == 7
    assert place.keep(graph_of) == 10
    assert [place.store(f"batch_{txid}").get("sum") for txid in (1, 9)] == [1, 33]


def test_the_number_of_stores_is_bounded_by_a_setting_that_the_error_names(place: Place) -> None:
    graph_of = keeping(None, place.journal, bolt=KeepsByBatch)
    with pytest.raises(
        UsageError, match=r"would be the 5th of topology 'words', and the bound is stores_max = 4"
    ) as refused:
        place.keep(graph_of, 6, stores_max=4)
    assert "under keys such as" in str(refused.value)
    assert not place.store("batch_5").exists(), "nothing was written"
    assert len(administration.show(place.state, "words")["stores"]) == 4
    place.accept(Accepted(stores=("keep/*",)))
    assert place.keep(graph_of, 0, stores_max=6) == 7


def test_a_component_that_was_gone_for_a_run_is_no_new_one(place: Place) -> None:
    place.keep(keeping(place.store("counts"), place.journal))
    place.keep(keeping(place.store("others"), place.journal, id="other"))
    with pytest.raises(
        StateMismatchError, match="'keep', whose results before transaction 7 are in counts"
    ):
        place.keep(keeping(place.store("totals"), place.journal))


def test_the_ledger_of_a_sink_is_a_store_like_any_other(place: Place) -> None:
    file = sqlite3.connect(place.directory / "sales.db")
    file.execute("CREATE TABLE sales (n INTEGER)")
    file.commit()
    file.close()

    def graph_of(auxiliary_table: str) -> Callable[[Any], Any]:
        def graph_of(spout: Any) -> Any:
            builder = TransactionalTopologyBuilder("words", "numbers", spout, 1)
            sink = SqlSink(
                f"sqlite:///{place.directory / 'sales.db'}",
                "sales",
                ["n"],
                auxiliary_table=auxiliary_table,
            )
            builder.set_bolt("sink", sink).global_grouping("numbers")
            return builder.build_topology()

        return graph_of

    place.keep(graph_of("written"))
    with pytest.raises(StateMismatchError, match="written_too is new to"):
        place.keep(graph_of("written_too"))
    assert place.keep(graph_of("written"), 0) == 7


def test_the_store_of_an_aggregate_is_a_store_like_any_other(place: Place) -> None:
    def graph_of(store: str) -> Callable[[Any], Any]:
        def graph_of(spout: Any) -> Any:
            builder = TransactionalTopologyBuilder("words", "numbers", spout, 2)
            builder.set_aggregate("count", Count(), place.store(store)).group_by(
                "numbers", Fields("n")
            )
            return builder.build_topology()

        return graph_of

    place.keep(graph_of("counts"))
    assert place.keep(graph_of("counts")) == 7
    with pytest.raises(StateMismatchError, match="totals is new to component 'count'"):
        place.keep(graph_of("totals"))


# -- components ----------------------------------------------------------------------------------


def two_keeps(place: Place) -> Callable[[Any], Any]:
    def graph_of(spout: Any) -> Any:
        builder = TransactionalTopologyBuilder("words", "numbers", spout, 2)
        builder.set_bolt("pass", Pass(), 2).shuffle_grouping("numbers")
        builder.set_bolt("keep", Keep(place.store("counts"), place.journal)).global_grouping("pass")
        builder.set_bolt("more", Keep(place.store("more"), place.journal)).global_grouping("pass")
        return builder.build_topology()

    return graph_of


def test_a_new_component_begins_with_the_next_transaction_and_a_line_says_so_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txtopo")
    place.keep(keeping(place.store("counts"), place.journal))
    assert caplog.messages == []
    assert place.keep(two_keeps(place)) == 7
    assert caplog.messages == [
        "topology 'words': component 'more' is new: it begins with transaction 4"
    ]
    assert (place.store("counts").get("total"), place.store("more").get("total")) == (
        sum(range(12)),
        sum(range(6, 12)),
    )
    caplog.clear()
    place.keep(two_keeps(place))
    assert caplog.messages == []
    place.keep(keeping(place.store("counts"), place.journal))
    (gone,) = caplog.messages
    assert "component 'more' is gone since transaction 10" in gone
    assert "Its results stay in 'more'. Rows from a failed attempt may stay too" in gone
    assert "`txtopo store clear ADDRESS more --topology words --component more`" in gone
    place.keep(keeping(place.store("counts"), place.journal))
    assert caplog.messages == [gone], "it is said once"


def test_the_line_about_a_removed_component_names_its_stores_if_there_were_any(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def with_log(spout: Any) -> Any:
        builder = TransactionalTopologyBuilder("words", "numbers", spout, 2)
        builder.set_bolt("pass", Pass(), 2).shuffle_grouping("numbers")
        builder.set_bolt("log", Pass()).shuffle_grouping("numbers")
        builder.set_bolt(
            "keep", KeepsByBatch(place.store("declared"), place.journal)
        ).global_grouping("pass")
        return builder.build_topology()

    place.keep(with_log)
    place.keep(keeping(place.store("counts"), place.journal, id="other"))
    of_keep, of_log = sorted(message for message in caplog.messages if "is gone" in message)
    assert "Its results stay in 'batch_1', 'batch_2', 'batch_3', 'declared'." in of_keep
    assert "`txtopo store clear ADDRESS NAME --topology words --component keep`" in of_keep
    assert of_log == "topology 'words': component 'log' is gone since transaction 4"
    left = place.store("batch_1")
    assert list(left.items()) != []
    assert (
        cli.main(
            [
                "store",
                "clear",
                left.path,
                "batch_1",
                "--topology",
                "words",
                "--component",
                "keep",
                "--execute",
            ]
        )
        == 0
    )
    assert list(left.items()) == []


def test_a_component_of_another_name_over_the_same_table_goes_on_from_its_values(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.keep(keeping(place.store(), place.journal))
    assert place.keep(keeping(place.store(), place.journal, id="tally")) == 7
    assert place.store().get("total") == sum(range(12))
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "component 'tally' is new: it begins with transaction 4",
        "component 'keep' is gone since transaction 4. Component 'tally' goes on from its results in 'counts'",
    ], "the command that removes the results would remove those of 'tally'"


@pytest.mark.parametrize("opaque", [False, True])
def test_a_sealed_transaction_is_completed_by_the_components_of_its_seal(
    place: Place, opaque: bool
) -> None:
    """A component that was renamed would meet its own writes as another's."""
    with pytest.raises(UserCodeError, match="ended inside"):
        place.keep(keeping(place.store(opaque=opaque), place.journal, bolt=EndsInside))
    before = place.contents()
    differs = "transaction 2 was begun with other components: the topology now lacks 'keep' and has in addition 'tally'"
    with pytest.raises(StateMismatchError, match=differs) as refused:
        place.keep(keeping(place.store(opaque=opaque), place.journal, id="tally"), 0)
    assert (refused.value.exit_code, place.contents()) == (6, before)
    assert "once more with\n  its former components" in str(refused.value)
    assert "`txtopo state accept words --sealed`" in str(refused.value)
    assert place.keep(keeping(place.store(opaque=opaque), place.journal), 0) == 4
    assert place.keep(keeping(place.store(opaque=opaque), place.journal, id="tally")) == 7
    assert place.store(opaque=opaque).get("total") == sum(range(12))


def test_a_sealed_transaction_meets_no_new_component_either_until_that_is_accepted(
    place: Place,
) -> None:
    with pytest.raises(UserCodeError, match="ended inside"):
        place.keep(keeping(place.store("counts"), place.journal, bolt=EndsInside))
    with pytest.raises(StateMismatchError, match="now has in addition 'more'"):
        place.keep(two_keeps(place), 0)
    assert place.accept(Accepted(sealed=True)) == [
        "transaction 2 is completed with the next run's components"
    ]
    assert place.keep(two_keeps(place), 0) == 4
    assert (place.store("counts").get("total"), place.store("more").get("total")) == (15, 14)
    with pytest.raises(UsageError, match="has no sealed transaction"):
        place.accept(Accepted(sealed=True))


def test_an_acceptance_for_one_sealed_transaction_does_not_hold_for_the_next(place: Place) -> None:
    class EndsTwice(Keep):
        def fail_once(self, hook: str) -> None:
            if (
                hook == "after"
                and self.attempt.txid in (2, 5)
                and self.journal.claim(f"ended {self.attempt.txid}")
            ):
                raise RuntimeError("ended inside the commit")

    with pytest.raises(UserCodeError, match="ended inside"):
        place.keep(keeping(place.store("counts"), place.journal, bolt=EndsTwice))
    place.accept(Accepted(sealed=True))
    with pytest.raises(UserCodeError, match="ended inside"):
        place.keep(keeping(place.store("counts"), place.journal, bolt=EndsTwice))
    with pytest.raises(StateMismatchError, match="transaction 5 was begun with other components"):
        place.keep(two_keeps(place), 0)


@pytest.mark.in_gate("nothing-*-1")
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("point", local_engine.POINTS)
@pytest.mark.parametrize("change", ["nothing", "a new component", "an accepted store"])
def test_wherever_the_driver_dies_the_same_topology_is_accepted_again(
    place: Place, change: str, point: str, pending: int
) -> None:
    """Also when it had changed, in a way that was accepted, and died in the first transaction after
    that."""
    before, after = {
        "nothing": (two_keeps(place), two_keeps(place)),
        "a new component": (keeping(place.store("counts"), place.journal), two_keeps(place)),
        "an accepted store": (with_errors(place, None), with_errors(place, "errors", wrong=6)),
    }[change]
    assert place.keep(before) == 4
    if change == "an accepted store":
        place.accept(Accepted(stores=("keep/errors",)))
    with pytest.raises(local_engine.Died, match=point):
        place.keep(after, surroundings=local_engine.Dying(point, 4), max_spout_pending=pending)
    assert place.keep(after, 0, max_spout_pending=pending) == 7
    assert place.store("counts").get("total") == sum(range(12))
    if change == "an accepted store":
        assert place.store("errors").get(6) == "wrong"
    else:
        assert place.store("more").get("total") == sum(
            range(12) if change == "nothing" else range(6, 12)
        )


# -- spouts --------------------------------------------------------------------------------------


class Sources:
    """A topology over the same numbers, with a spout of any kind; all numbers are kept with their
    counts."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.life = itertools.count(1)

    def graph(self, kind: str, size: int, id: str = "numbers", bolt: type[Keep] = Keep) -> Any:
        spout: Any = SPOUTS[kind](Source(self.place.directory / "spouts", size, next(self.life)))
        builder = TransactionalTopologyBuilder("words", id, spout, 2)
        builder.set_bolt(
            "keep", bolt(self.place.store(opaque=True), self.place.journal)
        ).global_grouping(id)
        return builder.build_topology()

    def run(self, kind: str, size: int, **names: Any) -> int:
        return run_to_idle(self.graph(kind, size, **names), self.place.state)

    def numbers(self) -> list[int]:
        return sorted(
            n
            for key, batch in self.place.store(opaque=True).items()
            if isinstance(key, tuple)
            for n in batch
        )


@pytest.fixture
def sources(place: Place) -> Sources:
    return Sources(place)


def numbers(size: int, partitions: int) -> list[int]:
    return [p * 1000 + n for p in range(partitions) for n in range(size)]


OTHERS = [(a, b) for a in SPOUTS for b in SPOUTS if KIND_OF[a] != KIND_OF[b]]
KEEPING = [(a, b) for a, b in OTHERS if "transactional" not in (KIND_OF[a], KIND_OF[b])]


@pytest.mark.in_gate(
    "plain-storm",
    "storm-plain",
    "planned-opaque-planned",
    "opaque-storm-planned",
    "committer-storm",
)
@pytest.mark.parametrize(("before", "now"), OTHERS)
def test_another_kind_of_spout_is_refused_and_nothing_counts_twice(
    place: Place, sources: Sources, before: str, now: str
) -> None:
    sources.run(before, 10)
    stored, kept = place.contents(), sources.numbers()
    with pytest.raises(StateMismatchError, match="txtopo state reset words`") as refused:
        sources.run(now, 20)
    assert refused.value.exit_code == 6
    assert ("state accept" in str(refused.value)) == ((before, now) in KEEPING)
    assert (place.contents(), sources.numbers()) == (stored, kept)
    sources.run(before, 20)
    assert sources.numbers() == numbers(20, 1 if KIND_OF[before] == "transactional" else 2)


@pytest.mark.in_gate("plain-storm", "opaque-planned-plain")
@pytest.mark.parametrize(("before", "now"), OTHERS)
def test_another_kind_of_spout_is_refused_while_a_transaction_is_sealed(
    place: Place, sources: Sources, before: str, now: str
) -> None:
    with pytest.raises(UserCodeError, match="ended inside"):
        sources.run(before, 20, bolt=EndsInside)
    stored = place.contents()
    with pytest.raises(StateMismatchError, match="spout"):
        sources.run(now, 20)
    assert place.contents() == stored
    with pytest.raises(UsageError):
        place.accept(Accepted(spout=Spout(id="numbers", kind=KIND_OF[now])))
    assert place.contents() == stored
    sources.run(before, 20)
    assert sources.numbers() == numbers(20, 1 if KIND_OF[before] == "transactional" else 2)


@pytest.mark.parametrize(("before", "now"), KEEPING)
def test_partitions_go_on_from_their_positions_when_that_is_accepted(
    place: Place, sources: Sources, before: str, now: str
) -> None:
    sources.run(before, 10)
    place.accept(Accepted(spout=Spout(id="numbers", kind=KIND_OF[now])))
    sources.run(now, 20)
    assert sources.numbers() == numbers(20, 2)
    with pytest.raises(StateMismatchError, match="it now has 'numbers'"):
        sources.run(before, 30)


def test_plans_that_the_other_spout_would_not_understand_are_forgotten_when_it_is_accepted(
    place: Place, sources: Sources
) -> None:
    """The first run plans ahead; the plans are stored with the record of the transaction before,
    and not sealed."""
    run_to_idle(sources.graph("planned", 40), place.state, max_spout_pending=4, max_transactions=2)
    for name in place.state.children("/words/txids"):
        if int(name) == 3:
            place.rewritten(f"/words/txids/{name}", status="open", attempt_id=None, tasks=None)
    if "0000000003" not in place.state.children("/words/txids"):
        record = {
            "version": 2,
            "txid": 3,
            "status": "open",
            "metadata": {"num_partitions": 2, "partitions": {"0": [8, 12]}},
        }
        place.state.multi([base.Create("/words/txids/0000000003", json.dumps(record).encode())])
    place.accept(Accepted(spout=Spout(id="numbers", kind="opaque")))
    assert place.state.children("/words/txids") == ["0000000002"]
    sources.run("opaque-planned", 40)
    assert sources.numbers() == numbers(40, 2)


@pytest.mark.parametrize(
    ("before", "now"),
    [("storm", "planned"), ("plain", "committer"), ("opaque-planned", "opaque-storm")],
)
def test_another_spout_of_the_same_kind_and_id_goes_on(
    sources: Sources, before: str, now: str
) -> None:
    sources.run(before, 10)
    sources.run(now, 20)
    assert sources.numbers() == numbers(20, 1 if before == "plain" else 2)


class Ignore(BaseBasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None: ...


@pytest.mark.parametrize(
    ("before", "now"),
    [
        *(("memory", now) for now in ("lines", "growing", "followed", "parquet")),
        *(("parquet", now) for now in ("lines", "growing", "followed")),
        ("lines", "parquet"),
    ],
)
def test_a_spout_over_files_refuses_positions_of_another_spout(
    place: Place, before: str, now: str
) -> None:
    lines, parquet = place.directory / "a.txt", place.directory / "a.parquet"
    lines.write_text("a\nb\n")
    pyarrow.parquet.write_table(pyarrow.table({"line": ["a", "b"]}), parquet)
    spouts: dict[str, Any] = {
        "memory": MemoryTransactionalSpout({n: [("a",)] for n in range(3)}, Fields("line"), 1),
        "lines": FileTransactionalSpout(lines),
        "growing": FileTransactionalSpout(lines, growing=True),
        "followed": FileTransactionalSpout(lines, follow=True),
        "parquet": ParquetTransactionalSpout(parquet),
    }

    def run(name: str) -> int:
        builder = TransactionalTopologyBuilder("words", "lines", spouts[name])
        builder.set_bolt("ignore", Ignore()).shuffle_grouping("lines")
        return run_to_idle(builder.build_topology(), place.state)

    next_txid, stored = run(before), place.contents()
    with pytest.raises(StateMismatchError, match="has a position from another spout than"):
        run(now)
    assert place.contents() == stored
    assert run(before) == next_txid > 1


@pytest.mark.parametrize("kind", ["plain", "storm", "opaque-planned"])
def test_a_spout_of_another_id_is_refused_until_it_is_accepted(
    place: Place, sources: Sources, kind: str
) -> None:
    sources.run(kind, 10)
    with pytest.raises(
        StateMismatchError,
        match=rf"txtopo state accept words --spout digits --kind {KIND_OF[kind]}`",
    ):
        sources.run(kind, 20, id="digits")
    place.accept(Accepted(spout=Spout(id="digits", kind=KIND_OF[kind])))
    sources.run(kind, 20, id="digits")
    assert sources.numbers() == numbers(20, 1 if kind == "plain" else 2)


def test_before_anything_is_stored_the_spout_may_be_another(place: Place, sources: Sources) -> None:
    assert place.keep(keeping(place.store(opaque=True), place.journal), 0) == 1, (
        "a spout that decides batches as a whole, and has none"
    )
    sources.run("storm", 10)
    assert sources.numbers() == numbers(10, 2)


def test_a_state_that_has_lost_the_record_of_its_components_is_refused(
    place: Place, sources: Sources
) -> None:
    sources.run("planned", 10)
    place.state.multi([base.Delete("/words/components")])
    with pytest.raises(
        UnreadableStateError,
        match=r"/words/components.*it is missing, although transactions were written",
    ):
        sources.run("planned", 20)
    assert sources.numbers() == numbers(10, 2)


# -- the record ----------------------------------------------------------------------------------


def test_the_record_is_read_by_a_person_and_one_of_a_newer_version_stops_the_run(
    place: Place,
) -> None:
    place.keep(keeping(place.store(), place.journal))
    assert administration.show(place.state, "words")["components"] == {
        "spout": {"id": "numbers", "kind": "transactional"},
        "components": {
            id: {"stores": ["counts"] if id == "keep" else [], "accepted": [], "is_former": False}
            for id in ("numbers", "pass", "keep")
        },
        "accepted_seal": None,
    }
    place.rewritten("/words/components", version=2)
    with pytest.raises(
        StateMismatchError,
        match="format version 2, but this txtopo reads 1: run the txtopo version that wrote the record",
    ):
        place.keep(keeping(place.store(), place.journal))


def test_a_run_of_the_same_topology_writes_nothing_more_than_before(place: Place) -> None:
    """The record rides along with the first seal, and is written again only when something has
    changed."""
    place.keep(keeping(place.store(), place.journal))
    first = place.state.get("/words/components")
    place.keep(keeping(place.store(), place.journal))
    assert first is not None
    assert place.state.get("/words/components") == first


class Counting(MemoryStateStore):
    """Counts the writes."""

    writes = 0

    def multi(self, operations: Any) -> None:
        self.writes += 1
        super().multi(operations)


@pytest.mark.rule(25, 36)
@pytest.mark.parametrize("kind", SPOUTS)
def test_the_record_of_components_and_the_opening_cost_no_write_of_their_own(
    place: Place, sources: Sources, kind: str
) -> None:
    """A seal and a record for each transaction; the lease is taken and given back."""
    before = 1
    for size in (40, 80):
        store = Counting(place.state.server)
        current = run_to_idle(sources.graph(kind, size), store)
        assert store.writes == 2 * (current - before) + 2
        before = current


@pytest.mark.parametrize(
    ("accepted", "why"),
    [
        (Accepted(), "has no change to accept"),
        (Accepted(stores=("other/counts",)), "names no component and store"),
        (Accepted(stores=("keep",)), "names no component and store"),
        (Accepted(spout=Spout(id="numbers", kind="opaque")), "have nothing in common"),
        (Accepted(sealed=True), "has no sealed transaction"),
    ],
)
def test_a_change_that_cannot_be_accepted_is_refused_without_effect(
    place: Place, accepted: Accepted, why: str
) -> None:
    place.keep(keeping(place.store(), place.journal))
    before = place.contents()
    with pytest.raises(UsageError, match=why):
        place.accept(accepted)
    assert place.contents() == before
