"""The pytest plugin of txtopo: a fixture ``txtopo_test``, which plays a topology in simulated
Spark. It is loaded with every run of pytest.

The simulator is imported when the fixture is first used, so that a run of pytest without such a
test does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from txtopo.testing import SimulationReport


@pytest.fixture
def txtopo_test() -> Callable[..., SimulationReport]:
    """``txtopo_test(topology, conf, seeds=100)``: fail with the verdict if the topology breaks a
    promise; see ``txtopo.testing.check_topology``."""
    from txtopo.testing import check_topology

    return check_topology
