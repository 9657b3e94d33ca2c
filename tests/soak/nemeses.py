"""Nemeses of a running trial, by name: a generator that strikes, and yields the seconds to wait
before it goes on.

Apart from ``trial`` so that the list of survived strikes is in one place. Process, time and
duration come from the trial's dice. Only processes of the trial are struck.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.soak import processes
from tests.soak.drivers import Driver, Drivers
from tests.soak.fail_over import FailOver
from tests.soak.reader import Reader
from tests.soak.workloads import WORKLOADS
from tests.soak.world import MESSAGE_TIMEOUT_S, SESSION_TIMEOUT_S
from txtopo.state.embedded import EmbeddedZooKeeper

Pauses = Iterator[float]
TICK_S = 0.1
IN_A_PART = 0.6
"""How often a replica is stopped in the middle of a commit, after the first time."""
PART_WITHIN_S = 1.0
PARTS_TRIED_MAX = 30
PATIENCE_S = 180.0
"""How long a nemesis waits for its target to appear; then the nemesis gives up, and this is no
violation.
"""


@dataclass
class Field:
    """What nemeses work on."""

    dice: random.Random
    drivers: Drivers
    zookeeper: EmbeddedZooKeeper | None
    """The server, if it outlives the drivers."""
    note: Callable[[str], None]
    stores: FailOver
    reader: Reader
    tally: Counter[str] = field(default_factory=Counter)
    paused: list[processes.Process] = field(default_factory=list)

    def strike(self, deed: str, details: str = "") -> None:
        """Remember that it was done."""
        self.tally[deed] += 1
        self.note(f"{deed}{': ' if details else ''}{details}")

    def until(self, is_met: Callable[[], bool], patience_s: float = PATIENCE_S) -> Pauses:
        """Wait for a condition, within bounds."""
        waited = 0.0
        while not is_met() and waited < patience_s:
            waited += TICK_S
            yield TICK_S

    def running(self) -> list[Driver]:
        """The drivers that hold every topology."""
        return [each for each in self.drivers.living if each.is_running]

    def some(self, kind: str) -> processes.Process | None:
        """A process of this kind, below any driver."""
        counts = self.drivers.count()
        chosen = (
            processes.workers(counts)
            if kind == "worker"
            else [process for process in counts if process.kind == kind]
        )
        return self.dice.choice(chosen) if chosen else None

    def heal(self) -> None:
        """Let everything go on that is paused, and have a ZooKeeper."""
        for each in self.drivers.living:
            each.resume()
        for process in self.paused:
            process.send(signal.SIGCONT)
        self.paused.clear()
        self.drivers.are_held = False
        if self.zookeeper is not None and not self.zookeeper.is_alive:
            self.zookeeper.restart()


def kill_driver(it: Field) -> Pauses:
    """SIGKILL to the driver: mostly while it works, sometimes while it starts."""
    if it.dice.random() < 0.75:
        yield from it.until(lambda: bool(it.running()))
    yield it.dice.uniform(0.1, 4.0)
    if it.drivers.living:
        victim = it.dice.choice(it.drivers.living)
        when = "at work" if victim.is_running else "at its start"
        it.drivers.kill(victim)
        it.strike("driver killed", f"driver {victim.number}, {when}")


def kill_worker(it: Field) -> Pauses:
    """SIGKILL to a Python worker, now and then to the process they are forked from."""
    yield from it.until(lambda: it.some("worker") is not None)
    for _ in range(it.dice.randint(1, 3)):
        yield it.dice.uniform(0.1, 1.5)
        victim = it.some("python" if it.dice.random() < 0.2 else "worker")
        if victim is not None and victim.send(signal.SIGKILL):
            it.strike("worker killed", f"pid {victim.pid}")


def kill_executor(it: Field) -> Pauses:
    """SIGKILL to the JVM of an executor, where these are processes of their own."""
    yield from it.until(lambda: it.some("executor") is not None and bool(it.running()))
    yield it.dice.uniform(0.1, 3.0)
    victim = it.some("executor")
    if victim is not None and victim.send(signal.SIGKILL):
        it.strike("executor killed", f"pid {victim.pid}")


def kill_zookeeper(it: Field) -> Pauses:
    """SIGKILL to the ZooKeeper server. A driver's own server is brought back by the driver; a
    separate server by the nemesis, after a while."""
    yield from it.until(lambda: bool(it.running()))
    yield it.dice.uniform(0.1, 2.0)
    if it.zookeeper is None:
        victim = it.some("zookeeper")
        if victim is not None and victim.send(signal.SIGKILL):
            it.strike("ZooKeeper killed", f"pid {victim.pid}")
        return
    away_s = it.dice.choice((0.0, 0.5, SESSION_TIMEOUT_S + 1.0))
    os.kill(it.zookeeper.pid, signal.SIGKILL)
    it.strike("ZooKeeper killed", f"away for {away_s:.1f} s")
    yield away_s
    it.zookeeper.restart()


def pause_driver(it: Field) -> Pauses:
    """SIGSTOP of the driver until its session has expired, then SIGCONT."""
    yield from it.until(lambda: bool(it.running()))
    yield it.dice.uniform(0.1, 2.0)
    if running := it.running():
        victim = it.dice.choice(running)
        for_s = SESSION_TIMEOUT_S + it.dice.uniform(0.5, 3.0)
        victim.pause()
        it.strike("driver paused", f"driver {victim.number}, for {for_s:.1f} s")
        yield for_s
        victim.resume()


def pause_zookeeper(it: Field) -> Pauses:
    """SIGSTOP of the ZooKeeper server for longer than a session, then SIGCONT."""
    yield from it.until(lambda: bool(it.running()))
    servers = (
        []
        if it.zookeeper is None
        else [
            process for process in processes.below(os.getpid()) if process.pid == it.zookeeper.pid
        ]
    )
    victim = servers[0] if servers else it.some("zookeeper")
    if victim is not None:
        yield from _pause(
            it, victim, "ZooKeeper paused", SESSION_TIMEOUT_S + it.dice.uniform(0.5, 2.0)
        )


def pause_worker(it: Field) -> Pauses:
    """SIGSTOP of a Python worker until its attempt has been given up, then SIGCONT: its writes from
    now on are late."""
    yield from it.until(lambda: it.some("worker") is not None)
    yield it.dice.uniform(0.1, 2.0)
    victim = it.some("worker")
    if victim is not None:
        yield from _pause(
            it, victim, "worker paused", MESSAGE_TIMEOUT_S + it.dice.uniform(0.5, 1.5)
        )


def _pause(it: Field, victim: processes.Process, deed: str, for_s: float) -> Pauses:
    if victim.send(signal.SIGSTOP):
        it.paused.append(victim)
        it.strike(deed, f"pid {victim.pid}, for {for_s:.1f} s")
        yield for_s
        victim.send(signal.SIGCONT)


def rival(it: Field) -> Pauses:
    """A second driver that takes no for an answer: while the first one lives it must be refused."""
    yield from it.until(lambda: bool(it.running()))
    second = it.drivers.start("rival")
    it.strike("rival started", f"driver {second.number}")
    yield from it.until(lambda: second.exit_code is not None or second.is_running)


def standby(it: Field) -> Pauses:
    """A second driver that waits; then the first is killed, or paused until it has lost its
    topologies, and the second goes on."""
    yield from it.until(lambda: bool(it.running()))
    second = it.drivers.start("standby")
    it.strike("standby started", f"driver {second.number}")
    yield from it.until(lambda: second.exit_code is not None or second.is_waiting)
    yield it.dice.uniform(0.1, 2.0)
    firsts = [each for each in it.drivers.living if each is not second and each.is_running]
    if not firsts or second.exit_code is not None:
        return
    if it.dice.random() < 0.5:
        it.drivers.kill(firsts[0])
        it.strike("driver killed", f"driver {firsts[0].number}, before a standby")
    else:
        firsts[0].pause()
        it.strike("driver paused", f"driver {firsts[0].number}, before a standby")
    yield from it.until(lambda: second.exit_code is not None or second.is_running)
    yield it.dice.uniform(0.1, 2.0)
    firsts[0].resume()


def usurper(it: Field) -> Pauses:
    """A second driver that takes every topology from the first, which must end."""
    yield from it.until(lambda: bool(it.running()))
    second = it.drivers.start("usurper")
    it.strike("usurper started", f"driver {second.number}")
    yield from it.until(lambda: second.exit_code is not None or second.is_running)


def fail_over(it: Field) -> Pauses:
    """Every store is lost, and the stopped replica's content takes its place. No process outlives
    the stores it wrote to.

    Mostly the replica is stopped in the middle of a commit, and the drivers are killed when that is
    recorded."""
    yield from it.until(lambda: bool(it.running()))
    it.stores.prepare()
    yield it.dice.uniform(1.0, 4.0)
    is_in_a_part = False
    parted = [name for name in it.stores.workloads if WORKLOADS[name].is_parted]
    if parted and (not it.tally["stores lost"] or it.dice.random() < IN_A_PART):
        for _ in range(PARTS_TRIED_MAX):
            if is_in_a_part := it.stores.stop_in_a_part(parted, PART_WITHIN_S):
                break
            yield TICK_S
    if not is_in_a_part:
        it.stores.stop()
        # Shorter than a transaction, or longer.
        yield it.dice.choice((0.0, 0.2, 1.0, 3.0))
    it.drivers.are_held = True
    for each in list(it.drivers.living):
        it.drivers.kill(each)
    it.reader.pause()
    yield from it.until(lambda: not any(process.is_alive for process in it.drivers.seen))
    it.stores.lose(it.drivers.current)
    lacking = {name: it.stores.lacking(name) for name in it.stores.workloads}
    it.strike("stores lost", ", ".join(f"{name} lacks {part}" for name, part in lacking.items()))
    it.tally.update(f"workloads that lacked {part}" for part in lacking.values())
    it.drivers.are_held = False
    yield from it.until(lambda: it.stores.is_settled(it.drivers.current))
    if it.stores.is_settled(it.drivers.current):
        it.stores.end()
        it.reader.go_on()


NEMESES: dict[str, tuple[Callable[[Field], Pauses], ...]] = {
    "none": (),
    "driver": (kill_driver,),
    "workers": (kill_worker, pause_worker),
    "executors": (kill_executor,),
    "zookeeper": (kill_zookeeper,),
    "pauses": (pause_driver, pause_zookeeper),
    "rivals": (rival, standby, usurper),
    "fail-over": (fail_over,),
}
"""Groups of nemeses, as they are asked for."""

OUTSIDE_ONLY = frozenset({"rivals", "fail-over"})
"""These need a ZooKeeper that outlives the drivers: for a second driver, or for questions about
recorded transactions."""
