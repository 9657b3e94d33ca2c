"""Keyed aggregates: a committer that keeps one value per key in a store, and bolts before the
committer that combine tuples, so that few travel.

::

    source ×n ──none──► partial ×n ──fields(key)──► aggregate ×m (committer)

Each source task combines its own tuples. Only one value per key and task goes through the
shuffle. ``TransactionalTopologyBuilder.set_aggregate`` makes these bolts (Trident:
``persistentAggregate``). Any object with the methods called here is a store. Standard library only.

Invariants: the emitted tuples and their order depend only on the tuples and their order (R17), and
on replay on the first applied result (R28).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from txtopo import errors
from txtopo.topology import aggregator, bolt, grouping, merge
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer, Tuple, with_attempt
from txtopo.topology.transaction import TransactionAttempt

COMBINED_KEYS_MAX = 100_000
"""How many keys a task combines before it sends them on. Bounds the task's memory, not the number
of keys."""

ALL = "all"
"""The default key of an aggregate without groups."""


@dataclasses.dataclass(frozen=True)
class KeyOf:
    """A tuple's key: the values of ``names``, or ``constant`` where all tuples belong together."""

    names: tuple[str, ...] = ()
    constant: tuple[Any, ...] | None = None

    def reader(self, fields: Fields) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        """A function that takes the key from a tuple's values, for tuples with these ``fields``.
        The function can be pickled."""
        if self.constant is not None:
            return functools.partial(_constant, self.constant)
        at = [fields.index(name) for name in self.names]
        return (
            operator.itemgetter(slice(at[0], at[0] + 1))
            if len(at) == 1
            else operator.itemgetter(*at)
        )


def key_names(component: object, source: str, stream: str) -> tuple[str, ...]:
    """The fields of ``stream`` that are a key for ``component``; none if it is no aggregate."""
    if isinstance(component, PartialAggregate):
        return component.key_of.names
    if isinstance(component, ReducingCommitter):
        return component.key_of[source, stream].names
    return ()


def _constant(key: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    return key


def key_as_stored(key: tuple[Any, ...], tup: Tuple) -> tuple[Any, ...]:
    """The ``key`` of ``tup`` as a store keeps it: tuples for lists, and plain values for subclasses.
    A store has no 1.0 and no True, which Python takes for 1, and no enum, which a fields grouping
    sends to another task than its value: they are refused, whether or not 1 came before."""
    for part in key:
        if type(part) is not str and type(part) is not int:
            break
    else:
        return key
    try:
        return tuple(_as_stored(part, tup) for part in key)
    except RecursionError:
        grouping.encode_key(key)  # refuses a list that contains itself
        raise


def _as_stored(part: Any, tup: Tuple) -> Any:
    if isinstance(part, list | tuple):
        return tuple(_as_stored(item, tup) for item in part)
    if part is None:
        return None
    if isinstance(part, str) and not isinstance(part, enum.Enum):
        return str.__str__(part)
    if isinstance(part, int) and not isinstance(part, bool | enum.Enum):
        return int.__int__(part)
    raise errors.UsageError(
        f"a store key cannot hold {part!r:.300} of type {type(part).__name__}, from the tuple {tup.values[1:]!r:.300} of {tup.source_component!r}\n"
        "  A key is a str, an int, or a tuple of these and of None. Use str(...) or int(...), and for an enum its value."
    )


class PartialAggregate(bolt.BaseBatchBolt):
    """Combines a source task's tuples by key, and emits one value per key."""

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
        for part in key:  # not by key_as_stored: a call for each tuple takes as long as the rest
            if type(part) is not str and type(part) is not int:
                key = key_as_stored(key, tup)
                break
        if type(one) is not int:
            aggregator.checked(self.combiner, one, tup)
        if key in combined:
            combined[key] = self.combiner.combine(combined[key], one)
            return
        if len(combined) >= COMBINED_KEYS_MAX:
            self.send()
        self.combined[key] = one

    def finish_batch(self) -> None:
        self.send()

    def send(self) -> None:
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
"""Merges that a database can make. Subclasses have none, because they may combine otherwise."""


class KeyedCommitter(bolt.BaseTransactionalBolt, bolt.ICommitter):
    """Updates the store in one transaction, and emits the effect on each key: the key, the value
    before and the value now."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.is_heard = True
        """Whether a component is downstream. If not, no tuple is emitted, and the store need not
        return the updates."""
        self.names: tuple[str, ...] = ()
        """The key's fields in emitted tuples."""

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
        # Open the store also with nothing to write: opening voids an earlier attempt's writes (R31).
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
    """The same as :meth:`applied`, made by a database."""

    def applied(self, value: Any, delta: Any) -> Any:
        """The key's value after this batch. ``value`` is None if the key has none."""
        raise NotImplementedError

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(with_attempt(self.names, "prev", "curr"))


def _key_in_store(key: tuple[Any, ...]) -> Any:
    """The key as the store has it. A key with one field becomes the field's value. A key of None,
    or of a tuple around None, keeps its outer tuple: None is no key of a store, and the inner tuple
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
    """Keeps each key's tuples until the commit, and reduces them onto the value in the store."""

    def __init__(self, reducer: aggregator.ReducerAggregator, store: Any) -> None:
        super().__init__(store)
        self.reducer, self.input_fields = reducer, Fields(reducer.fields)
        self.key_of: dict[tuple[str, str], KeyOf] = {}
        """By source and stream."""

    def execute(self, tup: Tuple) -> None:
        read = self.key_of[tup.source_component, tup.source_stream_id].reader(tup.fields)
        self.deltas.setdefault(key_as_stored(read(tup.values), tup), []).append(tup)

    def applied(self, value: Any, delta: Any) -> Any:
        for tup in delta:
            value = aggregator.checked(
                self.reducer,
                self.reducer.reduce(self.reducer.init() if value is None else value, tup),
                tup,
            )
        return value
