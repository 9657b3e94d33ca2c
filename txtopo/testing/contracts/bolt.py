"""The committers' contract: a transaction takes effect once and emits the same tuples, in every
process and after every replay (R28)."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from txtopo import errors
from txtopo.dataplane import outcome
from txtopo.dataplane.job import Run
from txtopo.testing import emissions
from txtopo.testing.contracts import equality, local_run, processes, violation
from txtopo.testing.contracts.bolt_scene import Effects, Scene, Setting
from txtopo.testing.contracts.local_run import Work

POINTS_MAX = 24
"""The check strikes one ``finish_batch`` at so many points, evenly chosen if there are more."""

HASH_SEEDS = (1, 2)
"""Seeds for Python's ``hash``, one for each remote process."""

_REPLAY = (
    "Let every write name its transaction: write to a store from txtopo.stores, or compare and set txid and attempt together with the write,"
    " in one transaction of the destination."
)
_CURES = {
    "differs": "Keep a batch's data in attributes that prepare makes: module globals and class attributes outlive the attempt, and other processes"
    " do not see them. Leave values that always differ, such as a time stamp, out of effects.",
    "processing": "Write in finish_batch of a committer only: prepare and execute also run for attempts that never commit.",
    "late": "Compare generation, txid and attempt with the stored row in the destination's transaction that writes, and refuse an older attempt:"
    " `stored.txid != txid` lets a late task of an earlier transaction write again.",
    "process": "Neither route nor compute by hash(), by a set's order, or by a module global: all differ from process to process.",
}


@dataclass(frozen=True, slots=True)
class BoltReport:
    """The extent of a check."""

    components: tuple[str, ...]
    """The bolts that finish in the commit phase."""
    transactions: int
    """Transactions in a run without failures."""
    points: int
    """How many points one transaction's commit was made to fail at, at most."""
    applications: int
    """How often a commit phase was run."""


def check_bolt_idempotence(
    make: Callable[[Path], Any],
    batches: Sequence[Sequence[Sequence[Any]]] = (),
    *,
    fields: Sequence[str] = (),
    tasks: int = 1,
    group_by: Sequence[str] = (),
    effects: Callable[[Path], Any] | None = None,
    transactions: int = 20,
    task_counts: Mapping[str, int] | None = None,
    late_tasks: bool = True,
    other_processes: bool = True,
    conf: Mapping[str, Any] | None = None,
) -> BoltReport:
    """Commit every transaction of a bolt or a whole topology many times, and compare effects and
    emits, without Spark.

    The first run has no failures. Then every transaction is replayed after its commit, fails at
    every point of its commit and is replayed, is committed late by an older attempt, and is
    replayed in another process.

    - ``make(directory)``: a batch bolt, a topology or its builder, over new stores: files in
      ``directory``, which is empty, or tables named after ``directory``. Called once for each run.
    - ``batches``, ``fields``: for a bolt alone, each transaction's tuples without the attempt, and
      the names of their values. The bolt is a committer with ``tasks`` tasks. Tuples with equal
      ``group_by`` values go to the same task.
    - ``effects(directory)``: everything that the bolts have written, as a value that can be
      compared. By default the contents of every txtopo store in the bolts.
    - ``transactions``: run at most so many transactions.
    - ``task_counts``: task counts of further components, which bolts ask the context for.
    - ``late_tasks=False``: skip the check that needs a fence (R29). ``other_processes=False``: stay
      in this process.

    :raises ContractError: the first difference, with component, action and rule.
    """
    setting = Setting(
        make, batches, fields, tasks, group_by, effects, transactions, task_counts or {}, conf
    )
    return check_setting(setting, late_tasks, other_processes)


def check_setting(
    setting: Setting, late_tasks: bool = True, other_processes: bool = True
) -> BoltReport:
    """Run :func:`check_bolt_idempotence` on a ready setting."""
    with tempfile.TemporaryDirectory(prefix="txtopo-contract-") as directory:
        check = _Check(setting, Path(directory))
        check.without_failures()
        check.once_more()
        check.replayed_after_the_commit()
        check.failed_at_every_point()
        if late_tasks:
            check.late_tasks()
        if other_processes:
            check.in_other_processes()
        return BoltReport(
            tuple(check.components), len(check.after), check.points, check.applications
        )


@dataclass
class _Check:
    """``before`` are the effects before the first transaction. ``after`` and ``emitted`` are the
    effects and emits in a run without failures, by txid."""

    setting: Setting
    directory: Path
    components: list[str] = field(default_factory=list)
    emitting: list[str] = field(default_factory=list)
    before: Effects = field(default_factory=dict)
    after: dict[int, Effects] = field(default_factory=dict)
    emitted: dict[int, list[emissions.Emission]] = field(default_factory=dict)
    points: int = 0
    applications: int = 0

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    # -- the runs ---------------------------------------------------------------------------------

    def without_failures(self) -> None:
        """Run each transaction once: later runs are compared with this run. No effect may come
        before the commit phase."""
        with self._scene() as scene:
            self.components, self.emitting = scene.components, scene.emitting
            self.before = scene.effects()
            for txid in scene.txids():
                before = self.after.get(txid - 1, self.before)
                work = self._process(scene, txid)
                self._same_effects(
                    scene,
                    before,
                    f"in the processing phase of attempt {work.attempt}",
                    32,
                    _CURES["processing"],
                )
                self._apply(scene, work)
                self.after[txid], self.emitted[txid] = scene.effects(), work.probed
                self.points = max(self.points, work.points)
                scene.run.record(work)

    def once_more(self) -> None:
        """Run again in the same process: leftovers from the first run must not matter."""
        with self._scene() as scene:
            for txid in scene.txids():
                work = self._process(scene, txid)
                self._apply(scene, work)
                self._same(
                    scene,
                    work,
                    "when the same transactions are run a second time in one process, over new stores",
                    10,
                    _CURES["differs"],
                )
                scene.run.record(work)

    def replayed_after_the_commit(self) -> None:
        """Let the driver die when everything is applied and nothing recorded. Replay in the same
        run, and in a new run with larger attempt ids."""
        with self._scene() as scene:
            for txid in self._txids(scene):
                first = self._process(scene, txid)
                self._apply(scene, first)
                self._same(scene, first, f"after attempt {first.attempt}", 28, _REPLAY)
                for restarts in (False, True):
                    if restarts:
                        scene.restart()
                    replay = self._process(scene, txid)
                    self._apply(scene, replay)
                    self._same(
                        scene,
                        replay,
                        f"after attempt {first.attempt} was committed and replayed as {replay.attempt}",
                        28,
                        _REPLAY,
                    )
                scene.run.record(replay)

    def failed_at_every_point(self) -> None:
        """Let a commit fail half-way, and replay it whole."""
        step = -(-self.points // POINTS_MAX) or 1
        for number in sorted({*range(0, self.points, step), self.points - 1} - {-1}):
            with self._scene() as scene:
                for txid in self._txids(scene):
                    first = self._process(scene, txid)
                    where = self._strike_at(scene, first, number)
                    replay = self._process(scene, txid)
                    self._apply(scene, replay)
                    self._same(
                        scene,
                        replay,
                        f"after attempt {first.attempt} failed {where} and was replayed as {replay.attempt}",
                        28,
                        _REPLAY,
                    )
                    scene.run.record(replay)

    def late_tasks(self) -> None:
        """Commit a replaced attempt late: at once, after the record, and after the next
        transaction."""
        with self._scene() as scene:
            late: list[Work] = []
            for txid in self._txids(scene):
                zombie = self._process(scene, txid)
                scene.run.seal(zombie)
                live = self._process(scene, txid)
                self._apply(scene, live)
                self._late(scene, zombie, live)
                scene.run.record(live)
                late.append(zombie)
                for each in late[-2:]:
                    self._late(scene, each, live)

    def in_other_processes(self) -> None:
        """Run an attempt in a new process and the replay in a second process, each with its own
        globals and ``hash``."""
        with self._scene(_remote) as scene:
            for txid in self._txids(scene):
                first = self._process(scene, txid, 0)
                self._apply(scene, first, 0)
                replay = self._process(scene, txid, 1)
                self._apply(scene, replay, 1)
                for work in (first, replay):
                    self._same_emits(
                        work, f"attempt {work.attempt} in another process", 17, _CURES["process"]
                    )
                done = f"after attempt {first.attempt} was committed in one process and replayed as {replay.attempt} in another"
                self._same_effects(
                    scene, self.after[txid], done, 28, f"{_REPLAY} {_CURES['process']}"
                )
                scene.run.record(replay)

    # -- steps ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _scene(
        self, make_processes: Callable[[Run], list[processes.Process]] | None = None
    ) -> Iterator[Scene]:
        try:
            scene = Scene(
                self.setting, self.directory / str(next(self._numbers)), make_processes or _local
            )
        except errors.InvalidTopologyError as error:
            cure = "Every attempt gets a copy of the bolt, made by pickling it."
            raise violation.ContractError("bolt", None, "; ".join(error.problems), cure) from error
        with contextlib.closing(scene):
            yield scene

    def _txids(self, scene: Scene) -> Iterator[int]:
        return (txid for txid in scene.txids() if txid in self.after)

    def _process(self, scene: Scene, txid: int, process: int = 0) -> Work:
        try:
            return scene.process(txid, process)
        except local_run.HookFailedError as error:
            self._blame_hook(error.failure)

    def _apply(self, scene: Scene, work: Work, process: int = 0) -> None:
        self.applications += 1
        try:
            scene.apply(work, process)
        except local_run.HookFailedError as error:
            self._blame_hook(error.failure)

    def _strike_at(self, scene: Scene, work: Work, number: int) -> str:
        """Commit ``work``, failing at a point, and return the point in words."""
        self.applications += 1
        try:
            scene.apply(work, strike=number)
        except local_run.HookFailedError as error:
            return f"({error.failure.error.partition(': ')[2] or error.failure.error})"
        return "after its commit"

    def _late(self, scene: Scene, zombie: Work, live: Work) -> None:
        self.applications += 1
        with contextlib.suppress(local_run.HookFailedError):
            scene.run.apply(zombie, scene.run.processes[0])
        done = f"after {live.attempt} was committed, and then a late task of attempt {zombie.attempt} ran"
        self._same_effects(scene, self.after[live.attempt.txid], done, 29, _CURES["late"])

    # -- comparing --------------------------------------------------------------------------------

    def _same(self, scene: Scene, work: Work, done: str, rule: int, cure: str) -> None:
        self._same_effects(scene, self.after[work.attempt.txid], done, rule, cure)
        self._same_emits(work, done, rule, cure)

    def _same_effects(
        self, scene: Scene, expected: Effects, done: str, rule: int, cure: str
    ) -> None:
        actual = scene.effects()
        several = "s" if len(self.components) > 1 else ""
        where = f"component{several} {', '.join(map(repr, self.components))}"
        for name, value in expected.items():
            difference = _difference(actual[name], value)
            if difference is not None:
                self._fail(rule, f"{where}: {name} {done}: {difference}", cure)

    def _same_emits(self, work: Work, done: str, rule: int, cure: str) -> None:
        expected = self.emitted[work.attempt.txid]
        for component in self.emitting:
            difference = equality.multiset_difference(
                _of(component, work.probed), _of(component, expected)
            )
            if difference is not None:
                self._fail(
                    rule, f"component {component!r} emits other tuples, {done}: {difference}", cure
                )

    def _blame_hook(self, failure: outcome.Failure) -> NoReturn:
        error, rule = failure.to_error(), None
        for kind, number in (
            (errors.HeldStateError, 12),
            (errors.StoreConflictError, 32),
            (errors.EmitError, 14),
        ):
            rule = number if isinstance(error, kind) else rule
        if isinstance(error, errors.UsageError) and failure.phase == "processing":
            rule = 32
        where = f"component {failure.component!r}, task {failure.task}, {failure.hook} of attempt {failure.attempt} in the {failure.phase} phase"
        trace = failure.traceback.rstrip()
        fault = f"{where}: {failure.error}\n{trace}" if trace else f"{where}: {failure.error}"
        raise violation.ContractError(
            "bolt", rule, fault, "Mend the hook: no failure was asked for here."
        ) from error

    def _fail(self, rule: int, fault: str, cure: str) -> NoReturn:
        raise violation.ContractError("bolt", rule, fault, cure)


def _local(run: Run) -> list[processes.Process]:
    return [processes.LocalProcess(run)]


def _remote(run: Run) -> list[processes.Process]:
    with contextlib.ExitStack() as stack:
        started: list[processes.Process] = []
        for seed in HASH_SEEDS:
            started.append(processes.RemoteProcess(run, seed))
            stack.callback(started[-1].close)
        stack.pop_all()
    return started


def _of(component: str, emitted: Iterable[emissions.Emission]) -> list[tuple[str, tuple[Any, ...]]]:
    return [
        (stream, values) for id, _, stream, values in emissions.in_rows(emitted) if id == component
    ]


def _difference(actual: Any, expected: Any) -> str | None:
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        return equality.mapping_difference(actual, expected)
    if equality.identity(actual) == equality.identity(expected):
        return None
    return f"{equality.short(actual)}, it should be {equality.short(expected)}"
