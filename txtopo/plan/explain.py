"""Shows a plan in words and as a picture: which tuples cross a shuffle, and which components wait
for the commit."""

from __future__ import annotations

from typing import Any

from txtopo.plan import guarantees
from txtopo.plan.compiler import Plan
from txtopo.plan.levels import Levels
from txtopo.topology.graph import Component
from txtopo.topology.stream import DEFAULT_STREAM


def _number_of(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _form(source: Component, receiver: Component) -> str:
    """Describe the form in which tuples travel and arrive. Empty if they stay tuples."""
    if source.emits_columns:
        return "in columns" if receiver.takes_columns else "in columns, which become tuples here"
    return "as tuples, which become columns here" if receiver.takes_columns else ""


class _Explanation:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.width = max(len(id) for id in plan.graph.components)
        self.lines: list[str] = []

    def text(self) -> str:
        plan, add = self.plan, self.lines.append
        add(f"topology {plan.graph.id}, planned for {_number_of(plan.cores, 'core')}")
        add("")
        add("processing phase: one Spark job per attempt, several transactions side by side")
        self.levels(plan.processing, "processing")
        if plan.late:
            add("")
            add("  only if a held component emits while executing, still in the processing phase:")
            self.levels(plan.late, "late")
        add("")
        if not plan.held:
            add("commit phase: nothing is held, so the phase only records the transaction as done")
            return "\n".join(self.lines) + "\n"
        held = ", ".join(id for id in plan.graph.components if id in plan.held)
        add(f"===== {held}: held here until every earlier transaction has committed =====")
        add("")
        add("commit phase: one Spark job per transaction, in the order of txids, never two at once")
        self.levels(plan.commit, "commit")
        return "\n".join(self.lines) + "\n"

    def levels(self, levels: Levels, part: str) -> None:
        for i, level in enumerate(levels.levels):
            if i:
                self.lines.append("    ~~~~~ shuffle ~~~~~")
            self.lines.append(f"  level {i}, {_number_of(level.slots, 'slot')}")
            for id in level.components:
                self.component(self.plan.graph.components[id], levels, part)

    def component(self, component: Component, levels: Levels, part: str) -> None:
        role = self.role(component, part)
        late = {id for level in self.plan.late.levels for id in level.components}
        self.lines.append(
            f"    {component.id:<{self.width}}  {component.type_name} x {component.parallelism}: {role}"
        )
        for subscription in component.inputs:
            if part == "processing" and subscription.source in late:
                continue
            if part == "commit" and levels.level_of(subscription.source) is None:
                continue
            stream = (
                "" if subscription.stream == DEFAULT_STREAM else f" stream {subscription.stream}"
            )
            edge = (subscription.source, subscription.stream, component.id)
            way = "stays in the process" if edge in levels.fused else "crosses the shuffle"
            form = _form(self.plan.graph.components[subscription.source], component)
            self.lines.append(
                f"    {'':<{self.width}}    <- {subscription.source}{stream}, {subscription.grouping}: {way}{form and f', {form}'}"
            )

    def role(self, component: Component, part: str) -> str:
        if component.kind == "spout":
            if part == "commit":
                return "commits what it emitted (committer)"
            return (
                "emits the batch, then is held (committer)"
                if component.committer
                else "emits the batch"
            )
        ends = "finishes" if component.kind == "batch" else "cleans up"
        if part != "commit":
            return (
                f"executes, then is held{' (committer)' if component.committer else ''}"
                if component.id in self.plan.held
                else f"executes, {ends}"
            )
        why = "committer" if component.committer else "downstream of a committer"
        return (
            f"executes tuples emitted in this phase, {ends} ({why})"
            if any(each.source in self.plan.held for each in component.inputs)
            else f"{ends} ({why})"
        )


def explain(plan: Plan) -> str:
    """The plan as text, then the topology's guarantees."""
    promises = guarantees.lines(plan.graph)
    return _Explanation(plan).text() + ("\n" + "\n".join(promises) + "\n" if promises else "")


def as_data(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able values. ``docs/command-line.md`` lists the fields."""
    levels = [*plan.processing.levels, *plan.late.levels]
    level_of = {id: number for number, level in enumerate(levels) for id in level.components}
    return {
        "topology_id": plan.graph.id,
        "cores": plan.cores,
        "components": [
            {**component(each), "level": level_of.get(id), "held": id in plan.held}
            for id, each in plan.graph.components.items()
        ],
        "guarantees": guarantees.lines(plan.graph),
    }


def component(component: Component) -> dict[str, Any]:
    """What programs read of ``component``."""
    is_spout, inputs = component.kind == "spout", component.inputs
    return {
        "id": component.id,
        "kind": "spout" if is_spout else "committer" if component.committer else "bolt",
        "tasks": component.parallelism,
        "inputs": [{"from": each.source, "grouping": str(each.grouping)} for each in inputs],
    }


def _node(id: str) -> str:
    return "c_" + "".join(
        character if character.isalnum() else f"_{ord(character):x}_" for character in id
    )


def _label(text: str) -> str:
    return text.replace('"', "#quot;")


def mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flow chart. Boxes are levels, thick arrows cross a shuffle, hexagons
    are held until the commit."""
    lines = ["flowchart LR"]
    for i, level in enumerate([*plan.processing.levels, *plan.late.levels]):
        late = i >= len(plan.processing.levels)
        lines.append(
            f'  subgraph level_{i}["level {i}{" (commit phase, mostly)" if late else ""}, {_number_of(level.slots, "slot")}"]'
        )
        for id in level.components:
            component = plan.graph.components[id]
            text = f'"{_label(id)}<br/>{_label(component.type_name)} x {component.parallelism}"'
            lines.append(
                f"    {_node(id)}" + (f"{{{{{text}}}}}" if id in plan.held else f"[{text}]")
            )
        lines.append("  end")
    fused = plan.processing.fused | plan.late.fused
    for component in plan.graph.components.values():
        for subscription in component.inputs:
            arrow = (
                "-->"
                if (subscription.source, subscription.stream, component.id) in fused
                else "==>"
            )
            stream = "" if subscription.stream == DEFAULT_STREAM else f"{subscription.stream}: "
            form = _form(plan.graph.components[subscription.source], component)
            label = _label(stream + str(subscription.grouping)) + (form and f"<br/>{form}")
            lines.append(f'  {_node(subscription.source)} {arrow}|"{label}"| {_node(component.id)}')
    held = [_node(id) for id in plan.graph.components if id in plan.held]
    if held:
        lines.append("  classDef held stroke-width:3px,stroke-dasharray:5 3")
        lines.append(f"  class {','.join(held)} held")
    return "\n".join(lines) + "\n"
