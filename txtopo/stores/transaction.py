"""One open transaction of a store: the updates of a task, each applied exactly once (R28, R30-R32).

Apart from ``base``, which opens and fences it: here a key is read, judged by ``stamps`` and taken one step further. :class:`Session` is
all that this asks of a database. Runs on executors: standard library only.

Invariants:
    - ``_unwritten`` names rows of ``_rows`` that the database does not have yet; nothing else is ahead of the database.
    - Once an update was refused, the transaction can only fail, whatever user code does with the exception.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from txtopo import errors
from txtopo.stores import codecs, keys, stamps

K = TypeVar("K", bound=keys.Key)
D = TypeVar("D")

ROWS_HELD_MAX = 10_000
"""How many rows a store transaction holds in memory before it writes them to the (still open) database transaction."""


class StoreConflict(Exception):
    """Two writers met at one key: in one transaction, or from two topologies (R32). The engine reports it as ``StoreConflictError``."""

    def __init__(self, store: str, key: str, first_writer: str, second_writer: str, txid: int) -> None:
        super().__init__(store, key, first_writer, second_writer, txid)
        self.store, self.key, self.first_writer, self.second_writer, self.txid = store, key, first_writer, second_writer, txid

    def __str__(self) -> str:
        return (
            f"store {self.store}: key {self.key} was written by {self.first_writer}, "
            f"and {self.second_writer} wants to write it in transaction {self.txid}\n"
            "  A key has one writer per transaction. Group the writer's input with fields_grouping on the key, so that equal keys meet in one\n"
            "  task; give another component or topology its own store."
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """What an update did, or had done when the transaction was first applied (R28): a replay gets the same ``prev`` and ``curr``."""

    prev: Any
    """The value before; None if there was none."""
    curr: Any
    """The value after, as JSON gives it back; None if deleted."""
    applied: bool
    """False if an earlier run of this transaction had already applied it."""


class RowsChangedError(Exception):
    """Rows to be written are not what was read: another transaction has changed them. Raised by a :class:`Session`, and judged here."""

    def __init__(self, found: Mapping[str, stamps.Row | None]) -> None:
        super().__init__(found)
        self.found = found
        """By key: what is there instead; None if nothing is."""


class Session(abc.ABC):
    """One open database transaction: what the rules need of a database, and nothing more."""

    @abc.abstractmethod
    def read_fence(self, topology_id: str, component: str) -> stamps.Fence | None:
        """The fence, under a lock that until the end of this transaction lets no other attempt raise it."""

    @abc.abstractmethod
    def read_fences(self, topology_id: str) -> list[stamps.Fence]:
        """The fences of all components of a topology, without a lock; asked only where something is wrong."""

    @abc.abstractmethod
    def write_fence(self, fence: stamps.Fence) -> None:
        """Make or replace the fence."""

    @abc.abstractmethod
    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        """The rows of these keys, tombstones too; absent keys are left out."""

    def read_rows_to_write(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        """As :meth:`read_rows`, of keys that will be written; a database may lock them here, so that nobody changes them meanwhile.

        :raises RowsChangedError: another writer of these keys stood in the way.
        """
        return self.read_rows(texts)

    @abc.abstractmethod
    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        """Make or replace these rows, all of which were looked for with :meth:`read_rows_to_write`.

        :raises RowsChangedError: not all are as they were read. Where nobody else can write meanwhile, this cannot happen.
        """

    def apply(self) -> None:
        """Called after the last :meth:`write_rows`: a database that takes all rows of a transaction in one step takes them now.

        :raises RowsChangedError: as :meth:`write_rows`.
        """

    @abc.abstractmethod
    def take_back(self, void: stamps.Fence) -> None:
        """Restore every row of the component and transaction of ``void`` that its attempt, or an earlier one, wrote; remove those that were
        not there (R31)."""

    @abc.abstractmethod
    def sweep(self, mine: stamps.Stamp) -> None:
        """Remove the component's tombstones of earlier transactions: these are committed, nothing will ask for them again. Another
        component's may be void."""

    @abc.abstractmethod
    def restamp(self, topology_id: str, component: str, mine: stamps.Stamp) -> int:
        """Make the component's rows settled values of ``mine``, without its task; returns how many."""

    @abc.abstractmethod
    def remove(self, topology_id: str, component: str | None) -> tuple[int, int]:
        """Remove the rows and fences of a component, or of the whole topology; returns how many of each."""


class StoreTransaction:
    """One open transaction of a store, in one task. Made by :meth:`Store.transaction`; of no use after its ``with`` block.

    A plain store has ``put`` and ``delete``, which set what they are told to set, and ``get``, each also for many keys. What is computed from the
    value before needs a store that remembers it, or a replay would compute it again from its own result: ``update`` is refused there, and so is
    writing what was read.

    A key that this attempt updates several times, in one block or in several of the same ``finish_batch``, is taken one step further each
    time; on replay each of these updates returns what it returned at first (R32).
    """

    def __init__(
        self,
        address: str,
        kind: stamps.Kind,
        session: Session,
        mine: stamps.Stamp,
        earlier_steps: Mapping[Any, int],
        recorded: stamps.Recorded | None,
        codec: codecs.Codec = codecs.JSON,
    ) -> None:
        self._address, self._kind, self._session, self._mine, self._earlier_steps = address, kind, session, mine, earlier_steps
        self._recorded, self._codec = recorded, codec
        self._read: set[str] = set()
        """Keys of a plain store whose value was asked for before this attempt had set it."""
        self._rows: dict[str, stamps.Row | None] = {}
        self._unwritten: dict[str, None] = {}
        self._steps: dict[str, int] = {}
        self._doom: BaseException | None = None
        self._is_inside_function = False
        self._is_open = True

    def get(self, key: keys.Key) -> Any:
        """The value as this task sees it, None if there is none: as it was before the transaction, plus this attempt's own updates.

        What another task wrote in the same transaction is not seen, on no attempt: it would be there or not by chance. A plain store cannot
        tell: it gives the last write, on a replay also one of the attempt before. So a key that was read there cannot be written any more.
        """
        self._check_open()
        text = keys.encode_key(key)
        with self._all_or_nothing():
            row = self._rows[text] if text in self._rows else self._session.read_rows([text]).get(text)
        return self._seen(text, row)

    def get_many(self, wanted: Iterable[K]) -> dict[K, Any]:
        """The value of every key, as :meth:`get` gives it; reads in bulk."""
        self._check_open()
        values: dict[K, Any] = {}
        given = iter(dict.fromkeys(wanted))
        while chunk := {keys.encode_key(key): key for key in itertools.islice(given, ROWS_HELD_MAX)}:
            unread = [text for text in chunk if text not in self._rows]
            with self._all_or_nothing():
                found = self._session.read_rows(unread) if unread else {}
            for text, key in chunk.items():
                values[key] = self._seen(text, self._rows[text] if text in self._rows else found.get(text))
        return values

    def _seen(self, text: str, row: stamps.Row | None) -> Any:
        where = self._standing(row)
        if row is not None and where == "ahead":
            self._refuse_late(row)
        if self._kind == "plain":
            if row is None or row.stamp != self._mine:
                self._read.add(text)
            return codecs.decode(self._codec, None if row is None else row.curr)
        return codecs.decode(self._codec, stamps.seen(row, where, self._steps_taken(text)))

    def put(self, key: keys.Key, value: Any) -> None:
        """Set ``key`` to ``value``, whatever it was.

        :raises StoreConflict: another task or component wrote this key in this transaction.
        :raises errors.StaleAttemptError: a newer attempt wrote this key.
        """
        self.put_many({key: value})

    def put_many(self, values: Mapping[K, Any]) -> None:
        """Set every key to its value; reads and writes in bulk. All or nothing: when a value cannot be kept, the transaction is lost."""
        pairs = iter(values.items())
        with self._all_or_nothing():
            while chunk := [(keys.encode_key(key), value) for key, value in itertools.islice(pairs, ROWS_HELD_MAX)]:
                self._load([text for text, _ in chunk])
                for text, value in chunk:
                    self._set(text, codecs.encode(self._codec, value))

    def update(self, key: keys.Key, fn: Callable[[Any], Any]) -> Update:
        """Set ``key`` to ``fn(old)``, where ``old`` is None if there is no value; ``fn`` is not called if that was done before.

        :raises StoreConflict: another task or component wrote this key in this transaction.
        :raises errors.StaleAttemptError: a newer attempt wrote this key.
        """
        self._check_has_previous()
        text = keys.encode_key(key)
        self._load([text])
        return self._step(text, functools.partial(self._made_by, fn))

    def update_many(self, deltas: Mapping[K, D], combine: Callable[[Any, D], Any]) -> dict[K, Update]:
        """Set every key to ``combine(old, delta)``; reads and writes in bulk. All or nothing: when ``combine`` raises, the transaction is lost."""
        self._check_has_previous()
        updates: dict[K, Update] = {}
        pairs = iter(deltas.items())
        with self._all_or_nothing():
            while chunk := [(keys.encode_key(key), key, delta) for key, delta in itertools.islice(pairs, ROWS_HELD_MAX)]:
                self._load([text for text, _, _ in chunk])
                for text, key, delta in chunk:
                    updates[key] = self._step(text, functools.partial(self._made_by, functools.partial(_combined, combine, delta)))
        return updates

    def delete(self, key: keys.Key) -> Update:
        """Remove ``key``; an update like another, also when there is nothing to remove. Its ``curr`` is None; so is ``prev`` in a plain store."""
        text = keys.encode_key(key)
        self._load([text])
        return self._removed(text)

    def delete_many(self, unwanted: Iterable[K]) -> dict[K, Update]:
        """Remove every key, as :meth:`delete` does; reads and writes in bulk. All or nothing, as :meth:`update_many`."""
        updates: dict[K, Update] = {}
        given = iter(dict.fromkeys(unwanted))
        with self._all_or_nothing():
            while chunk := {keys.encode_key(key): key for key in itertools.islice(given, ROWS_HELD_MAX)}:
                self._load(list(chunk))
                updates.update((key, self._removed(text)) for text, key in chunk.items())
        return updates

    def _removed(self, text: str) -> Update:
        if self._kind == "plain":
            self._set(text, None)
            return Update(None, None, applied=True)
        return self._step(text, lambda old: None)

    def _set(self, text: str, curr: str | None) -> None:
        if self._kind != "plain":
            self._step(text, lambda old: curr)
            return
        if text in self._read:
            self._refuse(_written_after_read(self._address, text))
        row = self._rows[text]
        where = self._standing(row)
        if row is not None and where in ("foreign", "rival"):
            self._refuse(StoreConflict(self._address, text, row.stamp.writer, self._mine.writer, self._mine.txid))
        if row is not None and where == "ahead":
            self._refuse_late(row)
        self._rows[text] = stamps.Row(text, self._mine, prev=None, prev_txid=0, steps=[curr])
        self._unwritten[text] = None

    def _step(self, text: str, change: Callable[[str | None], str | None]) -> Update:
        row = self._rows[text]
        where = self._standing(row)
        step = self._steps_taken(text)
        known = len(row.steps) if row is not None and where == "mine" else 0
        if row is not None and where in ("foreign", "rival"):
            self._refuse(StoreConflict(self._address, text, row.stamp.writer, self._mine.writer, self._mine.txid))
        if row is not None and where == "ahead":
            self._refuse_late(row)
        if step > known:
            self._refuse_gone(text, step)
        prev = stamps.seen(row, where, step)
        if row is not None and step < known:
            curr = row.steps[step]
        else:
            curr = change(prev)
            self._rows[text] = stamps.advanced(row, text, where, self._mine, curr)
            self._unwritten[text] = None
        self._steps[text] = step + 1
        return Update(codecs.decode(self._codec, prev), codecs.decode(self._codec, curr), applied=step >= known)

    def _made_by(self, fn: Callable[[Any], Any], old: str | None) -> str:
        self._is_inside_function = True
        try:
            return codecs.encode(self._codec, fn(codecs.decode(self._codec, old)))
        finally:
            self._is_inside_function = False

    def _load(self, texts: Sequence[str]) -> None:
        self._check_open()
        if self._is_inside_function:
            raise errors.UsageError("a store cannot be updated inside the function given to update\n  Read there with get(), and update afterwards.")
        with self._all_or_nothing():
            if len(self._rows) + len(texts) > ROWS_HELD_MAX:
                self._write()
                self._rows.clear()
            missing = [text for text in texts if text not in self._rows]
            if missing:
                found = self._found_to_write(missing)
                self._rows.update((text, found.get(text)) for text in missing)

    def _found_to_write(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        try:
            return self._session.read_rows_to_write(texts)
        except RowsChangedError as changed:
            self._refuse_changed(changed.found)

    def _write(self) -> None:
        try:
            self._session.write_rows(row for text in self._unwritten if (row := self._rows[text]) is not None)
        except RowsChangedError as changed:
            self._refuse_changed(changed.found)
        self._unwritten.clear()

    @property
    def session(self) -> Session:
        """The open transaction of the database, for what is written there beside the values and must be committed with them."""
        self._check_open()
        return self._session

    def flush(self) -> None:
        """Write the updates made so far to the (still open) transaction of the database: whoever wants to make the same ones waits from here on."""
        self._check_open()
        with self._all_or_nothing():
            self._write()

    def finish(self) -> dict[tuple[str, str], int]:
        """Write what is left; the last act before the database commits. Returns the updates made so far of each key, for ``store_steps``.

        A refusal that user code caught and dropped still ends the attempt here.
        """
        if self._doom is not None:
            raise self._doom
        self._write()
        try:
            self._session.apply()
        except RowsChangedError as changed:
            self._refuse_changed(changed.found)
        return {(self._address, text): count for text, count in self._steps.items()}

    def end(self) -> None:
        """Refuse every later call."""
        self._is_open = False

    def _standing(self, row: stamps.Row | None) -> stamps.Standing:
        if self._kind == "plain":
            return stamps.plain_standing(row, self._mine)
        return stamps.standing(row, self._mine, self._kind == "opaque", self._recorded)

    def _steps_taken(self, text: str) -> int:
        return self._steps.get(text) or self._earlier_steps.get((self._address, text), 0)

    def _refuse_late(self, row: stamps.Row) -> NoReturn:
        self._refuse(errors.StaleAttemptError(f"{self._address} key {row.key}", self._mine.component, row.stamp.position, self._mine.position))

    def _refuse_gone(self, text: str, step: int) -> NoReturn:
        """Newer attempts took over what this one did, and then took it back or deleted it; or it was not this topology."""
        with self._all_or_nothing():
            newer = stamps.overtaking(self._session.read_fences(self._mine.topology_id), self._mine)
        if newer is not None:
            self._refuse(errors.StaleAttemptError(f"{self._address} key {text}", newer.component, newer.position, self._mine.position))
        self._refuse(_changed_by_others(self._address, text, step))

    def _refuse_changed(self, found: Mapping[str, stamps.Row | None]) -> NoReturn:
        """Somebody else was faster: another writer of this transaction, a newer attempt, or one whom a replay will not meet again."""
        places = {text: self._standing(row) for text, row in sorted(found.items())}
        for text, where in places.items():
            row = found[text]
            if row is not None and where in ("foreign", "rival"):
                self._refuse(StoreConflict(self._address, text, row.stamp.writer, self._mine.writer, self._mine.txid))
            if row is not None and where == "ahead":
                self._refuse_late(row)
        self._refuse(errors.FailedException(f"store {self._address}: key {next(iter(places))} was changed by others while this task was updating it"))

    def _refuse(self, error: Exception) -> NoReturn:
        self._doom = self._doom or error
        raise error

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        # After an error a database may have rolled back by itself: not a single statement may follow, it would stand outside the transaction.
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

    def _check_open(self) -> None:
        if self._doom is not None:
            raise self._doom
        if not self._is_open:
            raise errors.UsageError("this store transaction has ended\n  Use it inside its `with store.transaction(...)` block.")


def _combined(combine: Callable[[Any, D], Any], delta: D, old: Any) -> Any:
    return combine(old, delta)


def _written_after_read(address: str, text: str) -> errors.UsageError:
    return errors.UsageError(
        f"store {address} is plain, and key {text} was read and is now written in one transaction: on a replay the value read would be this one\n"
        "  Set values that do not depend on the one before; or leave out plain=True, and use update()."
    )


def _changed_by_others(address: str, text: str, step: int) -> errors.StateMismatchError:
    return errors.StateMismatchError(
        f"store {address}: what this attempt did to key {text} is gone (updates committed: {step})\n"
        "  Something other than this topology changed the store meanwhile. Stop that, and run again."
    )
