"""The engine: a loop that turns the coordinator's commands into Spark jobs, ZooKeeper writes and
waits, and outcomes and time-outs into events.

Runs on: driver, in a thread of its own. The engine decides only the pace; ``admission`` decides how
many processing jobs Spark gets at once.

Invariants: only the loop's thread touches the coordinator, the attempts and the timers; other
threads post to its queue. Commits, seals and records happen on one thread, in the order of their
commands.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

from txtopo import config, errors
from txtopo.coordinator import messages
from txtopo.coordinator.coordinator import Policy, TransactionCoordinator
from txtopo.coordinator.messages import Command, Event
from txtopo.coordinator.transitions import Status
from txtopo.dataplane.job import Run
from txtopo.engine import commit_writes, continuity
from txtopo.engine.admission import Admission
from txtopo.engine.attempts import Attempt, AttemptFailedError, AttemptRunner
from txtopo.engine.batches import Batches
from txtopo.engine.causes import Causes
from txtopo.engine.jobs import Jobs
from txtopo.engine.observer import Observer, Progress, tell
from txtopo.engine.pace import Pace
from txtopo.engine.surroundings import Surroundings
from txtopo.state.topology import TopologyState
from txtopo.topology import transaction
from txtopo.topology.transaction import TransactionAttempt

_RENEW_INTERVAL_S = 1.0
_LATE_S = 0.25
"""A longer job is no job of a small transaction, whatever times the tasks report."""
_COLLECT_GARBAGE_EVERY_S = 10.0
"""Objects of the JVM live as long as their proxies here, and Python by itself collects its whole
heap seldom."""
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
    ) -> None:
        """``revive`` is called about once a second, on a thread of its own: the call may restart a
        server of the run."""
        self._run, self._conf, self._state, self._rng, self._revive, self._surroundings = (
            run,
            conf,
            state,
            rng,
            revive,
            surroundings,
        )
        self._tell = functools.partial(tell, observers)
        expected_stores = continuity.resume(run.graph, state)
        self._batches = Batches(run.graph, run.conf, state, self._surroundings.time_of_opening)
        self._runner = AttemptRunner(
            run,
            jobs,
            self._batches,
            conf.on_error,
            self._job_submitted,
            self._surroundings,
            expected_stores,
        )
        self._writes = commit_writes.CommitWrites(state, self._batches, self._surroundings)
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
        sealed = state.sealed()
        self._runner.resumed_txid = None if sealed is None else sealed.txid
        self._sealed_tasks = (
            {}
            if sealed is None or sealed.tasks is None
            else {sealed.txid: {**run.graph.task_counts, **sealed.tasks}}
        )
        self._attempts: dict[TransactionAttempt, Attempt] = {}
        plan = self._runner.begin(TransactionAttempt(0, 0), run.graph.task_counts, run.cores).plan
        self._pace = Pace(conf.small_transaction_s, conf.max_spout_pending > 1)
        self._defers = False
        self._opens = 0
        self._open_failures = 0
        self._causes = Causes()
        self._collected_at = self._surroundings.now()
        self.ended = False
        """Nothing is left to do."""
        self.error: BaseException | None = None
        """The error that ended the run, if there was one."""
        # An error that leaves their work ends the run: the loop waits for the event of the work.
        threads = functools.partial(self._surroundings.threads, failed=self.kill)
        self._renew_thread = threads("renew", 1)
        self._renew = functools.partial(self._renew_thread.submit, self._renew_now)
        self._spout_thread = threads("spout", 1)
        self._commit_thread = threads("commit", 1)
        self._process_threads = threads("process", min(conf.max_spout_pending, run.cores + 1))
        self._admission = Admission(
            self._process_threads,
            self._pace,
            run.cores,
            max(level.slots for level in plan.processing.levels),
        )

    # -- from other threads -----------------------------------------------------------------------

    def drain(self) -> None:
        """Finish commits in flight, abandon the rest, end."""
        self._surroundings.post(self._drain)

    def kill(self, error: BaseException | None = None) -> None:
        """End now."""
        # First: a thread that is made to give up waiting must not be the first to name the reason
        # why the run ends.
        self._surroundings.post(functools.partial(self._end, error))
        self._state.abandon()

    def _post(self, event: Event) -> None:
        self._surroundings.post(functools.partial(self._handle, event))

    def _job_submitted(self, attempt: TransactionAttempt) -> None:
        deadline = self._surroundings.now() + self._conf.message_timeout_s
        self._surroundings.post(functools.partial(self._watch, attempt, deadline))

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Block until the run ends; raises the error that ended the run, if any."""
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
        """The first commands; afterwards the loop takes events from its surroundings until
        :attr:`ended`, and then calls :meth:`close`."""
        state, is_resumed = self._state, self._runner.resumed_txid is not None
        self._tell(
            lambda each: each.began(state.generation, state.epoch, state.current, is_resumed)
        )
        self._surroundings.after(_RENEW_INTERVAL_S, self._renew)
        self._do(self._coordinator.start())

    def _handle(self, event: Event) -> None:
        self._do(self._coordinator.handle(event))

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            self._execute(command)
        coordinator = self._coordinator
        active = tuple(
            (attempt.txid, attempt.attempt_id, status.value)
            for attempt, status in coordinator.active.values()
        )
        self._tell(lambda each: each.moved(coordinator.current, active, coordinator.idle))

    def _execute(self, command: Command) -> None:
        match command:
            case messages.Open(txid):
                self._opens += 1
                self._tell(lambda each: each.asked(self._opens))
                self._spout_thread.submit(functools.partial(self._open, txid, self._opens))
            case messages.Emit(attempt):
                work = self._begin(attempt)
                if self._batches.emits_metadata:
                    self._admit_later(attempt, functools.partial(self._emit, work))
                else:
                    self._spout_thread.submit(functools.partial(self._plan, work))
            case messages.Process(attempt):
                work = self._attempts.get(attempt) or self._begin(attempt)
                if work.emission is None:
                    # Its batch may have been planned when transactions were small, and wait since.
                    self._runner.use_cores(work, self._cores_for(attempt))
                self._admit_later(attempt, functools.partial(self._process, work))
            case messages.Seal(attempt):
                self._commit_thread.submit(
                    functools.partial(
                        self._seal, self._attempts.get(attempt) or self._begin(attempt)
                    )
                )
            case messages.Apply(attempt):
                self._admission.commit_begins()
                self._commit_thread.submit(functools.partial(self._apply, self._attempts[attempt]))
            case messages.Record(attempt, seal_next):
                following = (
                    None
                    if seal_next is None
                    else self._attempts.get(seal_next) or self._begin(seal_next)
                )
                self._commit_thread.submit(
                    functools.partial(self._record, self._attempts[attempt], following)
                )
            case messages.Forget(attempt):
                self._forget(self._attempts.pop(attempt))
            case messages.Cancel(attempt):
                self._cancel(attempt)
            case messages.BackOff(txid, failures):
                self._surroundings.after(
                    self._backoff_s(failures),
                    functools.partial(self._handle, messages.Resume(txid)),
                )
            case messages.Stop(cause, reason, count):
                self._end(self.error or self._causes.error(cause, reason, count))

    # -- opening ----------------------------------------------------------------------------------

    def _open(self, txid: int, number: int) -> None:
        """On the spout's thread."""
        try:
            ready = self._batches.open(txid)
        except errors.FailedException as error:
            self._surroundings.post(functools.partial(self._open_failed, txid, error))
        except (errors.UserCodeError, errors.InputError) as error:
            replays = self._conf.on_error == "replay" and isinstance(error, errors.UserCodeError)
            self._surroundings.post(
                functools.partial(self._open_failed if replays else self._unopenable, txid, error)
            )
        except BaseException as error:
            self._surroundings.post(functools.partial(self._stop_with, error))
        else:
            self._surroundings.post(functools.partial(self._opened, txid, number, ready))

    def _opened(self, txid: int, number: int, ready: bool) -> None:
        self._open_failures = 0
        progress = Progress(self._batches.fraction_done, self._batches.lag, self._batches.lost)
        self._tell(lambda each: each.answered(txid, progress))
        if ready:
            self._handle(messages.Opened(txid))
            return
        self._handle(messages.NotReady(txid))
        if self._coordinator.idle:
            self._tell(lambda each: each.idle(number))
            if self._conf.until == "exhausted":
                self._drain()
        self._surroundings.after(
            self._conf.poll_interval_s, functools.partial(self._handle, messages.Poll())
        )

    def _open_failed(self, txid: int, error: BaseException) -> None:
        self._open_failures += 1
        self._tell(lambda each: each.open_failed(txid, error))
        self._handle(messages.NotReady(txid))
        self._surroundings.after(
            self._backoff_s(self._open_failures), functools.partial(self._handle, messages.Poll())
        )

    def _unopenable(self, txid: int, error: BaseException) -> None:
        self._causes.unopenable = error
        self._handle(messages.Unopenable(txid))

    # -- processing -------------------------------------------------------------------------------

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

    def _admit_later(self, attempt: TransactionAttempt, job: Callable[[], Event]) -> None:
        self._admission.add(attempt, functools.partial(self._processing_job, attempt, job))

    def _processing_job(self, attempt: TransactionAttempt, job: Callable[[], Event]) -> None:
        """On a processing thread."""
        event = self._event_of(attempt, job)
        self._surroundings.post(functools.partial(self._processing_done, event))

    def _processing_done(self, event: Event) -> None:
        self._admission.processing_ended()
        self._learn(event)
        self._handle(event)
        self._admission.admit()

    def _plan(self, work: Attempt) -> None:
        """On the spout's thread: an opaque batch is planned for every attempt."""

        def planned() -> Event:
            self._runner.plan(work)
            return messages.Emitted(work.attempt)

        event = self._event_of(work.attempt, planned)
        self._surroundings.post(functools.partial(self._planned, event))

    def _planned(self, event: Event) -> None:
        self._learn(event)
        self._handle(event)

    def _learn(self, event: Event) -> None:
        """Only the live attempt learns metadata: a late answer must not decide the batch."""
        if isinstance(event, messages.Emitted) and self._coordinator.active.get(
            event.attempt.txid
        ) == (event.attempt, Status.EMITTING):
            self._batches.learnt(event.attempt, self._attempts[event.attempt].metadata)

    def _event_of(self, attempt: TransactionAttempt, job: Callable[[], Event]) -> Event:
        work = self._attempts.get(attempt)
        if work is None or work.discarded:
            return messages.Failed(attempt, "failed")
        try:
            return job()
        except AttemptFailedError as failure:
            work.failure = self._explained(failure)
            return messages.Failed(attempt, failure.kind)
        except errors.FailedException as error:
            work.failure = AttemptFailedError("failed", str(error))
            return messages.Failed(attempt, "failed")
        except errors.TxtopoError as error:
            if isinstance(error, errors.UserCodeError) and self._conf.on_error == "replay":
                work.failure = AttemptFailedError("failed", str(error))
                return messages.Failed(attempt, "failed")
            return commit_writes.refused(work, error)
        except BaseException as error:
            self._surroundings.post(functools.partial(self._stop_with, error))
            return messages.Failed(attempt, "failed")

    def _explained(self, failure: AttemptFailedError) -> AttemptFailedError:
        """``failure``, or a lease error if a store refused our attempt because another coordinator
        has taken the topology meanwhile (R26)."""
        if isinstance(failure.error, errors.StateMismatchError):
            try:
                self._state.require_held()
            except errors.FencedError as error:
                return AttemptFailedError(failure.kind, str(error), error)
            except errors.TxtopoError:
                pass  # ZooKeeper cannot tell now; then the error of the store stands.
        return failure

    def _emit(self, work: Attempt) -> Event:
        self._runner.emit(work)
        return messages.Emitted(work.attempt)

    def _process(self, work: Attempt) -> Event:
        self._runner.process(work, self._state.known_stores, self._state.current - 1)
        return messages.Processed(work.attempt)

    def _watch(self, attempt: TransactionAttempt, deadline: float) -> None:
        """A job of ``attempt`` went to Spark: fail the attempt if it is still in the same status at
        ``deadline``."""
        live = self._coordinator.active.get(attempt.txid)
        if live is not None and live[0] == attempt:
            if self._pace.is_small:
                # Other transactions need not wait for the delayed transaction.
                self._surroundings.after(_LATE_S, functools.partial(self._late, attempt, live[1]))
            self._surroundings.after(
                deadline - self._surroundings.now(),
                functools.partial(self._time_out, attempt, live[1]),
            )

    def _late(self, attempt: TransactionAttempt, status: object) -> None:
        """A job takes longer than that of a small transaction could: deferred jobs begin now."""
        if self._coordinator.active.get(attempt.txid) == (attempt, status):
            self._pace.late()
            self._set_pace()

    def _set_pace(self) -> None:
        if self._pace.defers != self._defers:
            self._defers = self._pace.defers
            self._handle(messages.Defer(self._defers))

    def _time_out(self, attempt: TransactionAttempt, status: object) -> None:
        live = self._coordinator.active.get(attempt.txid)
        if live == (attempt, status):
            text = f"attempt {attempt} was {getattr(status, 'value', status)} for longer than message_timeout_s = {self._conf.message_timeout_s}"
            self._attempts[attempt].failure = AttemptFailedError("timeout", text)
            self._handle(messages.Failed(attempt, "timeout"))

    # -- committing: on the commit thread ---------------------------------------------------------

    # An error of a seal or a record kills the run: the state is lost or another coordinator's, no
    # further write is allowed, and there is nothing to drain.

    def _seal(self, work: Attempt) -> None:
        if not work.discarded:
            self._post(self._writes.seal(work))

    def _apply(self, work: Attempt) -> None:
        txid = work.attempt.txid

        def job() -> Event:
            self._surroundings.reach("apply.before", txid)
            self._runner.apply(
                work, self._state.known_stores, self._state.current - 1, self._conf.zombie_wait_s
            )
            self._surroundings.reach("apply.after", txid)
            return messages.Applied(work.attempt)

        event = self._event_of(work.attempt, job)
        self._surroundings.post(functools.partial(self._apply_done, event))

    def _apply_done(self, event: Event) -> None:
        self._admission.commit_ended()
        self._handle(event)
        self._admission.admit()

    def _record(self, work: Attempt, following: Attempt | None) -> None:
        self._post(self._writes.record(work, following, self._post))

    # -- the end of an attempt --------------------------------------------------------------------

    def _forget(self, work: Attempt) -> None:
        self._surroundings.reach("forget.before", work.attempt.txid)
        work.release()
        self._surroundings.reach("forget.inside", work.attempt.txid)
        self._batches.discard(work.attempt)
        self._causes.forget(work.attempt.txid)
        self._sealed_tasks.pop(work.attempt.txid, None)
        self._pace.committed(work.busy_s)
        self._surroundings.post(self._set_pace)
        latency_s = self._surroundings.now() - work.opened_at
        self._tell(lambda each: each.committed(work.attempt, work.tuples, latency_s))
        if self._surroundings.now() - self._collected_at > _COLLECT_GARBAGE_EVERY_S:
            self._surroundings.collect_garbage()
            self._collected_at = self._surroundings.now()
        self._surroundings.reach("forget.after", work.attempt.txid)

    def _cancel(self, attempt: TransactionAttempt) -> None:
        work = self._attempts.pop(attempt, None)
        if work is None:
            return
        if work.failure is not None:
            self._causes.add(attempt, work.failure)
        doomed = self._coordinator.doomed
        is_replayed = not self._coordinator.stopping and (doomed is None or attempt.txid < doomed)
        self._tell(lambda each: each.attempt_ended(attempt, work.failure, is_replayed))
        self._batches.discard(attempt)
        self._runner.cancel(work)

    # -- the end of the run -----------------------------------------------------------------------

    def _drain(self) -> None:
        if not self._coordinator.stopping:
            self._tell(lambda each: each.draining())
            self._surroundings.after(self._conf.drain_timeout_s, functools.partial(self.kill, None))
        self._handle(messages.Drain())

    def _stop_with(self, error: BaseException) -> None:
        self.error = self.error or error
        self._drain()

    def _end(self, error: BaseException | None) -> None:
        self.error = self.error or error
        self.ended = True

    def _renew_now(self) -> None:
        """On a thread of its own: a ZooKeeper that does not answer must not keep the loop from its
        work. After an error the run ends: it no longer looks after its lease."""
        self._revive()
        self._state.renew()
        self._surroundings.post(
            functools.partial(self._surroundings.after, _RENEW_INTERVAL_S, self._renew)
        )

    def _backoff_s(self, failures: int) -> float:
        """0 for the first try; then doubling from ``backoff_min_s`` to ``backoff_max_s``, between
        half of it and all of it."""
        if failures == 0:
            return 0.0
        bound = min(
            self._conf.backoff_max_s, self._conf.backoff_min_s * 2.0 ** min(failures - 1, 30)
        )
        return bound * (0.5 + self._rng.random() / 2)

    def close(self) -> None:
        """Cancel jobs that still run in Spark and may end a little later, and end the threads. An
        error of one step keeps no other from being done, and is told if no other error is."""
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
        for threads in (
            self._process_threads,
            self._commit_thread,
            self._spout_thread,
            self._renew_thread,
        ):
            threads.close(max(0.0, deadline - self._surroundings.now()))
