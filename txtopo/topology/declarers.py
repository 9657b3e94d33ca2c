"""Declarers: how a user configures the spout, and says which streams a bolt listens to.

A declarer raises nothing: a mistake becomes a problem in the component's draft, and
``build_topology`` reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from txtopo.topology.graph import Subscription
from txtopo.topology.grouping import CustomGrouping, Grouping, GroupingKind
from txtopo.topology.stream import DEFAULT_STREAM, Fields


@dataclass(eq=False)
class Draft:
    """A component as the user set it, before any check."""

    id: str
    instance: Any
    parallelism: Any
    committer: bool
    subscriptions: list[Subscription] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class SpoutDeclarer:
    """Configures the spout: its coordinator and its emitters."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def add_configuration(self, key: str, value: Any) -> SpoutDeclarer:
        """Set ``key`` for the spout alone."""
        self._draft.config[key] = value
        return self


class BoltDeclarer:
    """Chooses the streams that a bolt listens to. Every method returns the declarer, so that calls
    chain."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def _add(
        self,
        kind: GroupingKind,
        component: str,
        stream: str,
        fields: Fields | None = None,
        custom: CustomGrouping | None = None,
    ) -> BoltDeclarer:
        ids: list[tuple[str, Any]] = [("component", component), ("stream", stream)]
        for noun, id in ids:
            if not isinstance(id, str):
                self._draft.problems.append(
                    f"bolt {self._draft.id!r}: {kind} grouping on {id!r}. Name the {noun} by its id, a string"
                )
                return self
        self._draft.subscriptions.append(
            Subscription(component, stream, Grouping(kind, fields, custom))
        )
        return self

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Spread tuples evenly over the tasks: equal counts, give or take one per sending task."""
        return self._add("shuffle", component, stream)

    def fields_grouping(
        self, component: str, fields: Fields | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send tuples with equal ``fields`` to the same task."""
        return self._add_keyed("fields", component, stream, fields)

    def _add_keyed(
        self, kind: GroupingKind, component: str, stream: str, fields: Fields | Sequence[str]
    ) -> BoltDeclarer:
        try:
            return self._add(
                kind, component, stream, fields if isinstance(fields, Fields) else Fields(fields)
            )
        except (ValueError, TypeError) as error:
            where = f"bolt {self._draft.id!r}: {kind} grouping on {component!r}"
            self._draft.problems.append(
                f"{where}: {error}. Name fields of that stream: Fields('word')"
            )
            return self._add("global", component, stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send every tuple to task 0."""
        return self._add("global", component, stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send every tuple to every task."""
        return self._add("all", component, stream)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send tuples where it is cheapest: mostly to the next task in the same process."""
        return self._add("none", component, stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Let the sender name the task, with ``emit_direct``. Declare ``stream`` with
        ``direct=True``."""
        return self._add("direct", component, stream)

    def partial_key_grouping(
        self, component: str, fields: Fields | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send tuples with equal ``fields`` to two tasks, each tuple to the task that got fewer
        from the sender. Spreads frequent keys."""
        return self._add_keyed("partial_key", component, stream, fields)

    def custom_grouping(
        self, component: str, grouping: CustomGrouping, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Let ``grouping.choose_tasks(task_index, values)`` name the tasks for every tuple."""
        where = f"bolt {self._draft.id!r}: custom grouping on {component!r}"
        if not isinstance(grouping, CustomGrouping) or isinstance(grouping, type):
            self._draft.problems.append(
                f"{where}: {describe(grouping)} has no method choose_tasks(task_index, values)"
            )
            return self
        return self._add("custom", component, stream, custom=grouping)

    def local_or_shuffle_grouping(
        self, component: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Keep tuples in the sender's process if this bolt has a task there."""
        return self._add("local_or_shuffle", component, stream)

    def _add_problem(self, problem: str) -> BoltDeclarer:
        """Have ``build_topology`` refuse this bolt. For code that declares bolts itself."""
        self._draft.problems.append(f"bolt {self._draft.id!r}: {problem}")
        return self

    def add_configuration(self, key: str, value: Any) -> BoltDeclarer:
        """Set ``key`` in the ``conf`` this bolt's tasks receive."""
        self._draft.config[key] = value
        return self


def describe(instance: Any) -> str:
    """``instance`` in a message: an object by its class, a class by its name."""
    return (
        f"the class {instance.__name__}"
        if isinstance(instance, type)
        else f"a {type(instance).__name__}"
    )
