"""The builder: from spouts and bolts to a valid graph.

Nothing here raises before ``build_topology``, which reports every mistake at once: a user mends a
topology in one go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from txtopo import errors
from txtopo.topology import aggregate, aggregator, arrow, destination, pickling, soundness, spout, unpicklable
from txtopo.topology import bolt as bolts
from txtopo.topology.graph import Component, ComponentKind, SpoutKind, Subscription, TopologyGraph
from txtopo.topology.grouping import CustomGrouping, Grouping, GroupingKind
from txtopo.topology.spout import ICommitterTransactionalSpout
from txtopo.topology.stream import DEFAULT_STREAM, Fields, OutputFieldsDeclarer, StreamSpec

_FORBIDDEN_IN_IDS = "/\\\0\n\r\t:"


@dataclass(eq=False)
class _Draft:
    id: str
    instance: Any
    parallelism: Any
    committer: bool
    subscriptions: list[Subscription] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class SpoutDeclarer:
    """Configures the spout: its coordinator and its emitters."""

    def __init__(self, draft: _Draft) -> None:
        self._draft = draft

    def add_configuration(self, key: str, value: Any) -> SpoutDeclarer:
        """Set ``key`` for the spout alone."""
        self._draft.config[key] = value
        return self


class BoltDeclarer:
    """Says what a bolt listens to. Every method returns the declarer, so that calls chain."""

    def __init__(self, draft: _Draft) -> None:
        self._draft = draft

    def _add(
        self, kind: GroupingKind, component: str, stream: str, fields: Fields | None = None, custom: CustomGrouping | None = None
    ) -> BoltDeclarer:
        given: list[tuple[str, Any]] = [("component", component), ("stream", stream)]
        for what, id in given:
            if not isinstance(id, str):
                self._draft.problems.append(f"bolt {self._draft.id!r}: {kind} grouping on {id!r}; name the {what} by its id, a string")
                return self
        self._draft.subscriptions.append(Subscription(component, stream, Grouping(kind, fields, custom)))
        return self

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples are spread evenly over the tasks: equal counts, give or take one per sending task.
        """
        return self._add("shuffle", component, stream)

    def fields_grouping(self, component: str, fields: Fields | Sequence[str], stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples with equal values of ``fields`` go to the same task."""
        return self._add_keyed("fields", component, stream, fields)

    def _add_keyed(self, kind: GroupingKind, component: str, stream: str, fields: Fields | Sequence[str]) -> BoltDeclarer:
        try:
            return self._add(kind, component, stream, fields if isinstance(fields, Fields) else Fields(fields))
        except (ValueError, TypeError) as error:
            where = f"bolt {self._draft.id!r}: {kind} grouping on {component!r}"
            self._draft.problems.append(f"{where}: {error}; name fields of that stream: Fields('word')")
            return self._add("global", component, stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Every tuple goes to task 0."""
        return self._add("global", component, stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Every tuple goes to every task."""
        return self._add("all", component, stream)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples go where it is cheapest: mostly into the next task of the same process."""
        return self._add("none", component, stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """The sender names the task, with ``emit_direct``; ``stream`` is declared with
        ``direct=True``."""
        return self._add("direct", component, stream)

    def partial_key_grouping(self, component: str, fields: Fields | Sequence[str], stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples with equal values of ``fields`` go to one of two tasks, the one that the sender
        has sent less to: spreads frequent keys."""
        return self._add_keyed("partial_key", component, stream, fields)

    def custom_grouping(self, component: str, grouping: CustomGrouping, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """``grouping.choose_tasks(task_index, values)`` names the tasks of every tuple."""
        where = f"bolt {self._draft.id!r}: custom grouping on {component!r}"
        if not isinstance(grouping, CustomGrouping) or isinstance(grouping, type):
            self._draft.problems.append(f"{where}: {_describe(grouping)} has no method choose_tasks(task_index, values)")
            return self
        return self._add("custom", component, stream, custom=grouping)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples stay in the sender's process where it has a task of this bolt."""
        return self._add("local_or_shuffle", component, stream)

    def _add_problem(self, problem: str) -> BoltDeclarer:
        """Have ``build_topology`` refuse this bolt; for what declares bolts by itself."""
        self._draft.problems.append(f"bolt {self._draft.id!r}: {problem}")
        return self

    def add_configuration(self, key: str, value: Any) -> BoltDeclarer:
        """Set ``key`` in the ``conf`` this bolt's tasks receive."""
        self._draft.config[key] = value
        return self


class TransactionalTopologyBuilder:
    """Builds a topology with one spout and any number of bolts (Storm:
    ``TransactionalTopologyBuilder``).

    ``topology_id`` is what the state in ZooKeeper is kept under, for ever: not the name it runs
    under.
    """

    def __init__(self, topology_id: str, spout_id: str, spout: Any, parallelism: int = 1) -> None:
        self._id = topology_id
        self._spout = _Draft(spout_id, spout, parallelism, committer=isinstance(spout, ICommitterTransactionalSpout))
        self._bolts: list[_Draft] = []

    def set_spout(self, id: str, spout: Any, parallelism: int = 1) -> SpoutDeclarer:
        """Have ``build_topology`` refuse this: the one spout of a topology is given to the
        constructor."""
        cure = f"give it to the constructor: TransactionalTopologyBuilder({self._id!r}, {id!r}, spout, {parallelism!r})"
        self._spout.problems.append(f"spout {id!r}: a topology has one spout, and there is no set_spout; {cure}")
        return SpoutDeclarer(_Draft(id, spout, parallelism, committer=False))

    def get_spout_declarer(self) -> SpoutDeclarer:
        """Where the spout is configured."""
        return SpoutDeclarer(self._spout)

    def set_bolt(self, id: str, bolt: Any, parallelism: int = 1) -> BoltDeclarer:
        """Add ``bolt``; it is a committer if it is an ``ICommitter``. The instance is a template:
        every attempt gets a fresh copy."""
        return self._set(id, bolt, parallelism, isinstance(bolt, bolts.ICommitter))

    def set_committer_bolt(self, id: str, bolt: Any, parallelism: int = 1) -> BoltDeclarer:
        """Add ``bolt`` as a committer, marked or not."""
        return self._set(id, bolt, parallelism, True)

    def set_aggregate(self, id: str, what: aggregator.Aggregator, store: Any, parallelism: int = 1) -> aggregate.AggregateDeclarer:
        """Add a committer that keeps ``what`` per key in ``store`` (``Count()``, say), and before
        it bolts that combine where tuples are made.

        For every key that a batch has changed it emits the key, its value before (None if it had
        none), and its value now: the fields of the key, ``prev`` and ``curr``.
        """
        return aggregate.AggregateDeclarer(self, id, what, store, parallelism)

    def parallelism_of(self, id: str) -> int | None:
        """The number of tasks of a component that was set before; None if none was, or not with a
        number."""
        found = next((draft.parallelism for draft in (self._spout, *self._bolts) if draft.id == id), None)
        return found if isinstance(found, int) else None

    def _set(self, id: str, bolt: Any, parallelism: int, committer: bool) -> BoltDeclarer:
        draft = _Draft(id, bolt, parallelism, committer)
        self._bolts.append(draft)
        return BoltDeclarer(draft)

    def build_topology(self) -> TopologyGraph:
        """The topology, immutable and valid; :class:`InvalidTopologyError` listing every mistake
        otherwise."""
        return _Build(self._id, self._spout, self._bolts).topology()


class _Build:
    """One call of ``build_topology``: collects problems, then either raises them all or returns the
    graph."""

    def __init__(self, topology_id: str, spout: _Draft, bolts: list[_Draft]) -> None:
        self.topology_id, self.spout, self.bolts = topology_id, spout, bolts
        self.drafts = [spout, *bolts]
        self.problems: list[str] = []
        self.outputs: dict[str, Mapping[str, StreamSpec] | None] = {}
        """What each component declares; ``None`` where its own mistake keeps us from knowing."""
        self.configs: dict[_Draft, dict[str, Any]] = {}
        self.inputs: dict[_Draft, tuple[Subscription, ...]] = {spout: ()}

    def topology(self) -> TopologyGraph:
        self.check_ids()
        self.check_pyarrow()
        kinds = {draft: self.kind_of(draft) for draft in self.drafts}
        for draft in self.drafts:
            self.problems.extend(draft.problems)
            self.check_parallelism(draft)
        heard = {subscription.source for draft in self.bolts for subscription in draft.subscriptions}
        for draft in self.bolts:
            if isinstance(draft.instance, aggregate.KeyedCommitter):
                draft.instance.is_heard = draft.id in heard
        searches = {draft: destination.Search() for draft in self.drafts}
        templates = {draft: self.pickle(draft, searches[draft]) for draft in self.drafts if kinds[draft] is not None}
        for draft in self.drafts:
            self.inspect(draft, templates.get(draft, (b"", ()))[0])
        for draft in self.bolts:
            self.check_subscriptions(draft)
        order = self.topological_order()
        writes = {draft: searches[draft].writes(draft.instance) for draft in self.drafts}
        self.problems.extend(f"component {draft.id!r}: {problem}" for draft in self.drafts for problem in searches[draft].problems)
        self.check_writes(writes, (kinds[self.spout] or (None, None))[1])
        self.raise_problems()
        by_value: list[type] = []
        components: dict[str, Component] = {}
        local_only: list[tuple[str, str]] = []
        for draft in order:
            data, classes = templates[draft]
            by_value.extend(cls for cls in classes if cls not in by_value)
            kind, spout_kind = kinds[draft] or ("batch", None)
            local_only.extend((draft.id, reason) for reason in searches[draft].local_only)
            components[draft.id] = Component(
                draft.id, kind, draft.parallelism, data, self.outputs[draft.id] or {}, self.inputs[draft],
                draft.committer, spout_kind, self.configs[draft], type(draft.instance).__qualname__,
                arrow.takes_columns(draft.instance), arrow.emits_columns(draft.instance), writes[draft],
            )  # fmt: skip
        return TopologyGraph(self.topology_id, components, tuple(by_value), tuple(local_only))

    def raise_problems(self) -> None:
        if self.problems:
            raise errors.InvalidTopologyError(str(self.topology_id), tuple(self.problems))

    def check_ids(self) -> None:
        for what, id in [("topology id", self.topology_id), *(("component id", draft.id) for draft in self.drafts)]:
            if not isinstance(id, str) or not id.strip():
                self.problems.append(f"{what} {id!r}: an id is a non-empty string")
            elif id != id.strip():
                # To some databases they are the same as without.
                self.problems.append(f"{what} {id!r}: an id neither begins nor ends with white space; remove it")
            elif id.startswith("__"):
                self.problems.append(f"{what} {id!r}: ids that begin with __ are reserved; choose another")
            elif any(character in id for character in _FORBIDDEN_IN_IDS) or id in (".", ".."):
                self.problems.append(f"{what} {id!r}: an id may not be . or .. or contain / \\ : or control characters")
        seen: set[str] = set()
        for draft in self.drafts:
            if isinstance(draft.id, str) and draft.id in seen:
                self.problems.append(f"component {draft.id!r} is set twice; give each spout and bolt an id of its own")
            if isinstance(draft.id, str):
                seen.add(draft.id)

    def check_pyarrow(self) -> None:
        """What takes or emits columns cannot run without pyarrow: no mistake of the topology's, so
        it is an error of its own."""
        for draft in self.drafts:
            if arrow.takes_columns(draft.instance) or arrow.emits_columns(draft.instance):
                arrow.require_pyarrow(f"component {draft.id!r} ({type(draft.instance).__name__})")

    def kind_of(self, draft: _Draft) -> tuple[ComponentKind, SpoutKind | None] | None:
        instance = draft.instance
        if draft is self.spout:
            if isinstance(instance, spout.IPartitionedTransactionalSpout):
                return "spout", "partitioned"
            if isinstance(instance, spout.IOpaquePartitionedTransactionalSpout):
                return "spout", "opaque"
            if isinstance(instance, spout.ITransactionalSpout):
                return "spout", "transactional"
            self.problems.append(
                f"spout {draft.id!r}: {_describe(instance)} is not a transactional spout;"
                " subclass BaseTransactionalSpout, BasePartitionedTransactionalSpout or BaseOpaquePartitionedTransactionalSpout"
            )
        elif isinstance(instance, bolts.IBasicBolt):
            if draft.committer:
                self.problems.append(
                    f"bolt {draft.id!r}: a basic bolt cannot be a committer, it has no batch to commit; subclass BaseTransactionalBolt"
                )
            return "basic", None
        elif isinstance(instance, bolts.IBatchBolt):
            return "batch", None
        else:
            self.problems.append(
                f"bolt {draft.id!r}: {_describe(instance)} is not a bolt; pass an instance of a subclass of BaseBatchBolt or BaseBasicBolt"
            )
        return None

    def check_parallelism(self, draft: _Draft) -> None:
        if not isinstance(draft.parallelism, int) or isinstance(draft.parallelism, bool) or draft.parallelism < 1:
            self.problems.append(f"component {draft.id!r}: parallelism is {draft.parallelism!r}; it is a whole number of at least 1")

    def pickle(self, draft: _Draft, search: destination.Search) -> tuple[bytes, tuple[type, ...]]:
        try:
            data, classes = pickling.dumps_with_classes(draft.instance, search.visit)
            pickling.loads(data)
            return data, classes
        except Exception as error:
            cure = "every attempt gets a copy, so keep only plain data in the constructor and open connections with context.resource(name, factory)"
            self.problems.append(f"component {draft.id!r}: {unpicklable.problem(draft.instance, error, _copied, cure)}")
            return b"", ()

    def inspect(self, draft: _Draft, template: bytes) -> None:
        """Ask a copy of the component what it declares and how it is configured."""
        streams: Mapping[str, StreamSpec] | None = None
        if template:
            copy = pickling.loads(template)
            declarer = OutputFieldsDeclarer()
            try:
                copy.declare_output_fields(declarer)
                streams = declarer.streams
            except Exception as error:
                self.problems.append(f"component {draft.id!r}: declaring its streams failed: {type(error).__name__}: {error}")
            self.configs[draft] = self.configuration(draft, copy)
        if isinstance(draft.id, str):
            self.outputs.setdefault(draft.id, streams)

    def configuration(self, draft: _Draft, copy: Any) -> dict[str, Any]:
        """The component's own settings under those of its declarer, copied as they will be on their
        way to the executors."""
        try:
            merged = {**(copy.get_component_configuration() or {}), **draft.config}
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self.problems.append(f"component {draft.id!r}: get_component_configuration failed: {what}; it returns a dict or None")
            return {}
        config: dict[str, Any] = {}
        for key, value in merged.items():
            try:
                config[key] = _copied(value)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                self.problems.append(f"component {draft.id!r}: its setting {key!r} cannot be pickled ({what}); settings are plain data")
        return config

    def check_subscriptions(self, draft: _Draft) -> None:
        if not draft.subscriptions and not draft.problems:
            self.problems.append(f"bolt {draft.id!r} listens to nobody; add a grouping, for example .shuffle_grouping({self.spout.id!r})")
        self.inputs[draft] = tuple(self.copied_subscription(draft, subscription) for subscription in draft.subscriptions)
        seen: set[tuple[str, str]] = set()
        for subscription in draft.subscriptions:
            if (subscription.source, subscription.stream) in seen:
                what = f"stream {subscription.stream!r} of {subscription.source!r}"
                self.problems.append(f"bolt {draft.id!r} listens twice to {what}; keep one grouping")
            seen.add((subscription.source, subscription.stream))
            self.check_subscription(draft, subscription)

    def copied_subscription(self, draft: _Draft, subscription: Subscription) -> Subscription:
        """``subscription`` with a copy of its custom grouping, which the user may go on changing.
        """
        custom = subscription.grouping.custom
        if custom is None:
            return subscription
        try:
            return Subscription(subscription.source, subscription.stream, Grouping("custom", custom=_copied(custom)))
        except Exception as error:
            where = f"bolt {draft.id!r}: custom grouping on {subscription.source!r}"
            cure = "every sender gets a copy, so keep only plain data in it"
            self.problems.append(f"{where}: {unpicklable.problem(custom, error, _copied, cure)}")
            return subscription

    def check_subscription(self, draft: _Draft, subscription: Subscription) -> None:
        where = f"bolt {draft.id!r}: {subscription.grouping.kind} grouping"
        if subscription.source not in self.outputs:
            self.problems.append(f"{where} on unknown component {subscription.source!r}{_nearest(subscription.source, self.outputs)}")
            return
        streams = self.outputs[subscription.source]
        if streams is None:
            return
        if subscription.stream not in streams:
            declared = ", ".join(map(repr, streams)) or "no stream; it needs declare_output_fields"
            close = get_close_matches(subscription.stream, streams, n=1)
            cure = f"; did you mean {close[0]!r}?" if close else ""
            self.problems.append(f"{where} on stream {subscription.stream!r}, but {subscription.source!r} declares {declared}{cure}")
            return
        spec = streams[subscription.stream]
        if spec.direct and subscription.grouping.kind != "direct":
            what = f"stream {subscription.stream!r} of {subscription.source!r}"
            self.problems.append(f"{where} on {what}, which is a direct stream; use a direct grouping")
        if subscription.grouping.kind == "direct" and not spec.direct:
            self.problems.append(
                f"{where} on stream {subscription.stream!r} of {subscription.source!r}, which is not a direct stream; declare it with direct=True"
            )
        for name in getattr(draft.instance, "input_fields", None) or ():
            if name not in spec.fields:
                what = f"stream {subscription.stream!r} of {subscription.source!r} has {', '.join(spec.fields)}{_nearest(name, spec.fields)}"
                self.problems.append(f"bolt {draft.id!r} needs the field {name!r}, but {what}")
        if subscription.grouping.fields is not None:
            if not len(subscription.grouping.fields):
                self.problems.append(f"{where} on {subscription.source!r} names no field; name at least one, or use global_grouping")
            for name in subscription.grouping.fields:
                if name not in spec.fields:
                    self.problems.append(
                        f"{where} on field {name!r}, but stream {subscription.stream!r} of {subscription.source!r}"
                        f" has {', '.join(spec.fields)}{_nearest(name, spec.fields)}"
                    )

    def check_writes(self, writes: Mapping[_Draft, destination.Writes], spout_kind: SpoutKind | None) -> None:
        named = [draft for draft in self.drafts if isinstance(draft.id, str)]
        sources = {draft.id: [subscription.source for subscription in draft.subscriptions] for draft in named}
        held = soundness.held(sources, [draft.id for draft in named if draft.committer], self.spout.id)
        for draft in named:
            if draft.id in held and isinstance(draft.parallelism, int):
                what = (draft.id, draft.parallelism, draft.subscriptions, writes[draft], self.spout.id, spout_kind)
                self.problems.extend(soundness.problems(*what))
        self.problems.extend(soundness.mixed({draft.id: writes[draft] for draft in named}))
        self.problems.extend(soundness.rivals({draft.id: writes[draft] for draft in named if draft.id in held}))

    def topological_order(self) -> list[_Draft]:
        """Kahn's algorithm, always taking the first declared of the components that are free, so
        that the order is stable."""
        waiting = {draft: {s.source for s in draft.subscriptions if s.source in self.outputs} for draft in self.drafts}
        order: list[_Draft] = []
        left = list(self.drafts)
        while left:
            free = next((draft for draft in left if not waiting[draft]), None)
            if free is None:
                edges = {draft.id: waiting[draft] for draft in left}
                members = ", ".join(repr(draft.id) for draft in left if _on_cycle(draft.id, edges))
                self.problems.append(f"a cycle among {members}; a batch must end, so tuples may not go round")
                break
            order.append(free)
            left.remove(free)
            for sources in waiting.values():
                sources.discard(free.id)
        return order


def _on_cycle(id: str, waiting: Mapping[str, set[str]]) -> bool:
    reached: set[str] = set()
    frontier = set(waiting[id])
    while frontier:
        reached |= frontier
        frontier = {source for node in frontier for source in waiting.get(node, ())} - reached
    return id in reached


def _nearest(name: str, names: Any) -> str:
    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(map(repr, names))}"


def _describe(instance: Any) -> str:
    return f"the class {instance.__name__}" if isinstance(instance, type) else f"a {type(instance).__name__}"


def _copied(value: Any) -> Any:
    return pickling.loads(pickling.dumps(value))


__all__ = ["BoltDeclarer", "SpoutDeclarer", "TransactionalTopologyBuilder"]
