"""The simulator: a topology in one process, without Spark, in thousands of schedules with faults.

A schedule runs the same plan, coordinator, engine, batches, data plane, state and stores as in
Spark, and the user's own objects, on virtual time. A seed decides the order of steps and the
faults: attempts interleave, answers come late or never, hooks fail, workers die, tasks outlive
their cancelled jobs, writes to ZooKeeper or their acknowledgements are lost, and the driver is
killed or suspended wherever it can be. At the end stores and effects must be as after a run without
failures.

::

    simulation (seeds, shrink)  ──►  schedule (what happens next)  ──►  driver (the engine, on virtual time)  ──►  jobs
       │                                │    └──►  executors (slots)  ──►  hooks (the user's code)
       └─ diagnosis ─ mistakes          └─ decisions (chance, script)      subject ─ substitutes ─ processes
"""

from txtopo.testing.simulator.simulation import Simulation, SimulationReport, simulate
from txtopo.testing.simulator.violation import Violation

__all__ = ["Simulation", "SimulationReport", "Violation", "simulate"]
