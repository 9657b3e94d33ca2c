"""A transaction of a store in Redis, from its first look at the fence to the script that applies
it.

Apart from ``connection``, which says how a connection is made, and from ``maintenance``
and ``reading``, which do not write for a task. Needs redis-py.

Nothing is locked. The rows that a task writes are held here as texts, each beside the text that was
read; the last step hands both to the server, which compares and replaces (``apply.APPLY``).
If something else is there by now, it is judged like any row. Integers to be combined go along with
that; the server looks at their rows in the same step, and does nothing at all if one is not
ordinary.

A server process that takes over from an ended process goes on from its own data. The store keeps
the server processes with the versions that each served; every worker keeps the versions that were
acknowledged to the worker; where the two contradict each other, something was lost.

Invariants:
    - No write reaches the server before the last step, which applies all writes or none; raising
      the fence is such a step of its own.
    - All steps of a session use a single connection, and so a single server process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.stores import faults as failures
from txtopo.stores import place as places
from txtopo.stores import sessions, stamps
from txtopo.stores.redis import apply as applying
from txtopo.stores.redis import connection as connections
from txtopo.stores.redis import layout
from txtopo.topology import merge

ROWS_MAX = 100_000
"""How many rows a task may write in one transaction of a store: while a script runs, the server
does nothing else."""

ROWS_TOGETHER_MAX = 200_000
"""How many rows all tasks of a component may write in one transaction: taking them back is one
step, and a command has a million parts at most."""

SWEPT_MAX = 50_000
"""How many tombstones are removed as a fence is raised; the rest is removed with later fences.
"""

BYTES_MAX = 64 * 2**20
"""How many bytes the rows that a task writes in one transaction may have, with those they replace.
"""

MERGED_BYTES_MAX = 64
"""How many bytes of a row's second line there are at most, if the server makes it: three numbers.
"""

READINGS_MAX = 100
"""How often the fences are read, when some are raised meanwhile."""

_SMALLER = "Make the batches smaller, give the component more tasks, or keep less in a value. Nothing of this transaction is kept."


class FenceMovedError(Exception):
    """The fence was changed after its judgement, before the transaction was applied; no change was
    applied.
    """

    def __init__(self, fence: str) -> None:
        super().__init__(fence)
        self.found = fence
        """The fence that is there, as it is kept; empty if there is none."""


class Opened(NamedTuple):
    """The answer of the server when a transaction begins."""

    born: str
    version: int
    tenure: int
    held: str
    fence: str
    served_then: str
    served_next: str
    deleted: int
    form: str
    counted: int
    counted_of_task: int


class Acknowledged(NamedTuple):
    """The newest change of a store that this process knows to be done, and which server process
    said so."""

    born: str
    tenure: int
    run_id: str
    version: int


class Session(sessions.Session):
    """One transaction of the task of ``stamp``."""

    def __init__(
        self,
        store: places.Place,
        link: connections.Link,
        stamp: stamps.Stamp,
        opened: Opened,
        known: Acknowledged | None,
        acknowledge: Callable[[str, Acknowledged], None],
    ) -> None:
        super().__init__()
        self._store, self._link, self._mine, self._opened, self._known, self._acknowledge = (
            store,
            link,
            stamp,
            opened,
            known,
            acknowledge,
        )
        self._names = layout.Names(store.name)
        self._field = layout.fence_field(stamp.topology_id, stamp.component)
        self._fence, self._count, self._number = opened.fence, opened.counted, 0
        self._counted_of_task = opened.counted_of_task
        self._raised: stamps.Fence | None = None
        self._void: stamps.Fence | None = None
        self._sweeps = False
        self._found: dict[str, str] = {}
        """What was read, by key; empty where nothing was."""
        self._written: dict[str, str] = {}
        """The texts of the rows after this transaction."""
        self._deleted: dict[str, bool] = {}
        """Of keys that were read or written: whether they are deleted and still have a row."""
        self._marks: dict[str, bool] = {}
        """Of keys for which that changes: what it is then."""
        self._bytes = 0
        self.is_counted = False

    # -- the fence --------------------------------------------------------------------------------

    def read_fence(self, topology_id: str, component: str) -> stamps.Fence | None:
        return layout.fence_of(self._field, self._fence, self._count)[0] if self._fence else None

    def read_fences(self, topology_id: str) -> list[stamps.Fence]:
        return [
            fence
            for fence in fences_of(self._link, self._names)
            if fence.topology_id == topology_id
        ]

    def write_fence(self, fence: stamps.Fence) -> None:
        self._raised = fence

    def count(self, stamp: stamps.Stamp, number: int) -> None:
        # One that was counted before, when the task ran for the first time in this attempt, finds
        # all that it writes there, and applies nothing.
        self._number, self.is_counted = number, number <= self._counted_of_task

    def take_back(self, void: stamps.Fence) -> None:
        self._void = void

    def sweep(self, stamp: stamps.Stamp) -> None:
        self._sweeps = self._opened.deleted > 0

    def raise_fence(self) -> bool:
        """Raise the fence if that was asked for, with all that goes with it; False if the server no
        longer holds the judged fence."""
        if self._raised is None:
            return True
        lists = (
            [("LRANGE", self._names.written(self._mine.topology_id, self._mine.component), 0, -1)]
            if self._void
            else []
        )
        sets = [("SMEMBERS", self._names.deleted)] if self._sweeps else []
        answers = self._link.ask_all([*lists, *sets]) if lists or sets else []
        written = answers[0] if lists else []
        texts = {key for portion in written for key in portion.decode().split("\n")}
        texts.update(key.decode() for key in sorted(answers[-1] if sets else [])[:SWEPT_MAX])
        changes = dict(self._settled(self.read_rows(sorted(texts)).values())) if texts else {}
        is_over = (
            self._void is not None
            or not self._fence
            or self._raised.txid != layout.fence_of(self._field, self._fence)[0].txid
        )
        fence = layout.fence_text(self._raised, self._opened.tenure)
        length = str(len(written)) if self._void else ""
        marks = {text: False for text in changes if self._deleted[text]}
        rows = {text: (self._found[text], row) for text, row in changes.items()}
        outcome = self._apply(
            self._change(new_fence=fence, length=length, forgets=is_over, rows=rows, marks=marks)
        )
        self._found.clear()
        if outcome == "done":
            self._fence, self._raised, self._counted_of_task = fence, None, 0
        return outcome == "done"

    def at(self, fence: str) -> Session:
        """This session at the fence that is there now, to be judged again."""
        self._fence = fence
        return self

    def check_is_not_held(self) -> None:
        """Refuse a store that is held."""
        if self._opened.held:
            raise _held(self._store, self._mine.topology_id, self._opened.held)

    def check_nothing_is_lost(self) -> None:
        """Refuse a store that lacks changes acknowledged to this process.

        :raises errors.FailedException: another server process has taken over since the attempt
            raised its fence: the store may lack writes of the attempt, and only a new attempt
            writes them again.
        """
        if (
            self._known is not None
            and (contradiction := _contradiction(self._opened, self._known)) is not None
        ):
            why = f"lost {self._known.version} {contradiction}"
            # For all later writers, also for a new run, which knows of no loss.
            self._link.ask("HSET", self._names.meta, "held", why)
            raise _held(self._store, self._mine.topology_id, why)
        if (
            self._raised is None
            and layout.fence_of(self._field, self._fence)[1] != self._opened.tenure
        ):
            raise errors.FailedException(
                f"the store {self._store.address} was taken over by another server process in the middle of an attempt"
            )

    def _settled(self, rows: Iterable[stamps.Row]) -> Iterator[tuple[str, str]]:
        """The changes of rows that go with the raise of the fence, by key: taken back (R31), or a
        tombstone that nothing will ask for any more."""
        for row in rows:
            if self._void is not None and _is_of(row.stamp, self._void):
                stamp = dataclasses.replace(
                    row.stamp, txid=row.prev_txid, attempt=stamps.UNKNOWN_ATTEMPT
                )
                before = stamps.Row(row.key, stamp, prev=None, prev_txid=0, steps=[row.prev])
                yield row.key, "" if row.prev is None else layout.row_text(before)
            elif self._sweeps and row.curr is None and self._is_swept(row.stamp):
                yield row.key, ""

    def _is_swept(self, stamp: stamps.Stamp) -> bool:
        is_ours = (stamp.topology_id, stamp.component) == (
            self._mine.topology_id,
            self._mine.component,
        )
        return is_ours and (
            stamp.txid < self._mine.txid or stamp.generation != self._mine.generation
        )

    # -- rows -------------------------------------------------------------------------------------

    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        rows = {
            text: layout.row_of(text, self._written[text])
            for text in texts
            if text in self._written
        }
        unread = [text for text in texts if text not in rows]
        answer = self._link.ask("HMGET", self._names.rows, *unread) if unread else []
        for text, kept in zip(unread, answer, strict=True):
            self._found[text] = decoded = "" if kept is None else kept.decode()
            if decoded:
                rows[text] = layout.row_of(text, decoded)
            self._deleted[text] = bool(decoded) and rows[text].curr is None
        return rows

    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        for row in rows:
            text = layout.row_text(row)
            if row.key not in self._written:
                self._bytes += len(row.key) + len(self._found[row.key])
            self._bytes += len(text) - len(self._written.get(row.key, ""))
            self._written[row.key] = text
            is_deleted = row.curr is None
            if self._deleted[row.key] != is_deleted:
                self._marks[row.key] = self._deleted[row.key] = is_deleted
        self._check_bounds(0, 0)

    def _check_bounds(self, more_rows: int, more_bytes: int) -> None:
        writes = f"what one task writes to the store {self._store.address} in a transaction"
        rows, size = len(self._written) + more_rows, self._bytes + more_bytes
        if rows > ROWS_MAX:
            raise errors.TxtopoError(
                f"{writes} has {rows} rows; the bound is {ROWS_MAX}\n  {_SMALLER}"
            )
        if size > BYTES_MAX:
            raise errors.BatchTooLargeError(writes, size, BYTES_MAX, "BYTES_MAX", _SMALLER)

    merges_midway = False

    def merge_rows(
        self, deltas: Mapping[str, int], how: merge.Merge, stamp: stamps.Stamp, settled_txid: int
    ) -> Collection[str]:
        self._check_bounds(
            len(deltas),
            sum(map(len, deltas))
            + len(deltas) * (len(layout.stamp_text(stamp)) + MERGED_BYTES_MAX),
        )
        merges = applying.Merges(deltas, how, stamp, settled_txid)
        # All of the transaction, or nothing: written rows go with the merge, or wait until the
        # rules have combined the other rows.
        return deltas if self._apply_written(merges) == "unmerged" else ()

    def apply(self) -> None:
        if self._written:
            self._apply_written(None)

    def _apply_written(self, merges: applying.Merges | None) -> str:
        rows = {text: (self._found[text], row) for text, row in self._written.items()}
        counted = {"task": self._mine.task, "number": self._number}
        outcome = self._apply(
            self._change(
                together_max=ROWS_TOGETHER_MAX,
                rows=rows,
                marks=self._marks,
                merges=merges,
                **counted,
            )
        )
        if outcome == "done":
            self.is_counted = True
            self._written, self._marks = {}, {}
        return outcome

    def _change(self, **parts: Any) -> applying.Change:
        return applying.Change(
            self._opened.born, "", self._opened.form, self._field, self._fence, **parts
        )

    def _apply(self, change: applying.Change) -> str:
        """What became of it: done; or of nothing: written (the list of written keys has changed),
        unmerged; or, where the fence could not be raised, fence, rows."""
        names, stamp = self._names, self._mine
        keys = [
            names.meta,
            names.fences,
            names.rows,
            names.order,
            names.deleted,
            names.written(stamp.topology_id, stamp.component),
        ]
        keys.append(names.counts(stamp.topology_id, stamp.component))
        answer, *values = self._link.run(applying.APPLY, keys, change.arguments())
        outcome = str(answer.decode())
        if outcome == "done":
            self._acknowledge(
                self._store.name,
                Acknowledged(self._opened.born, self._opened.tenure, self._link.run_id, values[0]),
            )
        elif outcome == "held":
            fact = "it is being adopted or cleared, was emptied, or is of another form by now"
            raise failures.busy(self._store.address, f"{fact}")
        elif outcome == "many":
            fact = f"what component {stamp.component!r} writes to the store {self._store.address} in a transaction"
            raise errors.TxtopoError(
                f"{fact} has {values[0]} rows; the bound is {ROWS_TOGETHER_MAX}\n  {_SMALLER}"
            )
        elif outcome == "fence" and not change.new_fence:
            raise FenceMovedError(values[0].decode())
        elif outcome == "rows" and not change.new_fence:
            texts = {
                key.decode(): kept.decode()
                for key, kept in zip(values[0][::2], values[0][1::2], strict=True)
            }
            raise sessions.RowsChangedError(
                {key: layout.row_of(key, kept) if kept else None for key, kept in texts.items()}
            )
        return outcome


def fences_of(link: connections.Link, names: layout.Names) -> list[stamps.Fence]:
    """All fences with their counts, ordered by topology and component.

    :raises errors.FailedException: fences are raised all the time.
    """
    answer = link.ask("HGETALL", names.fences)
    for _ in range(READINGS_MAX):
        fences = [
            layout.fence_of(field.decode(), text.decode())[0]
            for field, text in zip(answer[::2], answer[1::2], strict=True)
        ]
        counts = [("HVALS", names.counts(fence.topology_id, fence.component)) for fence in fences]
        *numbers, now = link.ask_all([*counts, ("HGETALL", names.fences)])
        if now == answer:  # the counts are of these fences
            counted = (
                dataclasses.replace(fence, count=sum(map(int, of)))
                for fence, of in zip(fences, numbers, strict=True)
            )
            return sorted(counted, key=lambda fence: (fence.topology_id, fence.component))
        answer = now
    raise errors.FailedException(
        f"the fences of the store were raised {READINGS_MAX} times while they were read"
    )


def _is_of(stamp: stamps.Stamp, void: stamps.Fence) -> bool:
    """Whether ``stamp`` is of the attempt of ``void``, or of an earlier attempt of its transaction."""
    same = (stamp.topology_id, stamp.component, stamp.generation, stamp.txid) == (
        void.topology_id,
        void.component,
        void.generation,
        void.txid,
    )
    return same and stamp.attempt <= void.attempt and stamp.attempt != stamps.UNKNOWN_ATTEMPT


def _contradiction(opened: Opened, known: Acknowledged) -> int | None:
    """The number of changes when another server process took over, if fewer than acknowledged; else
    None."""
    if opened.born != known.born or opened.served_then.partition(" ")[0] != known.run_id:
        return 0 if opened.born != known.born else opened.version
    # The version at which the next server process began; or the newest version, if there is no next
    # process.
    reached = int(opened.served_next.partition(" ")[2]) if opened.served_next else opened.version
    return reached if reached < known.version else None


def _held(store: places.Place, topology_id: str, held: str) -> errors.StateMismatchError:
    command = store.command("adopt", topology_id)
    why, *versions = held.split(" ")
    if why == "lost":
        return errors.StateMismatchError(
            f"store {store.address} has lost what its server had acknowledged: change {versions[0]} was done, later there were {versions[1]}\n"
            "  The server was restarted without its last changes, or emptied, or a replica without them took over. Nothing was written. Look with\n"
            "  `txtopo state show`, restore the newest copy, or choose:\n"
            f"    `{command}`: go on from what it holds now; what was lost stays lost\n"
            f"    `txtopo state reset {topology_id}`: begin with the first batch; the store must then be cleared or adopted"
        )
    return errors.StateMismatchError(
        f"store {store.address} is being adopted or cleared, or that was begun and never finished\n"
        "  Wait until it is done. If nobody is at it any more, type the same command again; it goes on where it was left."
    )
