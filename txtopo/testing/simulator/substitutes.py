"""Replaces the destinations in a user's topology by substitutes that every schedule finds empty.

A schedule must begin with empty stores and must not touch the user's. So each destination, wherever
it is in the spout or a bolt, is asked for a simulated one (``Destination.simulated``). The
substitutes' world is here: stores in memory that fail when the schedule says so, and a directory.

Only this module takes the user's objects apart.

Invariants: a substitute has its destination's name and guarantee.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.dataplane import wire
from txtopo.exports import ExportQueue
from txtopo.sinks.simulated import SimulatedSink
from txtopo.stores import base
from txtopo.testing import stores
from txtopo.testing.simulator import current, simulated_store
from txtopo.topology import destination, pickling
from txtopo.topology.graph import Component, TopologyGraph

_ids = itertools.count()


class _SubstitutingPickler(wire.ReferencePickler):
    """Pickles a component with other stores. The topology's classes go by reference, so that
    loading does not make them again."""

    def __init__(self, file: io.BytesIO, run: str, substitutes: Substitutes) -> None:
        super().__init__(file, run)
        self._substitutes = substitutes
        self.has_uncompared = False
        """Whether a destination was found whose rows cannot be compared."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, destination.Destination):
            index = self._substitutes.index_of(obj)
            is_compared = index is not None and isinstance(
                self._substitutes.stores[index], base.Store | SimulatedSink | ExportQueue
            )
            self.has_uncompared = self.has_uncompared or not is_compared
            if index is not None:
                return _substitute_of, (self._substitutes.token, index)
        elif isinstance(obj, destination.Simulable):
            simulated = obj.simulated(self._substitutes) or obj
            return simulated.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


_by_token: dict[str, Substitutes] = {}


def _substitute_of(token: str, index: int) -> destination.Destination:
    substitute: destination.Destination = _by_token[token].stores[index]
    return substitute


class Substitutes:
    """Makes ``graph`` with other destinations. ``stores`` are the substitutes. ``close`` gives
    everything back."""

    def __init__(self, graph: TopologyGraph, has_reset: bool) -> None:
        self.token = f"substitutes-{next(_ids)}"
        self._has_reset = has_reset
        self._originals: list[tuple[Any, ...]] = []
        self.stores: list[Any] = []
        self._in_memory: list[stores.MemoryStore] = []
        self._systems: dict[str, Any] = {}
        """The substitute for each system outside, by the system's address."""
        self.uncompared: frozenset[str] = frozenset()
        """Components with a destination whose rows cannot be compared."""
        self._directory: str | None = None
        _by_token[self.token] = self
        wire.register_classes(self.token, graph.by_value)
        components = {
            component.id: self._substitute(component) for component in graph.components.values()
        }
        self.graph = TopologyGraph(graph.id, components, graph.by_value)

    def index_of(self, original: destination.Destination) -> int | None:
        """Find or make the substitute for ``original``: its index in ``stores``, or ``None`` if
        there is none. Copies of a destination share a substitute."""
        # Sinks in one database share a ledger's address, and write to their own tables.
        more = (getattr(original, name, None) for name in ("target", "transactions_topic"))
        identity = (type(original), original.guarantee(), *more)
        if identity in self._originals:
            return self._originals.index(identity)
        substitute = original.simulated(self)
        if substitute is None and isinstance(original, base.Store):
            if not self._has_reset:
                raise errors.UsageError(
                    f"the simulator has no substitute for the store {original.address}, of class {type(original).__qualname__}\n"
                    "  Define reset() beside the topology, which removes everything that the topology writes, and use a store for tests."
                )
            substitute = original
        if substitute is None:
            return None
        self._originals.append(identity)
        self.stores.append(substitute)
        return len(self.stores) - 1

    def store(self, original: Any) -> stores.MemoryStore:
        # Tables in one SQLite file share its lock, so their substitutes share a database.
        place = getattr(original, "path", original.address)
        self._in_memory.append(simulated_store.SimulatedStore(original, f"{self.token} {place}"))
        return self._in_memory[-1]

    def directory(self) -> str:
        """The directory for files, made at the first call."""
        self._directory = self._directory or tempfile.mkdtemp(prefix="txtopo-simulator-")
        return self._directory

    def shared(self, address: str, make: Callable[[], Any]) -> Any:
        """The substitute for the system at ``address``. The first call makes it with ``make``."""
        if address not in self._systems:
            self._systems[address] = make()
        return self._systems[address]

    def fault(self, address: str) -> str | None:
        """How the next transaction at ``address`` fails, if the schedule says so."""
        world = current.world_or_none()
        return None if world is None else world.store_transaction(address)

    def empty(self) -> None:
        for system in (*self._in_memory, *self._systems.values()):
            system.forget()
        if self._directory is not None:
            shutil.rmtree(self._directory)
            os.mkdir(self._directory)

    def close(self) -> None:
        self.empty()
        _by_token.pop(self.token, None)
        wire.forget_classes(self.token)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _substitute(self, component: Component) -> Component:
        buffer = io.BytesIO()
        pickler = _SubstitutingPickler(buffer, self.token, self)
        pickler.dump(pickling.loads(component.template))
        if pickler.has_uncompared:
            self.uncompared = self.uncompared | {component.id}
        return dataclasses.replace(component, template=buffer.getvalue())
