"""Stores that are wrong, each in one way. The fault is put into the rules that all stores share, or
into a backend."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from txtopo.errors import FailedException
from txtopo.stores import (
    SqliteStore,
    Store,
    StoreChange,
    begun,
    codecs,
    fencing,
    keys,
    rows,
    sessions,
    stamps,
    transaction,
    turns,
    visible,
)
from txtopo.stores.steps import Steps
from txtopo.stores.transaction import StoreTransaction
from txtopo.stores.updates import Update
from txtopo.testing import stores

Patch = Callable[[pytest.MonkeyPatch], None]


class Factory(Protocol):
    """Makes the store called ``name`` in ``directory``, of the form that is asked for."""

    def __call__(self, directory: Path, name: str, **form: Any) -> Store: ...


def together(*patches: Patch) -> Patch:
    """Several exchanges."""

    def exchange(patch: pytest.MonkeyPatch) -> None:
        for each in patches:
            each(patch)

    return exchange


def sqlite(directory: Path, name: str, **form: Any) -> Store:
    return SqliteStore(directory / "results.db", name, busy_timeout_s=5, **form)


def memory(cls: type[stores.MemoryStore]) -> Factory:
    return lambda directory, name, **form: cls(name, str(directory), **form)


def standing(change: Callable[[stamps.Row, stamps.Stamp, str], str]) -> Patch:
    """The standing of a row towards a writer, changed by ``change``."""
    right = stamps.standing

    def wrong(row: stamps.Row | None, stamp: stamps.Stamp, *args: Any) -> Any:
        where = right(row, stamp, *args)
        return where if row is None else change(row, stamp, where)

    return lambda patch: patch.setattr(stamps, "standing", wrong)


def plain_standing(change: Callable[[stamps.Row, stamps.Stamp, str], str]) -> Patch:
    """The standing of a row of a plain store towards a writer, changed by ``change``."""
    right = stamps.plain_standing

    def wrong(row: stamps.Row | None, stamp: stamps.Stamp) -> Any:
        where = right(row, stamp)
        return where if row is None else change(row, stamp, where)

    return lambda patch: patch.setattr(stamps, "plain_standing", wrong)


def fence(change: Callable[[str], str]) -> Patch:
    """The standing of a fence towards an attempt, changed by ``change``."""
    right = stamps.fence_standing
    return lambda patch: patch.setattr(stamps, "fence_standing", lambda *args: change(right(*args)))


def session(**methods: Callable[..., Any]) -> Patch:
    """Other methods of the sessions of the memory store."""

    def exchange(patch: pytest.MonkeyPatch) -> None:
        for name, method in methods.items():
            patch.setattr(stores._Session, name, method)

    return exchange


def opened(**methods: Callable[..., Any]) -> Patch:
    """Other methods of open transactions."""

    def exchange(patch: pytest.MonkeyPatch) -> None:
        for name, method in methods.items():
            patch.setattr(StoreTransaction, name, method)

    return exchange


def stepping(**methods: Callable[..., Any]) -> Patch:
    """Other methods of the steps of transactions."""

    def exchange(patch: pytest.MonkeyPatch) -> None:
        for name, method in methods.items():
            patch.setattr(Steps, name, method)

    return exchange


# -- backends ------------------------------------------------------------------------------------


class Existing(stores.MemoryStore):
    def exists(self) -> bool:
        return True


class InPlace(stores.MemoryStore):
    """Transactions change the stored object, without a copy."""

    @contextlib.contextmanager
    def open_session(self, resources: Any) -> Iterator[sessions.Session]:
        database = stores._databases.setdefault(self.database, stores._Database())
        yield stores._Session(database.tables.setdefault(self.name, stores._Table(self.form)))


class Colliding(stores.MemoryStore):
    """Transactions work on copies, and wait for another one to do so, too."""

    def __init__(self, name: str, database: str, **form: Any) -> None:
        super().__init__(name, database, **form)
        self.both = threading.Barrier(2)

    @contextlib.contextmanager
    def open_session(self, resources: Any) -> Iterator[sessions.Session]:
        database = stores._databases.setdefault(self.database, stores._Database())
        table = database.tables.get(self.name, stores._Table(self.form)).copy()
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(5)
        yield stores._Session(table)
        database.tables[self.name] = table


class Unlocked(stores.MemoryStore):
    """Transactions work on copies, any number at once."""

    @contextlib.contextmanager
    def open_session(self, resources: Any) -> Iterator[sessions.Session]:
        database = stores._databases.setdefault(self.database, stores._Database())
        table = database.tables.get(self.name, stores._Table(self.form)).copy()
        yield stores._Session(table)
        database.tables[self.name] = table


class ReadingTwice(stores.MemoryStore):
    """Reads the key that is the prefix itself, and later the other keys."""

    def read_under(self, itself: str, beginning: str) -> Generator[stamps.Row, None, None]:
        row = self.read_row(itself)
        if row is not None:
            yield row
        yield from self.read_prefix(beginning)


class Locked(stores.MemoryStore):
    """Has a member that cannot be pickled."""

    def __init__(self, name: str, database: str, **form: Any) -> None:
        super().__init__(name, database, **form)
        self.lock = threading.Lock()


class Nameless(stores.MemoryStore):
    """Keeps all stores of a place in one table."""

    def __init__(self, name: str, database: str, **form: Any) -> None:
        super().__init__("results", database, **form)


class Wrapping(stores.MemoryStore):
    """Raises errors of its own instead of the original errors."""

    @contextlib.contextmanager
    def transaction(self, *args: Any) -> Iterator[StoreTransaction]:
        try:
            with super().transaction(*args) as opened:
                yield opened
        except FailedException as error:
            raise FailedException(f"the store failed: {error}") from error


class Unchecked(stores.MemoryStore):
    def _check_may_write(self, context: Any) -> None:
        pass


class Unrecorded(stores.MemoryStore):
    """Reads no recorded attempts."""

    def _recorded(self, context: Any) -> None:
        return None


class Untouched(stores.MemoryStore):
    """Does not report its writes."""

    @contextlib.contextmanager
    def transaction(self, context: Any, attempt: Any) -> Iterator[StoreTransaction]:
        with super().transaction(context, attempt) as opened:
            yield opened
        context.touched_stores.clear()


class Stepless(stores.MemoryStore):
    """Forgets how many updates a task has made."""

    @contextlib.contextmanager
    def transaction(self, context: Any, attempt: Any) -> Iterator[StoreTransaction]:
        with super().transaction(context, attempt) as opened:
            yield opened
        context.store_steps.clear()


class LastBlockOnly(stores.MemoryStore):
    """Forgets how many updates a task has made in the blocks before its last one."""

    @contextlib.contextmanager
    def transaction(self, context: Any, attempt: Any) -> Iterator[StoreTransaction]:
        earlier = dict(context.store_steps.get(self.address, {}))
        with super().transaction(context, attempt) as opened:
            yield opened
        steps = context.store_steps.get(self.address, {})
        context.store_steps[self.address] = {
            key: step for key, step in steps.items() if step != earlier.get(key)
        }


class EagerlyStepping(stores.MemoryStore):
    """Counts updates also when they are rolled back."""

    @contextlib.contextmanager
    def transaction(self, context: Any, attempt: Any) -> Iterator[StoreTransaction]:
        with super().transaction(context, attempt) as opened:
            try:
                yield opened
            finally:
                context.store_steps.setdefault(self.address, {}).update(opened._steps.taken)


class AdoptingNothing(stores.MemoryStore):
    def adopt(self, *args: Any, **options: Any) -> StoreChange:
        return StoreChange(2, 1)


class AdoptingOpenly(stores.MemoryStore):
    """Leaves the adopted transaction open for more attempts."""

    def adopt(
        self, topology_id: str, generation: str, txid: int, components: Any, **options: Any
    ) -> StoreChange:
        change = super().adopt(topology_id, generation, txid, components, **options)
        with self.open_session(lambda name, factory: factory()) as session:
            for component in components:
                session.write_fence(stamps.Fence(topology_id, component, generation, txid, 0))
        return change


class AdoptingItsOwn(stores.MemoryStore):
    """Takes no results over from another id."""

    def adopt(self, *args: Any, from_topology: str | None = None, **options: Any) -> StoreChange:
        return super().adopt(*args, **options)


class NeverDry(stores.MemoryStore):
    def _maintenance(self, dry_run: bool) -> Any:
        return super()._maintenance(dry_run=False)


class TakingPlainBack(stores.MemoryStore):
    """Takes back the writes of an earlier attempt, also where no record has the content before."""

    def _stand_at_fence(self, session: sessions.Session, opening: fencing.Opening) -> None:
        stamp = opening.stamp
        fence = session.read_fence(stamp.topology_id, stamp.component)
        if fence is not None and fence.txid == stamp.txid and fence.attempt < stamp.attempt:
            session.take_back(fence)
        super()._stand_at_fence(session, opening)


class TrustingTheState(stores.MemoryStore):
    """Assumes that every attempt in the store was sealed."""

    def _stand_at_fence(self, session: sessions.Session, opening: fencing.Opening) -> None:
        opening.context.first_attempt = 0
        super()._stand_at_fence(session, opening)


class ReadingAlong(stores.MemoryStore):
    """Looks up each row when it is asked for."""

    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        for row in list(super().read_from(text)):
            current = self.read_row(row.key)
            if current is not None:
                yield current


class CheckingNoReader(stores.MemoryStore):
    def _check_reaches(self, as_of: Any) -> stamps.Recorded:
        return {}


# -- rules ---------------------------------------------------------------------------------------


def _unquoted_prefix(prefix: Any) -> tuple[str | None, str]:
    itself, beginning = _prefix_texts(prefix)
    return itself, beginning.removesuffix(",")


_prefix_texts = keys.prefix_texts
_delete, _take_back, _restamp = (
    StoreTransaction.delete,
    stores._Session.take_back,
    stores._Session.restamp,
)


def _raw_update(self: StoreTransaction, key: Any, fn: Any) -> Update:
    results: list[Any] = []

    def noting(old: Any) -> Any:
        results.append(fn(old))
        return results[-1]

    update = _step_of_update(self, key, noting)
    return update._replace(curr=results[-1]) if results else update


_step_of_update = StoreTransaction.update


def _dooming(self: Steps, fn: Any, *of: Any) -> Any:
    try:
        return fn(*of)
    except Exception as error:
        self.doom = error
        raise


def _unguarded(self: Steps, fn: Any, *of: Any) -> Any:
    return fn(*of)


def _eager_update(self: StoreTransaction, key: Any, fn: Any) -> Update:
    update = _step_of_update(self, key, fn)
    self._write()
    return update


def _shy_delete(self: StoreTransaction, key: Any) -> Update:
    return Update(None, None, applied=False) if self.get(key) is None else _delete(self, key)


def _forgetful_load(self: StoreTransaction, texts: Any) -> None:
    self._check_open()
    rows, unwritten = self._steps.rows, self._steps.unwritten
    if len(rows) + len(texts) > transaction.ROWS_HELD_MAX:
        rows.clear()
        unwritten.clear()
    missing = [text for text in texts if text not in rows]
    read = self._session.read_rows(missing)
    rows.update((text, read.get(text)) for text in missing)


def _carefree_refuse(self: Steps, error: Exception) -> None:
    raise error


def _last_step_back(self: Any, void: stamps.Fence) -> None:
    composed = {
        key: list(row.steps)
        for key, row in self._table.rows.items()
        if len(row.steps) > 1 and row.stamp.txid == void.txid
    }
    _take_back(self, void)
    for key, steps in composed.items():
        if key in self._table.rows:
            self._table.rows[key].steps = [steps[-2]]


def _sweep_all(self: Any, stamp: stamps.Stamp) -> None:
    for row in [row for row in self._table.rows.values() if row.curr is None]:
        del self._table.rows[row.key]


def _take_back_all(self: Any, void: stamps.Fence) -> None:
    for row in [row for row in self._table.rows.values() if row.stamp.txid == void.txid]:
        if row.prev is None:
            del self._table.rows[row.key]
        else:
            self._table.rows[row.key] = stamps.Row(
                row.key, dataclasses.replace(row.stamp, txid=row.prev_txid), None, 0, [row.prev]
            )


def _restamp_above(self: Any, topology_id: str, component: str, stamp: stamps.Stamp) -> int:
    return _restamp(self, topology_id, component, dataclasses.replace(stamp, txid=stamp.txid + 1))


def _remove_all(self: Any, topology_id: str, component: str | None) -> tuple[int, int]:
    counts = len(self._table.rows), len(self._table.fences)
    self._table.rows.clear()
    self._table.fences.clear()
    return counts


def _forgetting_tombstones(self: Any, rows: Any) -> None:
    for row in rows:
        if row.curr is None:
            self._table.rows.pop(row.key, None)
        else:
            self._table.rows[row.key] = row


def _merging(
    is_ordinary: Callable[..., bool], prev: Callable[[Any], Any] = lambda row: row.curr
) -> Patch:
    """The memory store combines the rows that ``is_ordinary`` says, of ``(row, stamp,
    settled_txid)``."""

    def merge_rows(self: Any, deltas: Any, how: Any, stamp: stamps.Stamp, settled_txid: int) -> Any:
        refused = [
            key for key in deltas if not is_ordinary(self._table.rows.get(key), stamp, settled_txid)
        ]
        for key in deltas.keys() - refused:
            row = self._table.rows.get(key)
            curr = how(None if row is None else json.loads(row.curr), deltas[key])
            self._table.rows[key] = stamps.Row(
                key,
                stamp,
                None if row is None else prev(row),
                0 if row is None else row.stamp.txid,
                [str(curr)],
            )
        return refused

    return session(merge_rows=merge_rows)


def _is_old(row: stamps.Row | None, stamp: stamps.Stamp, settled_txid: int) -> bool:
    return row is None or row.stamp.txid < stamp.txid


def _losing_keys(self: Any, deltas: Any, *args: Any) -> Any:
    return _merge_rows(
        self, {key: delta for key, delta in deltas.items() if "\\" not in key}, *args
    )


def _merge_in_floating_point(self: Any, deltas: Any, *args: Any) -> Any:
    """An integer of more than 15 digits is added to as if it were a float."""
    rest = dict(deltas)
    stamp = args[1]
    for key in deltas:
        row = self._table.rows.get(key)
        if row is not None and row.curr is not None and len(row.curr.lstrip("-")) > 15:
            curr = str(int(float(row.curr) + rest.pop(key)))
            self._table.rows[key] = stamps.advanced(stores._copy_of(row), key, "past", stamp, curr)
    return _merge_rows(self, rest, *args)


_is_ordinary, _merge_rows = stores._is_ordinary, stores._Session.merge_rows


def _fences_of_all(self: Any, topology_id: str) -> list[stamps.Fence]:
    return list(self._table.fences.values())


def _fence_of_all(self: Any, topology_id: str, component: str) -> stamps.Fence | None:
    newest = max(self._table.fences.values(), key=lambda fence: fence.txid, default=None)
    return (
        None
        if newest is None
        else dataclasses.replace(newest, topology_id=topology_id, component=component)
    )


@functools.cache
def _cached(text: str | None) -> Any:
    return None if text is None else json.loads(text)


_text_for_writer = stamps.text_for_writer


def _seen_with_rivals(row: stamps.Row | None, where: stamps.Standing, step: int) -> str | None:
    return _text_for_writer(row, "past" if where == "rival" else where, step)


def _text_by_txid(
    row: stamps.Row, as_of: visible.VisibleTxid, recorded: stamps.Recorded
) -> str | None:
    return row.curr if row.stamp.txid <= as_of else row.prev


def _text_of_nothing_settled(
    row: stamps.Row, as_of: visible.VisibleTxid, recorded: stamps.Recorded
) -> str | None:
    last = recorded.get(row.stamp.component)
    return row.curr if last is not None and row.stamp.txid <= last.txid else row.prev


def _text_of_all(
    row: stamps.Row, as_of: visible.VisibleTxid, recorded: stamps.Recorded
) -> str | None:
    own = dataclasses.replace(row.stamp, topology_id=as_of.topology_id)
    return _text_of(dataclasses.replace(row, stamp=own), as_of, recorded)


_text_of = visible.text_of


def shown(text_of: Callable[..., str | None]) -> Patch:
    """A reader is shown ``text_of`` of a row."""
    return lambda patch: patch.setattr(visible, "text_of", text_of)


def _texts_after_a_look(
    self: Any, rows: Iterator[stamps.Row], as_of: visible.VisibleTxid
) -> Iterator[tuple[str, str | None]]:
    recorded = self._check_reaches(as_of)
    return ((row.key, visible.text_of(row, as_of, recorded)) for row in rows)


@contextlib.contextmanager
def _first_thread_only(context: Any, name: str, address: str) -> Iterator[None]:
    if context.store_turns.setdefault(name, threading.get_ident()) != threading.get_ident():
        raise FailedException(f"the store {address} is another thread's")
    yield


def _nothing(*args: Any) -> None:
    return None


def _count_every_run(self: Any, stamp: stamps.Stamp, number: int) -> None:
    counts = self._table.counts.setdefault((stamp.topology_id, stamp.component), {})
    counts[stamp.task] = counts.get(stamp.task, 0) + 1


def _raise_without_counting_anew(self: Any, fence: stamps.Fence) -> None:
    self._table.fences[fence.topology_id, fence.component] = fence


def _remove_but_counts(self: Any, topology_id: str, component: str | None) -> tuple[int, int]:
    counts = dict(self._table.counts)
    removed = _remove(self, topology_id, component)
    self._table.counts.update(counts)
    return removed


def _write_fence_over_counts(self: Any, fence: stamps.Fence) -> None:
    """A fence where there is none keeps the counts that are there."""
    owner = (fence.topology_id, fence.component)
    counts = self._table.counts.get(owner)
    is_new = owner not in self._table.fences
    _write_fence(self, fence)
    if is_new and counts is not None:
        self._table.counts[owner] = counts


_remove, _write_fence = stores._Session.remove, stores._Session.write_fence


MISTAKES: dict[str, tuple[Factory, Patch | None]] = {
    "exists always": (memory(Existing), None),
    "writes in place": (memory(InPlace), None),
    "writes in place at once": (memory(InPlace), opened(update=_eager_update)),
    "collides": (memory(Colliding), None),
    "no lock": (memory(Unlocked), None),
    "holds a lock": (memory(Locked), None),
    "one table for all": (memory(Nameless), None),
    "wraps errors": (memory(Wrapping), None),
    "checks nothing": (memory(Unchecked), None),
    "asks for no record": (memory(Unrecorded), None),
    "reports no touch": (memory(Untouched), None),
    "begins anything": (
        memory(stores.MemoryStore),
        lambda patch: patch.setattr(begun, "may_begin", lambda name, context: True),
    ),
    "reads twice": (memory(ReadingTwice), None),
    "counts no steps": (memory(Stepless), None),
    "counts the steps of the last block": (memory(LastBlockOnly), None),
    "counts steps eagerly": (memory(EagerlyStepping), None),
    "adopts nothing": (memory(AdoptingNothing), None),
    "adopts openly": (memory(AdoptingOpenly), None),
    "adopts only its own": (memory(AdoptingItsOwn), None),
    "never dry": (memory(NeverDry), None),
    "lists for tuples": (
        sqlite,
        lambda patch: patch.setattr(keys, "with_tuples", lambda value: value),
    ),
    "prefix too short": (
        sqlite,
        lambda patch: patch.setattr(keys, "prefix_texts", _unquoted_prefix),
    ),
    "any key": (sqlite, lambda patch: patch.setattr(keys, "_check_key", _nothing)),
    "any value": (
        sqlite,
        lambda patch: patch.setattr(
            keys, "encode_value", lambda value: json.dumps(value, default=str)
        ),
    ),
    "shared values": (sqlite, lambda patch: patch.setattr(keys, "decode_value", _cached)),
    "raw values": (sqlite, opened(update=_raw_update)),
    "function dooms": (sqlite, stepping(_call=_dooming)),
    "function unguarded": (sqlite, stepping(_call=_unguarded)),
    "half of many": (sqlite, stepping(all_or_nothing=lambda self: contextlib.nullcontext())),
    "never ends": (sqlite, opened(end=_nothing)),
    "refuses without doom": (sqlite, stepping(_refuse=_carefree_refuse)),
    "deletes shyly": (sqlite, opened(delete=_shy_delete)),
    "forgets rows": (sqlite, opened(_load=_forgetful_load)),
    "writes no fence": (memory(stores.MemoryStore), session(write_fence=_nothing)),
    "one fence for all": (memory(stores.MemoryStore), session(read_fence=_fence_of_all)),
    "counts nothing": (memory(stores.MemoryStore), session(count=_nothing)),
    "counts every run": (memory(stores.MemoryStore), session(count=_count_every_run)),
    "counts on in the next attempt": (
        memory(stores.MemoryStore),
        session(write_fence=_raise_without_counting_anew),
    ),
    "clears no counts": (
        memory(stores.MemoryStore),
        session(remove=_remove_but_counts, write_fence=_write_fence_over_counts),
    ),
    "a store that lacks some is complete": (
        sqlite,
        fence(lambda where: "recorded" if where == "incomplete" else where),
    ),
    "a store that has more is complete": (
        sqlite,
        fence(lambda where: "recorded" if where == "overfull" else where),
    ),
    "knows no other fences": (
        memory(stores.MemoryStore),
        session(read_fences=lambda self, topology_id: []),
    ),
    "knows all fences": (memory(stores.MemoryStore), session(read_fences=_fences_of_all)),
    "takes nothing back": (memory(stores.MemoryStore), session(take_back=_nothing)),
    "opaque as transactional": (
        memory(stores.MemoryStore),
        together(
            session(take_back=_nothing),
            standing(lambda row, stamp, where: "mine" if where == "undone" else where),
        ),
    ),
    "takes one step back": (memory(stores.MemoryStore), session(take_back=_last_step_back)),
    "sweeps everything": (memory(stores.MemoryStore), session(sweep=_sweep_all)),
    "takes everything back": (memory(stores.MemoryStore), session(take_back=_take_back_all)),
    "merges again": (
        memory(stores.MemoryStore),
        _merging(lambda row, stamp, settled: _is_ordinary(row, stamp, stamp.txid)),
    ),
    "merges with anything older": (memory(stores.MemoryStore), _merging(_is_old)),
    "merges with anybody": (memory(stores.MemoryStore), _merging(lambda *args: True)),
    "forgets what was before a merge": (
        memory(stores.MemoryStore),
        _merging(_is_ordinary, prev=_nothing),
    ),
    "merges in floating point": (
        memory(stores.MemoryStore),
        session(merge_rows=_merge_in_floating_point),
    ),
    "loses keys that it merges": (memory(stores.MemoryStore), session(merge_rows=_losing_keys)),
    "merges at the end": (sqlite, opened(_merge_before_reading=_nothing)),
    "restamps too high": (memory(stores.MemoryStore), session(restamp=_restamp_above)),
    "removes everything": (memory(stores.MemoryStore), session(remove=_remove_all)),
    "no tombstones": (memory(stores.MemoryStore), session(write_rows=_forgetting_tombstones)),
    "fence never above": (sqlite, fence(lambda where: "equal" if where == "above" else where)),
    "any generation": (
        sqlite,
        fence(lambda where: "below" if where == "other generation" else where),
    ),
    "nothing is ahead": (
        sqlite,
        standing(lambda row, stamp, where: "past" if where == "ahead" else where),
    ),
    "nothing is settled": (
        sqlite,
        standing(
            lambda row, stamp, where: (
                "undone"
                if where == "ahead" and row.stamp.attempt == stamps.UNKNOWN_ATTEMPT
                else where
            )
        ),
    ),
    "nothing is mine": (
        sqlite,
        standing(lambda row, stamp, where: "past" if where == "mine" else where),
    ),
    "nothing is undone": (
        sqlite,
        standing(lambda row, stamp, where: "past" if where == "undone" else where),
    ),
    "no writer is a rival": (
        sqlite,
        standing(lambda row, stamp, where: "mine" if where == "rival" else where),
    ),
    "nothing is foreign": (
        sqlite,
        standing(lambda row, stamp, where: "past" if where == "foreign" else where),
    ),
    "generations alike": (
        sqlite,
        standing(lambda row, stamp, where: "ahead" if row.stamp.txid > stamp.txid else where),
    ),
    "overwrites nothing": (
        sqlite,
        plain_standing(
            lambda row, stamp, where: "ahead" if row.stamp.txid == stamp.txid else where
        ),
    ),
    "takes plain values back": (memory(TakingPlainBack), None),
    "updates plain values": (sqlite, stepping(check_has_previous=_nothing)),
    "no plain value is ahead": (
        sqlite,
        plain_standing(lambda row, stamp, where: "past" if where == "ahead" else where),
    ),
    "no writer is a rival in a plain store": (
        sqlite,
        plain_standing(lambda row, stamp, where: "past" if where == "rival" else where),
    ),
    "nothing is foreign in a plain store": (
        sqlite,
        plain_standing(lambda row, stamp, where: "past" if where == "foreign" else where),
    ),
    "ignores the codec": (
        sqlite,
        lambda patch: patch.setattr(
            codecs, "encode", lambda codec, value: keys.encode_value(value)
        ),
    ),
    "any text": (
        sqlite,
        lambda patch: patch.setattr(codecs, "encode", lambda codec, value: codec.dumps(value)),
    ),
    "any form": (sqlite, lambda patch: patch.setattr(rows, "check_form", _nothing)),
    "every attempt was sealed": (memory(TrustingTheState), None),
    "shows what is under way": (sqlite, shown(lambda row, as_of, recorded: row.curr)),
    "goes by the txid alone": (sqlite, shown(_text_by_txid)),
    "nothing is settled for readers": (sqlite, shown(_text_of_nothing_settled)),
    "shows what others wrote": (sqlite, shown(_text_of_all)),
    "is never outrun": (sqlite, lambda patch: patch.setattr(visible, "check_reaches", _nothing)),
    "looks at the fences first": (
        sqlite,
        lambda patch: patch.setattr(Store, "_texts_as_of", _texts_after_a_look),
    ),
    "has no turns": (
        memory(Unlocked),
        lambda patch: patch.setattr(
            turns, "take", lambda context, name, address: contextlib.nullcontext()
        ),
    ),
    "refuses a second thread": (
        memory(stores.MemoryStore),
        lambda patch: patch.setattr(turns, "take", _first_thread_only),
    ),
    "reads along": (memory(ReadingAlong), None),
    "checks no reader": (memory(CheckingNoReader), None),
    "rivals are read": (
        sqlite,
        lambda patch: patch.setattr(stamps, "text_for_writer", _seen_with_rivals),
    ),
}
"""By name: the store, and its replaced part during the check."""
