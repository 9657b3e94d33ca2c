"""One trial: everything runs for a while, a nemesis strikes, then peace follows, and the results
are judged.

Invariants:
    - The deeds and times of nemeses, the input, and the failures of user code come from the seed.
      The races of the processes do not.
    - When a trial ends, none of its processes runs any more. Its directory is removed, unless there
      was a violation.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.servers.databases import DatabaseServer
from tests.servers.mariadb import MariaServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis_server import RedisServer
from tests.servers.replication import Replicated
from tests.soak import nemeses, processes
from tests.soak.drivers import Drivers
from tests.soak.fail_over import FailOver
from tests.soak.reader import Reader
from tests.soak.workloads import WORKLOADS
from tests.soak.world import World
from txtopo.state.embedded import EmbeddedZooKeeper

SERVERS: dict[str, Callable[[], DatabaseServer]] = {
    "mariadb": MariaServer,
    "postgresql": PostgresServer,
}
TICK_S = 0.1
LEAD = 6
"""So many transactions' worth of input is always ahead of the commits."""
START_WITHIN_S = 360.0
"""The first driver must be at work within this time."""
FINISH_WITHIN_S = 540.0
"""Left in peace, all there is must be committed within this time."""
OTHERS_END_WITHIN_S = 135.0
"""After the end of the first driver, the rest must end within this time; a driver that was just
starting finishes, too."""
GONE_WITHIN_S = 60.0
"""When the drivers have ended, all their processes must end within this time."""


@dataclass(frozen=True)
class Plan:
    """The plan; ``world`` without its directory and its ZooKeeper's address, which the trial
    makes.
    """

    world: World
    nemeses: Sequence[str]
    seconds: float
    """For how long nemeses strike."""
    outside: bool
    """Whether there is a ZooKeeper that outlives the drivers."""


@dataclass
class Outcome:
    """What came of it."""

    plan: Plan
    violations: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    transactions: dict[str, int] = field(default_factory=dict)
    reads: int = 0
    replays: int = 0
    is_idle: bool = False
    """Whether there was something to strike, and nothing was struck: no proof."""
    seconds: float = 0.0
    directory: str | None = None
    """The directory of its files, if they were kept."""


class Trial:
    """Runs a plan."""

    def __init__(self, plan: Plan) -> None:
        self._began = time.monotonic()
        self.outcome = Outcome(plan)
        directory = tempfile.mkdtemp(prefix="txtopo-soak-")
        self._world = replace(plan.world, directory=directory)
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._database = contextlib.ExitStack()
        servers: Replicated | None = None
        if "fail-over" in plan.nemeses and plan.world.store != "sqlite":
            servers = self._database.enter_context(Replicated(plan.world.store))
            self._world = replace(self._world, store=servers.new_url())
        elif plan.world.store in SERVERS:
            self._world = replace(
                self._world,
                store=self._database.enter_context(SERVERS[plan.world.store]()).new_url(),
            )
        elif plan.world.store == "redis":
            self._world = replace(
                self._world, store=self._database.enter_context(RedisServer()).url()
            )
        if plan.outside:
            self._zookeeper = EmbeddedZooKeeper(
                self._world.path / "ensemble", is_private=False
            ).start()
            self._world = replace(self._world, zookeeper=self._zookeeper.hosts)
        self._world.save()
        self._stores = FailOver(self._world, self._note, servers)
        self._drivers = Drivers(self._world, self._note, self._stores.refused)
        self._reader = Reader(self._world)
        dice = random.Random(f"{plan.world.seed}/nemesis")
        self._field = nemeses.Field(
            dice,
            self._drivers,
            self._zookeeper,
            self._note,
            self._stores,
            self._reader,
            self.outcome.tally,
        )

    def run(self) -> Outcome:
        """All of it."""
        try:
            self._feed()
            self._reader.start()
            self._drivers.start()
            self._strike_for(self.outcome.plan.seconds)
            self._field.heal()
            self._note("left in peace")
            self._finish()
            self._drivers.end()
            self._reader.stop()
            if self._drivers.finished:
                self.outcome.violations.extend(self._reader.end())
        finally:
            self._end()
            self._count()
        return self.outcome

    def _note(self, event: str) -> None:
        self.outcome.history.append(f"{time.monotonic() - self._began:7.1f} s  {event}")

    def _feed(self) -> None:
        for name in self._world.workloads:
            workload = WORKLOADS[name]
            self._world.feed(name).publish((self._drivers.current(name) - 1 + LEAD) * workload.pace)

    def _wrong(self) -> bool:
        return bool(self._drivers.violations or self._reader.violations)

    def _strike_for(self, seconds: float) -> None:
        """From when the first driver is at work until the time is over, or something is wrong
        already."""
        striking, next_at = self._strikes(), 0.0
        until = time.monotonic() + START_WITHIN_S
        while time.monotonic() < until and not self._wrong():
            self._drivers.look()
            self._drivers.keep_one()
            self._feed()
            if not next_at and self._field.running():
                until = time.monotonic() + seconds
                next_at = time.monotonic()
            if next_at and time.monotonic() >= next_at:
                next_at = time.monotonic() + next(striking)
            time.sleep(TICK_S)

    def _strikes(self) -> Iterator[float]:
        """One nemesis after the other, chosen by the dice; all of them in turn first, so that a
        short trial has each."""
        dice = self._field.dice
        there_are = [
            strike for name in self.outcome.plan.nemeses for strike in nemeses.NEMESES[name]
        ]
        dice.shuffle(there_are)
        for number in itertools.count():
            yield dice.uniform(0.2, 2.0)
            if there_are:
                yield from (
                    there_are[number] if number < len(there_are) else dice.choice(there_are)
                )(self._field)

    def _finish(self) -> None:
        """Have a driver commit all there is, and end."""
        self._world.finish.touch()
        deadline = time.monotonic() + FINISH_WITHIN_S
        while not self._drivers.finished and not self._wrong():
            self._drivers.look()
            self._drivers.keep_one()
            for each in [
                each
                for each in self._drivers.living
                if each.is_waiting and len(self._drivers.living) > 1
            ]:
                self._drivers.kill(each)
            if time.monotonic() > deadline:
                status = {name: self._drivers.current(name) for name in self._world.workloads}
                self.outcome.violations.append(
                    f"not finished {FINISH_WITHIN_S:.0f} s after it was left in peace; current: {status}"
                )
                return
            time.sleep(TICK_S)
        self._let_others_end()

    def _let_others_end(self) -> None:
        """After the end of a driver, no remaining driver may believe that it holds a topology."""
        deadline = time.monotonic() + OTHERS_END_WITHIN_S
        while self._drivers.living and not self._wrong():
            self._drivers.look()
            if time.monotonic() > deadline:
                lives = ", ".join(
                    f"driver {each.number} ({each.role})" for each in self._drivers.living
                )
                self.outcome.violations.append(
                    f"{lives} lives on, {OTHERS_END_WITHIN_S:.0f} s after another one has finished"
                )
                return
            time.sleep(TICK_S)

    def _end(self) -> None:
        """Nothing may be left."""
        self._drivers.end()
        self._reader.stop()
        left = self._left()
        if left:
            self.outcome.violations.append(
                "left running: "
                + ", ".join(f"{each.kind} {each.pid} ({each.command[:80]})" for each in left)
            )
            processes.end(set(left))
        if self._zookeeper is not None:
            self._zookeeper.stop()
        self._database.close()

    def _left(self) -> list[processes.Process]:
        deadline = time.monotonic() + GONE_WITHIN_S
        while left := [process for process in self._drivers.seen if process.is_alive]:
            if time.monotonic() > deadline:
                return left
            time.sleep(TICK_S)
        return []

    def _strikes_nothing(self) -> bool:
        """Whether it came to its end, and there was something to strike, and it was not struck."""
        return (
            self._drivers.finished
            and any(nemeses.NEMESES[name] for name in self.outcome.plan.nemeses)
            and not self.outcome.tally.total()
        )

    def _count(self) -> None:
        out, drivers = self.outcome, self._drivers
        out.violations[:0] = [*drivers.violations, *self._reader.violations]
        out.transactions = {name: drivers.current(name) - 1 for name in self._world.workloads}
        out.reads, out.replays = self._reader.reads.total(), drivers.total("replays")
        out.is_idle = self._strikes_nothing()
        if self._stores.refusals:
            out.tally["replicas refused"] = self._stores.refusals
        out.tally["drivers started"] = len(drivers.all)
        out.tally["takeovers"] = sum(
            each.role in ("standby", "usurper", "rival") and each.is_running for each in drivers.all
        )
        out.tally.update(
            {f"drivers ended with {code}": count for code, count in drivers.exits.items()}
        )
        out.seconds = time.monotonic() - self._began
        if out.violations:
            out.directory = self._world.directory
            (self._world.path / "history.txt").write_text(
                "\n".join([*out.history, *out.violations]) + "\n"
            )
        else:
            shutil.rmtree(self._world.directory, ignore_errors=True)
