"""The user's topology, with its stores replaced by ones that every schedule finds empty.

A schedule must begin with empty stores and must not touch the user's. Stores of txtopo are replaced
by stores in memory with the same rules, wherever in the spout or a bolt they are, and so are the
ledgers and tables of its sinks. A class of the user's that extends ``SqliteStore`` keeps its code,
on a file in a temporary directory.

Apart from the rest because here alone objects are taken apart.

Invariants: a substitute has the name and the guarantee of the store for which it stands.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import os
import shutil
import tempfile
from typing import Any

from txtopo import errors
from txtopo.connectors.sql import ledger
from txtopo.dataplane import wire
from txtopo.stores import base
from txtopo.stores.sqlite import store as sqlite
from txtopo.testing import stores
from txtopo.testing.simulator import simulated_store, sinks
from txtopo.topology import destination, pickling
from txtopo.topology.graph import Component, TopologyGraph

_ids = itertools.count()


class _SubstitutingPickler(wire.ReferencePickler):
    """Pickles a component with other stores; classes of the topology go by reference, so that
    loading does not make them anew."""

    def __init__(self, file: io.BytesIO, run: str, substitutes: Substitutes) -> None:
        super().__init__(file, run)
        self._made = substitutes
        self.is_strange = False
        """A destination was found that is no store."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, base.Store):
            return _given, (self._made.token, self._made.index_of(obj))
        if isinstance(obj, destination.Destination) and type(obj).__module__.startswith("txtopo."):
            raise errors.UsageError(
                f"{obj.guarantee().name} cannot be simulated: a schedule would write to the real topic\n"
                "  Give the topology another sink where it is tested: a store, or SqlSink."
            )
        self.is_strange = self.is_strange or isinstance(obj, destination.Destination)
        return super().reducer_override(obj)


_given_by: dict[str, Substitutes] = {}


def _given(token: str, index: int) -> base.Store:
    return _given_by[token].stores[index]


class Substitutes:
    """``graph`` with other stores. ``stores`` are the substitutes, ``close`` gives everything back.
    """

    def __init__(self, graph: TopologyGraph, has_reset: bool) -> None:
        self.token = f"substitutes-{next(_ids)}"
        self._has_reset = has_reset
        self._originals: list[base.Store] = []
        self.stores: list[base.Store] = []
        self.strange: frozenset[str] = frozenset()
        """Components with a destination of the user's own, which has no substitute."""
        self._directory: str | None = None
        _given_by[self.token] = self
        wire.register_classes(self.token, graph.by_value)
        components = {component.id: self._substituted(component) for component in graph.components.values()}
        self.graph = TopologyGraph(graph.id, components, graph.by_value)

    def index_of(self, store: base.Store) -> int:
        """The substitute of ``store``; copies of one store share a substitute."""
        for index, known in enumerate(self._originals):
            # Sinks of one database share a ledger's address, and write to tables of their own.
            if all(_of(known, name) == _of(store, name) for name in ("__class__", "address", "target")):
                return index
        self._originals.append(store)
        self.stores.append(self._substitute(store))
        return len(self.stores) - 1

    def empty(self) -> None:
        """Make every substitute empty."""
        for store in self.stores:
            if isinstance(store, stores.MemoryStore):
                store.forget()
        if self._directory is not None:
            for name in os.listdir(self._directory):
                os.unlink(os.path.join(self._directory, name))

    def close(self) -> None:
        """Let go of everything."""
        self.empty()
        _given_by.pop(self.token, None)
        wire.forget_classes(self.token)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _substituted(self, component: Component) -> Component:
        buffer = io.BytesIO()
        pickler = _SubstitutingPickler(buffer, self.token, self)
        pickler.dump(pickling.loads(component.template))
        if pickler.is_strange:
            self.strange = self.strange | {component.id}
        return dataclasses.replace(component, template=buffer.getvalue())

    def _substitute(self, store: base.Store) -> base.Store:
        # Tables of one SQLite file share its lock, so their substitutes share a database.
        place = getattr(store, "path", store.address)
        if type(store).__module__.partition(".")[0] == "txtopo":
            simulated = sinks.SimulatedLedger if isinstance(store, ledger.Ledger) else simulated_store.SimulatedStore
            return simulated(store, f"{self.token} {place}")
        if isinstance(store, sqlite.SqliteStore):
            self._directory = self._directory or tempfile.mkdtemp(prefix="txtopo-simulator-")
            redirected = copy.copy(store)
            redirected.path = os.path.join(self._directory, f"{len(self.stores)}.db")
            redirected.address = f"{redirected.path}#{redirected.name}"
            return redirected
        if self._has_reset:
            return store
        raise errors.UsageError(
            f"the simulator has nothing to put in the place of the store {store.address}, of class {type(store).__qualname__}\n"
            "  Define reset() beside the topology: it makes everything that the topology writes empty; and let the store be one for tests."
        )


def _of(store: base.Store, name: str) -> Any:
    return getattr(store, name, None)
