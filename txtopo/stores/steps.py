"""The steps of a store transaction, row by row in memory: each key one step further, or the step
that an earlier run of the transaction made (R28, R30-R32).

Apart from ``transaction``, which reads the rows from the database and writes them back. The rules
for one row are in ``stamps``. Runs on executors: standard library only.

Invariants:
    - After a step was refused, the transaction can only fail, even if user code catches the
      exception.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from txtopo import errors, plain_json
from txtopo.stores import codecs, conflicts, stamps
from txtopo.stores.updates import Update


class Steps(abc.ABC):
    """The rows that one attempt of a task has read, and the steps that the attempt took with them."""

    def __init__(
        self,
        address: str,
        kind: stamps.Kind,
        stamp: stamps.Stamp,
        earlier_steps: Mapping[str, int],
        recorded: stamps.Recorded | None,
        codec: codecs.Codec,
    ) -> None:
        self._address, self._kind, self._mine, self._earlier_steps = (
            address,
            kind,
            stamp,
            earlier_steps,
        )
        self._recorded, self._codec = recorded, codec
        self._read: set[str] = set()
        """Keys of a plain store whose value was asked for before this attempt had set it."""
        self._rows: dict[str, stamps.Row | None] = {}
        self._unwritten: dict[str, None] = {}
        self._steps: dict[str, int] = {}
        self._standings: dict[int, tuple[stamps.Stamp, stamps.Standing]] = {}
        """By the identity of a stamp, which many rows share."""
        self._doom: BaseException | None = None
        self._is_inside_function = False

    @abc.abstractmethod
    def _newer_fence(self) -> stamps.Fence | None:
        """The highest fence of the topology that stands above this attempt, if any."""

    def _seen(self, text: str, row: stamps.Row | None) -> Any:
        where = self._standing(row)
        if row is not None and where == "ahead":
            self._refuse_late(row)
        if self._kind == "plain":
            if row is None or row.stamp != self._mine:
                self._read.add(text)
            return codecs.decode(self._codec, None if row is None else row.curr)
        return codecs.decode(self._codec, stamps.seen(row, where, self._steps_taken(text)))

    def _removed(self, text: str) -> Update:
        if self._kind == "plain":
            self._set(text, None)
            return Update(None, None, applied=True)
        prev, _, applied = self._replaced(text, None)
        return Update(codecs.decode(self._codec, prev), None, applied)

    def _set(self, text: str, curr: str | None) -> None:
        if self._kind != "plain":
            self._replaced(text, curr)
            return
        if text in self._read:
            self._refuse(conflicts.written_after_read(self._address, text))
        row = self._rows[text]
        where = self._standing(row)
        self._check_writer(text, row, where)
        self._rows[text] = stamps.Row(text, self._mine, prev=None, prev_txid=0, steps=[curr])
        self._unwritten[text] = None

    def _made(self, text: str, fn: Callable[..., Any], *more: Any) -> Update:
        """Take a loaded key one step further, to ``fn(old, *more)``; or return the earlier update,
        if it was applied before."""
        row, where, step, known = self._place(text)
        prev = stamps.seen(row, where, step)
        if row is not None and step < known:
            self._steps[text] = step + 1
            return Update(
                codecs.decode(self._codec, prev),
                codecs.decode(self._codec, row.steps[step]),
                applied=False,
            )
        old = codecs.decode(self._codec, prev)
        value = self._computed(fn, old, *more)
        curr = codecs.encode(self._codec, value)
        # A value that cannot be changed in place needs no second object: reading would give the
        # same value.
        if self._codec is not codecs.JSON or type(value) not in plain_json.SCALARS:
            value = codecs.decode(self._codec, curr)
        if type(old) not in plain_json.SCALARS:
            old = codecs.decode(self._codec, prev)
        self._advance(text, row, where, step, curr)
        return Update(old, value, applied=True)

    def _computed(self, fn: Callable[..., Any], *of: Any) -> Any:
        self._is_inside_function = True
        try:
            return fn(*of)
        finally:
            self._is_inside_function = False

    def _replaced(self, text: str, curr: str | None) -> tuple[str | None, str | None, bool]:
        """Take a loaded key one step further, to ``curr``; or return the earlier update, if it was
        applied before: prev, curr, applied."""
        row, where, step, known = self._place(text)
        prev = stamps.seen(row, where, step)
        if row is not None and step < known:
            self._steps[text] = step + 1
            return prev, row.steps[step], False
        self._advance(text, row, where, step, curr)
        return prev, curr, True

    def _place(self, text: str) -> tuple[stamps.Row | None, stamps.Standing, int, int]:
        """The row of a loaded key, how it stands, how many steps this attempt has made, and how
        many are known; refuses other writers."""
        row = self._rows[text]
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
        self._rows[text] = stamps.advanced(row, text, where, self._mine, curr)
        self._unwritten[text] = None
        self._steps[text] = step + 1

    def _standing(self, row: stamps.Row | None) -> stamps.Standing:
        if row is None:
            return "past"
        remembered = self._standings.get(id(row.stamp))
        if remembered is None:
            if self._kind == "plain":
                where = stamps.plain_standing(row, self._mine)
            else:
                where = stamps.standing(row, self._mine, self._kind == "opaque", self._recorded)
            remembered = self._standings[id(row.stamp)] = row.stamp, where
        return remembered[1]

    def _steps_taken(self, text: str) -> int:
        return self._steps.get(text) or self._earlier_steps.get(text, 0)

    def _check_writer(self, text: str, row: stamps.Row | None, where: stamps.Standing) -> None:
        """Refuse a row of another writer of this transaction, of another topology, or of a newer
        attempt."""
        if row is not None and where in ("foreign", "rival"):
            self._refuse(
                conflicts.StoreConflict(
                    self._address,
                    text,
                    row.stamp.writer,
                    self._mine.writer,
                    self._mine.txid,
                    where == "foreign",
                )
            )
        if row is not None and where == "ahead":
            self._refuse_late(row)

    def _refuse_late(self, row: stamps.Row) -> NoReturn:
        self._refuse(
            errors.StaleAttemptError(
                f"{self._address} key {row.key}",
                self._mine.component,
                row.stamp.position,
                self._mine.position,
            )
        )

    def _refuse_gone(self, text: str, step: int) -> NoReturn:
        """Newer attempts took over a write of this attempt, and then took the write back or deleted
        it; or another program did."""
        newer = self._newer_fence()
        if newer is not None:
            self._refuse(
                errors.StaleAttemptError(
                    f"{self._address} key {text}",
                    newer.component,
                    newer.position,
                    self._mine.position,
                )
            )
        self._refuse(conflicts.changed_by_others(self._address, text, step))

    def _refuse(self, error: Exception) -> NoReturn:
        self._doom = self._doom or error
        raise error from None
