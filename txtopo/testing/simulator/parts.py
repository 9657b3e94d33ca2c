"""Checks the contracts of a topology's parts before any schedule is played: the spout, the
processing phase and the commit phase.

A contract checker fails, replays and reorders on purpose, where schedules do so by chance. So the
usual mistakes are found in a moment, with rule, hook and cure. The checkers get the topology as
simulated: over the same store substitutes, with ``reset()`` before each run.

Invariants: a finding about a source whose batches change from run to run is no verdict.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from txtopo import errors
from txtopo.engine.attempts import AttemptFailedError
from txtopo.exports import Exporter, ExportQueue, SequencedExport, upkeep
from txtopo.exports.entries import export_all
from txtopo.plan import compiler
from txtopo.stores import updates
from txtopo.testing.contracts import bolt, local_run, spout
from txtopo.testing.contracts.bolt_scene import Setting
from txtopo.testing.contracts.spout_story import Plot
from txtopo.testing.contracts.violation import ContractError
from txtopo.testing.simulator import mistakes, replays
from txtopo.testing.simulator.blame import Fault
from txtopo.testing.simulator.diagnosis import Case, Diagnosis, Probe, diagnose
from txtopo.testing.simulator.judge import Judge
from txtopo.testing.simulator.mistakes import Mistake
from txtopo.testing.simulator.outcome import Outcome, short
from txtopo.testing.simulator.replays import Disagreement
from txtopo.testing.simulator.schedule import StoppedError
from txtopo.testing.simulator.subject import Subject
from txtopo.testing.simulator.violation import Violation
from txtopo.testing.simulator.world import Watch, null_watch
from txtopo.topology.graph import TopologyGraph

STORIES = 10
"""How often a spout is run with abandoned attempts and restarts."""

BOLT_TRANSACTIONS = 3
"""In so many transactions each commit is made to fail at every point."""

ENOUGH_S = 3.0
"""A checker begins no further run after so long: schedules judge large topologies."""

EXPORTED_TOGETHER = 2
"""So many entries an exporter gets in one call."""

_PROCESS = "contract"
_SPOUT_RULES = frozenset({4, 5, 17, 18, 19, 20, 21})
_OF_THE_WHOLE = frozenset({5, 20})
"""Rules about all tuples in a whole run, which a live source may change."""
_BOLT_RULES: Mapping[int | None, Mistake] = {
    28: mistakes.APPLIED_AGAIN,
    29: mistakes.OLDER_AFTER_NEWER,
    32: mistakes.WRITE_WHILE_PROCESSING,
}
_SAME_AGAIN: Mapping[Fault, tuple[int, str]] = {
    "output": (
        10,
        "Derive all results from attributes that prepare makes, the tuples, the txid and context.opened_at alone.",
    ),
    "order": (17, "Emit the same tuples in the same order."),
    "routing": (17, "Choose the same tasks for the same tuples."),
}
"""The rule and the cure for a difference between a batch's two attempts."""


def check_spout(subject: Subject, judge: Judge, varies_parallelism: bool) -> Violation | None:
    """Find the contract that the spout breaks. ``None`` if the spout keeps its contract, or if the
    contract does not hold for its source."""
    until = time.monotonic() + ENOUGH_S
    before: list[str] = []

    def make() -> tuple[TopologyGraph, Any]:
        _require_time(subject, until)
        subject.processes.end(_PROCESS)
        subject.begin()
        subject.processes.switch_to(_PROCESS)
        before[:] = subject.processes.shown()
        return alone, None

    if any(spec.direct for spec in subject.graph.spout.outputs.values()):
        return None
    alone = TopologyGraph(
        subject.graph.id, {subject.graph.spout.id: subject.graph.spout}, subject.graph.by_value
    )
    tasks = subject.graph.spout.parallelism
    parallelisms = (tasks, tasks + 1) if varies_parallelism else (tasks,)
    with _in_a_process(subject):
        broken = _contract_error(
            lambda: spout.check_graph(
                make,
                None,
                Plot(subject.transactions, parallelisms),
                STORIES,
                conf=_settings(subject),
            )
        )
        now = subject.processes.shown()
    if (
        broken is None
        or broken.rule not in _SPOUT_RULES
        or (broken.rule in _OF_THE_WHOLE and (not judge.is_steady() or judge.source_pauses))
    ):
        return None
    changed = subject.processes.changed_between(before, now)
    lacks = "missing" in broken.what and "too many" not in broken.what
    mistake = (
        mistakes.TAKEN_AWAY
        if lacks
        else mistakes.POSITION_ELSEWHERE
        if broken.rule in _OF_THE_WHOLE
        else mistakes.NOT_FROM_METADATA
    )
    details = [f"the global is {name}" for name in changed]
    diagnosis = Diagnosis(
        subject.graph.spout.id, (mistakes.SPOUT_GLOBAL if changed else mistake,), tuple(details)
    )
    return Violation(subject.topology.id, None, (), diagnosis, broken=broken)


def check_processing(subject: Subject) -> Violation | None:
    """Find the contract broken by a bolt with other results from the same tuples in another
    attempt, or by a grouping with other tasks."""

    def first_disagreement(watch: Watch) -> Disagreement | None:
        until = time.monotonic() + ENOUGH_S

        def begin_process() -> None:
            _require_time(subject, until)
            subject.processes.end(_PROCESS)
            subject.processes.switch_to(_PROCESS)

        subject.begin()
        with _in_a_process(subject), contextlib.suppress(*_NO_VERDICT):
            return replays.first_disagreement(subject, _settings(subject), begin_process, watch)
        return None

    disagreement = first_disagreement(null_watch)
    if disagreement is None:
        return None
    # Once more, with a watch: the changes in each hook tell the mistakes apart.
    probe = Probe(None)
    disagreement = first_disagreement(probe.around) or disagreement
    blamed, graph = disagreement.blame, subject.graph
    case = Case(
        tuple(graph.components),
        frozenset(compiler.held_components(graph)),
        subject.is_opaque,
        clues=subject.clues_of,
    )
    diagnosis = diagnose(blamed.differences, probe.touches, blamed, case)
    difference = blamed.differences[0]
    first = disagreement.first.attempt
    second = disagreement.second
    fact = f"{difference.place} is {difference.found} in attempt {second.attempt}, {second.where}; in attempt {first} it is {difference.expected}"
    rule, cure = _SAME_AGAIN[blamed.fault]
    broken = ContractError("bolt", rule, f"component {blamed.component!r}: {fact}", cure)
    diagnosis = Diagnosis(blamed.component, diagnosis.mistakes, diagnosis.details)
    return Violation(subject.topology.id, None, (), diagnosis, broken=broken)


def check_bolts(subject: Subject, judge: Judge) -> Violation | None:
    """Find the contract broken by a component that finishes in the commit phase. The component is
    ``None`` if several components may be at fault."""
    if subject.is_opaque or not judge.gives_the_same_batches():
        return None
    until = time.monotonic() + ENOUGH_S

    def make(directory: Path) -> TopologyGraph:
        _require_time(subject, until)
        subject.processes.end(_PROCESS)
        subject.begin()
        subject.processes.switch_to(_PROCESS)
        return subject.graph

    def effects(directory: Path) -> dict[str, Any]:
        now = Outcome()
        now.read_stores(subject.stores)
        outside = {} if subject.effects is None else {"effects()": subject.effects()}
        return {
            **{f"store {address}": values for address, values in now.stores.items()},
            **now.rows,
            **outside,
        }

    with _in_a_process(subject):
        setting = Setting(
            make,
            effects=effects,
            transactions=BOLT_TRANSACTIONS,
            conf=_settings(subject),
        )
        broken = _contract_error(lambda: bolt.check_setting(setting, other_processes=False))
    if broken is None or broken.rule not in _BOLT_RULES or not judge.gives_the_same_batches():
        return None
    held = [id for id in subject.graph.components if repr(id) in broken.what.partition(":")[0]]
    mistake = (
        mistakes.EMITS_SOMETHING_ELSE
        if "emits other tuples" in broken.what
        else _BOLT_RULES[broken.rule]
    )
    diagnosis = Diagnosis(held[0] if len(held) == 1 else None, (mistake,))
    return Violation(subject.topology.id, None, (), diagnosis, broken=broken)


def check_exporters(subject: Subject, play: Callable[[], object]) -> Violation | None:
    """Find an exporter of the user's whose target has other contents if entries come again, and late.
    ``effects()`` returns the target's contents. ``play`` plays a schedule without failures, which
    fills the queues."""
    if subject.effects is None or not queues_of(subject):
        return None
    play()
    for queue in queues_of(subject):
        assert queue.exporter is not None
        told = collections.defaultdict[int, list[SequencedExport]](list)
        for entry in upkeep.entries_of(queue):
            told[entry.bucket].append(entry)
        batches = [
            list(entries)
            for of_bucket in told.values()
            for entries in updates.portions(of_bucket, EXPORTED_TOGETHER)
        ]
        again = [*itertools.chain.from_iterable((batch, batch) for batch in batches), *batches[:-1]]
        expected, actual = (_target(subject, queue.exporter, order) for order in (batches, again))
        if isinstance(expected, Exception):
            raise errors.UsageError(
                f"{type(queue.exporter).__name__} of export queue {queue.id!r} fails without any failure: {expected!r}\n"
                "  Correct the exporter first, or give the queue an exporter to a target that a test may fill."
            ) from expected
        if expected != actual:
            fact = (
                f"{type(queue.exporter).__name__} of export queue {queue.id!r}: effects() is {short(repr(actual))} when entries come again, late;"
                f" in order it is {short(repr(expected))}"
            )
            broken = ContractError("exporter", 40, fact, mistakes.TRUSTS_ARRIVAL.cure)
            diagnosis = Diagnosis(None, (mistakes.TRUSTS_ARRIVAL,))
            return Violation(subject.topology.id, None, (), diagnosis, broken=broken)
    return None


def queues_of(subject: Subject) -> list[ExportQueue]:
    """The export queues with an exporter of the user's."""
    return [
        part
        for part in subject.stores
        if isinstance(part, ExportQueue)
        and part.exporter is not None
        and not type(part.exporter).__module__.startswith("txtopo.")
    ]


def _target(
    subject: Subject, exporter: Exporter, order: Sequence[Sequence[SequencedExport]]
) -> Any:
    """The target's contents after ``order``, or the exporter's exception."""
    if subject.reset is not None:
        subject.reset()
    try:
        for batch in order:
            export_all(exporter, batch)
        exporter.close()
    except Exception as error:
        return error
    return None if subject.effects is None else subject.effects()


def hook_of(broken: ContractError) -> str:
    """Name the hook that broke a spout's contract, or the component that broke a bolt's: the
    message begins with the name."""
    return short(broken.what.partition(":")[0].partition(" of attempt")[0])


class _EnoughError(BaseException):
    """Unwinds a checker. Not an ``Exception``, so that user code cannot swallow or be blamed for
    it."""


_NO_VERDICT = (
    _EnoughError,
    errors.TxtopoError,
    local_run.HookFailedError,
    AttemptFailedError,
)
"""Raised where a checker cannot run a topology to its end. Schedules then judge the topology."""


def _settings(subject: Subject) -> Mapping[str, Any]:
    return {"max_spout_pending": subject.conf.max_spout_pending}


def _require_time(subject: Subject, until: float) -> None:
    if not subject.goes_on():
        raise StoppedError
    if time.monotonic() > until:
        raise _EnoughError


def _contract_error(check: Callable[[], object]) -> ContractError | None:
    try:
        check()
    except ContractError as error:
        return error
    except (_EnoughError, errors.TxtopoError):
        # A topology that a checker cannot run breaks no contract. Schedules judge the topology.
        return None
    return None


@contextlib.contextmanager
def _in_a_process(subject: Subject) -> Iterator[None]:
    """User code runs in a simulated process while this context lasts."""
    subject.processes.switch_to(_PROCESS)
    try:
        yield
    finally:
        subject.processes.end(_PROCESS)
        subject.begin()
