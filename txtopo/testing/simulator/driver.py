"""Simulates a driver process: the real engine, coordinator, batches and state, on virtual time,
with parked threads and a loop that is turned by hand.

A driver may die at every named fault point, between two slots in a job, and right after a write to
ZooKeeper was applied. Or a driver is suspended at such a point, and wakes up after another driver
has taken the topology.

``schedule`` has several drivers in turn, and sometimes two at once.

Invariants: after a driver's death its code no longer runs, except to unwind.
"""

from __future__ import annotations

import datetime
import functools
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from txtopo.engine.engine import Engine
from txtopo.engine.surroundings import Action, Threads
from txtopo.faults import FaultPoint
from txtopo.state import base, layout, memory, records
from txtopo.state.topology import Holder, TopologyState
from txtopo.testing.emissions import Emission
from txtopo.testing.simulator import turns
from txtopo.testing.simulator.executors import Executors
from txtopo.testing.simulator.fault_kinds import (
    DIES,
    DRIVER_FAULTS,
    READ_FAULTS,
    STATE_FAULTS,
    SUSPENSIONS,
    WAITS,
)
from txtopo.testing.simulator.jobs import SimulatedJobs
from txtopo.testing.simulator.subject import GENERATION, Settings, Subject
from txtopo.testing.simulator.world import World
from txtopo.topology.context import SOME_TIME
from txtopo.topology.transaction import TransactionAttempt

BETWEEN_OPENINGS = datetime.timedelta(minutes=1)
"""The time between two transactions' ``context.opened_at``."""

UNWINDINGS_MAX = 100
"""Code that goes on although it was unwound so often catches every exception."""


class DriverDied(BaseException):
    """Unwinds the code that ran when its driver died."""


class SimulatedStateStore(memory.MemoryStateStore):
    """A driver's session with ZooKeeper. A write, or its acknowledgement, may be lost."""

    def __init__(self, world: World, driver: Driver) -> None:
        super().__init__(world.server)
        self._world, self._driver = world, driver
        self._layout = layout.Layout(driver.subject.graph.id)
        self._current = self._layout.current
        self._writes = self._reads = 0

    def get(self, path: str) -> base.Node | None:
        self._may_fail_to_read(path)
        return super().get(path)

    def children(self, path: str) -> list[str]:
        self._may_fail_to_read(path)
        return super().children(path)

    def _may_fail_to_read(self, path: str) -> None:
        self._driver.require_alive()
        if self._world.is_asking_again:
            return
        self._reads += 1
        how = self._world.decisions.strike(
            "read",
            f"read {self._reads} of driver {self._driver.number} from ZooKeeper, of {path}",
            READ_FAULTS,
        )
        if how == READ_FAULTS[0]:
            raise base.StateUnavailableError("memory: the answer was lost, as the simulator asked")
        if how == READ_FAULTS[1]:
            self.expire_session()
            raise base.StateUnavailableError("memory: the session expired, as the simulator asked")
        if how is not None:
            self._driver.die()

    def multi(self, operations: Sequence[base.Operation]) -> None:
        self._driver.require_alive()
        self._writes += 1
        how = self._world.decisions.strike(
            "state",
            f"write {self._writes} of driver {self._driver.number} to ZooKeeper",
            STATE_FAULTS,
        )
        if how == STATE_FAULTS[2]:
            self.expire_session()
        lost: memory.Fault | None = (
            "before" if how == STATE_FAULTS[0] else "after" if how == STATE_FAULTS[1] else None
        )
        self.fault = lambda operations: lost
        try:
            super().multi(operations)
        finally:
            self._observe(operations)
        if how == STATE_FAULTS[3]:
            self._driver.die()

    def _observe(self, operations: Sequence[base.Operation]) -> None:
        """Tell the schedule if this write has committed a transaction."""
        for operation in operations:
            if isinstance(operation, base.Set) and operation.path == self._current:
                node = self.server.get(self._current)
                if node is not None and node.data == operation.data:
                    txid = records.decode_json(self._current, node.data)["current"] - 1
                    self._driver.has_committed(self._driver, txid, self._metadata_of(txid))

    def _metadata_of(self, txid: int) -> Any:
        path = f"{self._layout.txids}/{txid:010}"
        node = self.server.get(path)
        return None if node is None else records.decode_json(path, node.data)["metadata"]


class SimulatedThreads:
    """A driver's threads: each parks where the real thread would wait. Threads that make batches
    also park before each read of state shared with other threads."""

    def __init__(self, driver: Driver, count: int, failed: Callable[[BaseException], None]) -> None:
        self._driver, self._count, self._failed = driver, count, failed
        self.waiting: deque[Action] = deque()
        """Work that has not started."""
        self._borrow = driver.subject.carriers.borrow
        self.carriers: list[turns.Carrier] = []

    def submit(self, work: Action) -> None:
        self.waiting.append(work)

    def close(self, timeout_s: float) -> bool:
        self.waiting.clear()
        return True

    def can_start(self) -> bool:
        """Whether a thread is free for work that waits."""
        return sum(carrier.is_busy for carrier in self.carriers) < self._count

    def start(self) -> None:
        """Start the work that has waited longest."""
        carrier = next((carrier for carrier in self.carriers if not carrier.is_busy), None)
        if carrier is None:
            carrier = self._borrow()
            self.carriers.append(carrier)
        carrier.start(functools.partial(self._do, self.waiting.popleft()))

    def _do(self, work: Action) -> None:
        try:
            work()
        except BaseException as error:
            self._failed(error)


class SimulatedLoop:
    """The engine's surroundings in ``driver``: time, threads, and a loop that is turned by
    hand."""

    def __init__(self, world: World, driver: Driver) -> None:
        self._world, self._driver = world, driver
        self.ready: deque[tuple[turns.Carrier, object]] = deque()
        """Threads that may go on, each with its answer."""
        self._queue: deque[Action] = deque()
        self._timers: list[tuple[float, int, Action]] = []
        self._ids = itertools.count()
        self._steps = itertools.count(1)
        self._aside: list[tuple[int, turns.Carrier]] = []
        """Threads that have stepped aside, each with the number of transactions recorded at that
        time."""
        self._threads: list[SimulatedThreads] = []
        self._stepping_threads: list[SimulatedThreads] = []

    def now(self) -> float:
        return self._world.now

    @staticmethod
    def time_of_opening(txid: int) -> datetime.datetime:
        # Not virtual time: results are compared between schedules with different histories.
        return SOME_TIME + txid * BETWEEN_OPENINGS

    def sleep(self, duration_s: float) -> None:
        carrier = turns.current()
        self.after(duration_s, lambda: self.ready.append((carrier, None)))
        turns.park()

    def post(self, action: Action) -> None:
        self._queue.append(action)

    def after(self, delay_s: float, action: Action) -> None:
        heapq.heappush(self._timers, (self._world.now + delay_s, next(self._ids), action))

    def next(self) -> Action:
        raise AssertionError("the schedule turns this loop by hand")

    def threads(self, name: str, count: int, failed: Callable[[BaseException], None]) -> Threads:
        threads = SimulatedThreads(self._driver, count, failed)
        self._threads.append(threads)
        if name in ("spout", "process"):
            self._stepping_threads.append(threads)
        return threads

    def step_aside(self, when: str) -> None:
        """Let a thread that makes a batch wait until a transaction is recorded, if the schedule
        decides so. At this point the thread reads state shared with other threads."""
        if self._world.is_asking_again or not turns.is_carried():
            return
        if not any(turns.current() in threads.carriers for threads in self._stepping_threads):
            return
        where = f"a thread of driver {self._driver.number} that makes a batch, step {next(self._steps)}, when {when}"
        if self._world.decisions.strike("opening", where, (WAITS,)) is not None:
            self._world.note(f"{where}: {WAITS}")
            self._aside.append((self._world.commits, turns.current()))
            turns.park()
            self._driver.require_alive()

    def resume_aside(self) -> bool:
        """Resume the threads that have stepped aside, because no other step is possible. Return
        whether there were any."""
        had_any = bool(self._aside)
        self.ready.extend((carrier, None) for _, carrier in self._aside)
        self._aside.clear()
        return had_any

    def stepping(self, reads: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``reads``, which reads state that other threads change: before the value is used, a
        thread that makes a batch may step aside."""

        def read(*args: Any) -> Any:
            value = reads(*args)
            self.step_aside(f"{reads.__name__} was read")
            return value

        return read

    def collect_garbage(self) -> None:
        # Virtual seconds pass by the thousand, and a collection each time would take longer than
        # the transactions. Python collects when there is much garbage.
        pass

    def reach(self, point: FaultPoint, txid: int) -> None:
        self._driver.require_alive()
        # The loop itself cannot wait anywhere. A suspension in the loop equals a suspension a
        # moment later.
        ways = DRIVER_FAULTS if turns.is_carried() else (DIES,)
        how = self._world.decisions.strike(
            "driver", f"{point} of txid {txid} in driver {self._driver.number}", ways
        )
        if how is not None:
            self._driver.apply_fault(how)

    def end(self) -> None:
        """Unwind and give back every thread, and drop posted actions. A thread whose code does not
        end stays parked."""
        for threads in self._threads:
            for carrier in threads.carriers:
                for _ in range(UNWINDINGS_MAX):
                    if carrier.is_busy:
                        carrier.resume(DriverDied())
                if not carrier.is_busy:
                    self._driver.subject.carriers.give_back(carrier)
            threads.carriers.clear()
            threads.close(0)
        for waiting in (self.ready, self._queue, self._timers):
            waiting.clear()

    # -- the driver's next steps -------------------------------------------------------------------

    def add_steps(self, steps: list[tuple[Driver | None, Action]]) -> None:
        """Add the driver's possible next steps, the usual step first."""
        driver = self._driver
        if self._aside and self._aside[0][0] < self._world.commits:
            self.resume_aside()
        if self._queue or (self._timers and self._timers[0][0] <= self._world.now):
            steps.append((driver, self._turn_loop))
        if self.ready:
            steps.append((driver, self.resume))
        for threads in self._threads:
            if threads.waiting and threads.can_start():
                steps.append((driver, threads.start))

    def _turn_loop(self) -> None:
        if self._timers and self._timers[0][0] <= self._world.now:
            heapq.heappop(self._timers)[2]()
        else:
            self._queue.popleft()()

    def resume(self) -> None:
        """Resume the thread that has waited longest."""
        carrier, answer = self.ready.popleft()
        carrier.resume(answer)

    @property
    def due(self) -> float | None:
        """When the next timer goes off."""
        return self._timers[0][0] if self._timers else None


class Driver:
    """Driver ``number`` (1, 2, …) in a schedule. ``has_committed`` gets each transaction that this
    driver commits, with the metadata."""

    def __init__(
        self,
        world: World,
        subject: Subject,
        executors: Executors,
        number: int,
        settings: Settings,
        has_committed: Callable[[Driver, int, Any], None],
    ) -> None:
        self.subject = subject
        self.number = number
        self.settings = settings
        self.has_committed = has_committed
        self._world, self._executors = world, executors
        self.is_dead = False
        self.is_closed = False
        self.sleeps_until: int | None = None
        """The driver is suspended until other drivers have committed so many transactions."""
        self.loop = SimulatedLoop(world, self)
        self.ready = self.loop.ready
        self.emitted: dict[TransactionAttempt, list[Emission]] = {}
        self.executed: dict[TransactionAttempt, list[Any]] = {}
        self._store = SimulatedStateStore(world, self)
        self._engine: Engine | None = None
        self.jobs: SimulatedJobs | None = None

    # -- start and end ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the topology and start the engine, unless no transaction is left."""
        subject, loop = self.subject, self.loop
        ids = iter([f"driver-{self.number}", GENERATION])
        holder = Holder("simulated", self.number, "at some time")
        bytes_max = subject.conf.metadata_bytes_max
        self._state = TopologyState.open(
            self._store,
            subject.graph.id,
            holder,
            True,
            bytes_max,
            clock=loop.now,
            new_id=lambda: next(ids),
        )
        for owner, name in ((self._state.txids, "txids"), (self._state, "committed_positions")):
            setattr(owner, name, loop.stepping(getattr(owner, name)))
        left = subject.transactions_max - (self._state.current - 1)
        if left <= 0:
            self.is_closed = True
            return
        settings = {
            "max_spout_pending": self.settings.max_spout_pending,
            "max_transactions": left,
            "small_transaction_s": self.settings.small_transaction_s,
        }
        conf = subject.conf.model_copy(update=settings)
        run, plans = subject.driver_run(self.settings)
        executors = self._executors
        self.jobs = SimulatedJobs(
            self,
            subject.worker(self.settings),
            self._world.task_attempts,
            executors.launch,
            executors.cancel,
            executors.is_running,
        )
        self._engine = Engine(
            run,
            conf,
            self.jobs,
            self._state,
            (),
            random.Random(self.number),
            lambda: None,
            loop,
            plans,
        )
        self._engine.begin()

    @property
    def is_active(self) -> bool:
        """Whether the driver lives and is not suspended."""
        return not self.is_dead and not self.is_closed and self.sleeps_until is None

    @property
    def has_ended(self) -> bool:
        """Whether the engine has ended and is not closed yet."""
        return self.is_active and self._engine is not None and self._engine.ended

    def close(self) -> BaseException | None:
        """Close the ended engine, and return the error that ended it, if any."""
        assert self._engine is not None
        self._engine.close()
        self._unwind()
        self.is_closed = True
        return self._engine.error

    def require_alive(self) -> None:
        """Unwind the calling code if this driver is dead: a dead process reaches no server and no
        executor."""
        if self.is_dead:
            raise DriverDied

    def die(self) -> None:
        """Die now. Does not return."""
        self.is_dead = True
        raise DriverDied

    def discard(self) -> None:
        """Drop everything except the messages that the dead driver has sent."""
        self.is_dead = True
        self._unwind()

    def suspend(self, commits: int) -> None:
        """Stop here until other drivers have committed ``commits`` transactions, if this thread can
        wait."""
        self.sleeps_until = self._world.commits + commits
        self._world.note(f"driver {self.number} is suspended")
        if turns.is_carried():
            self.ready.append((turns.current(), None))
            turns.park()

    def is_struck(self, where: str) -> bool:
        """Let a fault strike this driver between two slots in a job, and return whether one does."""
        if not self.is_active:
            return False
        how = self._world.decisions.strike(
            "driver", f"before {where}, in driver {self.number}", DRIVER_FAULTS
        )
        if how in SUSPENSIONS:
            self.suspend(SUSPENSIONS[how])
        elif how is not None:
            self.is_dead = True
        return how is not None

    def _unwind(self) -> None:
        self.loop.resume_aside()
        while self.ready and not self.is_dead:
            self.loop.resume()
        was_dead, self.is_dead = self.is_dead, True
        self.loop.end()
        self.is_dead = was_dead

    def apply_fault(self, how: str) -> None:
        if how == DIES:
            self.die()
        self.suspend(SUSPENSIONS[how])
        self.require_alive()
