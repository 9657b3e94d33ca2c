"""Makes a schedule's reference: a run with equal batches and without failures.

A live source gives other batches in every run: a batch ends where the rows end, or after a time.
This is right as long as the metadata describes the batch (R4). So the schedule's results are
compared with a run over the very same batches. A spout that stands for the user's emits their
tuples again, task by task.

``judge`` decides when a reference is needed.

Invariants: a reference does not read from the user's spout, except that a committer spout's
``commit`` is called as always.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from txtopo.testing.contracts import canned_spout
from txtopo.testing.emissions import DIRECT, Emission, in_rows
from txtopo.topology import pickling
from txtopo.topology.graph import TopologyGraph


def repeating(
    graph: TopologyGraph, emissions: Mapping[int, Sequence[Emission]], metadata: Mapping[int, Any]
) -> TopologyGraph:
    """Copy ``graph`` with a spout that emits ``emissions``, by txid, again."""
    batches: list[tuple[canned_spout.Rows, Any]] = []
    for txid in sorted(emissions):
        rows: dict[int, list[tuple[str, int | None, tuple[Any, ...]]]] = {}
        for component, task, stream, values in in_rows(emissions[txid]):
            if component == graph.spout.id:
                name, direct, number = stream.rpartition(DIRECT)
                rows.setdefault(task % graph.spout.parallelism, []).append(
                    (name, int(number), values) if direct else (stream, None, values)
                )
        batches.append((rows, metadata.get(txid)))
    stand_in = canned_spout.RepeatedSpout(
        batches, graph.spout.template if graph.spout.committer else None
    )
    replaced = dataclasses.replace(
        graph.spout, template=pickling.dumps(stand_in), spout_kind="transactional"
    )
    return TopologyGraph(graph.id, {**graph.components, graph.spout.id: replaced}, graph.by_value)
