"""The steps of a store transaction, row by row in memory: each key one step further, or the step
that an earlier run of the transaction made (R28, R30-R32).

Apart from ``transaction``, which has steps: a transaction reads their rows from the database, and
writes the rows back. The rules for one row are in ``stamps``. Steps ask the database nothing but
the fences, and only if a step is gone. Runs on executors: standard library only.

Invariants:
    - After a step was refused, the transaction can only fail, even if user code catches the
      exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from txtopo import errors, plain_json
from txtopo.stores import codecs, conflicts, sessions, stamps
from txtopo.stores.updates import Update


class Steps:
    """The rows that one attempt of a task has read, and the steps that the attempt took with them."""

    def __init__(
        self,
        address: str,
        kind: stamps.Kind,
        codec: codecs.Codec,
        stamp: stamps.Stamp,
        earlier: Mapping[str, int],
        recorded: stamps.Recorded | None,
        read_fences: Callable[[str], Iterable[stamps.Fence]],
    ) -> None:
        self._address, self.kind, self.codec, self.stamp = address, kind, codec, stamp
        self._earlier, self._recorded, self._read_fences = earlier, recorded, read_fences
        self.settled_txid = stamps.settled_txid(stamp, recorded)
        self.rows: dict[str, stamps.Row | None] = {}
        """The rows that were read, by key; None if the database has none."""
        self.unwritten: dict[str, None] = {}
        """The keys of the rows that the database lacks."""
        self.taken: dict[str, int] = {}
        """How many steps the attempt has taken, by key."""
        self.doom: BaseException | None = None
        """The error that keeps the transaction from being committed."""
        self._read: set[str] = set()
        """Keys of a plain store whose value was asked for before this attempt had set it."""
        self._standings: dict[int, tuple[stamps.Stamp, stamps.Standing]] = {}
        """By the identity of a stamp, which many rows share."""
        self._is_inside_function = False

    def value_of(self, text: str, row: stamps.Row | None) -> Any:
        """The value as this task sees it in ``row``."""
        where = self._standing(row)
        if row is not None and where == "ahead":
            self._refuse_late(row)
        if self.kind == "plain":
            if row is None or row.stamp != self.stamp:
                self._read.add(text)
            return codecs.decode(self.codec, None if row is None else row.curr)
        return codecs.decode(self.codec, stamps.seen(row, where, self._steps_taken(text)))

    def delete(self, text: str) -> Update:
        """Take a loaded key one step further, to no value."""
        if self.kind == "plain":
            self.put(text, None)
            return Update(None, None, applied=True)
        prev, applied = self._replaced(text, None)
        return Update(codecs.decode(self.codec, prev), None, applied)

    def put(self, text: str, curr: str | None) -> None:
        """Take a loaded key one step further, to ``curr``."""
        if self.kind != "plain":
            self._replaced(text, curr)
            return
        if text in self._read:
            self._refuse(conflicts.written_after_read(self._address, text))
        row = self.rows[text]
        self._check_writer(text, row, self._standing(row))
        self.rows[text] = stamps.Row(text, self.stamp, prev=None, prev_txid=0, steps=[curr])
        self.unwritten[text] = None

    def update(self, text: str, fn: Callable[..., Any], *more: Any) -> Update:
        """Take a loaded key one step further, to ``fn(old, *more)``; or return the earlier update,
        if it was applied before."""
        row, where, step, known = self._place(text)
        prev = stamps.seen(row, where, step)
        if row is not None and step < known:
            self.taken[text] = step + 1
            return Update(
                codecs.decode(self.codec, prev),
                codecs.decode(self.codec, row.steps[step]),
                applied=False,
            )
        old = codecs.decode(self.codec, prev)
        value = self._computed(fn, old, *more)
        curr = codecs.encode(self.codec, value)
        # A value that cannot be changed in place needs no second object: reading would give the
        # same value.
        if self.codec is not codecs.JSON or type(value) not in plain_json.SCALARS:
            value = codecs.decode(self.codec, curr)
        if type(old) not in plain_json.SCALARS:
            old = codecs.decode(self.codec, prev)
        self._advance(text, row, where, step, curr)
        return Update(old, value, applied=True)

    def _computed(self, fn: Callable[..., Any], *of: Any) -> Any:
        self._is_inside_function = True
        try:
            return fn(*of)
        finally:
            self._is_inside_function = False

    def _replaced(self, text: str, curr: str | None) -> tuple[str | None, bool]:
        """Take a loaded key one step further, to ``curr``, unless the step was applied before:
        prev, applied."""
        row, where, step, known = self._place(text)
        prev = stamps.seen(row, where, step)
        if row is not None and step < known:
            self.taken[text] = step + 1
            return prev, False
        self._advance(text, row, where, step, curr)
        return prev, True

    def _place(self, text: str) -> tuple[stamps.Row | None, stamps.Standing, int, int]:
        """The row of a loaded key, how it stands, how many steps this attempt has made, and how
        many are known; refuses other writers."""
        row = self.rows[text]
        where = self._standing(row)
        step = self._steps_taken(text)
        if where == "past" and not step:
            return row, where, 0, 0
        known = len(row.steps) if row is not None and where == "mine" else 0
        self._check_writer(text, row, where)
        if step > known:
            self._refuse_gone(text, step)
        return row, where, step, known

    def _advance(
        self, text: str, row: stamps.Row | None, where: stamps.Standing, step: int, curr: str | None
    ) -> None:
        self.rows[text] = stamps.advanced(row, text, where, self.stamp, curr)
        self.unwritten[text] = None
        self.taken[text] = step + 1

    def _standing(self, row: stamps.Row | None) -> stamps.Standing:
        if row is None:
            return "past"
        remembered = self._standings.get(id(row.stamp))
        if remembered is None:
            if self.kind == "plain":
                where = stamps.plain_standing(row, self.stamp)
            else:
                where = stamps.standing(row, self.stamp, self.kind == "opaque", self._recorded)
            remembered = self._standings[id(row.stamp)] = row.stamp, where
        return remembered[1]

    def _steps_taken(self, text: str) -> int:
        return self.taken.get(text) or self._earlier.get(text, 0)

    def _check_writer(self, text: str, row: stamps.Row | None, where: stamps.Standing) -> None:
        """Refuse a row of another writer of this transaction, of another topology, or of a newer
        attempt."""
        if row is not None and where in ("foreign", "rival"):
            self._refuse(
                conflicts.StoreConflict(
                    self._address,
                    text,
                    row.stamp.writer,
                    self.stamp.writer,
                    self.stamp.txid,
                    where == "foreign",
                )
            )
        if row is not None and where == "ahead":
            self._refuse_late(row)

    def _refuse_late(self, row: stamps.Row) -> NoReturn:
        self._refuse(
            errors.StaleAttemptError(
                f"{self._address} key {row.key}",
                self.stamp.component,
                row.stamp.position,
                self.stamp.position,
            )
        )

    def _refuse_gone(self, text: str, step: int) -> NoReturn:
        """Newer attempts took over a write of this attempt, and then took the write back or deleted
        it; or another program did."""
        with self.all_or_nothing():
            newer = stamps.overtaking(self._read_fences(self.stamp.topology_id), self.stamp)
        if newer is not None:
            self._refuse(
                errors.StaleAttemptError(
                    f"{self._address} key {text}",
                    newer.component,
                    newer.position,
                    self.stamp.position,
                )
            )
        self._refuse(conflicts.changed_by_others(self._address, text, step))

    def _refuse(self, error: Exception) -> NoReturn:
        self.doom = self.doom or error
        raise error from None

    def _refuse_changed(self, rows: Mapping[str, stamps.Row | None]) -> NoReturn:
        """Another writer was faster: of this transaction, of a newer attempt, or a writer that a
        replay will not meet again."""
        for text, row in sorted(rows.items()):
            self._check_writer(text, row, self._standing(row))
        self._refuse(
            errors.FailedException(
                f"store {self._address}: key {min(rows)} was changed by others while this task was updating it"
            )
        )

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Let the transaction fail if the block raises."""
        # After an error a database may have rolled back by itself: not a single statement may
        # follow, it would stand outside the transaction.
        try:
            yield
        except sessions.RowsChangedError as changed:
            self._refuse_changed(changed.found)
        except BaseException as error:
            self.doom = self.doom or error
            raise

    def check_has_previous(self) -> None:
        """Refuse an update in a plain store."""
        if self.kind == "plain":
            raise errors.UsageError(
                f"store {self._address} is plain: it keeps no value before the transaction, so a replay would apply an update twice\n"
                "  Set values that do not depend on the one before with put() or put_many(); or leave out plain=True."
            )

    def check_not_inside_function(self) -> None:
        """Refuse a step while the function of another step runs."""
        if self._is_inside_function:
            raise errors.UsageError(
                "a store cannot be updated inside the function given to update\n  Read there with get(), and update afterwards."
            )

    def are_untouched(self, texts: Iterable[str]) -> bool:
        """Whether this attempt has neither loaded nor changed any of the keys."""
        touched = (self.rows, self.taken, self._earlier)
        return all(not kept or kept.keys().isdisjoint(texts) for kept in touched)

    def note_merged(self, texts: Iterable[str]) -> None:
        """Remember that the database took the first step of these keys."""
        self.taken.update(dict.fromkeys(texts, 1))
