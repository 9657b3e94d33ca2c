"""One open transaction of a store: the updates of a task, each applied exactly once (R28, R30-R32).

Apart from ``base``, which opens and fences it; from ``sessions``, the questions to a database; and
from ``steps``, which takes a row in memory one step further. Here keys are read, written and
removed, many at a time. Where a database can combine an integer with an ordinary row, no row is
read: the database combines, and names the rows that are not ordinary. Runs on executors: standard
library only.

Invariants:
    - The database lacks only the rows of ``_rows`` that ``_unwritten`` names, and the integers to
      combine in ``_deltas``.
    - A key of ``_deltas`` is in no other collection here: before any key is read, the database
      combines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from txtopo import errors
from txtopo.stores import codecs, keys, sessions, stamps, steps, updates
from txtopo.stores.updates import Update
from txtopo.topology import merge

K = TypeVar("K", bound=keys.Key)
D = TypeVar("D")

ROWS_HELD_MAX = 10_000
"""How many rows a store transaction holds in memory before it writes them to the (still open)
database transaction."""


class StoreTransaction(steps.Steps):
    """One open transaction of a store, in one task. Made by :meth:`Store.transaction`; of no use
    after its ``with`` block.

    A plain store has ``put``, ``delete`` and ``get``, each also for many keys. A value computed
    from the value before needs a store that remembers the value before: else a replay would compute
    again from its own result. So a plain store refuses ``update``, and refuses to write a key that
    was read.

    A key that this attempt updates several times, in one block or in several of the same
    ``finish_batch``, is taken one step further each time; on replay each of these updates returns
    its first result (R32).
    """

    def __init__(
        self,
        address: str,
        kind: stamps.Kind,
        session: sessions.Session,
        stamp: stamps.Stamp,
        earlier_steps: Mapping[str, int],
        recorded: stamps.Recorded | None,
        codec: codecs.Codec = codecs.JSON,
    ) -> None:
        super().__init__(address, kind, stamp, earlier_steps, recorded, codec)
        self._session = session
        last = None if recorded is None else recorded.get(stamp.component)
        # Rows after the last recorded transaction are void, and rows of this transaction are its
        # own (see stamps).
        self._settled_txid = (
            stamp.txid - 1
            if recorded is None
            else min(stamp.txid - 1, 0 if last is None else last.txid)
        )
        self._deltas: dict[str, int] = {}
        self._merge = merge.ADD
        self._is_open = True

    def get(self, key: keys.Key) -> Any:
        """The value as this task sees it, None if there is none: as it was before the transaction,
        plus this attempt's own updates.

        Writes of another task in the same transaction are never seen: their presence would depend
        on chance. A plain store cannot tell, and gives the last write, on a replay also a write of
        the attempt before. So a key that was read in a plain store cannot be written any more.
        """
        self._check_open()
        self._merge_before_reading()
        text = keys.encode_key(key)
        with self._all_or_nothing():
            row = (
                self._rows[text]
                if text in self._rows
                else self._session.read_rows([text]).get(text)
            )
        return self._seen(text, row)

    def get_many(self, wanted: Iterable[K]) -> dict[K, Any]:
        """The value of every key, as :meth:`get` gives it; reads in bulk."""
        self._check_open()
        self._merge_before_reading()
        values: dict[K, Any] = {}
        for portion in updates.portions(dict.fromkeys(wanted), ROWS_HELD_MAX):
            chunk = dict(zip(keys.encode_keys(portion), portion, strict=True))
            unread = [text for text in chunk if text not in self._rows]
            with self._all_or_nothing():
                rows = self._session.read_rows(unread) if unread else {}
            for text, key in chunk.items():
                values[key] = self._seen(
                    text, self._rows[text] if text in self._rows else rows.get(text)
                )
        return values

    def put(self, key: keys.Key, value: Any) -> None:
        """Set ``key`` to ``value``, whatever it was.

        :raises StoreConflict: another task or component wrote this key in this transaction.
        :raises errors.StaleAttemptError: a newer attempt wrote this key.
        """
        self.put_many({key: value})

    def put_many(self, values: Mapping[K, Any]) -> None:
        """Set every key to its value; reads and writes in bulk. All or nothing: when a value cannot
        be kept, the transaction is lost."""
        with self._all_or_nothing():
            for chunk in updates.portions_of(values, ROWS_HELD_MAX):
                texts = keys.encode_keys(chunk)
                self._load(texts)
                for text, value in zip(texts, chunk.values(), strict=True):
                    self._set(text, codecs.encode(self._codec, value))

    def update(self, key: keys.Key, fn: Callable[[Any], Any]) -> Update:
        """Set ``key`` to ``fn(old)``, where ``old`` is None if there is no value; ``fn`` is not
        called if that was done before.

        :raises StoreConflict: another task or component wrote this key in this transaction.
        :raises errors.StaleAttemptError: a newer attempt wrote this key.
        """
        self._check_has_previous()
        text = keys.encode_key(key)
        self._load([text])
        return self._made(text, fn)

    def update_many(
        self, deltas: Mapping[K, D], combine: Callable[[Any, D], Any]
    ) -> dict[K, Update]:
        """Set every key to ``combine(old, delta)``; reads and writes in bulk. All or nothing: when
        ``combine`` raises, the transaction is lost."""
        return dict(self._combined(deltas, combine))

    def merge_many(self, deltas: Mapping[K, D], combine: Callable[[Any, D], Any]) -> None:
        """As :meth:`update_many`, without an answer; with ``txtopo.stores.ADD``, ``MIN`` or ``MAX``
        the database combines integers by itself.

        Integers of up to 15 digits, on either side, kept by the default codec; all other values are
        read, combined here and written.
        """
        self._check_has_previous()
        self._check_open()
        self._check_not_inside_function()
        others: Mapping[K, D] = deltas
        if isinstance(combine, merge.Merge) and self._codec is codecs.JSON:
            with self._all_or_nothing():
                others = self._kept_to_merge(deltas, combine)
        for _ in self._combined(others, combine):
            pass

    def _combined(
        self, deltas: Mapping[K, D], combine: Callable[[Any, D], Any]
    ) -> Iterator[tuple[K, Update]]:
        self._check_has_previous()
        with self._all_or_nothing():
            for chunk in updates.portions_of(deltas, ROWS_HELD_MAX):
                texts = keys.encode_keys(chunk)
                self._load(texts)
                for text, (key, delta) in zip(texts, chunk.items(), strict=True):
                    yield key, self._made(text, combine, delta)

    def _kept_to_merge(self, deltas: Mapping[K, Any], how: merge.Merge) -> dict[K, Any]:
        """Keep the integers that the database may combine later; return the other deltas."""
        if how is not self._merge:
            self._merge_before_reading()
            self._merge = how
        others: dict[K, Any] = {}
        for chunk in updates.portions_of(deltas, ROWS_HELD_MAX):
            if self._session.merges_midway and len(self._deltas) + len(chunk) > ROWS_HELD_MAX:
                self._merge_before_reading()
            texts = keys.encode_keys(chunk)
            touched = (self._deltas, self._rows, self._steps, self._earlier_steps)
            if updates.are_small(chunk.values()) and all(
                not kept or kept.keys().isdisjoint(texts) for kept in touched
            ):
                kept_deltas = dict(zip(texts, chunk.values(), strict=True))
                if self._deltas:
                    self._deltas.update(kept_deltas)
                else:
                    self._deltas = kept_deltas
                continue
            for text, (key, delta) in zip(texts, chunk.items(), strict=True):
                if updates.are_small([delta]) and not (
                    text in self._deltas or text in self._rows or self._steps_taken(text)
                ):
                    self._deltas[text] = delta
                else:
                    others[key] = delta
        return others

    def _merge_before_reading(self) -> None:
        """Have the database combine the kept integers, because a key to be read or written may be
        among them."""
        if not self._deltas:
            return
        with self._all_or_nothing():
            if self._session.merges_midway:
                self._merge_kept()
            else:
                self._merge_here(self._deltas)

    def _merge_kept(self) -> None:
        try:
            refused = self._session.merge_rows(
                self._deltas, self._merge, self._mine, self._settled_txid
            )
        except sessions.RowsChangedError as changed:
            self._refuse_changed(changed.found)
        if len(refused) < len(self._deltas):
            first_steps = dict.fromkeys(
                self._deltas.keys() - refused if refused else self._deltas, 1
            )
            if self._steps:
                self._steps.update(first_steps)
            else:
                self._steps = first_steps
        # In the order in which they were given, so that every process names the same mistake of
        # several.
        refused_texts = set(refused)
        self._merge_here(
            {text: delta for text, delta in self._deltas.items() if text in refused_texts}
            if refused_texts
            else {}
        )

    def _merge_here(self, deltas: dict[str, int]) -> None:
        self._deltas = {}
        if deltas:
            self._load(list(deltas))
            for text, delta in deltas.items():
                self._made(text, self._merge, delta)

    def delete(self, key: keys.Key) -> Update:
        """Remove ``key``; an update like another, also when there is nothing to remove. Its
        ``curr`` is None; so is ``prev`` in a plain store."""
        text = keys.encode_key(key)
        self._load([text])
        return self._removed(text)

    def delete_many(self, unwanted: Iterable[K]) -> dict[K, Update]:
        """Remove every key, as :meth:`delete` does; reads and writes in bulk. All or nothing, as
        :meth:`update_many`."""
        removed: dict[K, Update] = {}
        with self._all_or_nothing():
            for portion in updates.portions(dict.fromkeys(unwanted), ROWS_HELD_MAX):
                texts = keys.encode_keys(portion)
                self._load(texts)
                removed.update(
                    (key, self._removed(text)) for text, key in zip(texts, portion, strict=True)
                )
        return removed

    def _load(self, texts: Sequence[str]) -> None:
        self._check_open()
        self._check_not_inside_function()
        self._merge_before_reading()
        with self._all_or_nothing():
            if len(self._rows) + len(texts) > ROWS_HELD_MAX:
                self._write()
                self._rows.clear()
            missing = [text for text in texts if text not in self._rows]
            if missing:
                rows = self._found_to_write(missing)
                self._rows.update((text, rows.get(text)) for text in missing)

    def _found_to_write(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        try:
            if self._kind == "plain":
                return self._session.read_rows_to_write(texts)
            return self._session.read_rows_to_change(texts, self._mine, self._settled_txid)
        except sessions.RowsChangedError as changed:
            self._refuse_changed(changed.found)

    def _write(self) -> None:
        rows = [row for text in self._unwritten if (row := self._rows[text]) is not None]
        try:
            self._session.write_rows(rows)
        except sessions.RowsChangedError as changed:
            self._refuse_changed(changed.found)
        self._unwritten.clear()
        for row in rows:
            if row.prev_txid == stamps.KEPT:  # its value is read again when needed
                del self._rows[row.key]

    @property
    def session(self) -> sessions.Session:
        """The open transaction of the database, for rows of a sink that must be committed with the
        values."""
        self._check_open()
        return self._session

    def flush(self) -> None:
        """Write the updates made so far to the (still open) transaction of the database: another
        task that makes the same updates waits from here on."""
        self._check_open()
        self._merge_before_reading()
        with self._all_or_nothing():
            self._write()

    def finish(self) -> dict[str, int]:
        """Write what is left; the last act before the database commits. Returns the updates made so
        far of each key's text, for ``store_steps``.

        A refusal that user code caught and dropped still ends the attempt here.
        """
        if self._doom is not None:
            raise self._doom
        self._write()
        if self._deltas:
            self._merge_kept()
            self._write()
        try:
            self._session.apply()
        except sessions.RowsChangedError as changed:
            self._refuse_changed(changed.found)
        return self._steps

    @property
    def doom(self) -> BaseException | None:
        """The error that keeps this transaction from being committed."""
        return self._doom

    def end(self) -> None:
        """Refuse every later call."""
        self._is_open = False

    def _newer_fence(self) -> stamps.Fence | None:
        with self._all_or_nothing():
            return stamps.overtaking(self._session.read_fences(self._mine.topology_id), self._mine)

    def _refuse_changed(self, rows: Mapping[str, stamps.Row | None]) -> NoReturn:
        """Another writer was faster: of this transaction, of a newer attempt, or a writer that a
        replay will not meet again."""
        places = {text: self._standing(row) for text, row in sorted(rows.items())}
        for text, where in places.items():
            self._check_writer(text, rows[text], where)
        self._refuse(
            errors.FailedException(
                f"store {self._address}: key {next(iter(places))} was changed by others while this task was updating it"
            )
        )

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        # After an error a database may have rolled back by itself: not a single statement may
        # follow, it would stand outside the transaction.
        try:
            yield
        except BaseException as error:
            self._doom = self._doom or error
            raise

    def _check_has_previous(self) -> None:
        if self._kind == "plain":
            raise errors.UsageError(
                f"store {self._address} is plain: it keeps no value before the transaction, so a replay would apply an update twice\n"
                "  Set values that do not depend on the one before with put() or put_many(); or leave out plain=True."
            )

    def _check_not_inside_function(self) -> None:
        if self._is_inside_function:
            raise errors.UsageError(
                "a store cannot be updated inside the function given to update\n  Read there with get(), and update afterwards."
            )

    def _check_open(self) -> None:
        if self._doom is not None:
            raise self._doom
        if not self._is_open:
            raise errors.UsageError(
                "this store transaction has ended\n  Use it inside its `with store.transaction(...)` block."
            )
