"""The coordinator against a model that knows only the rules: for any deeds of the engine, the spout
and bad luck, in any order.

The model does not predict commands. It judges each command: was it allowed, and, after each event,
is a command missing?
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from txtopo import TransactionAttempt
from txtopo.coordinator import messages as m
from txtopo.coordinator.coordinator import Policy, TransactionCoordinator
from txtopo.coordinator.transitions import IllegalEventError

IN_COMMIT = ("sealing", "applying", "recording")
ANSWERS: dict[type, tuple[str, str]] = {
    m.Emitted: ("emitting", "emitted"),
    m.Processed: ("processing", "processed"),
    m.Sealed: ("sealing", "sealed"),
    m.Applied: ("applying", "applied"),
    m.Recorded: ("recording", "recorded"),
}
"""Preconditions of each event, and its effect on the attempt until the next command of the
coordinator.
"""

KINDS: tuple[m.FailureKind, ...] = ("failed", "timeout", "crash", "outgrown", "fatal")
picks = st.integers(0, 7)


@dataclass
class Live:
    attempt: TransactionAttempt
    status: str
    rides: bool = False
    """Its seal travels with the record of the transaction before."""


class CoordinatorMachine(RuleBasedStateMachine):
    """One run of a coordinator."""

    @initialize(
        pending=st.integers(1, 4),
        bounds=st.tuples(st.none() | st.integers(1, 3), st.none() | st.integers(1, 3)),
        kind=st.sampled_from(["plain", "emits", "opaque"]),
        epoch=st.integers(1, 3),
        current=st.integers(1, 3),
        survived=st.integers(0, 3),
        last=st.none() | st.integers(0, 8),
    )
    def start(
        self,
        pending: int,
        bounds: tuple[int | None, int | None],
        kind: str,
        epoch: int,
        current: int,
        survived: int,
        last: int | None,
    ) -> None:
        self.policy = Policy(
            pending, *bounds, last, emits_metadata=kind == "emits", opaque=kind == "opaque"
        )
        self.epoch, self.current = epoch, current
        self.known = set(range(current, current + survived))
        self.newest = current + survived - 1
        self.live: dict[int, Live] = {}
        self.gone: list[TransactionAttempt] = []
        self.tries: dict[int, int] = {}
        self.failures: dict[int, int] = {}
        self.crashes: dict[int, int] = {}
        self.asked: int | None = None
        self.asked_before_a_discard = False
        self.said_no = False
        self.defers = False
        self.backing_off: int | None = None
        self.doom: tuple[int, m.Stop] | None = None
        """The txid because of which the run will stop, when all before it have committed."""
        self.stop: m.Stop | None = None
        self.drained = False
        self.stopped = False
        self.cancels: list[TransactionAttempt] = []
        self.back_off: m.BackOff | None = None
        self.coordinator = TransactionCoordinator(
            self.policy, epoch, current, [current - 1, *self.known]
        )
        self.judge(self.coordinator.start())

    # -- judging commands -------------------------------------------------------------------------

    def judge(self, commands: list[m.Command]) -> None:
        self.see_the_end()
        for command in commands:
            assert not self.stopped, f"{command} after the stop"
            getattr(self, f"judge_{type(command).__name__.lower()}")(command)
        self.judge_what_waits()
        assert self.cancels == [], "a discarded attempt was not cancelled"
        assert self.back_off is None, "a failed transaction does not back off"
        self.nothing_left_out()

    def see_the_end(self) -> None:
        """R7: a stop because of a transaction comes when its turn has come, and not before."""
        if self.stop is None and self.doom is not None and self.doom[0] == self.current:
            self.stop = self.doom[1]
        if (
            self.stop is None
            and self.policy.last_txid is not None
            and self.current > self.policy.last_txid
        ):
            self.stop = m.Stop(None, "done")

    def may_defer(self, txid: int) -> bool:
        """A transaction that failed before is processed by itself, and so is metadata that comes
        from an emission job."""
        return self.defers and not self.policy.emits_metadata and self.tries[txid] == 1

    def judge_what_waits(self) -> None:
        """No command tells of an attempt whose processing is deferred."""
        for txid, (attempt, status) in self.coordinator.active.items():
            if status.value == "waiting" and txid not in self.live:
                self.begin(attempt, "waiting")
            if status.value == "waiting":
                assert self.live[txid].status in ("waiting", "emitted")
                assert self.may_defer(txid)
                self.live[txid].status = "waiting"

    def next_txid(self) -> int:
        return self.current + len(self.live)

    def may_begin(self, txid: int) -> bool:
        """R2: the place of the txid is free and in the window; and no txid up to here backs off."""
        in_window = txid == self.next_txid() < self.current + self.policy.max_spout_pending
        wanted = (self.policy.last_txid is None or txid <= self.policy.last_txid) and (
            self.doom is None or txid < self.doom[0]
        )
        return (
            self.stop is None
            and in_window
            and wanted
            and (self.backing_off is None or txid < self.backing_off)
        )

    def emitting(self) -> bool:
        return any(live.status == "emitting" for live in self.live.values())

    def makes_own_metadata(self, txid: int) -> bool:
        return self.policy.opaque or txid not in self.known

    def judge_open(self, command: m.Open) -> None:
        for txid in range(self.next_txid(), command.txid):
            # It was begun without a word, to be processed in the job of its commit.
            self.begin(self.coordinator.active[txid][0], "waiting")
            assert self.may_defer(txid)
        assert self.may_begin(command.txid)
        assert command.txid == self.newest + 1, (
            "the spout is asked about new transactions only (R5)"
        )
        assert self.asked is None, "one at a time"
        assert not self.said_no, "the scan stops at the first no (R5)"
        assert not self.emitting(), "what is being emitted decides where the next one begins"
        self.asked, self.asked_before_a_discard = command.txid, False

    def begin(self, attempt: TransactionAttempt, status: str) -> None:
        txid = attempt.txid
        assert self.may_begin(txid)
        assert txid <= self.newest, "nobody asked the spout"
        assert attempt.attempt_id == (self.epoch - 1) * 1_000_000 + self.tries.get(txid, 0), (
            "attempt ids only grow (R1)"
        )
        assert (status == "emitting") == self.makes_own_metadata(txid), (
            "metadata is made once, except by an opaque spout (R4)"
        )
        assert not (status == "emitting" and self.emitting()), "one at a time, in order (R4)"
        self.tries[txid] = self.tries.get(txid, 0) + 1
        self.live[txid] = Live(attempt, status)

    def judge_emit(self, command: m.Emit) -> None:
        self.begin(command.attempt, "emitting")

    def judge_process(self, command: m.Process) -> None:
        live = self.live.get(command.attempt.txid)
        if live is None:
            self.begin(command.attempt, "processing")
        else:
            assert live.attempt == command.attempt
            assert live.status == "emitted" or (live.status == "waiting" and not self.defers)
            live.status = "processing"

    def judge_seal(self, command: m.Seal) -> None:
        txid = command.attempt.txid
        if txid not in self.live:
            self.begin(command.attempt, "waiting")
        live = self.live[txid]
        assert live.status == "processed" or (
            live.status in ("waiting", "emitted") and self.may_defer(txid)
        )
        assert (live.attempt, self.stop) == (command.attempt, None)
        assert command.attempt.txid == self.current, "every earlier transaction has committed (R3)"
        assert not any(other.status in IN_COMMIT for other in self.live.values()), (
            "one commit at a time (R3)"
        )
        live.status = "sealing"

    def judge_apply(self, command: m.Apply) -> None:
        live = self.live[command.attempt.txid]
        assert (live.attempt, live.status, command.attempt.txid) == (
            command.attempt,
            "sealed",
            self.current,
        ), "the seal is durable (R23)"
        assert [other.status for other in self.live.values() if other.status in IN_COMMIT] == [], (
            "one commit at a time (R3)"
        )
        live.status = "applying"

    def judge_record(self, command: m.Record) -> None:
        live = self.live[command.attempt.txid]
        assert (live.attempt, live.status, command.attempt.txid) == (
            command.attempt,
            "applied",
            self.current,
        )
        live.status = "recording"
        following = self.live.get(self.current + 1)
        if (
            following is not None
            and following.status in ("processed", "waiting")
            and self.stop is None
        ):
            assert command.seal_next == following.attempt, "its seal costs nothing here (R25)"
            following.status, following.rides = "sealing", True
        else:
            assert command.seal_next is None

    def judge_forget(self, command: m.Forget) -> None:
        live = self.live.pop(self.current)
        assert (live.attempt, live.status) == (command.attempt, "recorded")
        self.gone.append(command.attempt)
        self.known.discard(self.current)
        self.current += 1
        following = self.live.get(self.current)
        if following is not None and following.rides:
            following.status, following.rides = "sealed", False
        self.see_the_end()

    def judge_cancel(self, command: m.Cancel) -> None:
        assert self.cancels, f"{command.attempt} should live on"
        assert command.attempt == self.cancels.pop(), "the latest first"
        assert self.live.pop(command.attempt.txid).attempt == command.attempt
        self.gone.append(command.attempt)
        self.asked_before_a_discard = True

    def judge_backoff(self, command: m.BackOff) -> None:
        assert command == self.back_off
        self.back_off, self.backing_off = None, command.txid

    def judge_stop(self, command: m.Stop) -> None:
        assert command == self.stop
        assert not self.live, "commits in flight are finished first"
        if command.cause is not None and not self.drained:
            assert command.cause.txid == self.current, (
                "a run stops at the transaction that stops it, however fast the others are (R7)"
            )
        self.stopped = True

    def nothing_left_out(self) -> None:
        if self.stopped:
            return
        assert all(
            live.status not in ("emitted", "sealed", "applied", "recorded")
            for live in self.live.values()
        ), "an answer led to nothing"
        if self.stop is not None:
            assert self.live, "nothing is in flight, yet the run goes on"
            return
        head = self.live.get(self.current)
        assert head is None or head.status not in ("processed", "waiting"), "its turn has come"
        assert self.defers or all(live.status != "waiting" for live in self.live.values()), (
            "it waits for nothing"
        )
        txid = self.next_txid()
        if self.may_begin(txid) and not self.emitting():
            assert txid > self.newest, f"{txid} could begin"
            assert self.asked is not None or self.said_no, "the spout could be asked"

    # -- events -----------------------------------------------------------------------------------

    def running(self) -> bool:
        return not self.stopped

    def pick(self, pick: int) -> Live:
        return list(self.live.values())[pick % len(self.live)]

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def the_engine_answers(self, pick: int) -> None:
        live = self.pick(pick)
        event = next(
            (
                event
                for event, (status, _) in ANSWERS.items()
                if status == live.status and not live.rides
            ),
            None,
        )
        if event is not None:
            live.status = ANSWERS[event][1]
            if event is m.Emitted:
                self.known.add(live.attempt.txid)
            self.judge(self.coordinator.handle(event(live.attempt)))

    @precondition(lambda self: self.live)
    @rule(pick=picks, event=st.sampled_from([*ANSWERS, m.Failed]), kind=st.sampled_from(KINDS))
    def the_engine_is_confused(self, pick: int, event: Any, kind: m.FailureKind) -> None:
        """A duplicate, or an answer without a question to a live attempt, raises and changes
        nothing."""
        live = self.pick(pick)
        if event is m.Failed:
            if live.status != "recording":
                return
            message: m.Event = m.Failed(live.attempt, kind)
        elif ANSWERS[event][0] == live.status and not live.rides:
            return
        else:
            message = event(live.attempt)
        before = copy.deepcopy(vars(self.coordinator))
        with pytest.raises(IllegalEventError):
            self.coordinator.handle(message)
        assert vars(self.coordinator) == before

    @precondition(lambda self: any(live.rides for live in self.live.values()))
    @rule()
    def a_seal_is_answered_before_the_record_it_rides_with(self) -> None:
        before = copy.deepcopy(vars(self.coordinator))
        with pytest.raises(IllegalEventError):
            self.coordinator.handle(
                m.Sealed(next(live.attempt for live in self.live.values() if live.rides))
            )
        assert vars(self.coordinator) == before

    @precondition(lambda self: self.gone)
    @rule(
        pick=st.integers(0, 30),
        event=st.sampled_from([*ANSWERS, m.Failed]),
        kind=st.sampled_from(KINDS),
    )
    def a_late_answer_comes(self, pick: int, event: Any, kind: m.FailureKind) -> None:
        """Good or bad, of a discarded or a committed attempt: nothing changes (R6)."""
        stale = self.gone[-1 - pick % len(self.gone)]
        before = copy.deepcopy(vars(self.coordinator))
        assert (
            self.coordinator.handle(m.Failed(stale, kind) if event is m.Failed else event(stale))
            == []
        )
        assert vars(self.coordinator) == before

    @precondition(lambda self: self.asked is not None)
    @rule(ready=st.booleans())
    def the_spout_answers(self, ready: bool) -> None:
        assert self.asked is not None
        txid, self.asked = self.asked, None
        if self.stopped:
            self.silent(self.coordinator.handle(m.Opened(txid) if ready else m.NotReady(txid)))
            return
        if ready:
            self.newest = txid
            if not self.policy.emits_metadata and not self.policy.opaque:
                self.known.add(txid)
        else:
            # Where the next batch of an opaque spout begins depends on the attempts before it: of
            # others than these the spout has not been asked.
            self.said_no = not (self.policy.opaque and self.asked_before_a_discard)
        self.judge(self.coordinator.handle(m.Opened(txid) if ready else m.NotReady(txid)))

    @precondition(lambda self: self.asked is not None)
    @rule(really=st.integers(0, 3))
    def the_spout_fails(self, really: int) -> None:
        assert self.asked is not None
        if really:
            return
        txid, self.asked = self.asked, None
        commands = self.coordinator.handle(m.Unopenable(txid))
        if self.stopped:
            self.silent(commands)
            return
        if self.stop is None and (self.doom is None or txid < self.doom[0]):
            self.doom = (txid, m.Stop(None, "unopenable"))
        self.judge(commands)

    @rule(ahead=st.integers(-2, 5), answer=st.sampled_from([m.Opened, m.NotReady, m.Unopenable]))
    def the_spout_answers_what_it_was_not_asked(self, ahead: int, answer: Any) -> None:
        txid = self.current + ahead
        if txid != self.asked:
            before = copy.deepcopy(vars(self.coordinator))
            assert self.coordinator.handle(answer(txid)) == []
            assert vars(self.coordinator) == before

    @rule()
    def it_is_time_to_ask_again(self) -> None:
        self.said_no = self.said_no and self.stopped
        commands = self.coordinator.handle(m.Poll())
        self.judge(commands) if not self.stopped else self.silent(commands)

    @rule(ahead=st.integers(0, 4))
    def a_back_off_ends(self, ahead: int) -> None:
        txid = self.current + ahead
        if txid == self.backing_off and not self.stopped:
            self.backing_off = None
        commands = self.coordinator.handle(m.Resume(txid))
        self.judge(commands) if not self.stopped else self.silent(commands)

    @precondition(lambda self: self.backing_off is not None)
    @rule()
    def the_back_off_ends(self) -> None:
        assert self.backing_off is not None
        self.a_back_off_ends(self.backing_off - self.current)

    @rule(on=st.booleans())
    def the_pace_changes(self, on: bool) -> None:
        self.defers = on
        commands = self.coordinator.handle(m.Defer(on))
        self.judge(commands) if not self.stopped else self.silent(commands)

    def silent(self, commands: list[m.Command]) -> None:
        assert commands == [], "a run that has stopped says nothing"

    @precondition(lambda self: self.live)
    @rule(pick=picks, kind=st.sampled_from(KINDS[:4]) | st.sampled_from(KINDS))
    def an_attempt_fails(self, pick: int, kind: m.FailureKind) -> None:
        failed = self.pick(pick)
        if failed.status == "recording":
            return
        txid = failed.attempt.txid
        self.cancels = [
            live.attempt for _, live in sorted(self.live.items()) if live.attempt.txid >= txid
        ]
        if kind == "crash":
            self.crashes[txid] = self.crashes.get(txid, 0) + 1
        elif kind != "outgrown":
            self.failures[txid] = self.failures.get(txid, 0) + 1
        crashes = self.crashes.get(txid, 0)
        tries = crashes + self.failures.get(txid, 0)
        stop: m.Stop | None = None
        if kind == "fatal":
            stop = m.Stop(failed.attempt, "fatal")
        elif self.policy.max_crashes is not None and crashes >= self.policy.max_crashes:
            stop = m.Stop(failed.attempt, "crashes", crashes)
        elif self.policy.max_attempts is not None and tries >= self.policy.max_attempts:
            stop = m.Stop(failed.attempt, "poison", tries)
        elif self.stop is None:
            self.back_off = m.BackOff(txid, 0 if kind == "outgrown" else tries)
        if stop is not None and self.stop is not None:
            self.begin_stop(stop, txid)
        elif stop is not None and (self.doom is None or txid < self.doom[0]):
            self.doom = (txid, stop)
        self.judge(self.coordinator.handle(m.Failed(failed.attempt, kind)))

    def begin_stop(self, stop: m.Stop, failed_txid: int | None = None) -> None:
        """A transaction that has not begun to commit is abandoned; of several causes the first
        counts.
        """
        if self.stop is None or (self.stop.cause is None and stop.cause is not None):
            self.stop = stop if self.doom is None else self.doom[1]
        survives = [
            live
            for live in self.live.values()
            if failed_txid is None or live.attempt.txid < failed_txid
        ]
        committing = {live.attempt for live in survives if live.status in IN_COMMIT}
        abandoned = [live.attempt for live in survives if live.attempt not in committing]
        # A failure cancels its own attempts first; then the stop cancels the earlier attempts.
        self.cancels = sorted(abandoned) + self.cancels

    @rule(really=st.integers(0, 4))
    def a_drain_is_asked_for(self, really: int) -> None:
        if really:
            return
        if not self.stopped:
            self.drained = True
            self.begin_stop(m.Stop(None, "drained"))
        commands = self.coordinator.handle(m.Drain())
        self.judge(commands) if not self.stopped else self.silent(commands)

    # -- what is always true ----------------------------------------------------------------------

    @invariant()
    def the_coordinator_sees_what_the_model_sees(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        assert {
            txid: (attempt, status.value)
            for txid, (attempt, status) in self.coordinator.active.items()
        } == {txid: (live.attempt, live.status) for txid, live in self.live.items()}
        assert self.coordinator.current == self.current
        assert self.coordinator.stopping == (self.stop is not None)

    @invariant()
    def the_docstring_of_the_coordinator_holds(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        active = self.coordinator.active
        assert list(active) == list(range(self.current, self.current + len(active)))
        assert len(active) <= self.policy.max_spout_pending
        committing = [
            (txid, status.value)
            for txid, (_, status) in active.items()
            if status.value in IN_COMMIT
        ]
        assert [txid for txid, _ in committing] in (
            [],
            [self.current],
            [self.current, self.current + 1],
        )
        assert len(committing) < 2 or committing == [
            (self.current, "recording"),
            (self.current + 1, "sealing"),
        ]
        emitting = [txid for txid, (_, status) in active.items() if status.value == "emitting"]
        assert emitting in ([], [self.current + len(active) - 1]), (
            "only the newest one may still be emitting"
        )

    @invariant()
    def idle_is_what_it_says(self) -> None:
        if hasattr(self, "coordinator") and not self.stopped:
            assert self.coordinator.idle == (
                not self.live and self.asked is None and self.said_no and self.backing_off is None
            )

    # -- liveness ---------------------------------------------------------------------------------

    def something_goes_well(self, pick: int) -> None:
        if self.asked is not None:
            self.the_spout_answers(True)
        elif self.backing_off is not None and self.stop is None:
            self.the_back_off_ends()
        elif self.live:
            answerable = [
                i
                for i, live in enumerate(self.live.values())
                if live.status not in ("processed", "waiting") and not live.rides
            ]
            assert answerable, "every attempt waits, and nobody owes an answer"
            self.the_engine_answers(answerable[pick % len(answerable)])
        else:
            self.it_is_time_to_ask_again()

    @precondition(running)
    @rule(choices=st.lists(picks, min_size=1, max_size=12))
    def all_goes_well_for_a_while(self, choices: list[int]) -> None:
        for pick in choices:
            if not self.stopped:
                self.something_goes_well(pick)
                self.the_docstring_of_the_coordinator_holds()

    def teardown(self) -> None:
        """From any reachable state: answer every command positively, and every transaction
        commits.
        """
        if not hasattr(self, "coordinator") or self.stopped:
            return
        goal = self.current + 2 * self.policy.max_spout_pending + 3
        for _ in range(400):
            if self.stopped or self.current >= goal:
                return
            self.something_goes_well(-1)
            self.the_docstring_of_the_coordinator_holds()
        raise AssertionError(f"transaction {self.current} never commits")


@pytest.mark.rule(1, 2, 3, 4, 5, 6, 7)
def test_the_coordinator_keeps_its_rules_under_any_events() -> None:
    run_state_machine_as_test(CoordinatorMachine, settings=examples(120, stateful_step_count=40))
