"""The transaction coordinator: decides when a transaction begins, commits or is tried again, and
when the run ends.

Invariants, after every event:

* Live attempts are those of the txids ``current`` … ``current + n - 1`` with n ≤ pending: no gaps,
  one attempt each (R2).
* At most one attempt is SEALING, APPLYING or RECORDING: the attempt of ``current``. While
  ``current`` is RECORDING the next attempt may be SEALING, because its seal travels in the same
  write (R3, R25).
* A stop because of txid N comes when every txid < N has committed: where a run stops does not
  depend on how fast anything is (R7). Until then nothing from N on is begun.
* At most one txid is being opened and at most one attempt is EMITTING. Both happen in txid order
  (R4, R5).
* An opaque spout that had nothing left is asked again if an earlier attempt was discarded
  meanwhile: the replay may end earlier (R20).
* A txid's attempt ids only grow (R1).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from txtopo.coordinator import messages, transitions
from txtopo.coordinator.messages import Command, Event
from txtopo.coordinator.transitions import COMMIT_PHASE, TURN_MAY_COME, Status, Step
from txtopo.topology import transaction
from txtopo.topology.transaction import TransactionAttempt


@dataclass(frozen=True, slots=True)
class Policy:
    """A coordinator's settings, fixed for its life. ``emits_metadata``: each txid takes its
    metadata from an attempt's emission. ``opaque``: from every attempt's emission. A bound of
    ``None`` is no bound. ``last_txid`` is the last txid to run."""

    max_spout_pending: int = 1
    max_attempts: int | None = None
    max_crashes: int | None = None
    last_txid: int | None = None
    emits_metadata: bool = False
    opaque: bool = False


@dataclass(slots=True)
class _Active:
    attempt: TransactionAttempt
    status: Status
    sealed_with_record: bool = False


class TransactionCoordinator:
    """The state machine of one run. ``current`` is the next txid to commit. ``known`` are the txids
    whose metadata survived a restart."""

    def __init__(
        self, policy: Policy, epoch: int, current: int, known: Collection[int] = ()
    ) -> None:
        self.policy, self.epoch, self.current = policy, epoch, current
        self._known = {txid for txid in known if txid >= current}
        self._newest = max(self._known, default=current - 1)
        self._active: dict[int, _Active] = {}
        self._opening: int | None = None
        self._asked_before_a_discard = False
        self._spout_said_no = False
        self._defers = False
        self._tries: dict[int, int] = {}
        self._failures: dict[int, int] = {}
        self._crashes: dict[int, int] = {}
        self._backing_off: int | None = None
        self.doomed: int | None = None
        """The txid at which the run will stop, once every earlier txid has committed."""
        self._doom: messages.Stop | None = None
        self._stopping: messages.Stop | None = None
        self._stopped = False

    @property
    def active(self) -> dict[int, tuple[TransactionAttempt, Status]]:
        """The live attempts by txid, ascending, with their status."""
        return {txid: (entry.attempt, entry.status) for txid, entry in sorted(self._active.items())}

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and the spout had nothing when last asked."""
        return (
            not self._active
            and self._opening is None
            and self._spout_said_no
            and self._backing_off is None
        )

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in flight, nor waits to be tried again."""
        return not self._active and self._backing_off is None

    @property
    def stopping(self) -> bool:
        """Whether a stop has begun. No new work is started then."""
        return self._stopping is not None

    def start(self) -> list[Command]:
        return self._advance([])

    def handle(self, event: Event) -> list[Command]:
        """Take one event, and return the commands that follow from the event, in order."""
        if self._stopped:
            return []
        commands: list[Command] = []
        match event:
            case messages.Opened(txid):
                self._on_opened(txid)
            case messages.NotReady(txid):
                if self._opening == txid:
                    self._opening = None
                    self._spout_said_no = not (self.policy.opaque and self._asked_before_a_discard)
            case messages.Unopenable(txid):
                if self._opening == txid:
                    self._opening = None
                    self._stop_before(txid, messages.Stop(None, "unopenable"), commands)
            case messages.Poll():
                self._spout_said_no = False
            case messages.Resume(txid):
                if self._backing_off == txid:
                    self._backing_off = None
            case messages.Defer(on):
                self._defers = on
            case messages.Drain():
                self._begin_stop(messages.Stop(None, "drained"), commands)
            case messages.Failed(attempt, kind):
                self._on_failed(attempt, kind, commands)
            case messages.Emitted(attempt):
                is_deferred = self._may_defer(attempt.txid)
                if self._step(attempt, Step.DEFERRED if is_deferred else Step.EMITTED):
                    self._known.add(attempt.txid)
                    if not is_deferred:
                        commands.append(messages.Process(attempt))
            case messages.Processed(attempt):
                self._step(attempt, Step.PROCESSED)
            case messages.Sealed(attempt):
                self._on_sealed(attempt, commands)
            case messages.Applied(attempt):
                self._on_applied(attempt, commands)
            case messages.Recorded(attempt):
                self._on_recorded(attempt, commands)
        return self._advance(commands)

    def _live(self, attempt: TransactionAttempt) -> _Active | None:
        entry = self._active.get(attempt.txid)
        return entry if entry is not None and entry.attempt == attempt else None

    def _step(self, attempt: TransactionAttempt, step: Step) -> bool:
        """Move a live attempt along the table. ``False`` for a stale attempt, which changes nothing
        (R6)."""
        entry = self._live(attempt)
        if entry is None:
            return False
        entry.status = transitions.next_status(str(attempt), entry.status, step)
        return True

    def _on_opened(self, txid: int) -> None:
        if self._opening != txid:
            return
        self._opening = None
        self._newest = max(self._newest, txid)
        if not self.policy.emits_metadata and not self.policy.opaque:
            self._known.add(txid)

    def _may_defer(self, txid: int) -> bool:
        """Whether ``txid`` may be processed together with its commit. A txid that failed before may
        not, nor a txid whose metadata comes from an emission job."""
        return self._defers and not self.policy.emits_metadata and self._tries.get(txid) == 1

    def _on_failed(
        self, attempt: TransactionAttempt, kind: messages.FailureKind, commands: list[Command]
    ) -> None:
        if not self._step(attempt, Step.FAILED):
            return
        txid = attempt.txid
        self._discard_from(txid, commands)
        if kind != "outgrown":
            counts = self._crashes if kind == "crash" else self._failures
            counts[txid] = counts.get(txid, 0) + 1
        failures = self._failures.get(txid, 0) + self._crashes.get(txid, 0)
        if kind == "fatal":
            self._stop_before(txid, messages.Stop(attempt, "fatal"), commands)
        elif (
            self.policy.max_crashes is not None
            and self._crashes.get(txid, 0) >= self.policy.max_crashes
        ):
            self._stop_before(
                txid, messages.Stop(attempt, "crashes", self._crashes[txid]), commands
            )
        elif self.policy.max_attempts is not None and failures >= self.policy.max_attempts:
            self._stop_before(txid, messages.Stop(attempt, "poison", failures), commands)
        elif self._stopping is None:
            self._backing_off = txid
            commands.append(messages.BackOff(txid, 0 if kind == "outgrown" else failures))

    def _discard_from(self, txid: int, commands: list[Command]) -> None:
        """Discard ``txid`` and every later live attempt (R6), the latest first."""
        for later in sorted((t for t in self._active if t >= txid), reverse=True):
            commands.append(messages.Cancel(self._active.pop(later).attempt))
            self._asked_before_a_discard = True

    def _on_sealed(self, attempt: TransactionAttempt, commands: list[Command]) -> None:
        entry = self._live(attempt)
        if entry is not None and entry.sealed_with_record:
            # The seal travels in the record of the transaction before, and is answered with that
            # record.
            raise transitions.IllegalEventError(str(attempt), entry.status, Step.SEALED)
        if self._step(attempt, Step.SEALED):
            commands.append(messages.Apply(attempt))

    def _on_applied(self, attempt: TransactionAttempt, commands: list[Command]) -> None:
        if not self._step(attempt, Step.APPLIED):
            return
        following = self._active.get(attempt.txid + 1)
        seal_next = None
        if following is not None and following.status in TURN_MAY_COME and self._stopping is None:
            following.status = transitions.next_status(
                str(following.attempt), following.status, Step.TURN
            )
            following.sealed_with_record = True
            seal_next = following.attempt
        commands.append(messages.Record(attempt, seal_next))

    def _on_recorded(self, attempt: TransactionAttempt, commands: list[Command]) -> None:
        if not self._step(attempt, Step.RECORDED):
            return
        del self._active[attempt.txid]
        self.current = attempt.txid + 1
        for counts in (self._tries, self._failures, self._crashes):
            counts.pop(attempt.txid, None)
        self._known.discard(attempt.txid)
        commands.append(messages.Forget(attempt))
        following = self._active.get(self.current)
        if following is not None and following.sealed_with_record:
            following.status = transitions.next_status(
                str(following.attempt), following.status, Step.SEALED
            )
            commands.append(messages.Apply(following.attempt))

    def _stop_before(self, txid: int, stop: messages.Stop, commands: list[Command]) -> None:
        """Stop because of ``txid`` as soon as every earlier txid has committed. If there are
        several such txids, the earliest counts."""
        if self._stopping is not None:
            self._begin_stop(stop, commands)
        elif self.doomed is None or txid < self.doomed:
            self.doomed, self._doom = txid, stop

    def _begin_stop(self, stop: messages.Stop, commands: list[Command]) -> None:
        if self._stopping is None or (self._stopping.cause is None and stop.cause is not None):
            self._stopping = self._doom or stop
        committing = [txid for txid, entry in self._active.items() if entry.status in COMMIT_PHASE]
        self._discard_from(max(committing, default=self.current - 1) + 1, commands)

    def _advance(self, commands: list[Command]) -> list[Command]:
        """Add the commands that have become possible: a commit's turn, new attempts, the end."""
        if not self._defers:
            self._start_waiting(commands)
        self._take_turn(commands)
        if self._stopping is None and self.doomed == self.current:
            self._stopping = self._doom
        if (
            self._stopping is None
            and self.policy.last_txid is not None
            and self.current > self.policy.last_txid
        ):
            self._stopping = messages.Stop(None, "done")
        if self._stopping is not None:
            if not self._active:
                self._stopped = True
                commands.append(self._stopping)
            return commands
        self._fill_window(commands)
        self._take_turn(commands)
        return commands

    def _take_turn(self, commands: list[Command]) -> None:
        """Let the first transaction commit, if it is ready."""
        head = self._active.get(self.current)
        if head is not None and head.status in TURN_MAY_COME and self._stopping is None:
            head.status = transitions.next_status(str(head.attempt), head.status, Step.TURN)
            commands.append(messages.Seal(head.attempt))

    def _start_waiting(self, commands: list[Command]) -> None:
        """Process the deferred transactions that have not had their turn, in txid order."""
        for _, entry in sorted(self._active.items()):
            if entry.status is Status.WAITING:
                entry.status = transitions.next_status(
                    str(entry.attempt), entry.status, Step.STARTED
                )
                commands.append(messages.Process(entry.attempt))

    def _fill_window(self, commands: list[Command]) -> None:
        """Begin attempts for the window's free txids, in order, up to the first that cannot begin
        (R2, R5)."""
        end = self.current + self.policy.max_spout_pending
        if self.policy.last_txid is not None:
            end = min(end, self.policy.last_txid + 1)
        if self.doomed is not None:
            end = min(end, self.doomed)
        for txid in range(self.current + len(self._active), end):
            if self._backing_off is not None and txid >= self._backing_off:
                return
            is_emitting = any(entry.status is Status.EMITTING for entry in self._active.values())
            if txid > self._newest:
                # The emission in progress decides where the next batch begins, and so whether there
                # is a next batch.
                if self._opening is None and not self._spout_said_no and not is_emitting:
                    self._opening, self._asked_before_a_discard = txid, False
                    commands.append(messages.Open(txid))
                return
            emits = self.policy.opaque or txid not in self._known
            if emits and is_emitting:
                return
            self._begin(txid, emits, commands)

    def _begin(self, txid: int, emits: bool, commands: list[Command]) -> None:
        tries = self._tries.get(txid, 0)
        self._tries[txid] = tries + 1
        attempt = TransactionAttempt(txid, transaction.attempt_id(self.epoch, tries))
        if emits:
            self._active[txid] = _Active(attempt, Status.EMITTING)
            commands.append(messages.Emit(attempt))
        elif self._may_defer(txid):
            self._active[txid] = _Active(attempt, Status.WAITING)
        else:
            self._active[txid] = _Active(attempt, Status.PROCESSING)
            commands.append(messages.Process(attempt))
