"""Takes a store transaction's steps, row by row in memory: each key goes one step further, or
repeats the step that an earlier run made (R28, R30-R32).

``transaction`` reads the rows from the database, and writes the rows back. The rules for a single
row are in ``stamps``. Steps ask the database only for fences, and only if a step is gone. Runs on
executors: standard library only.

Invariants:
    - After a refused step, the transaction can only fail, even if user code catches the exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from txtopo import errors, plain_json
from txtopo.stores import codecs, conflicts, sessions, stamps
from txtopo.stores.updates import Update


class Steps:
    """The rows that a task's attempt has read, and the attempt's steps."""

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
        """The rows read, by key. None if the database has no row."""
        self.unwritten: dict[str, None] = {}
        """Keys whose rows the database lacks."""
        self.taken: dict[str, int] = {}
        """How many steps the attempt has taken, by key."""
        self.doom: BaseException | None = None
        """The error that prevents the commit."""
        self._read: set[str] = set()
        """A plain store's keys that were read before this attempt had set them."""
        self._standings: dict[int, tuple[stamps.Stamp, stamps.Standing]] = {}
        """By a stamp's identity, because many rows share a stamp."""
        self._is_inside_function = False

    def value_of(self, text: str, row: stamps.Row | None) -> Any:
        """The value that this task sees in ``row``."""
        where = self._standing(row)
        if row is not None and where == "ahead":
            self._refuse_late(row)
        if self.kind == "plain":
            if row is None or row.stamp != self.stamp:
                self._read.add(text)
            return codecs.decode(self.codec, None if row is None else row.curr)
        return codecs.decode(
            self.codec, stamps.text_for_writer(row, where, self._steps_taken(text))
        )

    def delete(self, text: str) -> Update:
        """Take a loaded key one step further, to no value."""
        if self.kind == "plain":
            self.put(text, None)
            return Update(None, None, applied=True)
        prev, applied = self._replace(text, None)
        return Update(codecs.decode(self.codec, prev), None, applied)

    def put(self, text: str, curr: str | None) -> None:
        """Take a loaded key one step further, to ``curr``."""
        if self.kind != "plain":
            self._replace(text, curr)
            return
        if text in self._read:
            self._refuse(conflicts.written_after_read(self._address, text))
        row = self.rows[text]
        self._check_writer(text, row, self._standing(row))
        self.rows[text] = stamps.Row(text, self.stamp, prev=None, prev_txid=0, steps=[curr])
        self.unwritten[text] = None

    def text_before(self, text: str) -> str | None:
        """The text that a loaded key has for this attempt's next step."""
        row, where, step, _ = self._place(text)
        return stamps.text_for_writer(row, where, step)

    def update(self, text: str, fn: Callable[..., Any], *more: Any) -> Update:
        """Take a loaded key one step further, to ``fn(old, *more)``. If the step was applied
        before, return the earlier update."""
        row, where, step, known = self._place(text)
        prev = stamps.text_for_writer(row, where, step)
        if row is not None and step < known:
            self.taken[text] = step + 1
            return Update(
                codecs.decode(self.codec, prev),
                codecs.decode(self.codec, row.steps[step]),
                applied=False,
            )
        old = codecs.decode(self.codec, prev)
        value = self._call(fn, old, *more)
        curr = codecs.encode(self.codec, value)
        # A value that cannot be changed in place needs no second object: reading would give the
        # same value.
        if self.codec is not codecs.JSON or type(value) not in plain_json.SCALARS:
            value = codecs.decode(self.codec, curr)
        if type(old) not in plain_json.SCALARS:
            old = codecs.decode(self.codec, prev)
        self._advance(text, row, where, step, curr)
        return Update(old, value, applied=True)

    def _call(self, fn: Callable[..., Any], *of: Any) -> Any:
        self._is_inside_function = True
        try:
            return fn(*of)
        finally:
            self._is_inside_function = False

    def _replace(self, text: str, curr: str | None) -> tuple[str | None, bool]:
        """Take a loaded key one step further, to ``curr``, unless the step was applied before.
        Returns ``prev``, and whether the step was applied now."""
        row, where, step, known = self._place(text)
        prev = stamps.text_for_writer(row, where, step)
        if row is not None and step < known:
            self.taken[text] = step + 1
            return prev, False
        self._advance(text, row, where, step, curr)
        return prev, True

    def _place(self, text: str) -> tuple[stamps.Row | None, stamps.Standing, int, int]:
        """A loaded key's row, the row's standing, how many steps this attempt has made, and how
        many are known. Refuses other writers."""
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
        """Refuse a row by another writer in this transaction, by another topology, or by a newer
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
        """Newer attempts took over this attempt's write, and then deleted it or took it back. Or
        another program did."""
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
        """Another writer was faster: in this transaction, in a newer attempt, or a writer that a
        replay will not meet again."""
        for text, row in sorted(rows.items()):
            self._check_writer(text, row, self._standing(row))
        self._refuse(
            errors.FailedException(
                f"store {self._address}: key {min(rows)} was changed by others during this task's update"
            )
        )

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Let the transaction fail if the block raises."""
        # After an error a database may have rolled back by itself. No statement may follow: it
        # would be outside the transaction.
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
                "  Set values that do not depend on earlier values, with put() or put_many(). Or leave out plain=True."
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
        """Remember that the database took these keys' first step."""
        self.taken.update(dict.fromkeys(texts, 1))
