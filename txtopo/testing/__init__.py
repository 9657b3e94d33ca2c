"""Parts for tests of topologies: memory spouts and stores, contract checkers, the simulator.

Executors import this package to unpickle the memory spouts, so it must not import more than the
standard library and ``txtopo.topology``. Parts that need more are imported when they are first
used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txtopo.testing.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txtopo.topology import arrow

if TYPE_CHECKING:
    from txtopo.testing.column_spout import ArrowMemoryTransactionalSpout
    from txtopo.testing.contracts.bolt import BoltReport, check_bolt_idempotence
    from txtopo.testing.contracts.combiner import check_combiner
    from txtopo.testing.contracts.exporter import check_exporter
    from txtopo.testing.contracts.sink import SinkReport, check_sink
    from txtopo.testing.contracts.spout import SpoutReport, check_spout
    from txtopo.testing.contracts.store import check_store
    from txtopo.testing.contracts.violation import ContractError
    from txtopo.testing.simulator.simulation import Simulation, SimulationReport, simulate
    from txtopo.testing.simulator.trial import check_topology
    from txtopo.testing.simulator.violation import Violation
    from txtopo.testing.stores import MemoryStore

_LAZY = {
    "ArrowMemoryTransactionalSpout": "txtopo.testing.column_spout",
    "BoltReport": "txtopo.testing.contracts.bolt",
    "ContractError": "txtopo.testing.contracts.violation",
    "MemoryStore": "txtopo.testing.stores",
    "Simulation": "txtopo.testing.simulator.simulation",
    "SimulationReport": "txtopo.testing.simulator.simulation",
    "SinkReport": "txtopo.testing.contracts.sink",
    "SpoutReport": "txtopo.testing.contracts.spout",
    "Violation": "txtopo.testing.simulator.violation",
    "check_bolt_idempotence": "txtopo.testing.contracts.bolt",
    "check_combiner": "txtopo.testing.contracts.combiner",
    "check_exporter": "txtopo.testing.contracts.exporter",
    "check_sink": "txtopo.testing.contracts.sink",
    "check_spout": "txtopo.testing.contracts.spout",
    "check_store": "txtopo.testing.contracts.store",
    "check_topology": "txtopo.testing.simulator.trial",
    "simulate": "txtopo.testing.simulator.simulation",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        if name == "ArrowMemoryTransactionalSpout":
            arrow.require_pyarrow(name)
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'txtopo.testing' has no attribute {name!r}")


ERROR_PAGE = "testing.html"

__all__ = [
    "ArrowMemoryTransactionalSpout",
    "BoltReport",
    "ContractError",
    "MemoryStore",
    "MemoryTransactionalSpout",
    "OpaqueMemoryTransactionalSpout",
    "Simulation",
    "SimulationReport",
    "SinkReport",
    "SpoutReport",
    "Violation",
    "check_bolt_idempotence",
    "check_combiner",
    "check_exporter",
    "check_sink",
    "check_spout",
    "check_store",
    "check_topology",
    "simulate",
]
