"""Decides a transaction of files: after all tasks' files are whole, one record makes them count.

Each task writes its files under names of the attempt. It then looks at the newest decision as at a
store's fence (``stores.fencing``), so that the rules are those of stores: a late task, an emptied
or older directory, another generation. A transaction with several tasks gets a piece from each, and
the task that sees all pieces decides. Then the files get the names under which readers look.

Runs on: executor. For a query of Structured Streaming also on the driver.

Invariants:
    - A transaction's files are decided all at once, and its tasks end well only if the decision and
      the files' names are there, or other tasks' pieces are missing.
    - A file that an attempt wrote is never removed before its transaction is decided.
    - From an opaque spout, files get their names when the transaction is recorded, in the commit of
      the next one: nothing that readers saw is taken back.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from txtopo import errors, faults
from txtopo.connectors.files import decisions, storage, upkeep
from txtopo.connectors.files.form import HOME
from txtopo.sinks import replays, task_ledger
from txtopo.stores import completeness, fencing, stamps, visible
from txtopo.stores import place as places
from txtopo.topology import context as contexts
from txtopo.topology import destination, transaction

NAME = "files"


class FileLedger(destination.Destination):
    """The decisions in the directory ``root``.

    :param name: the sink's name in the topology's state.
    :param is_opaque: a later attempt at a transaction takes an earlier attempt's place.
    :param shows_files: each task gives its files their names at once, before the decision.
    """

    kind = "FileSink"
    """The sink's class, for messages."""

    def __init__(
        self,
        root: str,
        name: str,
        is_opaque: bool,
        shows_files: bool,
        client: Mapping[str, Any],
    ) -> None:
        self.root, self.name, self.opaque = root, name, is_opaque
        self.shows_files, self.client = shows_files, dict(client)
        self.tells_late = is_opaque
        """Whether readers are told of a transaction when it is recorded, with the next one."""
        self.local_only_reason = (
            None if "://" in root else f"{self.kind} writes to the directory {root} of this machine"
        )

    @property
    def sink(self) -> str:
        return self.root

    @property
    def place(self) -> places.Place:
        location = storage.address_of(self.root, self.client)
        return places.Place(self.name, f"{self.root}#{self.name}", location, "", self.opaque)

    def guarantee(self) -> destination.Guarantee:
        return destination.Guarantee(
            f"{self.kind} {self.root}",
            "rows, in files",
            takes_back=self.opaque,
            is_keyed=False,
            cure="use a transactional spout" if self.shows_files else "give the sink opaque=True",
            place=self.root,
            known_as=self.name,
            has_one_writer=True,
        )

    def kept(self, topology_id: str, component: str) -> upkeep.FileRecords:
        return upkeep.FileRecords(self.root, self.name, self.client)

    def simulated(self, world: destination.World) -> destination.Destination:
        memory = importlib.import_module("txtopo.connectors.files.memory")
        simulated: destination.Destination = memory.SimulatedLedger(self, world)
        return simulated

    def check(self, log: decisions.Log) -> None:
        """Check that the place is fit for the sink.

        :raises errors.SetupError: it is not.
        """
        if storage.is_table(log.storage):
            raise errors.SetupError(
                f"{self.root} has a Delta table\n  Give the FileSink another folder, or use DeltaSink."
            )

    def check_again(self, log: decisions.Log) -> None:
        """Check what may have changed, before a transaction is decided."""

    def missing(self, log: decisions.Log, pieces: list[decisions.Piece]) -> list[decisions.Piece]:
        """The pieces with files that another program has removed since a query was killed."""
        return []

    def begin(self, schema: Any, partition_by: Sequence[str]) -> None:
        """Prepare the place for the first rows.

        :param schema: of Parquet.
        """

    def stay(self, store: storage.Storage, generation: str) -> str | None:
        """The folder in which files stay where they were written. None: they are renamed."""
        # Readers are told of the files by the decision.
        return None if store.renames or self.shows_files else f"{HOME}/data/{generation}/"

    def tell(
        self,
        log: decisions.Log,
        generation: decisions.Generation,
        decided: decisions.Decision,
        earlier: Sequence[decisions.Decision],
        share: slice | None = None,
    ) -> None:
        """Tell readers of a decision: give its files the names under which readers look.

        :param earlier: the decisions before that count, the last ones at least.
        :param share: the files that this task tells of. None if it has just decided: all.
        :raises errors.StateMismatchError: another file has such a name.
        """
        self.name_files(log.storage, decided.files[share or slice(None)], decided.txid)

    def name_files(
        self, store: storage.Storage, files: Iterable[decisions.File], txid: int
    ) -> None:
        """Give files the names under which readers look.

        :raises errors.StateMismatchError: another file has such a name.
        """
        for file in files:
            if file.path == file.written or store.rename(file.written, file.path):
                continue
            if store.stat(file.written) is None:
                # It has its name already.
                continue
            if self.shows_files and store.are_equal(file.written, file.path):
                # An earlier attempt's file has the same rows.
                continue
            raise errors.StateMismatchError(
                f"{self.root}/{file.path} is in the way of a file of transaction {txid}\n"
                "  It is not the sink's, or a replay has other tuples. Move it away, and start again."
            )

    def log(self, resource: Any) -> decisions.Log:
        """This process's view of the decisions."""

        def make() -> decisions.Log:
            reached = storage.open_storage(self.root, self.client)
            reached.check(f"{HOME}/probe")
            log = decisions.Log(reached, self.begin)
            self.check(log)
            return log

        log: decisions.Log = resource(f"{self.kind}:{self.root}:{os.getpid()}", make)
        return log

    def current(self, context: contexts.TopologyContext) -> decisions.Generation | None:
        """The generation that writes here. ``None`` if none has.

        :raises errors.SetupError: it is of another component.
        """
        current = self.log(context.resource).current(context.generation)
        if current is not None and (current.topology_id, current.component) != (
            context.topology_id,
            context.component_id,
        ):
            raise errors.SetupError(
                f"the files in {self.root} belong to component {current.component!r} in topology {current.topology_id!r}, and component"
                f" {context.component_id!r} in topology {context.topology_id!r} cannot share them\n  Give each sink its own directory."
            )
        return current

    def apply(
        self,
        context: contexts.TopologyContext,
        attempt: transaction.TransactionAttempt,
        rows: int,
        files: tuple[decisions.File, ...],
        comes_alone: bool = False,
    ) -> bool:
        """Commit a task's share: ``rows`` in ``files``, which are whole. False if it was committed
        before.

        :param comes_alone: a task may be repeated without the other tasks, as Spark does in a query.
        :raises errors.StaleAttemptError: a newer attempt has written (R29).
        :raises errors.StateMismatchError: the directory was emptied, restored from an older copy,
            or belongs to another generation (R27).
        :raises errors.FailedException: the storage does not answer.
        """
        known_name = task_ledger.begin(self.place, self.root, context)
        piece = decisions.Piece(context.task_index, context.num_tasks, rows, files)
        try:
            is_written = _Turn(self, context, attempt).write(piece, comes_alone)
        except Exception as error:
            # The attempt has failed, even if user code around the sink catches the exception (R39).
            context.on_failure(error)
            raise
        faults.reach("apply.inside", attempt.txid, context.topology_id)
        context.touched_stores[known_name] = 1
        return not is_written


class _Turn:
    """One task's turn to commit its share."""

    def __init__(
        self,
        ledger: FileLedger,
        context: contexts.TopologyContext,
        attempt: transaction.TransactionAttempt,
    ) -> None:
        self._ledger, self._context, self._attempt = ledger, context, attempt
        self._log, self._place = ledger.log(context.resource), ledger.place
        self._stamp = stamps.Stamp.of(context, attempt)

    def write(self, piece: decisions.Piece, comes_alone: bool) -> bool:
        """Commit ``piece``. True if its transaction was committed before."""
        generation = self._ledger.current(self._context)
        newest = self._newest(generation)
        if not newest and generation is not None and not generation.after:
            # Perhaps the sink was cleared while this process lives.
            self._log.forget()
            generation = self._ledger.current(self._context)
            newest = self._newest(generation)
            if piece.files and not self._log.form.kept():
                raise errors.FailedException(
                    f"{self._ledger.root} was cleared while the rows were written"
                )
        standing = self._judge(generation, newest[-1] if newest else None)
        if generation is None:
            generation = self._begin()
        if standing == "void" and not newest[-1].is_void:
            # An attempt that does not count, at a transaction that is over.
            self._log.decide(
                generation,
                dataclasses.replace(
                    newest[-1], attempt=newest[-1].attempt + 1, rows=(), files=(), is_void=True
                ),
            )
            newest = self._newest(generation)
        earlier = [each for each in newest if each.txid < self._attempt.txid]
        share = slice(self._stamp.task, None, self._context.num_tasks)
        if standing == "committed":
            self._check_same(newest[-1].rows, piece)
            if not self._ledger.tells_late:
                # The task that decided may have died.
                told = slice(None) if comes_alone else share
                self._ledger.tell(self._log, generation, newest[-1], earlier, told)
            return True
        if self._ledger.tells_late:
            # It is recorded, or this transaction would not commit.
            for each in earlier:
                self._ledger.tell(self._log, generation, each, (), share)
        elif standing == "void":
            self._ledger.tell(self._log, generation, newest[-1], earlier[:-1])
        if self._ledger.shows_files:
            self._ledger.name_files(self._log.storage, piece.files, self._attempt.txid)
        pieces = [piece]
        if piece.tasks > 1:
            pieces = self._log.add_piece(
                generation, self._attempt.txid, self._attempt.attempt_id, piece
            )
            for other in pieces:
                if other.tasks != piece.tasks:
                    raise replays.DividedOtherwiseError(other.tasks, piece.tasks)
                if other.task == piece.task:
                    self._check_same({piece.task: other.rows}, piece)
            if len(pieces) < piece.tasks:
                return False
        proposed = decisions.Decision(
            self._attempt.txid,
            self._attempt.attempt_id,
            tuple(each.rows for each in pieces),
            tuple(file for each in pieces for file in each.files),
            self._ledger.opaque,
        )
        self._ledger.check_again(self._log)
        missing = self._ledger.missing(self._log, pieces) if comes_alone else []
        if missing:
            self._log.remove_pieces(
                generation, self._attempt.txid, self._attempt.attempt_id, missing
            )
            raise errors.FailedException(
                f"files in {self._ledger.root} were removed before transaction {self._attempt.txid} was committed, as VACUUM does\n"
                "  Start the query again: it writes them again."
            )
        decided = self._log.decide(generation, proposed)
        if self._ledger.opaque:
            # An adoption closes under a name of its own.
            newest = self._log.newest(generation, self._attempt.txid)
            decided = newest[-1] if newest[-1].attempt == stamps.CLOSED_ATTEMPT else decided
        if decided.attempt == stamps.CLOSED_ATTEMPT:
            raise errors.StaleAttemptError(
                self._place.address,
                self._stamp.component,
                generation.fence(decided.position).position,
                self._stamp.position,
            )
        if not self._ledger.opaque and decided.attempt < self._context.first_attempt:
            # A late task of an earlier driver was quicker, perhaps with another batch.
            raise completeness.never_sealed(self._place, generation.fence(decided.position))
        self._check_same(decided.rows, piece)
        if not self._ledger.tells_late:
            self._ledger.tell(self._log, generation, decided, earlier)
        return False

    def _newest(self, generation: decisions.Generation | None) -> list[decisions.Decision]:
        if generation is None:
            return []
        return self._log.newest(generation, self._attempt.txid - 1)

    def _judge(
        self, generation: decisions.Generation | None, newest: decisions.Decision | None
    ) -> Literal["new", "committed", "void"]:
        """How the transaction stands to the newest decision. Void: the newest one does not count.

        :raises errors.TxtopoError: the task may not write.
        """
        own, fence = self._stamp, None
        recorded = visible.recorded_in(self._context, self._ledger.name)
        if generation is not None and newest is not None:
            fence = generation.fence(newest.position)
        elif generation is not None and (
            generation.after or generation.generation != own.generation
        ):
            # Another generation may have pieces here, before its first decision.
            fence = generation.fence((generation.after, stamps.CLOSED_ATTEMPT))
        last = (recorded or {}).get(own.component)
        if (
            fence is not None
            and not self._ledger.opaque
            and last is not None
            and last.txid == fence.txid
        ):
            # A transactional decision holds for all attempts at its transaction.
            fence = dataclasses.replace(fence, attempt=max(fence.attempt, last.attempt_id))
        decision = fencing.decide(
            self._place,
            "opaque" if self._ledger.opaque else "transactional",
            self._context,
            own,
            fence,
            recorded,
        )
        if fence is None or newest is None:
            return "new"
        if decision == "take back":
            if not self._ledger.opaque:
                raise task_ledger.void(self._place, fence)
            return "void" if newest.txid < own.txid else "new"
        is_mine = newest.txid == own.txid and (
            not self._ledger.opaque or newest.attempt == own.attempt
        )
        return "committed" if is_mine else "new"

    def _begin(self) -> decisions.Generation:
        own = self._stamp
        first = self._log.begin(
            decisions.Generation(
                0, own.topology_id, own.component, own.generation, self._ledger.name
            )
        )
        self._ledger.current(self._context)
        if first.generation != own.generation:
            raise errors.FailedException(
                f"another generation has just begun to write to {self._ledger.root}"
            )
        return first

    def _check_same(self, rows: Any, piece: decisions.Piece) -> None:
        """Check that the transaction was committed with as many tasks, and rows of this task."""
        if not isinstance(rows, dict) and len(rows) != piece.tasks:
            raise replays.DividedOtherwiseError(len(rows), piece.tasks)
        if rows[piece.task] != piece.rows:
            raise replays.other_rows(
                self._ledger.root,
                self._context.component_id,
                piece.task,
                self._attempt.txid,
                rows[piece.task],
                piece.rows,
            )
