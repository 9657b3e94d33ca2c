"""The instructions of a task: its run (sent once per worker) and its job (sent with every job)."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from txtopo.topology.context import SOME_TIME
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import TransactionAttempt

Part = Literal["emission", "processing", "late", "commit", "straight"]
"""Which of an attempt's jobs: ``straight`` is processing and commit in one task, for a small
transaction whose turn to commit has come."""
COMMITTING: frozenset[Part] = frozenset({"commit", "straight"})
"""Jobs with effects outside of Spark."""

BatchMode = Literal["whole", "planned", "known", "new", "opaque", "recorded"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the data plane, in bytes unless said otherwise; see ``txtopo.config`` for the
    purpose of each."""

    blob_bytes_max: int = 32 * 1024 * 1024
    spill_bytes: int = 128 * 1024 * 1024
    inline_bytes_max: int = 512 * 1024
    stores_max: int | None = None
    """As :attr:`txtopo.TopologyContext.stores_max`; a number of names."""


@dataclass(frozen=True, slots=True)
class Run:
    """The data that all jobs of a run share; broadcast once."""

    token: str
    graph: TopologyGraph
    cores: int
    conf: Mapping[str, Any]
    generation: str
    local_master: bool = True
    limits: Limits = Limits()
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Signs failures that come back inside a text of Spark's. Unlike ``token``, which names job
    groups, no message shows it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What the spout's tasks emit.

    ``whole``: ``metadata`` for every task · ``planned`` and ``known``: ``partitions`` by number,
    ``None`` where nothing is to be emitted · ``new``: emit the batch after the metadata in
    ``partitions`` and report its metadata, for partitions 0 … ``num_partitions - 1`` ·
    ``recorded``: what the emission job recorded · ``opaque``: as ``new``, but the emitters say how
    many partitions there are.
    """

    mode: BatchMode
    metadata: Any = None
    partitions: Mapping[int, Any] = field(default_factory=dict)
    num_partitions: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A single Spark job of an attempt. ``task_counts`` are those the attempt runs under (R23);
    ``committed`` is the newest committed txid."""

    run: str
    part: Part
    attempt: TransactionAttempt
    task_counts: Mapping[str, int]
    known_stores: Mapping[str, TransactionAttempt] | None = None
    """As :attr:`txtopo.TopologyContext.known_stores`."""
    committed: int = 0
    batch: Batch | None = None
    cores: int | None = None
    """How many Python tasks the attempt is planned for; ``None``: those of the run."""
    pinned: bool = False
    """Results stay on the executors; otherwise they come back to the driver, up to
    ``inline_bytes_max``."""
    expected: tuple[int, ...] | None = None
    """For a job that reads pinned results: the task attempt id that made each partition (R33)."""
    forwarding_slots: int = 0
    """How many slots hold the pinned results, where level 0 has other slots than these and they are
    sent on first."""
    first_attempt: int = 0
    """As :attr:`txtopo.TopologyContext.first_attempt`."""
    opened_at: datetime.datetime = SOME_TIME
    """As :attr:`txtopo.TopologyContext.opened_at`."""
    expected_stores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By component, as :attr:`txtopo.TopologyContext.expected_stores`."""

    @property
    def name(self) -> str:
        """Identity of the job, checked in every task before user code runs."""
        return f"{self.attempt}:{self.part}"
