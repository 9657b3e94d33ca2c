"""ZooKeeper is restored from a copy that is one transaction old: an opaque store goes on rightly,
and no other goes on at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import Journal, fast
from tests.topologies.spouts import Keep, keeping_topology
from txtopo import Fields, LocalCluster, StateMismatchError
from txtopo.command import cli
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout


class Life:
    """A topology on clusters in turn, with its rows, its store and a copy of its state."""

    def __init__(self, place: Path, opaque: bool) -> None:
        self.place, self.opaque = place, opaque
        self.store = SqliteStore(place / "kept.db", "kept", opaque=opaque)

    def run(self, *numbers: int) -> None:
        """Run over these numbers, two in a transaction, until no more are left; the state stays in
        its directory."""
        kind: Any = OpaqueMemoryTransactionalSpout if self.opaque else MemoryTransactionalSpout
        topology = keeping_topology(
            "rewound",
            kind({0: [(n,) for n in numbers]}, Fields("n"), 2),
            Keep(self.store, Journal(self.place / "journal")),
        )
        with LocalCluster(master="local[2]", data_dir=self.place / "state") as cluster:
            cluster.submit_topology("rewound", fast(until="exhausted"), topology).join(PATIENCE_S)

    def copy(self) -> None:
        shutil.copytree(self.place / "state", self.place / "copy")

    def restore(self) -> None:
        shutil.rmtree(self.place / "state")
        (self.place / "copy").rename(self.place / "state")


@pytest.mark.thorough
@pytest.mark.rule(23, 27, 31)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_a_state_that_is_one_transaction_older_than_the_store(tmp_path: Path, opaque: bool) -> None:
    life = Life(tmp_path, opaque)
    life.run(1, 2)
    life.copy()
    life.run(1, 2, 10, 20)
    assert life.store.get("total") == 33
    life.restore()
    assert (
        cli.main(
            ["state", "restored", "rewound", "--execute", "--data-dir", str(tmp_path / "state")]
        )
        == 0
    )
    # The rows after the restored position differ by now.
    if opaque:
        life.run(1, 2, 100, 200)
        assert life.store.get("total") == 303, (
            "the transaction that the state has forgotten is taken back"
        )
    else:
        with pytest.raises(
            StateMismatchError,
            match=r"is at attempt 2:\d+ there, which ZooKeeper never sealed(?s:.*)txtopo store adopt",
        ) as caught:
            life.run(1, 2, 100, 200)
        assert caught.value.exit_code == 6
        assert life.store.get("total") == 33, "nothing was written"
