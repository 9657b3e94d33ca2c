"""``txtopo test``: a topology, found on the command line, under the simulator.

Beside the topology its module may define ``effects()``, which returns everything the topology has written that is not in stores of txtopo (as
JSON-able data, by preference a dict), and ``reset()``, which removes it. Without them only stores and outputs are compared.

Apart from the simulator because it knows modules, arguments and exit codes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from txtopo import errors
from txtopo.runtime import options, target
from txtopo.testing.simulator import recomputation
from txtopo.testing.simulator.simulation import Simulation, SimulationReport
from txtopo.testing.simulator.subject import TRANSACTIONS
from txtopo.topology import pickling

SEEDS = 500

DESCRIPTION = """\
Run a topology in simulated Spark, in thousands of ways in which things can fail: user code, tasks, workers, drivers, ZooKeeper; and compare
what is left in its stores with a run in which nothing fails. Neither its stores nor its state are touched.

Beside the topology the module may define effects(), which returns what it writes elsewhere, and reset(), which removes that.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed after ``txtopo test TARGET``."""
    parser.add_argument("--seeds", type=options.at_least_one, default=SEEDS, metavar="N", help="how many schedules (default: %(default)s)")
    parser.add_argument(
        "--seed", type=_not_negative, default=0, metavar="S", help="seed of the first of them (default: %(default)s); a violation names its own"
    )
    parser.add_argument(
        "--transactions", type=options.at_least_one, default=TRANSACTIONS, metavar="N",
        help="how many transactions a schedule has at most, where the source does not end before (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--vary-parallelism", action="store_true",
        help="also restart with other task counts; for topologies whose results do not depend on how many tasks there are",
    )  # fmt: skip
    parser.add_argument("-v", "--verbose", action="store_true", help="show all that happens in a violating schedule; and tracebacks of errors")


def run(given: argparse.Namespace) -> int:
    """Do it; returns the exit code: 1 if a violation was found."""
    found = target.resolve(given.target)
    module = _module_of(given.target)
    effects, reset = _function(module, "effects"), _function(module, "reset")
    more: dict[str, Any] = {"transactions": given.transactions, "effects": effects, "reset": reset}
    with Simulation(found.topology, found.conf, vary_parallelism=given.vary_parallelism, **more) as simulation:
        violation = recomputation.check_recomputation(found.topology, found.conf, given.transactions, effects, reset)
        report = SimulationReport(found.topology.id, violation=violation) if violation is not None else simulation.run(given.seeds, given.seed)
    _print(report, given)
    return 0 if report.violation is None else errors.TxtopoError.exit_code


def _print(report: SimulationReport, given: argparse.Namespace) -> None:
    if report.violation is not None:
        print(report.violation.text(whole_trace=given.verbose))
        if report.violation.seed is not None:
            parallelism = " --vary-parallelism" if given.vary_parallelism else ""
            transactions = "" if given.transactions == TRANSACTIONS else f" --transactions {given.transactions}"
            print(f"\nagain: txtopo test {given.target} --seed {report.violation.seed} --seeds 1{transactions}{parallelism}")
        return
    print(report)
    if given.verbose:
        for kind, count in sorted(report.faults.items()):
            print(f"  {kind:<12} {count:>7,}")


def _module_of(text: str) -> ModuleType:
    """The module ``target.resolve`` has loaded for ``text``."""
    place = text.partition(":")[0]
    return sys.modules.get(place) or sys.modules[pickling.FILE_MODULE]


def _function(module: ModuleType, name: str) -> Callable[[], Any] | None:
    found = getattr(module, name, None)
    return found if callable(found) else None


def _not_negative(text: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
