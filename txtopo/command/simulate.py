"""``txtopo test``: a topology, found on the command line, under the simulator.

Beside the topology its module may define ``effects()``, which returns everything the topology has
written that is not in stores of txtopo (as JSON-able data, by preference a dict), and ``reset()``,
which removes it. Without them only stores and outputs are compared.

Apart from the simulator because it knows modules, arguments and exit codes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from txtopo import errors
from txtopo.command import options, simulation_report, target
from txtopo.testing.simulator.simulation import SimulationReport
from txtopo.testing.simulator.subject import TRANSACTIONS
from txtopo.testing.simulator.trial import UNBOUNDED, Trial
from txtopo.topology import pickling

SEEDS = 500
_UNITS = {"s": 1, "m": 60, "h": 3600}

DESCRIPTION = """\
Run a topology in simulated Spark, in thousands of ways in which things can fail: user code, tasks, workers, drivers,
ZooKeeper; and compare what is left in its stores with a run in which nothing fails. Neither its stores nor its state
are touched.

Beside the topology the module may define effects(), which returns what it writes elsewhere, and reset(), which
removes that.

What is outside is called for real, and thousands of times: mail is sent, requests are made, messages are
acknowledged. Give such a component a stand-in for tests.

Limits: a source that does not end is cut after --transactions; then only batches of the same metadata are compared,
and losses at the end are not seen. An opaque spout must end within --transactions (12), because only all of its
tuples together can be compared. With effects() or reset(), -j cannot be used: several processes would change one
place.
"""


EXIT_CODES = """\
exit codes:
  0    no violation, in all that the topology is known to write
  1    a violation
  2    wrong usage, or the topology fails without any failure
  7    no violation in what was compared, and some effects could not be looked at
  130  Ctrl-C before all schedules were played, and no violation until then
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed after ``txtopo test TARGET``."""
    parser.add_argument(
        "--seeds",
        type=options.at_least_one,
        metavar="N",
        help=f"how many schedules (default: {SEEDS})",
    )
    parser.add_argument(
        "--seed",
        type=_not_negative,
        default=0,
        metavar="S",
        help="seed of the first of them (default: %(default)s); a violation names its own",
    )
    parser.add_argument(
        "--transactions",
        type=options.at_least_one,
        default=TRANSACTIONS,
        metavar="N",
        help="how many transactions a schedule has at most, where the source does not end before (default: %(default)s)",
    )
    parser.add_argument(
        "--vary-parallelism",
        action="store_true",
        help="also restart with other task counts; for topologies whose results do not depend on how many tasks there are",
    )
    parser.add_argument(
        "--time",
        type=_seconds,
        metavar="60s",
        help="play schedules for so long, such as 60s, 5m or 1h",
    )
    parser.add_argument(
        "-j",
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
        help="show all that happens in a violating schedule; and tracebacks of errors",
    )


def run(parsed: argparse.Namespace) -> int:
    """Do it; returns the exit code: 1 if a violation was found, 7 if not all could be looked at,
    130 after Ctrl-C."""
    try:
        return _run(parsed)
    except errors.TxtopoError as error:
        if parsed.json:
            print(
                json.dumps(
                    {"verdict": "error", "exit_code": error.exit_code, "error": str(error)},
                    indent=2,
                    ensure_ascii=False,
                )
            )
        raise


def _run(parsed: argparse.Namespace) -> int:
    loaded = target.resolve(parsed.target)
    module = _module_of(parsed.target)
    more: dict[str, Any] = {
        "transactions": parsed.transactions,
        "vary_parallelism": parsed.vary_parallelism,
    }
    more |= {"effects": _function(module, "effects"), "reset": _function(module, "reset")}
    seeds = parsed.seeds or (SEEDS if parsed.time is None else UNBOUNDED)
    warned = simulation_report.warning(loaded.topology) if more["effects"] is None else None
    if warned is not None:
        print(warned, file=sys.stderr, flush=True)
    with simulation_report.interruptible() as is_interrupted:
        trial = Trial(
            loaded.topology,
            loaded.conf,
            more,
            seeds,
            parsed.seed,
            parsed.time,
            parsed.processes,
            is_interrupted,
        )
        with simulation_report.shown(trial.progress):
            report = trial.run()
        code = simulation_report.exit_code(report, is_interrupted())
    again = simulation_report.again(report, _typed(parsed))
    if parsed.json:
        print(
            json.dumps(
                simulation_report.document(report, code, parsed.seed, again),
                indent=2,
                ensure_ascii=False,
            )
        )
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


def _typed(parsed: argparse.Namespace) -> str:
    """Target and options that the schedules depend on."""
    transactions = (
        "" if parsed.transactions == TRANSACTIONS else f" --transactions {parsed.transactions}"
    )
    return (
        f"{parsed.target}{transactions}{' --vary-parallelism' if parsed.vary_parallelism else ''}"
    )


def _module_of(text: str) -> ModuleType:
    """The module ``target.resolve`` has loaded for ``text``."""
    place = text.partition(":")[0]
    return sys.modules.get(place) or sys.modules[pickling.FILE_MODULE]


def _function(module: ModuleType, name: str) -> Callable[[], Any] | None:
    function: Callable[[], Any] | None = getattr(module, name, None)
    if function is not None and not callable(function):
        raise errors.UsageError(
            f"{name} beside the topology is of type {type(function).__name__}, not a function\n  Write `def {name}():`, or call it otherwise."
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 60s, 5m or 1h")
    return seconds
