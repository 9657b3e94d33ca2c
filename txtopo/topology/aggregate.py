"""Keyed aggregates: a committer that keeps one value per key in a store, and bolts before it that
combine, so that few tuples travel.

::

    source ×n ──none──► partial ×n ──fields(key)──► aggregate ×m (committer)

Each task of the source combines its own tuples; only one value per key and task goes through the
shuffle. Made by ``TransactionalTopologyBuilder.set_aggregate`` (Trident: ``persistentAggregate``).
Apart from ``aggregator``, which has the arithmetic, and from the stores: this module knows a store
by the methods that it calls. Standard library only.

Invariants: the emitted tuples, and their order, depend on the tuples and their order alone (R17),
and on replay on the first applied result (R28).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from txtopo import errors
from txtopo.topology import aggregator, bolt, merge
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer, Tuple, with_attempt
from txtopo.topology.transaction import TransactionAttempt

COMBINED_KEYS_MAX = 100_000
"""The number of keys that a task combines before it sends them on: a bound on its memory, not on
the number of keys."""

ALL = "all"
"""The key of an aggregate that is not grouped."""


@dataclasses.dataclass(frozen=True)
class KeyOf:
    """The key of a tuple: the values of ``names``, or, where all tuples belong together,
    ``constant``."""

    names: tuple[str, ...] = ()
    constant: tuple[Any, ...] | None = None

    def reader(self, fields: Fields) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        """A function that takes the key out of the values of tuples with these ``fields``; it
        pickles."""
        if self.constant is not None:
            return functools.partial(_constant, self.constant)
        at = [fields.index(name) for name in self.names]
        if 0 in at:
            raise errors.UsageError(
                f"group_by names {fields[0]!r}, the attempt\n  Name fields behind it: the attempt is another one in each replay."
            )
        return (
            operator.itemgetter(slice(at[0], at[0] + 1))
            if len(at) == 1
            else operator.itemgetter(*at)
        )


def _constant(key: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    return key


def hashable(value: Any) -> Any:
    """``value`` with tuples for its lists: to a fields grouping they are the same key, too."""
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value


class PartialAggregate(bolt.BaseBatchBolt):
    """Combines the tuples of one task of the source by key; emits one value per key."""

    def __init__(
        self, combiner: aggregator.CombinerAggregator, key_of: KeyOf, names: Sequence[str]
    ) -> None:
        self.combiner, self.key_of, self.names = combiner, key_of, tuple(names)
        self.input_fields = Fields(dict.fromkeys([*key_of.names, *combiner.fields]))

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: bolt.BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt
        self.combined: dict[Any, Any] = {}
        self.read: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None

    def execute(self, tup: Tuple) -> None:
        read = self.read
        if read is None:
            read = self.read = self.key_of.reader(tup.fields)
        key, one, combined = read(tup.values), self.combiner.init(tup), self.combined
        if type(one) is not int:
            aggregator.checked(self.combiner, one, tup)
        try:
            if key in combined:
                combined[key] = self.combiner.combine(combined[key], one)
                return
        except TypeError:
            key = hashable(key)
        self.add(key, one)

    def add(self, key: tuple[Any, ...], one: Any) -> None:
        """Combine ``one`` with the value of the key, in this portion or in a new one."""
        combined = self.combined
        if key in combined:
            combined[key] = self.combiner.combine(combined[key], one)
            return
        if len(combined) >= COMBINED_KEYS_MAX:
            self.send()
        self.combined[key] = one

    def finish_batch(self) -> None:
        self.send()

    def send(self) -> None:
        """Emit the combined values, and begin an empty portion."""
        combined, self.combined = self.combined, {}
        for value in combined.values():
            if type(value) is not int:
                aggregator.checked(self.combiner, value)
        self.collector.emit_all([self.attempt, *key, value] for key, value in combined.items())

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(with_attempt(self.names, "partial"))


MERGES: dict[type, merge.Merge] = {
    aggregator.Count: merge.ADD,
    aggregator.Sum: merge.ADD,
    aggregator.Min: merge.MIN,
    aggregator.Max: merge.MAX,
}
"""Merges that a database can do by itself. Not of subclasses, which may combine otherwise."""


class KeyedCommitter(bolt.BaseTransactionalBolt, bolt.ICommitter):
    """One transaction of the store, and downstream its effect on each key: the key, its value
    before and its value now."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.is_heard = True
        """Whether a component is downstream; if not, no tuple is emitted, and the store need not
        return the updates."""
        self.names: tuple[str, ...] = ()
        """The fields of the key, in emitted tuples."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: bolt.BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.deltas: dict[tuple[Any, ...], Any] = {}

    def finish_batch(self) -> None:
        by_key = {_key_in_store(key): delta for key, delta in self.deltas.items()}
        # Also without anything to write: opening tells the store that the writes of an earlier
        # attempt are void (R31).
        with self.store.transaction(self.context, self.attempt) as transaction:
            if not self.is_heard:
                transaction.merge_many(by_key, self.merge or self.applied)
                return
            updates = transaction.update_many(by_key, self.applied).values()
        self.collector.emit_all(
            [self.attempt, *key, update.prev, update.curr]
            for key, update in zip(self.deltas, updates, strict=True)
        )

    merge: merge.Merge | None = None
    """Does the same as :meth:`applied`, in a database."""

    def applied(self, value: Any, delta: Any) -> Any:
        """The value of a key, None if it has none, after this batch's part."""
        raise NotImplementedError

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(with_attempt(self.names, "prev", "curr"))


def _key_in_store(key: tuple[Any, ...]) -> Any:
    """Of one field its value; within a tuple if the value is None, which is no key of a store, or
    would be mistaken for None."""
    inner = key
    while isinstance(inner, tuple) and len(inner) == 1:
        inner = inner[0]
    return key if len(key) > 1 or inner is None else key[0]


class CombiningCommitter(KeyedCommitter):
    """Combines the values of the partial aggregates with the values in the store."""

    def __init__(self, combiner: aggregator.CombinerAggregator, store: Any) -> None:
        super().__init__(store)
        self.combiner = combiner
        self.merge = MERGES.get(type(combiner))

    def execute(self, tup: Tuple) -> None:
        values, deltas = tup.values, self.deltas
        key, part = values[1:-1], values[-1]
        deltas[key] = self.combiner.combine(deltas[key], part) if key in deltas else part

    def applied(self, value: Any, delta: Any) -> Any:
        return delta if value is None else self.combiner.combine(value, delta)


class ReducingCommitter(KeyedCommitter):
    """Keeps the tuples of each key until the commit, and reduces them onto the value in the
    store."""

    def __init__(self, reducer: aggregator.ReducerAggregator, store: Any) -> None:
        super().__init__(store)
        self.reducer, self.input_fields = reducer, Fields(reducer.fields)
        self.key_of: dict[tuple[str, str], KeyOf] = {}
        """By source and stream."""

    def execute(self, tup: Tuple) -> None:
        read = self.key_of[tup.source_component, tup.source_stream_id].reader(tup.fields)
        self.deltas.setdefault(hashable(read(tup.values)), []).append(tup)

    def applied(self, value: Any, delta: Any) -> Any:
        for tup in delta:
            value = aggregator.checked(
                self.reducer,
                self.reducer.reduce(self.reducer.init() if value is None else value, tup),
                tup,
            )
        return value
