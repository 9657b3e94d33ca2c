"""Stories: a story is a spout's whole run with attempts, restarts, and the committed tuples.

A story asserts each step's promises: replays have the same batch, metadata comes back unchanged,
tasks agree. ``spout`` compares several stories.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from txtopo import errors
from txtopo.dataplane import outcome
from txtopo.dataplane.job import Run
from txtopo.engine.attempts import AttemptFailedError
from txtopo.state import memory
from txtopo.testing.contracts import equality, local_run, processes, violation
from txtopo.testing.contracts.local_run import EmittedRow, LocalRun, Work
from txtopo.topology import metadata as metadata_of
from txtopo.topology import pickling
from txtopo.topology.graph import TopologyGraph

R = TypeVar("R")

TRIES_MAX = 20
"""How often a hook may raise ``FailedException`` in a row."""

EMPTY_IN_A_ROW = 3
"""An always ready spout is exhausted after so many empty transactions in a row."""

PENDING = 3
"""How many transactions are open at a time."""


@dataclass(frozen=True)
class Plot:
    """How a story goes. ``parallelisms`` are task counts to choose from. Without ``rng`` there are
    no failures, and the first task count is taken."""

    transactions: int
    parallelisms: Sequence[int]
    grow: Callable[[Any], object] | None = None
    rng: random.Random | None = None
    replays: bool = False
    """Emit every batch of a transactional spout again with every task count."""


@dataclass
class Told:
    """A story's outcome. ``committed`` is by txid. ``history`` lists the events, for a message."""

    committed: dict[int, list[EmittedRow]] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    is_exhausted: bool = False
    attempts: int = 0
    restarts: int = 0
    partitions: int = 0

    @property
    def rows(self) -> list[EmittedRow]:
        return [row for txid in sorted(self.committed) for row in self.committed[txid]]


class Story:
    """Tells a story. ``graph`` holds the spout alone. ``given`` is the spout, for ``grow``."""

    def __init__(
        self,
        graph: TopologyGraph,
        user_spout: Any,
        plot: Plot,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self.graph, self.given, self.plot, self.conf = graph, user_spout, plot, conf
        self.spout_id, self.traits = graph.spout.id, graph.spout_traits
        self.metadata_type = pickling.loads(graph.spout.template).metadata_type
        self.told = Told()
        self.server = memory.MemoryServer()
        self.window: dict[int, Work] = {}
        self.first: dict[int, tuple[str, Work]] = {}
        """By txid: the first metadata, as text, and the attempt that emitted the batch."""
        self.asked: set[int] = set()
        """Txids opened in this run. The coordinator is not asked about them again."""
        self.grows_left = 2 if plot.grow is not None else 0
        self.empties = 0

    def tell(self) -> Told:
        """Run from the first transaction to the last."""
        self.run = self._new_run()
        try:
            self._until_quiet()
            self._grow("when nothing was left")
            self._until_quiet()
            self._restart("when nothing was left")
            self._until_quiet()
            self._check_quiet_after_restart()
        except BaseException:
            # An error in close follows from the first error, or would hide the first.
            with contextlib.suppress(Exception):
                self.run.close()
            raise
        self._driver(self.run.close)
        return self.told

    # -- the run ----------------------------------------------------------------------------------

    def _new_run(self) -> LocalRun:
        def make(run: Run) -> list[processes.Process]:
            return [processes.LocalProcess(run), processes.LocalProcess(run)]

        self.asked, self.is_fresh = set(), True
        return self._driver(LocalRun, self.graph, self.server, make, self.conf)

    def _restart(self, when: str) -> None:
        self.told.history.append(f"restarted {when}")
        self.told.restarts += 1
        self.window.clear()
        self._driver(self.run.close)
        self.run = self._new_run()

    def _grow(self, when: str) -> None:
        if self.grows_left and self.plot.grow is not None:
            self.grows_left -= 1
            self.told.history.append(f"the source grew {when}")
            self.plot.grow(self.given)
            self.empties = -len(self.window)
            if not self.traits.is_opaque:
                # A batch that is open already stays, even if the batch was empty.
                for txid, work in self.window.items():
                    self._check_same(txid, self._emit(txid, work.task_counts[self.spout_id]))

    def _until_quiet(self) -> None:
        """Go on until the spout is exhausted, or the story is long enough."""
        self.told.is_exhausted = False
        while self.run.state.current <= self.plot.transactions:
            self._open_window()
            if not self.window or self.empties >= EMPTY_IN_A_ROW:
                self.told.is_exhausted = True
                return
            self._step()

    def _step(self) -> None:
        """Commit the first open transaction, or by chance abandon one or restart the driver."""
        if self.grows_left == 2 and self.run.state.current >= 2:
            self._grow(f"while transactions {sorted(self.window)} were open")
        rng = self.plot.rng
        step = random_of(rng, ["commit", "abandon", "restart"], [6, 3, 1])
        if step == "abandon":
            self._abandon(random_of(rng, sorted(self.window)), "on purpose")
        elif step == "restart":
            self._restart(f"while transactions {sorted(self.window)} were open")
        else:
            self._commit(min(self.window))

    def _abandon(self, txid: int, why: str) -> None:
        """Discard ``txid`` and all later transactions (R6)."""
        for later in sorted(self.window):
            if later >= txid:
                attempt = self.window.pop(later).attempt
                self.told.history.append(f"attempt {attempt} was abandoned {why}")
                self.run.batches.discard(attempt)

    def _commit(self, txid: int) -> None:
        work = self.window[txid]
        self.run.seal(work)
        dies = random_of(self.plot.rng, [None, "after its seal", "before its record"], [6, 1, 1])
        if dies == "after its seal":
            self._restart(f"after the seal of {work.attempt}")
            return
        try:
            if self.graph.spout.committer:
                self.run.apply(work, self._process())
        except local_run.HookFailedError as error:
            self._judge_failure(error.failure)
            self._abandon(txid, "because its commit failed")
            return
        if dies:
            self._restart(f"between the commit of {work.attempt} and its record")
            return
        self.run.record(work)
        del self.window[txid]
        self.told.committed[txid] = work.emitted
        self.told.history.append(
            f"attempt {work.attempt} was committed with {len(work.emitted)} tuples"
        )
        self.empties = 0 if work.emitted else self.empties + 1

    def _process(self) -> processes.Process:
        return self.run.processes[self.told.attempts % len(self.run.processes)]

    # -- opening ----------------------------------------------------------------------------------

    def _open_window(self) -> None:
        first = self.run.state.current
        for txid in range(first, min(first + PENDING, self.plot.transactions + 1)):
            if txid in self.window:
                continue
            if (
                txid not in self.asked
                and txid not in self.run.batches.known_txids()
                and not self._open(txid)
            ):
                if self.is_fresh and self.told.restarts and not self.window:
                    self.told.history.append(
                        f"right after a restart, is_ready said that there is no transaction {txid}"
                    )
                self.is_fresh = False
                return
            self.is_fresh = False
            self.asked.add(txid)
            self.window[txid] = self._attempt_for(txid)

    def _open(self, txid: int) -> bool:
        for _ in range(TRIES_MAX):
            try:
                return self._driver(self.run.batches.open, txid)
            except errors.FailedException:
                continue
        return self._keeps_failing(f"opening transaction {txid}")

    def _attempt_for(self, txid: int) -> Work:
        """The attempt for ``txid`` that the story uses. A transactional spout must emit the first
        attempt's batch again."""
        tasks = random_of(self.plot.rng, self.plot.parallelisms)
        work = self._emit(txid, tasks)
        if self.traits.is_opaque:
            return work
        text = json.dumps([work.batch.metadata, dict(work.batch.partitions)], sort_keys=True)
        if txid not in self.first or self.first[txid][0] != text:
            self.first[txid] = (text, work)
        self._check_same(txid, work)
        if self.plot.replays:
            for other in self.plot.parallelisms:
                self._check_same(txid, self._emit(txid, other))
            self._check_same(txid, self._emit(txid, tasks))
        return work

    def _emit(self, txid: int, tasks: int) -> Work:
        counts = self.run.task_counts(txid, **{self.spout_id: tasks})
        for _ in range(TRIES_MAX):
            attempt = self.run.next_attempt(txid)
            self.told.attempts += 1
            try:
                work = self._driver(self.run.emit, attempt, counts, self._process())
            except errors.FailedException:
                continue
            except local_run.HookFailedError as error:
                self._judge_failure(error.failure)
                continue
            except AttemptFailedError as error:
                self._fail(
                    19,
                    f"num_partitions of attempt {attempt}: {error.text}",
                    "Let every task see the same number: take the number from one place, or plan the batch in the coordinator.",
                )
            self._check_metadata(work)
            return work
        return self._keeps_failing(f"emitting transaction {txid}")

    # -- promises of every step -------------------------------------------------------------------

    @property
    def emit_hook(self) -> str:
        if not self.traits.is_partitioned:
            return "emit_batch"
        return (
            "emit_partition_batch"
            if self.run.batches.emits_metadata or not self.traits.is_opaque
            else "emit_planned_partition_batch"
        )

    def _check_same(self, txid: int, work: Work) -> None:
        was = self.first[txid][1]
        spout_tasks = [each.task_counts[self.spout_id] for each in (was, work)]
        has_same_tasks = spout_tasks[0] == spout_tasks[1]
        if work is was or (
            has_same_tasks and equality.identity(work.rows) == equality.identity(was.rows)
        ):
            return
        case = f"{self.emit_hook} of attempt {work.attempt} with {spout_tasks[1]} tasks, against {was.attempt} with {spout_tasks[0]}"
        difference = equality.multiset_difference(work.emitted, was.emitted)
        if difference is not None:
            cure = "Emit from the metadata alone: not from newer data, from memory or from the attempt, and the same for every task count."
            self._fail(
                19 if self.traits.is_partitioned and not has_same_tasks else 18,
                f"{case}: {difference}",
                cure,
            )
        if has_same_tasks:
            self._fail(
                17,
                f"{case}: the same tuples in another order, or in different tasks",
                "Emit in an order that depends on the metadata alone.",
            )

    def _check_metadata(self, work: Work) -> None:
        """Check that the spout gets its metadata back unchanged."""
        if not self.traits.is_partitioned:
            stored = [work.batch.metadata]
        else:
            stored = list(work.batch.partitions.values())
            self.told.partitions = max(self.told.partitions, work.batch.num_partitions)
        for metadata in stored:
            again = metadata_of.to_json(
                metadata_of.from_json(json.loads(json.dumps(metadata)), self.metadata_type),
                self.metadata_type,
            )
            if again != metadata:
                self._fail(
                    4,
                    f"metadata {equality.short(metadata)} comes back from its model as {equality.short(again)}",
                    "Let metadata_type give back every field.",
                )

    def _check_quiet_after_restart(self) -> None:
        txid = self.run.state.current
        if self.window or txid > self.plot.transactions or self.empties >= EMPTY_IN_A_ROW:
            return
        self._restart("after is_ready had said False")
        if self._open(txid):
            self._fail(
                5,
                f"is_ready said False before transaction {txid}, and True right after a restart, though the source did not grow",
                "Answer from context.last_metadata and the source, not from the coordinator's memory.",
            )

    # -- user code that raises --------------------------------------------------------------------

    def _driver(self, call: Callable[..., R], *args: Any) -> R:
        try:
            return call(*args)
        except errors.MetadataError as error:
            self._fail(
                4,
                str(error),
                "Give metadata as JSON, or as an instance of metadata_type, a pydantic model.",
                error,
            )
        except errors.UserCodeError as error:
            self._fail(
                None,
                f"{error.hook} raised {error}",
                "Mend the hook, or raise FailedException if the failure is transient.",
                error,
            )
        except errors.TxtopoError as error:
            self._fail(
                None,
                f"the spout coordinator raised {type(error).__name__}: {error}",
                "Mend the hook, or the source.",
                error,
            )

    def _judge_failure(self, failure: outcome.Failure) -> None:
        """Judge an emitter's hook that raised: only ``FailedException`` may pass."""
        if failure.kind != "error":
            return
        error = failure.to_error()
        (rule, cure) = (
            None,
            "Mend the hook, or raise FailedException if the failure is transient.",
        )
        if isinstance(error, errors.EmitError):
            rule = 14
            cure = "Emit the attempt first, and only fields that declare_output_fields declares."
        elif isinstance(error, errors.MetadataError):
            rule, cure = (
                (21, "Return metadata for every batch that has tuples.")
                if "None as metadata" in failure.error
                else (4, "Return JSON.")
            )
        elif isinstance(error, errors.HeldStateError):
            rule, cure = 22, "Keep connections in context.resource."
        fault = f"{failure.hook} of attempt {failure.attempt}, task {failure.task}: {failure.error}\n{failure.traceback}"
        self._fail(rule, fault.rstrip(), cure, error)

    def _keeps_failing(self, fault: str) -> NoReturn:
        self._fail(
            7,
            f"{fault} raised FailedException {TRIES_MAX} times in a row",
            "Raise FailedException only for transient failures.",
        )

    def _fail(
        self, rule: int | None, fault: str, cure: str, cause: BaseException | None = None
    ) -> NoReturn:
        raise violation.ContractError("spout", rule, fault, cure) from cause


def random_of(
    rng: random.Random | None, choices: Sequence[Any], weights: Sequence[int] | None = None
) -> Any:
    """One of ``choices``, the first if ``rng`` is None."""
    if rng is None:
        return choices[0]
    return rng.choice(choices) if weights is None else rng.choices(choices, weights)[0]
