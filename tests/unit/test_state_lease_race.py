"""Two coordinators open a new topology at the same moment: one of them makes the topology, the
other is refused as by any live coordinator."""

from __future__ import annotations

import pytest

from txtopo import FencedError
from txtopo.state.memory import MemoryServer, MemoryStateStore
from txtopo.state.topology import Holder, TopologyState


class OvertakenStore(MemoryStateStore):
    """Lets a rival open the topology after this coordinator has seen that there is none, and before
    it looks for leftovers."""

    rival: TopologyState | None = None

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.server_of_both = server

    def children(self, path: str) -> list[str]:
        if self.rival is None:
            self.rival = TopologyState.open(
                MemoryStateStore(self.server_of_both), "topology", Holder("beta", 22, "now")
            )
        return super().children(path)


@pytest.mark.rule(26)
def test_a_topology_made_by_a_rival_just_now_is_not_taken_for_unreadable_state() -> None:
    store = OvertakenStore(MemoryServer())
    with pytest.raises(FencedError, match="pid 22 on host beta"):
        TopologyState.open(store, "topology", Holder("alpha", 11, "now"))
    assert store.rival is not None
    assert store.rival.epoch == 1
