"""Runs the engine's loop: turns the coordinator's commands into jobs, writes and waits, and
outcomes and time-outs into events.

Runs on: driver, in its own thread. The engine's parts decide when: ``admission`` how many
processing jobs run at once, ``pace`` how small transactions run, ``deadlines`` when a job is late.

Invariants: only the loop's thread touches the coordinator, the attempts and the timers. Other
threads post to the loop's queue. Seals, commits and records run on one thread, in the order of
their commands.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

from txtopo import config
from txtopo.coordinator import messages
from txtopo.coordinator.coordinator import Policy, TransactionCoordinator
from txtopo.coordinator.messages import Command, Event
from txtopo.coordinator.transitions import Status
from txtopo.dataplane.job import Run
from txtopo.engine import continuity
from txtopo.engine.admission import Admission
from txtopo.engine.attempts import Attempt, AttemptRunner
from txtopo.engine.batches import Batches
from txtopo.engine.causes import Causes
from txtopo.engine.commit_writes import Commits
from txtopo.engine.deadlines import Deadlines
from txtopo.engine.jobs import Jobs
from txtopo.engine.loop import Loop
from txtopo.engine.observer import Observer
from txtopo.engine.opening import Opening
from txtopo.engine.pace import Pace
from txtopo.engine.steps import Steps
from txtopo.engine.surroundings import Surroundings, Threads
from txtopo.engine.timelines import Timelines
from txtopo.plan.compiler import Plans
from txtopo.state.topology import TopologyState
from txtopo.topology import transaction
from txtopo.topology.transaction import TransactionAttempt

_RENEW_INTERVAL_S = 1.0
_COLLECT_GARBAGE_EVERY_S = 10.0
"""JVM objects live as long as their Python proxies, and Python on its own seldom collects its whole
heap."""
_THREADS_END_S = 5.0


class Engine:
    """Runs one topology until it is stopped, done, or an error ends it."""

    def __init__(
        self,
        run: Run,
        conf: config.Config,
        jobs: Jobs,
        state: TopologyState,
        observers: Sequence[Observer],
        rng: random.Random,
        revive: Callable[[], None],
        surroundings: Surroundings,
        plans: Plans | None = None,
    ) -> None:
        """``revive`` is called about once a second, on its own thread, and may restart the run's
        server. ``plans`` are those of ``run.graph``, if they are compiled already."""
        self._run = run
        self._conf = conf
        self._state = state
        self._revive = revive
        self._surroundings = surroundings
        loop = Loop(conf, surroundings, observers, rng, self._handle, self._drain, self._stop_with)
        self._loop = loop
        expected_stores = continuity.resume(run.graph, state)
        self._batches = Batches(run.graph, run.conf, state, self._surroundings.time_of_opening)
        last = None if conf.max_transactions is None else state.current + conf.max_transactions - 1
        policy = Policy(
            conf.max_spout_pending,
            conf.max_attempts,
            conf.max_crashes,
            last,
            self._batches.emits_metadata,
            self._batches.is_opaque,
        )
        self._coordinator = TransactionCoordinator(
            policy, state.epoch, state.current, self._batches.known_txids()
        )
        self._attempts: dict[TransactionAttempt, Attempt] = {}
        self._pace = Pace(
            conf.small_transaction_s,
            overlaps=conf.max_spout_pending > 1,
            is_narrow=max(run.graph.task_counts.values()) == 1,
        )
        self._deadlines = Deadlines(loop, self._coordinator, self._pace, self._attempts, jobs)
        self._runner = AttemptRunner(
            run,
            jobs,
            self._batches,
            state,
            conf.on_error,
            self._deadlines.start,
            self._surroundings,
            expected_stores,
            plans,
        )
        self._steps = Steps(loop, self._runner, state)
        sealed = state.sealed()
        self._runner.resumed_txid = None if sealed is None else sealed.txid
        self._sealed_tasks = (
            {}
            if sealed is None or sealed.tasks is None
            else {sealed.txid: {**run.graph.task_counts, **sealed.tasks}}
        )
        plan = self._runner.begin(TransactionAttempt(0, 0), run.graph.task_counts, run.cores).plan
        self._causes = Causes()
        self._timelines = Timelines()
        self._failing: TransactionAttempt | None = None
        """The attempt that the event at hand fails."""
        self._collected_at = self._surroundings.now()
        self.ended = False
        """The run is over."""
        self.error: BaseException | None = None
        """The error that ended the run, if any."""
        # An error that leaves a thread's work ends the run, because the loop would wait for the
        # work's event.
        threads = functools.partial(self._surroundings.threads, failed=self.kill)
        self._threads: list[Threads] = []
        try:
            for name in ("renew", "spout", "commit"):
                self._threads.append(threads(name, 1))
            self._threads.append(threads("process", min(conf.max_spout_pending, run.cores + 1)))
        except BaseException:
            self.close()
            raise
        renew, self._spout_thread, self._commit_thread, process = self._threads
        self._renew = functools.partial(renew.submit, self._renew_now)
        self.opening = Opening(
            loop, self._spout_thread, self._batches, self._coordinator, self._causes
        )
        self._commits = Commits(loop, state, self._batches)
        self._admission = Admission(
            process,
            self._pace,
            run.cores,
            max(level.slots for level in plan.processing.levels),
        )

    # -- from other threads -----------------------------------------------------------------------

    def drain(self) -> None:
        """Finish commits in flight, abandon the rest, end."""
        self._surroundings.post(self._drain)

    def kill(self, error: BaseException | None = None) -> None:
        # Post first: abandoning makes waiting threads fail, and their errors must not become the
        # reason why the run ends.
        self._surroundings.post(functools.partial(self._end, error))
        self._state.abandon()

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Block until the run ends. Raises the error that ended the run, if any."""
        try:
            self.begin()
            while not self.ended:
                self._surroundings.next()()
        except Exception as error:
            self.error = self.error or error
        finally:
            self.close()
        if self.error is not None:
            raise self.error

    def begin(self) -> None:
        """Execute the first commands. Afterwards the loop takes actions from its surroundings until
        :attr:`ended`, and then calls :meth:`close`."""
        state, is_resumed = self._state, self._runner.resumed_txid is not None
        self._loop.tell(
            lambda each: each.began(state.generation, state.epoch, state.current, is_resumed)
        )
        self._surroundings.after(_RENEW_INTERVAL_S, self._renew)
        self._do(self._coordinator.start())

    def _handle(self, event: Event) -> None:
        self._failing = event.attempt if isinstance(event, messages.Failed) else None
        self._do(self._coordinator.handle(event))

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            self._execute(command)
        coordinator = self._coordinator
        active = tuple(
            (attempt.txid, attempt.attempt_id, status.value)
            for attempt, status in coordinator.active.values()
        )
        if self._loop.observers:
            self._timelines.note(active, self._surroundings.now())
        self._loop.tell(lambda each: each.in_flight(coordinator.current, active, coordinator.idle))
        if self.opening.is_held and coordinator.is_at_rest:
            self._loop.tell(lambda each: each.paused())

    def _execute(self, command: Command) -> None:
        partial, steps, commits = functools.partial, self._steps, self._commits
        match command:
            case messages.Open(txid):
                self.opening.ask(txid)
            case messages.Emit(attempt):
                work = self._begin(attempt)
                if self._batches.emits_metadata:
                    self._process_later(steps.emit, work)
                else:
                    self._spout_thread.submit(partial(steps.run, steps.plan, work, self._emitted))
            case messages.Process(attempt):
                work = self._work_of(attempt)
                if work.emission is None:
                    # The batch may have been planned while transactions were small.
                    self._runner.use_cores(work, self._cores_for(attempt))
                self._process_later(steps.process, work)
            case messages.Seal(attempt):
                self._commit_thread.submit(partial(commits.seal, self._work_of(attempt)))
            case messages.Apply(attempt):
                self._admission.commit_begins()
                work = self._attempts[attempt]
                self._commit_thread.submit(partial(steps.run, steps.apply, work, self._apply_done))
            case messages.Record(attempt, seal_next):
                following = None if seal_next is None else self._work_of(seal_next)
                work = self._attempts[attempt]
                self._commit_thread.submit(partial(commits.record, work, following))
            case messages.Forget(attempt):
                self._forget(self._attempts.pop(attempt))
            case messages.Cancel(attempt):
                self._cancel(attempt)
            case messages.BackOff(txid, failures):
                self._surroundings.after(
                    self._loop.backoff_s(failures), partial(self._handle, messages.Resume(txid))
                )
            case messages.Stop(cause, reason, count):
                self._end(self.error or self._causes.error(cause, reason, count))

    # -- processing -------------------------------------------------------------------------------

    def _work_of(self, attempt: TransactionAttempt) -> Attempt:
        return self._attempts.get(attempt) or self._begin(attempt)

    def _begin(self, attempt: TransactionAttempt) -> Attempt:
        work = self._runner.begin(
            attempt,
            self._sealed_tasks.get(attempt.txid, self._run.graph.task_counts),
            self._cores_for(attempt),
        )
        self._attempts[attempt] = work
        return work

    def _cores_for(self, attempt: TransactionAttempt) -> int:
        return 1 if self._pace.is_small and transaction.is_first_try(attempt) else self._run.cores

    def _process_later(self, step: Callable[[Attempt], Event], work: Attempt) -> None:
        done = self._processing_done
        self._admission.add(work.attempt, functools.partial(self._steps.run, step, work, done))

    def _processing_done(self, event: Event) -> None:
        self._admission.processing_ended()
        self._emitted(event)
        self._admission.admit()

    def _emitted(self, event: Event) -> None:
        """Keep metadata only for the live attempt: a late answer must not decide the batch."""
        if isinstance(event, messages.Emitted) and self._coordinator.active.get(
            event.attempt.txid
        ) == (event.attempt, Status.EMITTING):
            self._batches.learnt(event.attempt, self._attempts[event.attempt].metadata)
        self._handle(event)

    def _apply_done(self, event: Event) -> None:
        self._admission.commit_ended()
        self._handle(event)
        self._admission.admit()

    # -- the end of an attempt --------------------------------------------------------------------

    def _forget(self, work: Attempt) -> None:
        self._surroundings.reach("forget.before", work.attempt.txid)
        work.release()
        self._surroundings.reach("forget.inside", work.attempt.txid)
        if self._loop.observers:
            ended = self._timelines.ended(work, self._surroundings.now(), is_committed=True)
            self._loop.tell(lambda each: each.committed(ended))
        self._batches.discard(work.attempt)
        self._causes.forget(work.attempt.txid)
        self._sealed_tasks.pop(work.attempt.txid, None)
        self._pace.committed(work.busy_s)
        self._surroundings.post(self._deadlines.set_pace)
        if self._surroundings.now() - self._collected_at > _COLLECT_GARBAGE_EVERY_S:
            self._surroundings.collect_garbage()
            self._collected_at = self._surroundings.now()
        self._surroundings.reach("forget.after", work.attempt.txid)

    def _cancel(self, attempt: TransactionAttempt) -> None:
        work = self._attempts.pop(attempt, None)
        if work is None:
            return
        work.discarded = True  # first: no thread begins a step of it from now on
        if work.failure is not None:
            self._causes.add(attempt, work.failure)
        doomed = self._coordinator.doomed
        is_replayed = not self._coordinator.stopping and (doomed is None or attempt.txid < doomed)
        if self._loop.observers:
            ended = self._timelines.ended(
                work, self._surroundings.now(), self._failing, is_replayed=is_replayed
            )
            self._loop.tell(lambda each: each.attempt_ended(ended))
        self._batches.discard(attempt)
        self._runner.cancel(work)

    # -- the end of the run -----------------------------------------------------------------------

    def _drain(self) -> None:
        if not self._coordinator.stopping:
            self._loop.tell(lambda each: each.draining())
            self._surroundings.after(self._conf.drain_timeout_s, functools.partial(self.kill, None))
        self._handle(messages.Drain())

    def _stop_with(self, error: BaseException) -> None:
        self.error = self.error or error
        self._drain()

    def _end(self, error: BaseException | None) -> None:
        self.error = self.error or error
        self.ended = True

    def _renew_now(self) -> None:
        """On its own thread, because ZooKeeper may not answer, and the loop must go on. An error
        ends the run, because the lease is no longer renewed."""
        self._revive()
        self._state.renew()
        self._surroundings.post(
            functools.partial(self._surroundings.after, _RENEW_INTERVAL_S, self._renew)
        )

    def close(self) -> None:
        """Cancel the jobs that still run in Spark, and end the threads. Jobs may end a little
        later. An error in one step does not skip the other steps. The run's first error is kept."""
        steps: list[Callable[[], object]] = [
            functools.partial(self._runner.cancel, work) for work in self._attempts.values()
        ]
        for step in (
            *steps,
            self._attempts.clear,
            self._state.abandon,
            self._end_threads,
            self._batches.close,
        ):
            try:
                step()
            except Exception as error:
                self.error = self.error or error

    def _end_threads(self) -> None:
        deadline = self._surroundings.now() + _THREADS_END_S
        for threads in reversed(self._threads):
            threads.close(max(0.0, deadline - self._surroundings.now()))
