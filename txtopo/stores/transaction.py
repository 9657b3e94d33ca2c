"""An open store transaction: a task's updates, each applied exactly once (R28, R30-R32).

``base`` opens and fences the transaction. The transaction has a session, which asks the database,
and steps, which take rows in memory one step further. Here keys are read, written and removed, many
at a time. If a database can combine an integer with an ordinary row, no row is read: the database
combines, and names the rows that are not ordinary. Runs on executors: standard library only.

Invariants:
    - The database lacks only the rows in ``unwritten``, and the integers to combine in ``_deltas``.
    - A key in ``_deltas`` is unknown to the steps: before any key is read, the database combines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from txtopo import errors
from txtopo.stores import codecs, keys, reserved, sessions, stamps, updates
from txtopo.stores.steps import Steps
from txtopo.stores.updates import Update
from txtopo.topology import merge

K = TypeVar("K", bound=keys.Key)
D = TypeVar("D")

ROWS_HELD_MAX = 10_000
"""How many rows a store transaction holds in memory before it writes them to the (still open)
database transaction."""


class StoreTransaction:
    """A task's open store transaction. Made by :meth:`Store.transaction`, and useless after its
    ``with`` block.

    A plain store has ``put``, ``delete`` and ``get``, each also for many keys. A value computed
    from the value before needs a store that remembers the value before: otherwise a replay would
    compute again from its own result. So a plain store refuses ``update``, and refuses to write a
    key that was read.

    An attempt may update a key several times, in one block or in several blocks in the same
    ``finish_batch``. Each update takes the key one step further. On replay each update returns its
    first result (R32).
    """

    def __init__(
        self, session: sessions.Session, steps: Steps, rows_beside: reserved.Reserved
    ) -> None:
        self._session, self._steps, self._rows_beside = session, steps, rows_beside
        self._deltas: dict[str, int] = {}
        self._merge = merge.ADD
        self._is_open = True

    def get(self, key: keys.Key) -> Any:
        """The value that this task sees, None if there is none: the value before the transaction,
        plus this attempt's own updates.

        Another task's writes in the same transaction are never seen: seeing them would depend on
        chance. A plain store cannot tell, and gives the last write, on a replay also a write by the
        attempt before. So in a plain store, a key that was read cannot be written any more.
        """
        self._check_open()
        self._merge_before_reading()
        text = keys.encode_key(key)
        rows = self._steps.rows
        with self._steps.all_or_nothing():
            row = rows[text] if text in rows else self._session.read_rows([text]).get(text)
        return self._steps.value_of(text, row)

    def get_many(self, wanted: Iterable[K]) -> dict[K, Any]:
        """The value for every key, as :meth:`get` gives it. Reads in bulk."""
        self._check_open()
        self._merge_before_reading()
        values: dict[K, Any] = {}
        known = self._steps.rows
        for portion in updates.portions(dict.fromkeys(wanted), ROWS_HELD_MAX):
            chunk = dict(zip(keys.encode_keys(portion), portion, strict=True))
            unread = [text for text in chunk if text not in known]
            with self._steps.all_or_nothing():
                rows = self._session.read_rows(unread) if unread else {}
            for text, key in chunk.items():
                row = known[text] if text in known else rows.get(text)
                values[key] = self._steps.value_of(text, row)
        return values

    def put(self, key: keys.Key, value: Any) -> None:
        """Set ``key`` to ``value``.

        :raises StoreConflict: another task or component wrote the key in this transaction.
        :raises errors.StaleAttemptError: a newer attempt wrote the key.
        """
        self.put_many({key: value})

    def put_many(self, values: Mapping[K, Any]) -> None:
        """Set every key to its value. Reads and writes in bulk. All or nothing: if a value cannot
        be kept, the transaction is lost."""
        with self._steps.all_or_nothing():
            for chunk in updates.portions_of(values, ROWS_HELD_MAX):
                texts = keys.encode_keys(chunk)
                self._load(texts)
                for text, value in zip(texts, chunk.values(), strict=True):
                    self._steps.put(text, codecs.encode(self._steps.codec, value))

    def update(self, key: keys.Key, fn: Callable[[Any], Any]) -> Update:
        """Set ``key`` to ``fn(old)``, where ``old`` is None if there is no value. ``fn`` is not
        called if the update was applied before.

        :raises StoreConflict: another task or component wrote the key in this transaction.
        :raises errors.StaleAttemptError: a newer attempt wrote the key.
        """
        self._steps.check_has_previous()
        text = keys.encode_key(key)
        self._load([text])
        return self._steps.update(text, fn)

    def update_many(
        self, deltas: Mapping[K, D], combine: Callable[[Any, D], Any]
    ) -> dict[K, Update]:
        """Set every key to ``combine(old, delta)``. Reads and writes in bulk. All or nothing: if
        ``combine`` raises, the transaction is lost."""
        return dict(self._combine(deltas, combine))

    def merge_many(self, deltas: Mapping[K, D], combine: Callable[[Any, D], Any]) -> None:
        """As :meth:`update_many`, without an answer. With ``txtopo.stores.ADD``, ``MIN`` or ``MAX``
        the database itself combines integers.

        The database takes integers up to 15 digits, stored by the default codec. All other values
        are read, combined here and written.
        """
        self._steps.check_has_previous()
        self._check_open()
        self._steps.check_not_inside_function()
        others: Mapping[K, D] = deltas
        if isinstance(combine, merge.Merge) and self._steps.codec is codecs.JSON:
            with self._steps.all_or_nothing():
                others = self._keep_to_merge(deltas, combine)
        for _ in self._combine(others, combine):
            pass

    def _combine(
        self, deltas: Mapping[K, D], combine: Callable[[Any, D], Any]
    ) -> Iterator[tuple[K, Update]]:
        self._steps.check_has_previous()
        with self._steps.all_or_nothing():
            for chunk in updates.portions_of(deltas, ROWS_HELD_MAX):
                texts = keys.encode_keys(chunk)
                self._load(texts)
                for text, (key, delta) in zip(texts, chunk.items(), strict=True):
                    yield key, self._steps.update(text, combine, delta)

    def _keep_to_merge(self, deltas: Mapping[K, Any], how: merge.Merge) -> dict[K, Any]:
        """Keep the integers that the database may combine later. Returns the other deltas."""
        if how is not self._merge:
            self._merge_before_reading()
            self._merge = how
        others: dict[K, Any] = {}
        for chunk in updates.portions_of(deltas, ROWS_HELD_MAX):
            if self._session.merges_midway and len(self._deltas) + len(chunk) > ROWS_HELD_MAX:
                self._merge_before_reading()
            texts = keys.encode_keys(chunk)
            if self._may_merge(texts, chunk.values()):
                self._deltas.update(zip(texts, chunk.values(), strict=True))
                continue
            for text, (key, delta) in zip(texts, chunk.items(), strict=True):
                if self._may_merge([text], [delta]):
                    self._deltas[text] = delta
                else:
                    others[key] = delta
        return others

    def _may_merge(self, texts: Sequence[str], deltas: Collection[Any]) -> bool:
        return (
            (not self._deltas or self._deltas.keys().isdisjoint(texts))
            and self._steps.are_untouched(texts)
            and updates.are_small(deltas)
        )

    def _merge_before_reading(self) -> None:
        """Have the database combine the kept integers, because a key to read or write may be among
        them."""
        if not self._deltas:
            return
        with self._steps.all_or_nothing():
            if self._session.merges_midway:
                self._merge_kept()
            else:
                self._merge_here(self._deltas)

    def _merge_kept(self) -> None:
        refused = set(
            self._session.merge_rows(
                self._deltas, self._merge, self._steps.stamp, self._steps.settled_txid
            )
        )
        self._steps.note_merged(self._deltas.keys() - refused if refused else self._deltas)
        # In the caller's order, so that every process names the same mistake first.
        self._merge_here(
            {text: delta for text, delta in self._deltas.items() if text in refused}
            if refused
            else {}
        )

    def _merge_here(self, deltas: dict[str, int]) -> None:
        self._deltas = {}
        if deltas:
            self._load(list(deltas))
            for text, delta in deltas.items():
                self._steps.update(text, self._merge, delta)

    def delete(self, key: keys.Key) -> Update:
        """Remove ``key``. Removing is an update, even with nothing to remove. ``curr`` is None, and
        in a plain store ``prev`` too."""
        text = keys.encode_key(key)
        self._load([text])
        return self._steps.delete(text)

    def delete_many(self, unwanted: Iterable[K]) -> dict[K, Update]:
        """Remove every key, as :meth:`delete` does. Reads and writes in bulk. All or nothing, as
        :meth:`update_many`."""
        removed: dict[K, Update] = {}
        with self._steps.all_or_nothing():
            for portion in updates.portions(dict.fromkeys(unwanted), ROWS_HELD_MAX):
                texts = keys.encode_keys(portion)
                self._load(texts)
                removed.update(
                    (key, self._steps.delete(text))
                    for text, key in zip(texts, portion, strict=True)
                )
        return removed

    def _load(self, texts: Sequence[str]) -> None:
        steps = self._steps
        self._check_open()
        steps.check_not_inside_function()
        self._merge_before_reading()
        with steps.all_or_nothing():
            if len(steps.rows) + len(texts) > ROWS_HELD_MAX:
                self._write()
                steps.rows.clear()
            missing = [text for text in texts if text not in steps.rows]
            if missing:
                rows = (
                    self._session.read_rows_to_write(missing)
                    if steps.kind == "plain"
                    else self._session.read_rows_to_change(missing, steps.stamp, steps.settled_txid)
                )
                steps.rows.update((text, rows.get(text)) for text in missing)

    def _write(self) -> None:
        steps = self._steps
        rows = [row for text in steps.unwritten if (row := steps.rows[text]) is not None]
        with steps.all_or_nothing():
            self._session.write_rows(rows)
        steps.unwritten.clear()
        for row in rows:
            if row.prev_txid == stamps.KEPT:  # its value is read again when needed
                del steps.rows[row.key]

    @property
    def session(self) -> sessions.Session:
        """The open database transaction, for a sink's rows that must be committed with the values."""
        self._check_open()
        return self._session

    @property
    def rows_beside(self) -> reserved.Reserved:
        """The rows beside the values, for an export queue."""
        self._check_open()
        return self._rows_beside

    def flush(self) -> None:
        """Write the updates made so far to the (still open) database transaction. From here on,
        another task with the same updates waits."""
        self._check_open()
        self._merge_before_reading()
        self._write()

    def finish(self) -> dict[str, int]:
        """Write the rows that are left, as the last act before the database commits. Returns how
        many updates each key's text has had, for ``store_steps``.

        A refusal that user code caught and dropped still ends the attempt here.
        """
        self._check_open()
        with self._steps.all_or_nothing():
            self._rows_beside.finish()
            self._write()
            if self._deltas:
                self._merge_kept()
                self._write()
            self._session.apply()
        return self._steps.taken

    @property
    def doom(self) -> BaseException | None:
        """The error that prevents the commit."""
        return self._steps.doom

    def end(self) -> None:
        """Refuse every later call."""
        self._is_open = False

    def _check_open(self) -> None:
        if self._steps.doom is not None:
            raise self._steps.doom
        if not self._is_open:
            raise errors.UsageError(
                "this store transaction has ended\n  Use it inside its `with store.transaction(...)` block."
            )
