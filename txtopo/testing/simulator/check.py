"""Checks a topology in a test: all steps of ``txtopo test`` in one call, which fails the test
instead of reporting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txtopo import config
from txtopo.testing.simulator.simulation import SimulationReport
from txtopo.testing.simulator.trial import Trial
from txtopo.topology.graph import TopologyGraph


def check_topology(
    topology: TopologyGraph,
    conf: config.Config | Mapping[str, Any] | None = None,
    *,
    seeds: int = 100,
    first_seed: int = 0,
    processes: int = 1,
    time_s: float | None = None,
    may_be_unseen: bool = False,
    **options: Any,
) -> SimulationReport:
    """Do the same as ``txtopo test``: check the parts, compare two other processes, play ``seeds``
    schedules for at most ``time_s`` seconds.

    ``options`` are those of :class:`txtopo.testing.Simulation`: ``transactions``, ``effects``,
    ``reset``, ``vary_parallelism``.

    :raises AssertionError: a violation, with the verdict as text, or effects that the simulator
        cannot see, unless they ``may_be_unseen``.
    :raises errors.UsageError: without any failure the topology ends with an error, or its source
        gives no batch.
    """
    report = Trial(topology, conf, options, seeds, first_seed, time_s, processes).run()
    if report.violation is not None:
        raise AssertionError(str(report.violation))
    if report.unseen and not may_be_unseen:
        cure = "  Or leave these effects out of the verdict: may_be_unseen=True."
        raise AssertionError("\n".join([*map(str, report.unseen), cure]))
    return report
