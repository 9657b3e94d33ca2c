"""The builder: collects a spout, bolts and aggregates, and builds a valid graph.

Nothing here raises before ``build_topology``, which reports every mistake at once: a user mends a
topology in one go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from txtopo.topology import aggregate, aggregator, validation
from txtopo.topology import bolt as bolts
from txtopo.topology.declarers import BoltDeclarer, Draft, SpoutDeclarer
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.spout import ICommitterTransactionalSpout
from txtopo.topology.stream import DEFAULT_STREAM, Fields


class TransactionalTopologyBuilder:
    """Builds a topology with one spout and any number of bolts (Storm:
    ``TransactionalTopologyBuilder``).

    ``topology_id`` names the state in ZooKeeper, for ever. Each run has its own name.
    """

    def __init__(self, topology_id: str, spout_id: str, spout: Any, parallelism: int = 1) -> None:
        self._id = topology_id
        self._spout = Draft(
            spout_id, spout, parallelism, committer=isinstance(spout, ICommitterTransactionalSpout)
        )
        self._bolts: list[Draft] = []

    def set_spout(self, id: str, spout: Any, parallelism: int = 1) -> SpoutDeclarer:
        """Have ``build_topology`` refuse this call: the constructor takes the topology's one spout."""
        cure = f"Give the spout to the constructor: TransactionalTopologyBuilder({self._id!r}, {id!r}, spout, {parallelism!r})"
        self._spout.problems.append(
            f"spout {id!r}: a topology has one spout, and there is no set_spout. {cure}"
        )
        return SpoutDeclarer(Draft(id, spout, parallelism, committer=False))

    def get_spout_declarer(self) -> SpoutDeclarer:
        """The declarer that configures the spout."""
        return SpoutDeclarer(self._spout)

    def set_bolt(self, id: str, bolt: Any, parallelism: int = 1) -> BoltDeclarer:
        """Add ``bolt``. An ``ICommitter`` becomes a committer. The instance is a template: every
        attempt gets a fresh copy."""
        return self._set(id, bolt, parallelism, isinstance(bolt, bolts.ICommitter))

    def set_committer_bolt(self, id: str, bolt: Any, parallelism: int = 1) -> BoltDeclarer:
        """Add ``bolt`` as a committer, marked or not."""
        return self._set(id, bolt, parallelism, True)

    def set_aggregate(
        self, id: str, what: aggregator.Aggregator, store: Any, parallelism: int = 1
    ) -> AggregateDeclarer:
        """Add a committer that keeps ``what`` per key in ``store`` (``Count()``, say), and before
        the committer bolts that combine tuples where they are made.

        For every key that a batch has changed, the committer emits the key's fields, ``prev`` (the
        value before, None if there was none) and ``curr`` (the value now).
        """
        return AggregateDeclarer(self, id, what, store, parallelism)

    def parallelism_of(self, id: str) -> int | None:
        """The task count of a component that was set before. None if there is none, or its
        parallelism is no number."""
        parallelism = next(
            (draft.parallelism for draft in (self._spout, *self._bolts) if draft.id == id), None
        )
        return parallelism if isinstance(parallelism, int) else None

    def _set(self, id: str, bolt: Any, parallelism: int, committer: bool) -> BoltDeclarer:
        draft = Draft(id, bolt, parallelism, committer)
        self._bolts.append(draft)
        return BoltDeclarer(draft)

    def build_topology(self) -> TopologyGraph:
        """The topology, immutable and valid. Otherwise raises :class:`InvalidTopologyError` with
        every mistake."""
        return validation.Build(self._id, self._spout, self._bolts).topology()


class AggregateDeclarer:
    """Configures an aggregate: its sources and key fields. Every method returns the declarer, so
    that calls chain."""

    def __init__(
        self,
        builder: TransactionalTopologyBuilder,
        id: str,
        what: aggregator.Aggregator,
        store: Any,
        parallelism: int,
    ) -> None:
        self._builder, self._id, self._what, self._parallelism = builder, id, what, parallelism
        self._committer = (
            aggregate.ReducingCommitter(what, store)
            if isinstance(what, aggregator.ReducerAggregator)
            else aggregate.CombiningCommitter(what, store)
        )
        self._declarer = builder.set_bolt(id, self._committer, parallelism)
        for mistake in _mistakes(what, store):
            self._declarer._add_problem(mistake)

    def group_by(
        self, source: str, fields: Fields | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> AggregateDeclarer:
        """Keep one value per distinct value of ``fields``, in tuples from ``source``, which is set
        before. Equal values from several sources are one key."""
        try:
            names = tuple(Fields(fields))
        except (TypeError, ValueError) as error:
            self._declarer._add_problem(
                f"group_by on {source!r}: {error}. Name fields of that stream: Fields('word')"
            )
            return self
        if not names:
            self._declarer._add_problem(
                f"group_by on {source!r} names no field. Name at least one, or use of_all"
            )
        return self._add(source, stream, aggregate.KeyOf(names), names)

    def of_all(
        self, source: str, key: str = aggregate.ALL, stream: str = DEFAULT_STREAM
    ) -> AggregateDeclarer:
        """Keep one value for all tuples from ``source``, which is set before. The store has the
        value under ``key``."""
        return self._add(source, stream, aggregate.KeyOf(constant=(key,)), ("key",))

    def add_configuration(self, key: str, value: Any) -> AggregateDeclarer:
        """Set ``key`` in the ``conf`` that the committer's tasks receive."""
        self._declarer.add_configuration(key, value)
        return self

    def _add(
        self, source: str, stream: str, key_of: aggregate.KeyOf, names: tuple[str, ...]
    ) -> AggregateDeclarer:
        committer = self._committer
        committer.names = committer.names or names
        if len(committer.names) != len(names):
            self._declarer._add_problem(
                f"its keys have the fields {', '.join(committer.names)}, but on {source!r} {', '.join(names)}. Name as many fields"
            )
        elif isinstance(committer, aggregate.ReducingCommitter):
            committer.key_of[source, stream] = key_of
            if key_of.constant is not None:
                self._declarer.global_grouping(source, stream)
            else:
                self._declarer.fields_grouping(source, names, stream)
        elif isinstance(self._what, aggregator.CombinerAggregator):
            # As many tasks as the source has, so that a tuple stays in the process that made it.
            id = f"{self._id}-of-{source}" + ("" if stream == DEFAULT_STREAM else f"-{stream}")
            tasks = self._builder.parallelism_of(source) or self._parallelism
            self._builder.set_bolt(
                id, aggregate.PartialAggregate(self._what, key_of, committer.names), tasks
            ).none_grouping(source, stream)
            self._declarer.fields_grouping(id, committer.names)
        return self


def _mistakes(candidate: Any, store: Any) -> Iterator[str]:
    if not isinstance(candidate, aggregator.CombinerAggregator | aggregator.ReducerAggregator):
        yield f"{candidate!r} aggregates nothing. Give Count(), Sum('field'), or your own CombinerAggregator or ReducerAggregator"
    if not hasattr(store, "transaction"):
        yield f"{store!r} is no store. Give a store from txtopo.stores"
    elif getattr(store, "plain", False):
        yield f"{store!r} keeps plain values, which are set and not updated. Give a transactional or an opaque store"
