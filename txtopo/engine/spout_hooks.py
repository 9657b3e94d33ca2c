"""Calls the hooks of the user's spout coordinator, and checks each answer.

Runs on: driver. No other module calls the user's spout coordinator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from txtopo import errors, plain_json
from txtopo.dataplane import out_of_resources, outcome
from txtopo.topology import metadata as metadata_of
from txtopo.topology import pickling, spout
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext
from txtopo.topology.graph import TopologyGraph

Positions = Mapping[int, Any]
"""Metadata by partition, as stored."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far the source has been read, if the spout says so. See ``status.RunStatus``."""

    fraction_done: float | None = None
    lag: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int | None] = field(default_factory=dict)


class SpoutHooks:
    """The spout's coordinator. Callers pass and get metadata as stored. The coordinator gets
    metadata as the spout's ``metadata_type``."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._id = graph.spout.id
        self._config = graph.spout.config
        self._is_partitioned = graph.spout_traits.is_partitioned
        self._spout = pickling.loads(graph.spout.template)
        self._metadata_type = self._spout.metadata_type
        self._coordinator: Any = None
        self.plans = False
        """Whether the coordinator plans every partition's batch."""

    def begin(self, conf: Mapping[str, Any], context: CoordinatorContext, txid: int) -> None:
        """Get the coordinator, which may ask for the last metadata."""
        overlaid = TopologyConf(conf).overlaid(self._config)
        self._coordinator = self._call(
            txid, "get_coordinator", self._spout.get_coordinator, overlaid, context
        )
        self.plans = self._is_partitioned and spout.plans(self._coordinator)

    def of_user(self, metadata: Any) -> Any:
        """Stored metadata, as the spout's type."""
        return metadata_of.from_json(metadata, self._metadata_type)

    def by_partition(self, positions: Positions) -> dict[int, Any]:
        """Stored metadata by partition, as the spout's type."""
        return {partition: self.of_user(metadata) for partition, metadata in positions.items()}

    def is_ready(self, txid: int) -> bool:
        return bool(self._call(txid, "is_ready", self._coordinator.is_ready))

    def initialize(self, txid: int, previous: Any) -> Any:
        """The metadata for a batch that is not partitioned."""
        hook = "initialize_transaction"
        return self._to_json(
            txid,
            hook,
            self._call(
                txid, hook, self._coordinator.initialize_transaction, txid, self.of_user(previous)
            ),
        )

    def plan(self, txid: int, positions: Callable[[], Positions]) -> tuple[int, dict[int, Any]]:
        """The partition count, and metadata for the partitions that move from ``positions``."""
        n = self.num_partitions(txid)
        last = self.by_partition(
            {partition: metadata for partition, metadata in positions().items() if partition < n}
        )
        if hasattr(self._coordinator, "plan_batch"):
            planned = self._call(txid, "plan_batch", self._coordinator.plan_batch, txid, last)
            if not isinstance(planned, Mapping) or any(
                not isinstance(p, int) or not 0 <= p < n for p in planned
            ):
                self._refuse(
                    txid,
                    "plan_batch",
                    f"it returned {planned!r}, but must return a dict from partition, 0 … {n - 1}, to metadata or None",
                )
        else:
            plan = self._coordinator.plan_partition_batch
            planned = {
                p: self._call(txid, "plan_partition_batch", plan, txid, p, last.get(p))
                for p in range(n)
            }
        return n, {
            p: self._to_json(txid, f"planning partition {p}", m) for p, m in sorted(planned.items())
        }

    def num_partitions(self, txid: int) -> int:
        n = self._call(txid, "num_partitions", self._coordinator.num_partitions)
        if not isinstance(n, int) or n < 0:
            self._refuse(
                txid,
                "num_partitions",
                f"it returned {n!r}, but must return the number of partitions",
            )
        return int(n)

    def fraction_done(self, txid: int, committed: Callable[[], Any]) -> float | None:
        """The committed fraction of the source, from 0 to 1. None if the spout does not say.
        ``committed`` gives the committed metadata."""
        if not hasattr(self._coordinator, "fraction_done"):
            return None
        fraction = self._call(txid, "fraction_done", self._coordinator.fraction_done, committed())
        try:
            number = math.nan if fraction is None else float(fraction)
        except (TypeError, ValueError):
            self._refuse(
                txid,
                "fraction_done",
                f"it returned {fraction!r}, but must return a number from 0 to 1, or None",
            )
        return None if math.isnan(number) else min(max(number, 0.0), 1.0)

    def counts(self, txid: int, hook: str, committed: Callable[[], Any]) -> dict[str, Any]:
        """The answer from the optional hook ``lag`` or ``lost``, by partition. Empty if the spout
        does not say."""
        if not callable(getattr(self._coordinator, hook, None)):
            return {}
        counts = self._call(txid, hook, getattr(self._coordinator, hook), committed())
        if not isinstance(counts, Mapping) or not all(
            isinstance(count, int | None) for count in counts.values()
        ):
            self._refuse(
                txid,
                hook,
                f"it returned {counts!r}, but must return a dict from partition name to number",
            )
        return {str(name): count for name, count in counts.items()}

    def close(self, txid: int) -> None:
        self._call(txid, "close", self._coordinator.close)

    def _to_json(self, txid: int, hook: str, metadata: Any) -> Any:
        try:
            return metadata_of.to_json(metadata, self._metadata_type)
        except plain_json.NotJsonError as error:
            self._refuse(txid, hook, f"its metadata would not come back as it was: {error}")

    def _call(self, txid: int, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except (errors.FailedException, errors.TxtopoError):
            raise
        except BaseException as error:
            described = out_of_resources.of(error) or outcome.describe(error)
            trace = outcome.user_traceback(error)
            raise errors.UserCodeError(
                self._id, -1, str(txid), "opening", hook, described, trace
            ) from None

    def _refuse(self, txid: int, hook: str, why: str) -> NoReturn:
        raise errors.MetadataError(
            self._id, -1, str(txid), "opening", hook, f"spout {self._id!r}, {hook}: {why}", ""
        )
