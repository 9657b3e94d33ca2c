"""Declarers: how a user configures the spout, and says which streams a bolt listens to.

A declarer raises nothing: a mistake becomes a problem of the component's draft, which
``build_topology`` reports.
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
    """A component as it was set, before any check."""

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
                    f"bolt {self._draft.id!r}: {kind} grouping on {id!r}; name the {noun} by its id, a string"
                )
                return self
        self._draft.subscriptions.append(
            Subscription(component, stream, Grouping(kind, fields, custom))
        )
        return self

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples are spread evenly over the tasks: equal counts, give or take one per sending task."""
        return self._add("shuffle", component, stream)

    def fields_grouping(
        self, component: str, fields: Fields | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Tuples with equal values of ``fields`` go to the same task."""
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
                f"{where}: {error}; name fields of that stream: Fields('word')"
            )
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

    def partial_key_grouping(
        self, component: str, fields: Fields | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Tuples with equal values of ``fields`` go to one of two tasks, the one that the sender
        has sent less to: spreads frequent keys."""
        return self._add_keyed("partial_key", component, stream, fields)

    def custom_grouping(
        self, component: str, grouping: CustomGrouping, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """``grouping.choose_tasks(task_index, values)`` names the tasks of every tuple."""
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
        """Tuples stay in the sender's process where it has a task of this bolt."""
        return self._add("local_or_shuffle", component, stream)

    def _add_problem(self, problem: str) -> BoltDeclarer:
        """Have ``build_topology`` refuse this bolt; for code that declares bolts by itself."""
        self._draft.problems.append(f"bolt {self._draft.id!r}: {problem}")
        return self

    def add_configuration(self, key: str, value: Any) -> BoltDeclarer:
        """Set ``key`` in the ``conf`` this bolt's tasks receive."""
        self._draft.config[key] = value
        return self


def describe(instance: Any) -> str:
    """``instance`` in a message: its class or, for a class, its name."""
    return (
        f"the class {instance.__name__}"
        if isinstance(instance, type)
        else f"a {type(instance).__name__}"
    )


__all__ = ["BoltDeclarer", "SpoutDeclarer"]
