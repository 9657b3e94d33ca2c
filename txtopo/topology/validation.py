"""Validation: turns a builder's drafts into a valid graph, or reports all mistakes at once."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from txtopo import errors
from txtopo.topology import aggregate, arrow, destination, pickling, soundness, spout, unpicklable
from txtopo.topology import bolt as bolts
from txtopo.topology.declarers import Draft, describe
from txtopo.topology.graph import Component, ComponentKind, SpoutKind, Subscription, TopologyGraph
from txtopo.topology.grouping import Grouping
from txtopo.topology.stream import OutputFieldsDeclarer, StreamSpec

_FORBIDDEN_IN_IDS = "/\\\0\n\r\t:"


class Build:
    """One call of ``build_topology``: collects problems, then raises all of them or returns the
    graph."""

    def __init__(self, topology_id: str, spout: Draft, bolts: list[Draft]) -> None:
        self.topology_id, self.spout, self.bolts = topology_id, spout, bolts
        self.drafts = [spout, *bolts]
        self.problems: list[str] = []
        self.outputs: dict[str, Mapping[str, StreamSpec] | None] = {}
        """Each component's declared streams. ``None`` where the component's own mistake hides them."""
        self.configs: dict[Draft, dict[str, Any]] = {}
        self.inputs: dict[Draft, tuple[Subscription, ...]] = {spout: ()}

    def topology(self) -> TopologyGraph:
        self.check_ids()
        self.check_pyarrow()
        kinds = {draft: self.kind_of(draft) for draft in self.drafts}
        for draft in self.drafts:
            self.problems.extend(draft.problems)
            self.check_parallelism(draft)
        heard = {
            subscription.source for draft in self.bolts for subscription in draft.subscriptions
        }
        for draft in self.bolts:
            if isinstance(draft.instance, aggregate.KeyedCommitter):
                draft.instance.is_heard = draft.id in heard
        searches = {draft: destination.Search() for draft in self.drafts}
        templates = {
            draft: self.pickle(draft, searches[draft])
            for draft in self.drafts
            if kinds[draft] is not None
        }
        for draft in self.drafts:
            self.inspect(draft, templates.get(draft, (b"", ()))[0])
        for draft in self.bolts:
            self.check_subscriptions(draft)
        order = self.topological_order()
        writes = {draft: searches[draft].writes(draft.instance) for draft in self.drafts}
        self.problems.extend(
            f"component {draft.id!r}: {problem}"
            for draft in self.drafts
            for problem in searches[draft].problems
        )
        self.check_writes(writes, (kinds[self.spout] or (None, None))[1])
        if self.problems:
            raise errors.InvalidTopologyError(str(self.topology_id), tuple(self.problems))
        by_value: list[type] = []
        components: dict[str, Component] = {}
        local_only: list[tuple[str, str]] = []
        for draft in order:
            data, classes = templates[draft]
            by_value.extend(cls for cls in classes if cls not in by_value)
            kind, spout_kind = kinds[draft] or ("batch", None)
            local_only.extend((draft.id, reason) for reason in searches[draft].local_only)
            components[draft.id] = Component(
                draft.id,
                kind,
                draft.parallelism,
                data,
                self.outputs[draft.id] or {},
                self.inputs[draft],
                draft.committer,
                spout_kind,
                self.configs[draft],
                type(draft.instance).__qualname__,
                arrow.takes_columns(draft.instance),
                arrow.emits_columns(draft.instance),
                writes[draft],
            )
        return TopologyGraph(self.topology_id, components, tuple(by_value), tuple(local_only))

    def check_ids(self) -> None:
        for noun, id in [
            ("topology id", self.topology_id),
            *(("component id", draft.id) for draft in self.drafts),
        ]:
            if not isinstance(id, str) or not id.strip():
                self.problems.append(f"{noun} {id!r}: an id is a non-empty string")
            elif id != id.strip():
                # Some databases ignore white space at the end.
                self.problems.append(
                    f"{noun} {id!r}: an id neither begins nor ends with white space. Remove the white space"
                )
            elif id.startswith("__"):
                self.problems.append(
                    f"{noun} {id!r}: ids that begin with __ are reserved. Choose another id"
                )
            elif any(character in id for character in _FORBIDDEN_IN_IDS) or id in (".", ".."):
                self.problems.append(
                    f"{noun} {id!r}: an id may not be . or .. or contain / \\ : or control characters"
                )
        seen: set[str] = set()
        for draft in self.drafts:
            if isinstance(draft.id, str) and draft.id in seen:
                self.problems.append(
                    f"component {draft.id!r} is set twice. Give each spout and bolt its own id"
                )
            if isinstance(draft.id, str):
                seen.add(draft.id)

    def check_pyarrow(self) -> None:
        """Refuse components with columns where pyarrow is missing. The topology has no mistake, so
        this is a separate error."""
        for draft in self.drafts:
            if arrow.takes_columns(draft.instance) or arrow.emits_columns(draft.instance):
                arrow.require_pyarrow(f"component {draft.id!r} ({type(draft.instance).__name__})")

    def kind_of(self, draft: Draft) -> tuple[ComponentKind, SpoutKind | None] | None:
        instance = draft.instance
        if draft is self.spout:
            if isinstance(instance, spout.IPartitionedTransactionalSpout):
                return "spout", "partitioned"
            if isinstance(instance, spout.IOpaquePartitionedTransactionalSpout):
                return "spout", "opaque"
            if isinstance(instance, spout.ITransactionalSpout):
                return "spout", "transactional"
            self.problems.append(
                f"spout {draft.id!r}: {describe(instance)} is not a transactional spout."
                " Subclass BaseTransactionalSpout, BasePartitionedTransactionalSpout or BaseOpaquePartitionedTransactionalSpout"
            )
        elif isinstance(instance, bolts.IBasicBolt):
            if draft.committer:
                self.problems.append(
                    f"bolt {draft.id!r}: a basic bolt cannot be a committer, because it has no batch to commit. Subclass BaseTransactionalBolt"
                )
            return "basic", None
        elif isinstance(instance, bolts.IBatchBolt):
            return "batch", None
        else:
            self.problems.append(
                f"bolt {draft.id!r}: {describe(instance)} is not a bolt. Subclass BaseBatchBolt or BaseBasicBolt, and pass an instance"
            )
        return None

    def check_parallelism(self, draft: Draft) -> None:
        if (
            not isinstance(draft.parallelism, int)
            or isinstance(draft.parallelism, bool)
            or draft.parallelism < 1
        ):
            self.problems.append(
                f"component {draft.id!r}: parallelism is {draft.parallelism!r}. Give a whole number, at least 1"
            )

    def pickle(self, draft: Draft, search: destination.Search) -> tuple[bytes, tuple[type, ...]]:
        try:
            data, classes = pickling.dumps_with_classes(draft.instance, search.visit)
            pickling.loads(data)
            return data, classes
        except Exception as error:
            cure = "Every attempt gets a copy, so keep only plain data in the constructor and open connections with context.resource(name, factory)"
            self.problems.append(
                f"component {draft.id!r}: {unpicklable.problem(draft.instance, error, _copy, cure)}"
            )
            return b"", ()

    def inspect(self, draft: Draft, template: bytes) -> None:
        """Ask a copy of the component for its streams and its configuration."""
        streams: Mapping[str, StreamSpec] | None = None
        if template:
            copy = pickling.loads(template)
            declarer = OutputFieldsDeclarer()
            try:
                copy.declare_output_fields(declarer)
                streams = declarer.streams
            except Exception as error:
                self.problems.append(
                    f"component {draft.id!r}: declaring its streams failed: {type(error).__name__}: {error}"
                )
            self.configs[draft] = self.configuration(draft, copy)
        if isinstance(draft.id, str):
            self.outputs.setdefault(draft.id, streams)

    def configuration(self, draft: Draft, copy: Any) -> dict[str, Any]:
        """The component's own settings, overlaid by its declarer's, and copied as on their way to
        the executors."""
        try:
            merged = {**(copy.get_component_configuration() or {}), **draft.config}
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self.problems.append(
                f"component {draft.id!r}: get_component_configuration failed: {reason}. Return a dict or None"
            )
            return {}
        config: dict[str, Any] = {}
        for key, value in merged.items():
            try:
                config[key] = _copy(value)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                self.problems.append(
                    f"component {draft.id!r}: its setting {key!r} cannot be pickled ({reason}). Settings are plain data"
                )
        return config

    def check_subscriptions(self, draft: Draft) -> None:
        if not draft.subscriptions and not draft.problems:
            self.problems.append(
                f"bolt {draft.id!r} listens to no component. Add a grouping, for example .shuffle_grouping({self.spout.id!r})"
            )
        self.inputs[draft] = tuple(
            self.copied_subscription(draft, subscription) for subscription in draft.subscriptions
        )
        seen: set[tuple[str, str]] = set()
        for subscription in draft.subscriptions:
            if (subscription.source, subscription.stream) in seen:
                stream = f"stream {subscription.stream!r} of {subscription.source!r}"
                self.problems.append(
                    f"bolt {draft.id!r} listens twice to {stream}. Keep one grouping"
                )
            seen.add((subscription.source, subscription.stream))
            self.check_subscription(draft, subscription)

    def copied_subscription(self, draft: Draft, subscription: Subscription) -> Subscription:
        """``subscription`` with a copy of its custom grouping: the user may go on changing the
        original."""
        custom = subscription.grouping.custom
        if custom is None:
            return subscription
        try:
            return Subscription(
                subscription.source, subscription.stream, Grouping("custom", custom=_copy(custom))
            )
        except Exception as error:
            where = f"bolt {draft.id!r}: custom grouping on {subscription.source!r}"
            cure = "Every sender gets a copy, so keep only plain data in it"
            self.problems.append(f"{where}: {unpicklable.problem(custom, error, _copy, cure)}")
            return subscription

    def check_subscription(self, draft: Draft, subscription: Subscription) -> None:
        where = f"bolt {draft.id!r}: {subscription.grouping.kind} grouping"
        if subscription.source not in self.outputs:
            self.problems.append(
                f"{where} on unknown component {subscription.source!r}{_nearest(subscription.source, self.outputs)}"
            )
            return
        streams = self.outputs[subscription.source]
        if streams is None:
            return
        if subscription.stream not in streams:
            declared = ", ".join(map(repr, streams)) or "no stream. Define declare_output_fields"
            close = get_close_matches(subscription.stream, streams, n=1)
            cure = f"; did you mean {close[0]!r}?" if close else ""
            self.problems.append(
                f"{where} on stream {subscription.stream!r}, but {subscription.source!r} declares {declared}{cure}"
            )
            return
        spec = streams[subscription.stream]
        if spec.direct and subscription.grouping.kind != "direct":
            described = f"stream {subscription.stream!r} of {subscription.source!r}"
            self.problems.append(
                f"{where} on {described}, which is a direct stream. Use a direct grouping"
            )
        if subscription.grouping.kind == "direct" and not spec.direct:
            self.problems.append(
                f"{where} on stream {subscription.stream!r} of {subscription.source!r}, which is not a direct stream. Declare it with direct=True"
            )
        for name in getattr(draft.instance, "input_fields", None) or ():
            if name not in spec.fields:
                described = f"stream {subscription.stream!r} of {subscription.source!r} has {', '.join(spec.fields)}{_nearest(name, spec.fields)}"
                self.problems.append(f"bolt {draft.id!r} needs the field {name!r}, but {described}")
        keys = aggregate.key_names(draft.instance, subscription.source, subscription.stream)
        if spec.fields and spec.fields[0] in keys:
            self.problems.append(
                f"bolt {draft.id!r}: group_by on {subscription.source!r} names {spec.fields[0]!r}, the attempt."
                " Name fields after the attempt: each replay has a new attempt"
            )
        if subscription.grouping.fields is not None:
            if not len(subscription.grouping.fields):
                self.problems.append(
                    f"{where} on {subscription.source!r} names no field. Name at least one, or use global_grouping"
                )
            for name in subscription.grouping.fields:
                if name not in spec.fields:
                    self.problems.append(
                        f"{where} on field {name!r}, but stream {subscription.stream!r} of {subscription.source!r}"
                        f" has {', '.join(spec.fields)}{_nearest(name, spec.fields)}"
                    )

    def check_writes(
        self, writes: Mapping[Draft, destination.Writes], spout_kind: SpoutKind | None
    ) -> None:
        named = [draft for draft in self.drafts if isinstance(draft.id, str)]
        sources = {
            draft.id: [subscription.source for subscription in draft.subscriptions]
            for draft in named
        }
        held = soundness.held_components(
            sources, [draft.id for draft in named if draft.committer], self.spout.id
        )
        for draft in named:
            if draft.id in held and isinstance(draft.parallelism, int):
                arguments = (
                    draft.id,
                    draft.parallelism,
                    draft.subscriptions,
                    writes[draft],
                    self.spout.id,
                    spout_kind,
                )
                self.problems.extend(soundness.problems(*arguments))
        self.problems.extend(soundness.mixed({draft.id: writes[draft] for draft in named}))
        self.problems.extend(
            soundness.rivals({draft.id: writes[draft] for draft in named if draft.id in held})
        )

    def topological_order(self) -> list[Draft]:
        """Kahn's algorithm. Takes the first declared among the free components, so that the order
        is stable."""
        waiting = {
            draft: {s.source for s in draft.subscriptions if s.source in self.outputs}
            for draft in self.drafts
        }
        order: list[Draft] = []
        left = list(self.drafts)
        while left:
            free = next((draft for draft in left if not waiting[draft]), None)
            if free is None:
                edges = {draft.id: waiting[draft] for draft in left}
                members = ", ".join(repr(draft.id) for draft in left if _on_cycle(draft.id, edges))
                self.problems.append(
                    f"a cycle among {members}. A batch must end, so tuples may not go round"
                )
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
    return (
        f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(map(repr, names))}"
    )


def _copy(value: Any) -> Any:
    return pickling.loads(pickling.dumps(value))
