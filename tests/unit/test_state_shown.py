"""Looking at a state that is written at the same moment, and changing one that is taken at the same
moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_cli_upkeep import Remembered, Stored
from txtopo import FencedError, TransactionAttempt, ZooKeeperUnavailableError
from txtopo.command import show_state
from txtopo.state import acceptance, administration, base, opening
from txtopo.state.components import Spout
from txtopo.state.layout import Layout
from txtopo.state.memory import MemoryStateStore
from txtopo.state.records import TxidRecord
from txtopo.state.topology import TopologyState


def test_a_record_that_is_removed_while_it_is_looked_at_is_not_shown_as_damaged(
    tmp_path: Path,
) -> None:
    """A run that commits quickly removes records between the listing of their names and the look at
    them."""
    stored = Stored(tmp_path)

    class Meanwhile(MemoryStateStore):
        def children(self, path: str) -> list[str]:
            names = super().children(path)
            if path.endswith("/txids") and stored.state.current < 5:
                stored.commit(stored.state.current)
                stored.commit(stored.state.current)
            return names

    for txid in (1, 2):
        stored.commit(txid)
    store = Meanwhile(stored.server)
    shown = administration.show(store, "words")
    assert [record for record in shown["records"].values() if "unreadable" in record] == []
    assert "unreadable" not in show_state.state_text(shown, is_live=True)
    stored.close()


@pytest.mark.rule(26, 35)
def test_nothing_is_accepted_of_a_topology_that_was_taken_just_before(tmp_path: Path) -> None:
    """The coordinator raised the epoch after it was asked for the holder, and before the epoch was
    read.
    """
    remembered = Remembered(tmp_path)
    runs = remembered.run()
    before = remembered.made_of
    accepted = acceptance.Accepted(stores=("count/totals",))
    with pytest.raises(FencedError, match="'words' is held by another coordinator"):
        acceptance.accept(MemoryStateStore(remembered.server), "words", accepted, execute=True)
    assert remembered.made_of == before
    runs.close()
    acceptance.accept(MemoryStateStore(remembered.server), "words", accepted, execute=True)
    remembered.close()


@pytest.mark.rule(26)
def test_a_copy_is_not_told_to_be_restored_while_a_coordinator_takes_it(tmp_path: Path) -> None:
    """Its epoch would be raised under the coordinator, which would end as if another had taken the
    topology."""
    remembered = Remembered(tmp_path)

    class TakenMeanwhile(MemoryStateStore):
        def get(self, path: str) -> base.Node | None:
            node = super().get(path)
            if path == Layout("words").lease and node is None:
                runs.append(remembered.run())
            return node

    runs: list[TopologyState] = []
    with pytest.raises(FencedError, match="a coordinator has just taken topology"):
        administration.restored(TakenMeanwhile(remembered.server), "words")
    runs[0].require_held()
    remembered.close()


@pytest.mark.rule(23, 35)
def test_a_record_that_is_sealed_meanwhile_is_not_removed_as_a_plan(tmp_path: Path) -> None:
    remembered = Remembered(tmp_path)
    runs = remembered.run()
    runs.txids.get_state(
        3,
        lambda txid, last: TxidRecord(txid=txid, metadata={"num_partitions": 1, "partitions": {}}),
    )
    runs.txids.get_state(
        4,
        lambda txid, last: TxidRecord(txid=txid, metadata={"num_partitions": 1, "partitions": {}}),
    )
    runs.seal(TransactionAttempt(3, 7), {"spout": 1, "count": 1}, None)
    runs.record(TransactionAttempt(3, 7), {})

    class SealedMeanwhile(MemoryStateStore):
        def multi(self, operations: Sequence[base.Operation]) -> None:
            runs.seal(TransactionAttempt(4, 7), {"spout": 1, "count": 1}, None)
            super().multi(operations)

    runs._lease.release()
    accepted = acceptance.Accepted(spout=Spout(id="letters", kind="opaque"))
    with pytest.raises(FencedError):
        acceptance.accept(SealedMeanwhile(remembered.server), "words", accepted, execute=True)
    record = administration.show(remembered.opened().store, "words")["records"]["4"]
    assert record["status"] == "sealed"
    remembered.close()


def test_a_zookeeper_that_goes_away_meanwhile_is_told_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextlib.contextmanager
    def opened(*where: Any) -> Iterator[None]:
        yield None

    def lost(state: Any) -> None:
        raise base.StateUnavailableError("ZooKeeper at localhost:1 did not answer")

    monkeypatch.setattr(opening, "opened", opened)
    with pytest.raises(
        ZooKeeperUnavailableError,
        match=r"localhost:1 did not answer\n  Try again when ZooKeeper answers\.",
    ):
        opening.look(lost, opening.Place(tmp_path, "localhost:1"))
    with (
        pytest.raises(
            ZooKeeperUnavailableError,
            match=r"localhost:1 did not answer\n  The state was changed as a whole, or not at all\.",
        ),
        opening.owned(opening.Place(tmp_path, "localhost:1")) as state,
    ):
        lost(state)
