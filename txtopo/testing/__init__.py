"""What tests of topologies are made of.

Executors import this package to unpickle the memory spouts, so it must not import more than the standard library and ``txtopo.topology``.
What needs more is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txtopo.testing.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

if TYPE_CHECKING:
    from txtopo.testing.contracts.bolt import BoltReport, check_bolt_idempotence
    from txtopo.testing.contracts.spout import SpoutReport, check_spout
    from txtopo.testing.contracts.state import check_state
    from txtopo.testing.contracts.store import check_store
    from txtopo.testing.contracts.violation import ContractError

_LAZY = {
    "BoltReport": "txtopo.testing.contracts.bolt",
    "ContractError": "txtopo.testing.contracts.violation",
    "SpoutReport": "txtopo.testing.contracts.spout",
    "check_bolt_idempotence": "txtopo.testing.contracts.bolt",
    "check_spout": "txtopo.testing.contracts.spout",
    "check_state": "txtopo.testing.contracts.state",
    "check_store": "txtopo.testing.contracts.store",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'txtopo.testing' has no attribute {name!r}")


__all__ = [
    "BoltReport",
    "ContractError",
    "MemoryTransactionalSpout",
    "OpaqueMemoryTransactionalSpout",
    "SpoutReport",
    "check_bolt_idempotence",
    "check_spout",
    "check_state",
    "check_store",
]
