"""A stand-in for a worker process: it keeps resources and makes its tasks' contexts, without a
topology.

Unlike in ``worker.Resources``, a forked child finds its parent's resources here: a store must
notice by itself that a connection belongs to another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txtopo.topology import context as contexts
from txtopo.topology.transaction import TransactionAttempt


class WorkerProcess:
    """One process. ``close`` closes its tasks' resources."""

    def __init__(self) -> None:
        self._resources: dict[str, Any] = {}

    def resource(self, name: str, factory: Callable[[], Any]) -> Any:
        if name not in self._resources:
            self._resources[name] = factory()
        return self._resources[name]

    def task(
        self,
        component: str = "count",
        task: int = 0,
        *,
        num_tasks: int | None = None,
        topology_id: str = "words",
        generation: str = "first",
        phase: contexts.Phase = "commit",
        local_master: bool = True,
        known_stores: Mapping[str, TransactionAttempt] | None = None,
        first_attempt: int = 0,
        expected_stores: Sequence[str] | None = None,
    ) -> contexts.TopologyContext:
        """A task's context in an attempt. The component has ``num_tasks`` tasks. By default this
        task is the last."""
        counts = {component: task + 1 if num_tasks is None else num_tasks}
        return contexts.TopologyContext(
            topology_id,
            generation,
            component,
            task,
            counts,
            phase,
            self.resource,
            local_master,
            known_stores,
            first_attempt,
            expected_stores=expected_stores,
        )

    def close(self) -> None:
        """Close every resource that can be closed, and forget them all."""
        for resource in self._resources.values():
            close = getattr(resource, "close", None)
            if callable(close):
                close()
        self._resources.clear()
