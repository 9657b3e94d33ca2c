"""``python -m tests.soak``: workloads under nemeses for as long as you like, or the bounded matrix
of them; exit code 1 if a checker objects."""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sys
import time
from collections.abc import Iterator

from tests import quick_java
from tests.soak import matrix, report
from tests.soak.nemeses import NEMESES, OUTSIDE_ONLY
from tests.soak.stores import SABOTAGES
from tests.soak.trial import Outcome, Plan, Trial
from tests.soak.workloads import WORKLOADS
from tests.soak.world import World

TRIAL_S = 110.0
"""For how long nemeses strike in one trial of a soak; then everything is judged and begins anew, in
another surrounding."""
STORES = ("sqlite", "postgresql", "mariadb", "redis")


def parser() -> argparse.ArgumentParser:
    """The options."""
    soak = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    soak.add_argument(
        "--matrix",
        action="store_true",
        help="every nemesis, on SQLite and on a server, for a bounded time (make thorough)",
    )
    soak.add_argument(
        "--minutes", type=float, default=10.0, help="how long a soak takes, about (default 10)"
    )
    soak.add_argument(
        "--seconds",
        type=float,
        help="one trial in which nemeses strike for so long, instead of a soak",
    )
    soak.add_argument(
        "--seed", type=int, help="of everything that is random; chosen, and printed, if not given"
    )
    soak.add_argument(
        "--workload",
        action="append",
        choices=sorted(WORKLOADS),
        help="only this one; may be given several times",
    )
    soak.add_argument(
        "--nemesis",
        action="append",
        choices=sorted(NEMESES),
        help="only this one; may be given several times",
    )
    soak.add_argument(
        "--store", action="append", choices=STORES, help="only this one (default: all)"
    )
    soak.add_argument(
        "--zookeeper",
        choices=("inside", "outside"),
        default="outside",
        help="the drivers' own, or one that outlives them (one trial)",
    )
    soak.add_argument("--master", default="local[2]", help="Spark's master (one trial)")
    soak.add_argument(
        "--sabotage",
        choices=SABOTAGES,
        default="",
        help="break something on purpose, to see it noticed (one trial)",
    )
    return soak


def once(plan: Plan) -> Outcome:
    """Run a plan and print the outcome."""
    print(report.described(plan), flush=True)
    outcome = Trial(plan).run()
    print(f"  {report.in_a_line(outcome)}", flush=True)
    if outcome.violations:
        print(report.violation(outcome, again(plan)), flush=True)
    return outcome


def again(plan: Plan) -> str:
    """The command for another run of the plan."""
    world = plan.world
    words = [
        f"python -m tests.soak --seed {world.seed} --seconds {plan.seconds:g} --store {world.store} --master '{world.master}'"
    ]
    words.extend(f"--workload {name}" for name in world.workloads)
    words.extend(f"--nemesis {name}" for name in plan.nemeses)
    words.append(f"--zookeeper {'outside' if plan.outside else 'inside'}")
    if world.sabotage:
        words.append(f"--sabotage {world.sabotage}")
    return " ".join(words)


def trials(options: argparse.Namespace, seed: int) -> Iterator[Plan]:
    """Everything that was asked for; a soak ends when the time is over."""
    began, workloads, stores = (
        time.monotonic(),
        tuple(options.workload or WORKLOADS),
        tuple(options.store or STORES),
    )
    if options.seconds:
        outside = options.zookeeper == "outside"
        strikes = options.nemesis or [
            name for name in NEMESES if outside or name not in OUTSIDE_ONLY
        ]
        world = World(
            "", seed, workloads, store=stores[0], master=options.master, sabotage=options.sabotage
        )
        yield Plan(world, tuple(strikes), options.seconds, outside)
    elif options.matrix:
        yield from (
            plan
            for plan in matrix.plans(seed, stores, workloads)
            if not options.nemesis or plan.nemeses[0] in options.nemesis
        )
    else:
        for number in itertools.count():
            yield matrix.mixed(seed, number, stores, workloads, TRIAL_S)
            if time.monotonic() - began > options.minutes * 60 - TRIAL_S / 2:
                return


def main() -> int:
    """Run, print, and judge."""
    options = parser().parse_args()
    # A SIGTERM to this process shall end its drivers, too: as an exception the signal reaches the
    # trial.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    quick_java.be_quick()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    outcomes = [once(plan) for plan in trials(options, seed)]
    if len(outcomes) > 1:
        print(report.table(outcomes))
    print(report.totals(outcomes))
    return (
        1
        if any(outcome.violations for outcome in outcomes)
        or all(outcome.is_idle for outcome in outcomes)
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
