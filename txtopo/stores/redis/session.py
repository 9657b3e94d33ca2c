"""Runs a task's transaction in Redis, from the first look at the fence to the script that applies
the writes.

Nothing is locked. The session holds the rows that a task writes as texts, each beside the text that
was read. The last step hands both to the server, which compares and replaces (``apply.APPLY``). If
the server finds a different row, the rules judge this row like any row. Integers to combine go
along in the same step. If any of their rows is not ordinary, the server changes nothing at all.
Needs redis-py.

A new server process goes on from its own data, which may lack the old process's last changes. The
store remembers which server process served from which version. Each worker remembers the newest
version acknowledged to the worker. If the two contradict each other, changes were lost.

Invariants:
    - No write reaches the server before the last step, which applies all writes or none. Raising
      the fence is a separate step.
    - A session's steps all use a single connection, and so a single server process.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.stores import completeness, direct, failures, sessions, stamps
from txtopo.stores import place as places
from txtopo.stores.redis import apply as applying
from txtopo.stores.redis import connection as connections
from txtopo.stores.redis import layout
from txtopo.topology import merge

ROWS_MAX = 100_000
"""How many rows a task may write in a store transaction: while a script runs, the server does
nothing else."""

ROWS_TOGETHER_MAX = 200_000
"""How many rows a component's tasks may write together in a transaction. Taking them back is one
step, and a command has a million parts at most."""

SWEPT_MAX = 50_000
"""How many tombstones are removed while a fence is raised. Later raises remove the rest."""

BYTES_MAX = 64 * 2**20
"""How many bytes a task's rows in a transaction may have, together with the rows they replace."""

MERGED_BYTES_MAX = 64
"""The most bytes in a row's second line, if the server combined the row: three numbers."""

READINGS_MAX = 100
"""How often all fences are read, if tasks raise fences meanwhile."""

_SMALLER = "Make the batches smaller, give the component more tasks, or keep less in a value. Nothing of this transaction is kept."


class FenceMovedError(Exception):
    """Raised if the fence was changed between the task's check and the last step. Nothing was
    applied."""

    def __init__(self, fence: str) -> None:
        super().__init__(fence)
        self.found = fence
        """The stored fence as text, empty if there is no fence."""


class Opened(NamedTuple):
    """The server's answer when a transaction begins."""

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
    """A store's newest change that this process knows to be done, and the server process that
    acknowledged the change."""

    born: str
    tenure: int
    run_id: str
    version: int


class Session(sessions.Session):
    """A transaction by the task in ``stamp``."""

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
        self._store = store
        self._link = link
        self._mine = stamp
        self._opened = opened
        self._known = known
        self._acknowledge = acknowledge
        self._names = layout.Names(store.name)
        self._field = layout.fence_field(stamp.topology_id, stamp.component)
        self._fence, self._count, self._number = opened.fence, opened.counted, 0
        self._counted_of_task = opened.counted_of_task
        self._raised: stamps.Fence | None = None
        self._void: stamps.Fence | None = None
        self._sweeps = False
        self._found: dict[str, str] = {}
        """The texts of the rows read, by key. Empty for no row."""
        self._written: dict[str, str] = {}
        """The texts of the rows to write, by key."""
        self._deleted: dict[str, bool] = {}
        """By key, if read or written: whether the key is deleted and still has a row."""
        self._marks: dict[str, bool] = {}
        """By key, if this transaction changes ``_deleted``: the new value."""
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
        # A task that runs again in its attempt finds its earlier writes there, and applies nothing.
        # The earlier run has counted the transaction.
        self._number, self.is_counted = number, number <= self._counted_of_task

    def take_back(self, void: stamps.Fence) -> None:
        self._void = void

    def sweep(self, stamp: stamps.Stamp) -> None:
        self._sweeps = self._opened.deleted > 0

    def raise_fence(self) -> bool:
        """Raise the fence if the rules asked for a raise, and take back and sweep rows in the same
        step. Returns False if the fence or a row has changed meanwhile."""
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
        changes = (
            dict(self._changes_with_fence(self.read_rows(sorted(texts)).values())) if texts else {}
        )
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
        """This session with the new fence, to be judged again."""
        self._fence = fence
        return self

    def check_is_not_held(self) -> None:
        """Refuse a held store."""
        if self._opened.held:
            raise _held_error(self._store, self._mine.topology_id, self._opened.held)

    def check_nothing_is_lost(self) -> None:
        """Refuse a store that lacks changes acknowledged to this process.

        :raises errors.FailedException: a new server process took over after the attempt raised its
            fence. The store may lack the attempt's writes, and only a new attempt writes them
            again.
        """
        if (
            self._known is not None
            and (contradiction := _contradiction(self._opened, self._known)) is not None
        ):
            why = f"lost {self._known.version} {contradiction}"
            # This tells all later writers, even in a new run, which knows nothing about the loss.
            self._link.ask("HSET", self._names.meta, "held", why)
            raise _held_error(self._store, self._mine.topology_id, why)
        if (
            self._raised is None
            and layout.fence_of(self._field, self._fence)[1] != self._opened.tenure
        ):
            raise errors.FailedException(
                f"a new server process took over the store {self._store.address} in the middle of an attempt"
            )

    def _changes_with_fence(self, rows: Iterable[stamps.Row]) -> Iterator[tuple[str, str]]:
        """The rows to change together with the fence, each as key and new text: rows to take back
        (R31), and tombstones that no task needs any more."""
        for row in rows:
            if self._void is not None and stamps.is_undone_by(row.stamp, self._void):
                before = row.taken_back()
                yield row.key, "" if before is None else layout.row_text(before)
            elif self._sweeps and stamps.is_swept(row, self._mine):
                yield row.key, ""

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
        writes = f"a transaction by one task in the store {self._store.address}"
        rows, size = len(self._written) + more_rows, self._bytes + more_bytes
        if rows > ROWS_MAX:
            raise errors.TxtopoError(
                f"{writes} has {rows} rows, and the bound is {ROWS_MAX}\n  {_SMALLER}"
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
        # The server applies all of the transaction or nothing: rows already written go with this
        # step, or wait until the rules have combined the integers.
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

    def exchange(self, change: direct.Change) -> bool:
        """See :meth:`txtopo.stores.direct.Direct.exchange`. Any fence will do.

        :raises sessions.RowsChangedError: a row was changed after this session had read it.
        :raises errors.FailedException: the store is held, and writers must wait.
        :raises errors.StateMismatchError: the store lacks changes acknowledged to this process. The
            store is not held: tasks may have lost nothing, or the loss may be mended already.
        """
        if self._opened.held:
            raise failures.busy(
                self._store.address, "it is being adopted or cleared, or has lost writes"
            )
        lost = None if self._known is None else _contradiction(self._opened, self._known)
        if self._known is not None and lost is not None:
            raise errors.StateMismatchError(
                f"store {self._store.address} has lost acknowledged writes: change {self._known.version} was done, later there were {lost}\n"
                "  Nothing was written. Removed rows may be there again. To go on from the present rows, start this process again."
            )
        if not direct.are_as_expected(
            self.read_rows([*{**change.expected, **dict.fromkeys(change.removed)}]), change.expected
        ):
            return False
        self.write_rows(change.rows)
        after = {**self._found, **self._written, **dict.fromkeys(change.removed, "")}
        changes = {text: (self._found[text], row) for text, row in after.items()}
        marks = {**self._marks, **{text: False for text in change.removed if self._deleted[text]}}
        self._apply(
            applying.Change(self._opened.born, "", self._opened.form, rows=changes, marks=marks)
        )
        return True

    def _change(self, **parts: Any) -> applying.Change:
        return applying.Change(
            self._opened.born, "", self._opened.form, self._field, self._fence, **parts
        )

    def _apply(self, change: applying.Change) -> str:
        """Run the script. Returns ``done``, or the reason why nothing was changed: ``written`` (the
        list of written keys has changed), ``unmerged``, or, while raising a fence, ``fence`` or
        ``rows``."""
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
            fact = "it is being adopted or cleared, or was emptied or given a new form"
            raise failures.busy(self._store.address, f"{fact}")
        elif outcome == "many":
            fact = (
                f"a transaction by component {stamp.component!r} in the store {self._store.address}"
            )
            raise errors.TxtopoError(
                f"{fact} has {values[0]} rows, and the bound is {ROWS_TOGETHER_MAX}\n  {_SMALLER}"
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

    :raises errors.FailedException: tasks keep raising fences.
    """
    answer = link.ask("HGETALL", names.fences)
    for _ in range(READINGS_MAX):
        fences = [
            layout.fence_of(field.decode(), text.decode())[0]
            for field, text in zip(answer[::2], answer[1::2], strict=True)
        ]
        counts = [("HVALS", names.counts(fence.topology_id, fence.component)) for fence in fences]
        *numbers, now = link.ask_all([*counts, ("HGETALL", names.fences)])
        if now == answer:  # No fence changed: the counts belong to these fences.
            counted = (
                dataclasses.replace(fence, count=sum(map(int, of)))
                for fence, of in zip(fences, numbers, strict=True)
            )
            return sorted(counted, key=lambda fence: (fence.topology_id, fence.component))
        answer = now
    raise errors.FailedException(
        f"tasks raised fences in the store {READINGS_MAX} times while all fences were read"
    )


def _contradiction(opened: Opened, known: Acknowledged) -> int | None:
    """How many changes the store had left when a new server process took over, if it lacks
    acknowledged changes. 0 if the store was made again. None if nothing was lost."""
    if opened.born != known.born or opened.served_then.partition(" ")[0] != known.run_id:
        return 0 if opened.born != known.born else opened.version
    # The version at which the next server process began. If there is none, the newest version.
    reached = int(opened.served_next.partition(" ")[2]) if opened.served_next else opened.version
    return reached if reached < known.version else None


def _held_error(store: places.Place, topology_id: str, held: str) -> errors.StateMismatchError:
    command = store.command("adopt", topology_id)
    why, *versions = held.split(" ")
    if why == "lost":
        return errors.StateMismatchError(
            f"store {store.address} has lost acknowledged writes: change {versions[0]} was done, later there were {versions[1]}\n"
            "  The server was restarted without its last changes, or emptied, or a replica without them took over. Nothing was written.\n"
            f"  Type `txtopo state show {shlex.quote(topology_id)}`. Then restore the newest copy, or choose:\n"
            f"    `{command}`: go on from the store's present rows. The lost writes stay lost\n"
            + completeness.begin_again(topology_id)
        )
    return errors.StateMismatchError(
        f"store {store.address} is being adopted or cleared, or an adoption or clearing was never finished\n"
        "  Wait until it is done. If its process has ended, type the same command again, which goes on from there."
    )
