"""txtopo's pytest plugin: the fixture ``txtopo_test``, which plays a topology in simulated Spark.

Every pytest run loads the plugin. The simulator is imported when the fixture is first used, so that
tests without the fixture do not wait for the import.
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
    promise. See ``txtopo.testing.check_topology``."""
    from txtopo.testing import check_topology

    return check_topology
