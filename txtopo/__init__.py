"""Transactional topologies on Apache Spark: exactly-once batches, processed side by side, committed
in order.

``import txtopo`` imports neither pyspark nor kazoo nor pydantic, so that executors with a bare
interpreter can import a topology's bolts. A name in ``_LAZY`` is imported at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txtopo.errors import (
    BatchTooLargeError,
    ConfigError,
    EmitError,
    FailedException,
    FencedError,
    HeldError,
    HeldStateError,
    InputError,
    InvalidTopologyError,
    LocalDiskError,
    MetadataError,
    OutOfMemoryError,
    OutrunError,
    PoisonBatchError,
    RowRefusedError,
    SetupError,
    SparkLostError,
    StaleAttemptError,
    StateMismatchError,
    StoreConflictError,
    TxtopoError,
    UnreadableStateError,
    UsageError,
    UserCodeError,
    WorkerCrashError,
    ZooKeeperAccessError,
    ZooKeeperUnavailableError,
)
from txtopo.topology import graph as _graph
from txtopo.topology.aggregator import CombinerAggregator, Count, Max, Min, ReducerAggregator, Sum
from txtopo.topology.arrow import BaseArrowBatchBolt
from txtopo.topology.bolt import (
    BaseBasicBolt,
    BaseBatchBolt,
    BaseTransactionalBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    IBasicBolt,
    IBatchBolt,
    ICommitter,
)
from txtopo.topology.builder import AggregateDeclarer, TransactionalTopologyBuilder
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.declarers import BoltDeclarer, SpoutDeclarer
from txtopo.topology.destination import Destination, Guarantee
from txtopo.topology.spout import (
    BaseCommitterTransactionalSpout,
    BaseOpaquePartitionedTransactionalSpout,
    BasePartitionedTransactionalSpout,
    BaseTransactionalSpout,
    CommitterSpoutEmitter,
    ICommitterTransactionalSpout,
    IOpaquePartitionedTransactionalSpout,
    IPartitionedTransactionalSpout,
    ITransactionalSpout,
    OpaquePartitionedSpoutCoordinator,
    OpaquePartitionedSpoutEmitter,
    PartitionedSpoutCoordinator,
    PartitionedSpoutEmitter,
    TransactionalSpoutCoordinator,
    TransactionalSpoutEmitter,
)
from txtopo.topology.stream import Fields, OutputFieldsDeclarer, StreamSpec, Tuple
from txtopo.topology.transaction import INIT_TXID, TransactionAttempt
from txtopo.version import VERSION

if TYPE_CHECKING:
    from txtopo.command.main import main
    from txtopo.config import Config
    from txtopo.engine.status import RunStatus
    from txtopo.runtime.cluster import LocalCluster, submit_topology
    from txtopo.runtime.run import TopologyRun
    from txtopo.runtime.visibility import Visibility, visible_txid, wait_until_visible
    from txtopo.stores.visible import VisibleTxid

__version__ = VERSION

_LAZY = {
    "Config": "txtopo.config",
    "LocalCluster": "txtopo.runtime.cluster",
    "RunStatus": "txtopo.engine.status",
    "TopologyRun": "txtopo.runtime.run",
    "Visibility": "txtopo.runtime.visibility",
    "VisibleTxid": "txtopo.stores.visible",
    "main": "txtopo.command.main",
    "submit_topology": "txtopo.runtime.cluster",
    "visible_txid": "txtopo.runtime.visibility",
    "wait_until_visible": "txtopo.runtime.visibility",
}


_NOTEBOOK_CORES = 2
"""Cores of the plan that a notebook shows: as many as ``LocalCluster()`` and ``txtopo explain``
take."""


def _plan_text(graph: _graph.TopologyGraph) -> str:
    # Not imported before: executors need no plan.
    from txtopo.plan import compiler, explain

    return explain.explain(compiler.compile_plan(graph, _NOTEBOOK_CORES))


_graph.TopologyGraph.explained = _plan_text


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'txtopo' has no attribute {name!r}")


__all__ = [
    "INIT_TXID",
    "AggregateDeclarer",
    "BaseArrowBatchBolt",
    "BaseBasicBolt",
    "BaseBatchBolt",
    "BaseCommitterTransactionalSpout",
    "BaseOpaquePartitionedTransactionalSpout",
    "BasePartitionedTransactionalSpout",
    "BaseTransactionalBolt",
    "BaseTransactionalSpout",
    "BasicOutputCollector",
    "BatchOutputCollector",
    "BatchTooLargeError",
    "BoltDeclarer",
    "CombinerAggregator",
    "CommitterSpoutEmitter",
    "Config",
    "ConfigError",
    "CoordinatorContext",
    "Count",
    "Destination",
    "EmitError",
    "FailedException",
    "FencedError",
    "Fields",
    "Guarantee",
    "HeldError",
    "HeldStateError",
    "IBasicBolt",
    "IBatchBolt",
    "ICommitter",
    "ICommitterTransactionalSpout",
    "IOpaquePartitionedTransactionalSpout",
    "IPartitionedTransactionalSpout",
    "ITransactionalSpout",
    "InputError",
    "InvalidTopologyError",
    "LocalCluster",
    "LocalDiskError",
    "Max",
    "MetadataError",
    "Min",
    "OpaquePartitionedSpoutCoordinator",
    "OpaquePartitionedSpoutEmitter",
    "OutOfMemoryError",
    "OutputFieldsDeclarer",
    "OutrunError",
    "PartitionedSpoutCoordinator",
    "PartitionedSpoutEmitter",
    "PoisonBatchError",
    "ReducerAggregator",
    "RowRefusedError",
    "RunStatus",
    "SetupError",
    "SparkLostError",
    "SpoutDeclarer",
    "StaleAttemptError",
    "StateMismatchError",
    "StoreConflictError",
    "StreamSpec",
    "Sum",
    "TopologyConf",
    "TopologyContext",
    "TopologyRun",
    "TransactionAttempt",
    "TransactionalSpoutCoordinator",
    "TransactionalSpoutEmitter",
    "TransactionalTopologyBuilder",
    "Tuple",
    "TxtopoError",
    "UnreadableStateError",
    "UsageError",
    "UserCodeError",
    "Visibility",
    "VisibleTxid",
    "WorkerCrashError",
    "ZooKeeperAccessError",
    "ZooKeeperUnavailableError",
    "main",
    "submit_topology",
    "visible_txid",
    "wait_until_visible",
]
