"""Scenes for committers: each has a fresh directory, a fresh topology with stores, and the effects
that the bolts leave there.

A scene collects effects. ``bolt`` compares them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txtopo import errors
from txtopo.dataplane.job import Run
from txtopo.plan import compiler
from txtopo.state import memory
from txtopo.stores import base
from txtopo.testing.contracts import canned_spout, processes
from txtopo.testing.contracts.local_run import LocalRun, Work
from txtopo.topology import builder, destination, pickling
from txtopo.topology.bolt import IBatchBolt
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.stream import DEFAULT_STREAM, Fields

Effects = dict[str, Any]
"""Each store's contents, or the value from the user's function, by its name in messages."""


@dataclass(frozen=True)
class Setting:
    """The arguments that make scenes: see :func:`txtopo.testing.check_bolt_idempotence`."""

    make: Callable[[Path], Any]
    batches: Sequence[Sequence[Sequence[Any]]] = ()
    fields: Sequence[str] = ()
    tasks: int = 1
    group_by: Sequence[str] = ()
    effects: Callable[[Path], Any] | None = None
    transactions: int = 20
    task_counts: Mapping[str, int] = field(default_factory=dict)
    conf: Mapping[str, Any] | None = None

    def graph(self, directory: Path) -> TopologyGraph:
        """The user's topology in ``directory``, or a topology around the user's bolt."""
        result = self.make(directory)
        if isinstance(result, TopologyGraph):
            return result
        if isinstance(result, builder.TransactionalTopologyBuilder):
            return result.build_topology()
        if not isinstance(result, IBatchBolt):
            raise errors.UsageError(
                f"make returned a {type(result).__name__}\n  Return a batch bolt, a topology, or its builder."
            )
        if not self.batches or not self.fields:
            cure = (
                "Give batches=[[(value, …), …], …], one list per transaction, and fields=(name, …)."
            )
            raise errors.UsageError(f"a bolt alone needs batches to execute\n  {cure}")
        rows = [
            {0: [(DEFAULT_STREAM, None, tuple(row)) for row in batch]} for batch in self.batches
        ]
        feeder = canned_spout.RepeatedSpout([(each, None) for each in rows], fields=self.fields)
        build = builder.TransactionalTopologyBuilder("contract", "feeder", feeder)
        declarer = build.set_committer_bolt("bolt", result, self.tasks)
        if self.group_by:
            declarer.fields_grouping("feeder", Fields(self.group_by))
        elif self.tasks > 1:
            declarer.custom_grouping("feeder", _Dealt(self.tasks))
        else:
            declarer.global_grouping("feeder")
        return build.build_topology()


class _Dealt:
    """Deals tuples to tasks in turn, as shuffle grouping does, so that several tasks may write one
    key."""

    def __init__(self, tasks: int) -> None:
        self._tasks, self._dealt = tasks, 0

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        self._dealt += 1
        return [self._dealt % self._tasks]


class Scene:
    """A topology in its own directory. Close the scene."""

    def __init__(
        self,
        setting: Setting,
        directory: Path,
        make_processes: Callable[[Run], list[processes.Process]],
    ) -> None:
        directory.mkdir()
        self._setting, self._directory, self._make_processes = setting, directory, make_processes
        graph = setting.graph(directory)
        held = compiler.held_components(graph)
        self.components = [
            id
            for id, component in graph.components.items()
            if id in held and component.kind == "batch"
        ]
        """The batch bolts that finish in the commit phase. They may write."""
        self.emitting = [
            id
            for id, component in graph.components.items()
            if id in held and component.kind != "spout"
        ]
        """These batch bolts, and basic bolts downstream."""
        if not self.components:
            raise errors.UsageError(
                f"topology {graph.id!r} has no committer\n  Mark a bolt with ICommitter, or use set_committer_bolt."
            )
        self._stores = list(_stores_of(graph))
        if not self._stores and setting.effects is None:
            raise errors.UsageError(
                f"there is no txtopo store in {', '.join(map(repr, self.components))}, so there are no effects to compare"
                "\n  Give effects=function: for a directory, the function returns all data that the bolts have written."
            )
        self._graph, self._server = graph, memory.MemoryServer()
        self.run = self._new_run()

    def _new_run(self) -> LocalRun:
        return LocalRun(
            self._graph,
            self._server,
            self._make_processes,
            self._setting.conf,
            self._setting.task_counts,
        )

    def restart(self) -> None:
        """Begin a new run over the same state and stores, in a new epoch, with larger attempt ids."""
        self.run.close()
        self.run = self._new_run()

    def close(self) -> None:
        self.run.close()

    def txids(self) -> Iterator[int]:
        """The txids in order, each with a fixed batch. Record a txid before you ask for the next."""
        while self.run.state.current <= self._setting.transactions and self.run.batches.open(
            self.run.state.current
        ):
            yield self.run.state.current

    def process(self, txid: int, process: int = 0) -> Work:
        """Run the processing phase in a new attempt."""
        return self.run.process(self.run.next_attempt(txid), self.run.processes[process])

    def apply(self, work: Work, process: int = 0, strike: int | None = None) -> None:
        self.run.seal(work)
        self.run.apply(work, self.run.processes[process], strike)

    def effects(self) -> Effects:
        if self._setting.effects is not None:
            return {"effects": copy.deepcopy(self._setting.effects(self._directory))}
        return {name: dict(store.items()) for name, store in self._stores}


def _stores_of(graph: TopologyGraph) -> Iterator[tuple[str, base.Store]]:
    """Every store in a component, with its name in messages."""
    seen: set[str] = set()
    for id, component in graph.components.items():
        instance, search = pickling.loads(component.template), destination.Search()
        pickling.dumps_with_classes(instance, search.visit)
        search.writes(instance)  # looks at attributes of classes too
        for _, store in search.destinations:
            if isinstance(store, base.Store) and store.address not in seen:
                seen.add(store.address)
                yield f"store {store.name!r} ({id})", store
