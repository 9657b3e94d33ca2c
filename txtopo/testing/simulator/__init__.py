"""The simulator: a topology in one process, without Spark, in thousands of ways in which things can
fail.

The same plan, coordinator, engine, batches, data plane, state and stores as in Spark, and the
user's own objects, on virtual time, under a scheduler that a seed decides: it interleaves attempts,
delays and drops answers, fails hooks, kills workers, lets tasks of cancelled jobs run on, loses
writes to ZooKeeper or their acknowledgements, and kills or suspends the driver wherever it can be
killed. At the end stores and effects must be as after a run without failures.

::

    simulation (seeds, shrink)  ──►  schedule (what happens next)  ──►  driver (the engine, on virtual time)  ──►  jobs
       │                                │    └──►  executors (slots)  ──►  hooks (the user's code)
       └─ diagnosis ─ mistakes          └─ decisions (chance, script)      subject ─ substitutes ─ processes
"""

from txtopo.testing.simulator.simulation import Simulation, SimulationReport, simulate
from txtopo.testing.simulator.violation import Violation

__all__ = ["Simulation", "SimulationReport", "Violation", "simulate"]
