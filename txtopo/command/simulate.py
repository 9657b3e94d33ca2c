"""``txtopo test``: runs a topology, named on the command line, in the simulator.

Beside the topology its module may define ``effects()`` and ``reset()``. ``effects()`` returns all
the topology's writes outside of txtopo stores (as JSON-able data, by preference a dict), and
``reset()`` removes those writes. Without the two functions only stores and outputs are compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from txtopo import errors
from txtopo.command import options, output, signals, simulation_report, target
from txtopo.testing.simulator.simulation import SimulationReport
from txtopo.testing.simulator.subject import TRANSACTIONS
from txtopo.testing.simulator.trial import UNBOUNDED, Trial

TIME_S, SEEDS_MIN = 10.0, 50
"""The default bounds: as many schedules as fit into the seconds, and at least so many."""
_UNITS = {"s": 1, "m": 60, "h": 3600}

DESCRIPTION = """\
Run a topology in simulated Spark, and let user code, tasks, workers, drivers and ZooKeeper fail in thousands of ways.
Then compare the contents of the stores with a run without failures. The topology's real stores and real state are not
touched.

Beside the topology the module may define effects(), which returns the topology's writes to other places, and reset(),
which removes those writes.

Systems outside are called for real, and thousands of times: mail is sent, requests are made, messages are
acknowledged. Give such a component a stand-in for tests.

Limits: an endless source is cut after --transactions. Then only batches with equal metadata are compared, and losses
at the end are not seen. An opaque spout must end within --transactions (12), because only all of its tuples together
can be compared. With effects() or reset(), -j cannot be used: several processes would change one place.
"""


EXIT_CODES = """\
exit codes:
  0    no violation, in all known writes of the topology
  1    a violation
  2    wrong usage, or the topology fails without any simulated failure
  7    no violation in the compared effects, but some effects could not be looked at
  130  Ctrl-C or SIGTERM before all schedules were played, and no violation until then
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``txtopo test TARGET``."""
    parser.add_argument(
        "--seeds",
        type=options.at_least_one,
        metavar="N",
        help=f"how many schedules (default: as many as fit into {TIME_S:.0f} s, at least {SEEDS_MIN})",
    )
    parser.add_argument(
        "--seed",
        type=_not_negative,
        default=0,
        metavar="S",
        help="the first schedule's seed (default: %(default)s); a violation names its own seed",
    )
    parser.add_argument(
        "--transactions",
        type=options.at_least_one,
        default=TRANSACTIONS,
        metavar="N",
        help="how many transactions a schedule has at most, if the source does not end before (default: %(default)s)",
    )
    parser.add_argument(
        "--vary-parallelism",
        action="store_true",
        help="also restart with other task counts, for topologies whose results do not depend on the task count",
    )
    parser.add_argument(
        "--time",
        type=_seconds,
        metavar="60s",
        help="play schedules for so long, such as 60s, 5m or 1h",
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=options.at_least_one,
        default=1,
        metavar="N",
        dest="processes",
        help="play schedules in N processes (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the verdict as one JSON document"
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show every event in a violating schedule, and the tracebacks of errors",
    )


def run(parsed: argparse.Namespace) -> int:
    """Run ``txtopo test``. Returns the exit code: 1 after a violation, 7 if some effects could not
    be looked at, 130 after Ctrl-C or SIGTERM."""
    try:
        return _run(parsed)
    except errors.TxtopoError as error:
        if parsed.json:
            output.print_json(
                {"verdict": "error", "exit_code": error.exit_code, "error": str(error)}
            )
        raise


def _run(parsed: argparse.Namespace) -> int:
    loaded = target.resolve(parsed.target)
    more: dict[str, Any] = {
        "transactions": parsed.transactions,
        "vary_parallelism": parsed.vary_parallelism,
    }
    more |= {name: _function(loaded.module, name) for name in ("effects", "reset")}
    is_bounded = parsed.seeds is not None or parsed.time is not None
    warned = simulation_report.warning(loaded.topology) if more["effects"] is None else None
    if warned is not None:
        print(warned, file=sys.stderr, flush=True)
    with signals.StopSignals() as stop:
        trial = Trial(
            loaded.topology,
            loaded.conf,
            more,
            parsed.seeds or UNBOUNDED,
            parsed.seed,
            parsed.time if is_bounded else TIME_S,
            0 if is_bounded else SEEDS_MIN,
            parsed.processes,
            lambda: stop.is_requested,
        )
        with simulation_report.shown(trial.progress):
            report = trial.run()
        code = simulation_report.exit_code(report, stop.is_requested)
    again = simulation_report.again(report, _schedule_arguments(parsed))
    if parsed.json:
        output.print_json(simulation_report.document(report, code, parsed.seed, again))
    else:
        _print(report, parsed.verbose, again)
    return code


def _print(report: SimulationReport, verbose: bool, again: str | None) -> None:
    if report.violation is not None:
        print(report.violation.text(whole_trace=verbose))
        if again is not None:
            print(f"\nagain: {again}")
        return
    print(report)
    if verbose:
        for kind, count in sorted(report.faults.items()):
            print(f"  {kind:<12} {count:>7,}")


def _schedule_arguments(parsed: argparse.Namespace) -> str:
    """The target and the options that the schedules depend on."""
    transactions = (
        "" if parsed.transactions == TRANSACTIONS else f" --transactions {parsed.transactions}"
    )
    return (
        f"{parsed.target}{transactions}{' --vary-parallelism' if parsed.vary_parallelism else ''}"
    )


def _function(module: ModuleType, name: str) -> Callable[[], Any] | None:
    function: Callable[[], Any] | None = getattr(module, name, None)
    if function is not None and not callable(function):
        raise errors.UsageError(
            f"{name} beside the topology is of type {type(function).__name__}, not a function\n  Write `def {name}():`, or rename the variable."
        )
    return function


def _not_negative(text: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _seconds(text: str) -> float:
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 60s, 5m or 1h")
    return seconds
