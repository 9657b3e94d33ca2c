"""Diagnoses a violation: plays the violating schedule once more, watches every hook, and names the
component at fault and its mistake.

Before and after each hook the effects, the stores and the user's variables are compared. Each
change in between is that hook's doing. The pattern in these *touches* tells the classic mistakes
apart. Watching is slow, so only violating schedules are watched.

Invariants: a change is the innermost running hook's doing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txtopo.testing.simulator import mistakes
from txtopo.testing.simulator.blame import Blame
from txtopo.testing.simulator.clues import Clue
from txtopo.testing.simulator.mistakes import Mistake
from txtopo.testing.simulator.outcome import Difference
from txtopo.testing.simulator.world import World
from txtopo.topology.transaction import TransactionAttempt


@dataclass(frozen=True, slots=True)
class Touch:
    """A hook changed something."""

    component: str
    task: int
    hook: str
    phase: str
    attempt: TransactionAttempt
    effects: frozenset[str] = frozenset()
    variables: tuple[str, ...] = ()
    has_written_store: bool = False
    has_read_store: bool = False


@dataclass(frozen=True, slots=True)
class _Snapshot:
    effects: Mapping[str, str]
    variables: Sequence[str]
    store_commits: int
    store_reads: int


class Probe:
    """A watch that records touches."""

    def __init__(self, effects: Callable[[], Any] | None) -> None:
        self._effects = effects
        self.touches: list[Touch] = []
        self._hooks: list[tuple[str, int, str, str, TransactionAttempt]] = []
        self._last: _Snapshot | None = None

    @contextlib.contextmanager
    def around(
        self,
        world: World,
        component: str,
        task: int,
        hook: str,
        phase: str,
        attempt: TransactionAttempt,
    ) -> Iterator[None]:
        """A hook runs while this context lasts."""
        self._note(world)
        self._hooks.append((component, task, hook, phase, attempt))
        try:
            yield
        finally:
            self._note(world)
            self._hooks.pop()
            if not self._hooks:
                self._last = None

    def _note(self, world: World) -> None:
        """Attribute each change since the last snapshot to the running hook."""
        now = self._snapshot(world)
        if self._last is not None and self._hooks:
            effects = frozenset(
                key
                for key in self._last.effects.keys() | now.effects.keys()
                if self._last.effects.get(key) != now.effects.get(key)
            )
            variables = tuple(world.processes.changed_between(self._last.variables, now.variables))
            has_written = now.store_commits > self._last.store_commits
            has_read = now.store_reads > self._last.store_reads
            if effects or variables or has_written or has_read:
                self.touches.append(
                    Touch(*self._hooks[-1], effects, variables, has_written, has_read)
                )
        self._last = now

    def _snapshot(self, world: World) -> _Snapshot:
        processes = world.processes
        variables = processes.shown()
        shown: dict[str, str] = {}
        if self._effects is not None:
            with processes.outside():
                effects = self._effects()
            shown = (
                {str(key): repr(value) for key, value in effects.items()}
                if isinstance(effects, Mapping)
                else {"": repr(effects)}
            )
        commits = sum(getattr(store, "commits", 0) for store in world.stores)
        return _Snapshot(shown, variables, commits, world.store_reads)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``component`` is at fault, if known, by ``mistakes``, the most telling first."""

    component: str | None
    mistakes: tuple[Mistake, ...]
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """Facts beside the touches: ``order`` has the components, the spout first. ``clues`` returns
    the clues in a component's code."""

    order: Sequence[str] = ()
    committers: frozenset[str] = frozenset()
    """The components that finish in the commit phase."""
    is_opaque: bool = False
    by_itself: bool = False
    """The results differ without any failure."""
    is_the_clock: bool = False
    """The results differ because the user code's clock was shifted."""
    clues: Callable[[str], Mapping[Clue, str]] = lambda component: {}


def diagnose(
    differences: Sequence[Difference],
    touches: Sequence[Touch],
    blame: Blame | None = None,
    case: Case | None = None,
) -> Diagnosis:
    """Diagnose ``differences``, from the touches in the violating schedule and from the first
    component that differs."""
    case = Case() if case is None else case
    spout = case.order[0] if case.order else None
    named = [difference for difference in differences if difference.component == spout]
    if (
        spout is not None
        and not case.is_opaque
        and (named or (blame is not None and blame.component == spout and blame.fault == "output"))
    ):
        return _of_spout(
            spout, named or [] if blame is None else [*named, *blame.differences], touches, case
        )
    component = next(
        (difference.component for difference in differences if difference.component is not None),
        None,
    )
    if blame is None and case.by_itself:
        # The difference did not come again in the watched run, so look for a clock or chance.
        component = next(
            (id for id in case.order if case.clues(id).keys() & {"clock", "chance"}), component
        )
    if case.is_the_clock:
        component = component if blame is None else blame.component
        known = case.clues(component) if component is not None else {}
        return Diagnosis(
            component, (mistakes.CLOCK,), (known["clock"],) if "clock" in known else ()
        )
    keys = {difference.effect for difference in differences if difference.effect is not None}
    touching = [touch for touch in touches if touch.effects & keys]
    if touching and not _is_upstream(blame, touching, case):
        return _of_effects(touching, touches)
    if blame is not None:
        component = blame.component
    culprits = [touch for touch in touches if touch.variables and touch.component == component]
    if blame is None:
        culprits = culprits or [touch for touch in touches if touch.variables]
    if culprits:
        mistake = (
            mistakes.SPOUT_GLOBAL if culprits[0].component == spout else mistakes.MODULE_GLOBAL
        )
        return Diagnosis(culprits[0].component, (mistake,), _globals(culprits))
    return _of_bolt(component, differences, touches, blame, case)


def _is_upstream(blame: Blame | None, touching: Sequence[Touch], case: Case) -> bool:
    """Whether ``blame`` falls on a component upstream of all components in ``touching``."""
    if blame is None or blame.component not in case.order:
        return False
    return all(
        case.order.index(blame.component) < case.order.index(touch.component) for touch in touching
    )


def _of_spout(
    spout: str, differences: Sequence[Difference], touches: Sequence[Touch], case: Case
) -> Diagnosis:
    changed = _globals([touch for touch in touches if touch.component == spout])
    if changed:
        return Diagnosis(spout, (mistakes.SPOUT_GLOBAL,), changed)
    if any(difference.is_lack for difference in differences):
        return Diagnosis(spout, (mistakes.TAKEN_AWAY,))
    if any(difference.place.startswith("all that ") for difference in differences):
        return Diagnosis(spout, (mistakes.POSITION_ELSEWHERE,))
    return Diagnosis(
        spout, (mistakes.NOT_FROM_METADATA,), tuple(sorted(case.clues(spout).values()))
    )


def _of_bolt(
    component: str | None,
    differences: Sequence[Difference],
    touches: Sequence[Touch],
    blame: Blame | None,
    case: Case,
) -> Diagnosis:
    """Diagnose a component whose touches show no mistake."""
    clues = case.clues(component) if component is not None else {}
    clue = next((clue for clue in clues if case.by_itself or clue != "hash"), None)
    details = (clues[clue],) if clue is not None else ()
    emits = any(
        difference.place.startswith("what ")
        for difference in (blame.differences if blame is not None else differences)
    )
    if blame is not None and blame.fault == "routing":
        return Diagnosis(component, (mistakes.OTHER_TASKS,))
    early = next(
        (
            touch
            for touch in touches
            if touch.component == component and touch.has_read_store and touch.phase == "processing"
        ),
        None,
    )
    if early is not None and component not in case.committers:
        return Diagnosis(
            component,
            (mistakes.READS_AHEAD,),
            (f"{early.hook} of {component!r} reads in attempt {early.attempt}",),
        )
    if clue is not None:
        return Diagnosis(component, (mistakes.BY_CLUE[clue],), details)
    if blame is not None and blame.fault == "order":
        return Diagnosis(component, (mistakes.ANOTHER_ORDER,))
    if case.by_itself:
        return Diagnosis(component, (mistakes.CHANGES_BY_ITSELF,))
    if emits and (blame is None or component in case.committers):
        return Diagnosis(component, (mistakes.EMITS_SOMETHING_ELSE,))
    return Diagnosis(component, (mistakes.LEFT_BEHIND,))


def _of_effects(touching: Sequence[Touch], touches: Sequence[Touch]) -> Diagnosis:
    early = [touch for touch in touching if touch.phase == "processing"]
    if early:
        return Diagnosis(
            early[0].component, (mistakes.WRITE_WHILE_PROCESSING,), (_description(early[0]),)
        )
    component = _most_suspicious(touching)
    own = [touch for touch in touching if touch.component == component]
    all_own = [touch for touch in touches if touch.component == component]
    details = list(_globals(all_own))
    recognised = [mistakes.MODULE_GLOBAL] if details else []
    late = _older_after_newer(own)
    again = _applied_again(own)
    if any(touch.has_written_store for touch in all_own):
        recognised.append(mistakes.OUTSIDE_THE_STORE)
    elif late is not None and again is None:
        recognised.append(mistakes.OLDER_AFTER_NEWER)
        details.append(f"{_description(late)}, after a later transaction had been written")
    elif again is not None:
        recognised.append(mistakes.APPLIED_AGAIN)
        details.append(
            f"{_description(again)}, although an earlier attempt of the same transaction had written"
        )
    return Diagnosis(component, tuple(recognised), tuple(details))


def _globals(touches: Sequence[Touch]) -> tuple[str, ...]:
    names = {name for touch in touches for name in touch.variables}
    return tuple(f"the global is {name}" for name in sorted(names))


def _most_suspicious(touching: Sequence[Touch]) -> str:
    for component in dict.fromkeys(touch.component for touch in touching):
        own = [touch for touch in touching if touch.component == component]
        if _older_after_newer(own) is not None or _applied_again(own) is not None:
            return component
    return touching[0].component


def _older_after_newer(touches: Sequence[Touch]) -> Touch | None:
    """The first write that comes after a later transaction's write."""
    newest = 0
    for touch in touches:
        if touch.attempt.txid < newest:
            return touch
        newest = max(newest, touch.attempt.txid)
    return None


def _applied_again(touches: Sequence[Touch]) -> Touch | None:
    """The first write by a task that has written for an earlier attempt at the same transaction,
    with no later transaction in between."""
    last: dict[int, TransactionAttempt] = {}
    for touch in touches:
        before = last.get(touch.task)
        if before is not None and before.txid == touch.attempt.txid and before != touch.attempt:
            return touch
        last[touch.task] = touch.attempt
    return None


def _description(touch: Touch) -> str:
    return f"{touch.hook} of {touch.component!r} task {touch.task} wrote in the {touch.phase} phase of attempt {touch.attempt}"
