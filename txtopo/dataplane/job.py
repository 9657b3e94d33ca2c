"""A task's instructions: its run (sent once per worker) and its job (sent with every job)."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from txtopo.topology.context import SOME_TIME
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import TransactionAttempt

Part = Literal["emission", "processing", "late", "commit", "whole"]
"""An attempt's jobs. ``whole`` is processing and commit in one task, for a small transaction
whose turn to commit has come."""
COMMITTING: frozenset[Part] = frozenset({"commit", "whole"})
"""Jobs with effects outside Spark."""

BatchMode = Literal["whole", "planned", "known", "new", "opaque", "recorded"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the data plane, in bytes unless said otherwise. ``txtopo.config`` says what each is
    for."""

    blob_bytes_max: int = 32 * 1024 * 1024
    spill_bytes: int = 128 * 1024 * 1024
    inline_bytes_max: int = 512 * 1024
    stores_max: int | None = None
    """As :attr:`txtopo.TopologyContext.stores_max`: a number of names."""


@dataclass(frozen=True, slots=True)
class Run:
    """The data that all jobs in a run share. Broadcast once."""

    token: str
    graph: TopologyGraph
    cores: int
    conf: Mapping[str, Any]
    generation: str
    local_master: bool = True
    limits: Limits = Limits()
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Signs failures that come back inside Spark's texts. No message shows the secret. Messages do
    show ``token``, which names job groups."""
    late_tasks: str = ""
    """On a local master the directory in which workers say where late tasks are."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that the spout's tasks emit.

    ``whole``: ``metadata`` for every task · ``planned`` and ``known``: ``partitions`` by number,
    ``None`` where a partition emits nothing · ``new``: emit the batch after the metadata in
    ``partitions``, for partitions 0 … ``num_partitions - 1``, and report its metadata ·
    ``recorded``: the rows that the emission job recorded · ``opaque``: as ``new``, but the emitters
    give the partition count.
    """

    mode: BatchMode
    metadata: Any = None
    partitions: Mapping[int, Any] = field(default_factory=dict)
    num_partitions: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One Spark job in an attempt. The attempt runs under ``task_counts`` (R23). ``committed`` is
    the newest committed txid."""

    run: str
    part: Part
    attempt: TransactionAttempt
    task_counts: Mapping[str, int]
    known_stores: Mapping[str, TransactionAttempt] | None = None
    """As :attr:`txtopo.TopologyContext.known_stores`."""
    committed: int = 0
    batch: Batch | None = None
    cores: int | None = None
    """How many Python tasks the attempt is planned for. ``None``: as many as the run."""
    pinned: bool = False
    """Results stay on the executors. Otherwise results come back to the driver, up to
    ``inline_bytes_max``."""
    expected: tuple[int, ...] | None = None
    """For a job that reads pinned results: the task attempt id that made each partition (R33)."""
    forwarding_slots: int = 0
    """How many slots hold the pinned results, if level 0 has a different slot count. Then the
    results are first sent on to level 0's slots. Otherwise 0."""
    first_attempt: int = 0
    """As :attr:`txtopo.TopologyContext.first_attempt`."""
    opened_at: datetime.datetime = SOME_TIME
    """As :attr:`txtopo.TopologyContext.opened_at`."""
    expected_stores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By component, as :attr:`txtopo.TopologyContext.expected_stores`."""

    @property
    def name(self) -> str:
        """The job's identity, which every task checks before user code runs."""
        return f"{self.attempt}:{self.part}"
