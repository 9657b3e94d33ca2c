"""Every kind of spout, with failures at every place, alone and pipelined: the same batches, each
once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import Journal, fast, run_to_idle
from tests.topologies.spouts import Keep, Partitioned, Ranges, batches, keeping_topology
from txtopo import Config, LocalCluster, MetadataError, UserCodeError
from txtopo.stores import SqliteStore

FAILS = ((1, "execute"), (2, "before"), (2, "after"), (3, "after"))
KINDS = ["plain", "planned", "storm-style"]


def make_spout(kind: str, journal: Journal) -> Any:
    if kind == "plain":
        return Ranges(journal, end=22, take=5)
    return Partitioned(journal, partitions=3, size=7, take=2, planned=kind == "planned")


def expected_batches(kind: str) -> dict[int, list[int]]:
    if kind == "plain":
        return {txid: list(range(5 * txid - 5, min(5 * txid, 22))) for txid in range(1, 6)}
    return {
        txid: sorted(p * 1000 + n for p in range(3) for n in range(2 * txid - 2, min(2 * txid, 7)))
        for txid in range(1, 5)
    }


@pytest.mark.thorough
@pytest.mark.rule(3, 4, 6, 18, 19, 20)
@pytest.mark.parametrize("pending", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_stay_the_same_over_any_number_of_replays(
    cluster: LocalCluster, tmp_path: Path, kind: str, pending: int
) -> None:
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    topology = keeping_topology(
        f"{kind}-{pending}", make_spout(kind, journal), Keep(store, journal, FAILS)
    )
    run = run_to_idle(cluster, topology, max_spout_pending=pending)
    assert batches(store) == expected_batches(kind)
    assert store.get("total") == sum(map(sum, expected_batches(kind).values()))
    assert all(journal.count(f"failed {txid} in {hook}") == 1 for txid, hook in FAILS), (
        "a fault was not hit"
    )
    assert run.status().replays >= len(FAILS)


@pytest.mark.thorough
@pytest.mark.rule(4)
def test_metadata_of_a_plain_spout_is_made_once_per_txid_in_order(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    keep = Keep(SqliteStore(tmp_path / "kept.db", "kept"), journal, FAILS)
    run_to_idle(
        cluster,
        keeping_topology("once-in-order", make_spout("plain", journal), keep),
        max_spout_pending=3,
    )
    initialized = [line for line in journal.lines() if line.startswith("initialize")]
    assert initialized == [f"initialize {txid}" for txid in range(1, 6)]
    assert journal.count("coordinator closed") == 1


@pytest.mark.thorough
@pytest.mark.rule(4, 21)
def test_a_storm_style_spout_emits_anew_once_and_again_afterwards(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    keep = Keep(SqliteStore(tmp_path / "kept.db", "kept"), journal, FAILS)
    run_to_idle(
        cluster,
        keeping_topology("learns-once", make_spout("storm-style", journal), keep),
        max_spout_pending=1,
    )
    assert [journal.count(f"new {txid}/0") for txid in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert journal.count("again 2/0") == 2, (
        "txid 2 failed twice after its emission: it is emitted again from its metadata"
    )
    assert journal.count("again 4/0") == 0


@pytest.mark.rule(22)
def test_cleanup_never_covers_the_transaction_the_next_batch_starts_from(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    keep = Keep(SqliteStore(tmp_path / "kept.db", "kept"), journal)
    run_to_idle(
        cluster,
        keeping_topology("cleans-up", make_spout("plain", journal), keep),
        max_spout_pending=1,
    )
    cleaned = [line for line in journal.lines() if line.startswith("cleanup")]
    assert sorted(set(cleaned)) == [f"cleanup before {txid}" for txid in (1, 2, 3, 4)]
    assert journal.count("emitter closed") == 2 * 5


class BadMetadata(Ranges):
    """Makes metadata that JSON does not give back."""

    def get_coordinator(self, conf: Any, context: Any) -> Any:
        coordinator: Any = super().get_coordinator(conf, context)
        coordinator.initialize_transaction = lambda txid, previous: {"end": 1, "offsets": {3: "x"}}
        return coordinator


@pytest.mark.rule(4)
def test_metadata_that_does_not_survive_json_is_refused_with_its_path(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    keep = Keep(SqliteStore(tmp_path / "kept.db", "kept"), journal)
    run = cluster.submit_topology(
        "bad-metadata", fast(), keeping_topology("bad-metadata", BadMetadata(journal, 9, 3), keep)
    )
    with pytest.raises(MetadataError, match=r"at \$\.offsets: the key 3 is a int"):
        run.join(PATIENCE_S)


class BrokenCoordinator(Ranges):
    """Whose coordinator raises."""

    def get_coordinator(self, conf: Any, context: Any) -> Any:
        coordinator: Any = super().get_coordinator(conf, context)

        def is_ready() -> bool:
            raise OSError("the source is gone")

        coordinator.is_ready = is_ready
        return coordinator


@pytest.mark.rule(7)
def test_an_exception_in_the_spout_coordinator_stops_the_run_and_says_so(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    keep = Keep(SqliteStore(tmp_path / "kept.db", "kept"), journal)
    topology = keeping_topology("broken-coordinator", BrokenCoordinator(journal, 9, 3), keep)
    run = cluster.submit_topology("broken", Config(), topology)
    with pytest.raises(UserCodeError, match="the source is gone") as caught:
        run.join(PATIENCE_S)
    assert "component 'numbers', on the driver, txid 1, is_ready" in str(caught.value)
