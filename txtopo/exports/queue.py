"""The queue's end at the committer: entries are added in the store's own transaction.

Runs on executors: standard library only.

Invariants:
    - An entry is in the database if and only if the values of its store transaction are.
    - A replay adds nothing anew in transactional stores. In opaque stores a failed attempt's entries
      are taken back first (R28, R31).
"""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.exports import entries, layout, linked
from txtopo.stores import base, keys, reserved
from txtopo.stores.transaction import StoreTransaction
from txtopo.topology import destination, kept

ENTRIES_HELD_MAX = 10_000
"""How many entries a task holds in memory before it writes them to the open transaction."""

VALUE_BYTES_MAX = 2**20
"""The longest value, as JSON."""

NESTING_MAX = 200
"""How many levels deep keys and values may be. Exporters read them inside others, and with less room
for recursion, perhaps, than the executor has."""


class ExportQueue(destination.Destination):
    """A queue of changes in ``store``, for another system. Give it to a committer as an
    attribute, beside the store.

    A queue belongs to one component. Its entries are rows in the store's table, hidden from the
    store's readers.

    :param id: names the queue in its store: letters, digits, ``_``, ``.`` and ``-``.
    :param store: a ``SqliteStore``, ``SqlStore`` or ``RedisStore`` that keeps values before a
        transaction (no ``plain=True``).
    :param buckets: how many parts are exported side by side, each in order. All entries of a key
        are in one bucket. The number stays for the queue's life.
    :param exporter: tells the entries, unless ``run.export`` or ``txtopo export`` is given another
        one. ``explain`` shows it, and ``txtopo test`` plays it.
    :param entry_of: makes an entry's key and value of a key and value of the store, or None, for
        ``txtopo export replay --from-store``. By default they are the store's.
    :param max_entries: how many entries from each task may wait. A transaction that adds more fails
        before it commits, and is replayed.
    """

    def __init__(
        self,
        id: str,
        store: base.Store,
        buckets: int = 17,
        *,
        exporter: entries.Exporter | None = None,
        entry_of: Callable[[Any, Any], tuple[Any, Any] | None] | None = None,
        max_entries: int = 1_000_000,
    ) -> None:
        layout.check_queue(id, buckets)
        if not isinstance(store, base.Store) or store.plain:
            raise errors.UsageError(
                f"export queue {id!r} needs a store that can take entries back, not {store!r}\n"
                "  Give a SqliteStore, SqlStore or RedisStore without plain=True."
            )
        if exporter is not None and not isinstance(exporter, entries.Exporter):
            raise errors.UsageError(
                f"export queue {id!r} has exporter={exporter!r}\n  Give an Exporter, such as HttpExporter(…)."
            )
        if entry_of is not None and not callable(entry_of):
            raise errors.UsageError(
                f"export queue {id!r} has entry_of={entry_of!r}\n  Give a function of a key and a value."
            )
        if type(max_entries) is not int or max_entries < 1:
            raise errors.UsageError(
                f"export queue {id!r} has max_entries={max_entries!r}\n  Give a positive integer."
            )
        self.id, self.store, self.buckets = id, store, buckets
        self.exporter, self.entry_of, self.max_entries = exporter, entry_of, max_entries

    def add(self, transaction: StoreTransaction, key: keys.Key, value: Any) -> None:
        """Queue "``key`` is now ``value``", to be told once the topology's transaction is recorded.

        Called: inside ``with store.transaction(…)``, any number of times, in order. Derive the value
        from the store's answer (``prev``, ``curr``), which is the same on a replay. None says that
        the key is gone.

        :raises errors.UsageError: another store's transaction, a key or value that JSON does not
            give back, or a value beyond 1 MiB or 200 levels.
        """
        if not isinstance(transaction, StoreTransaction):
            raise errors.UsageError(
                f"export queue {self.id!r} was given {transaction!r}\n  Give the open transaction: with store.transaction(context, attempt) as t."
            )
        beside = transaction.rows_beside
        if beside.address != self.store.address:
            raise errors.UsageError(
                f"export queue {self.id!r} is in {self.store.address}, and the transaction in {beside.address}\n"
                "  Add to the queue in a transaction of the queue's own store."
            )
        if self.id not in beside.writers:
            beside.writers[self.id] = _Additions(self, beside)
        beside.writers[self.id].add(key, value)

    def guarantee(self) -> destination.Guarantee:
        target, goes = self.exporter, ""
        if target is not None:
            address = f" {target.address}" if isinstance(target, linked.LinkedExporter) else ""
            goes = f" for {type(target).__name__}{address}"
        return destination.Guarantee(
            f"ExportQueue {self.id!r} in {self.store.address}",
            f"entries{goes}",
            self.store.opaque,
            False,
            "give the queue's store opaque=True",
            (target or entries.Exporter).promise,
            has_one_writer=True,
            place=f"{self.store.address} queue {self.id}",
        )

    def kept(self, topology_id: str, component: str) -> kept.Kept | None:
        """The store's records: the entries go with the values."""
        return self.store.kept(topology_id, component)

    def rows_left(self, topology_id: str) -> str:
        with self.store.direct() as rows:
            (states,) = rows.read_ranges([layout.Names(self.id).all_of("b")], self.buckets)
        if not states:
            return ""
        return f"the target of export queue {self.id!r} (empty it, then give --leave-rows: sequences begin again)"

    def simulated(self, world: destination.World) -> destination.Destination | None:
        substitute = self.store.simulated(world)
        if not isinstance(substitute, base.Store):
            return None
        queue = copy.copy(self)
        queue.store = substitute
        return queue

    def __repr__(self) -> str:
        return f"<ExportQueue {self.id!r} in {self.store.address}>"


class _Additions:
    """The entries from one store transaction."""

    def __init__(self, queue: ExportQueue, beside: reserved.Reserved) -> None:
        self._queue, self._beside, self._names = queue, beside, layout.Names(queue.id)
        self._tally_name = self._names.added(beside.stamp.task)
        self._new: list[tuple[str, str]] = []
        self._chunks: dict[int, int] = {}
        """By bucket: how many rows were written."""
        self._added = 0

    def add(self, key: keys.Key, value: Any) -> None:
        name, why = keys.encode_key(key), ""
        text = layout.entry(name, value)
        if len(text) > VALUE_BYTES_MAX:
            why = f"has {len(text)} characters, and the bound is {VALUE_BYTES_MAX}"
        elif len(text) > 2 * NESTING_MAX and _is_deep(text, [key, value]):
            why = f"is more than {NESTING_MAX} levels deep"
        if why:
            raise errors.UsageError(
                f"an entry of export queue {self._queue.id!r} {why}\n  Queue the key alone, and let the exporter look up the value."
            )
        self._new.append((name, text))
        if len(self._new) >= ENTRIES_HELD_MAX:
            self._write_chunks()

    def write(self) -> None:
        self._write_chunks()
        if self._added:
            self._tally()

    def _write_chunks(self) -> None:
        buckets = collections.defaultdict[int, list[str]](list)
        for name, text in self._new:
            buckets[layout.bucket_of(name, self._queue.buckets)].append(text)
        self._added += len(self._new)
        self._new.clear()
        rows = dict[str, str]()
        stamp, opened_at = self._beside.stamp, self._beside.opened_at.timestamp()
        for bucket, texts in sorted(buckets.items()):
            for part in layout.portions(texts):
                number = self._chunks.get(bucket, 0)
                self._chunks[bucket] = number + 1
                row = self._names.entries(
                    bucket, stamp.txid, stamp.task, self._beside.number, number
                )
                rows[row] = layout.chunk(opened_at, part)
        self._beside.load([*rows, self._tally_name])
        self._beside.put(rows)

    def _tally(self) -> None:
        """Count the entries that this task has added, and refuse more than may wait."""
        queue, stamp, name = self._queue, self._beside.stamp, self._tally_name
        most = min(queue.max_entries, entries.ENTRIES_MAX)  # no exporter could number more
        if self._added > most:
            raise errors.UsageError(
                f"a task adds {self._added} entries to export queue {queue.id!r}, {most} at most, and max_entries is {queue.max_entries}\n"
                "  Make the batches smaller, or give the queue a larger max_entries."
            )
        if before := self._beside.value(name):
            tally = layout.Tally.of(before)
        else:  # buckets remember entries of a component whose results were cleared
            done = self._count_finished()
            tally = layout.Tally(queue.buckets, done, stamp.generation, done)
        tally.check(queue.id, queue.store.address, queue.buckets)
        added, done = tally.added + self._added, tally.done
        if added - done > queue.max_entries:
            done = self._count_finished()
        if added - done > queue.max_entries:
            raise errors.FailedException(
                f"export queue {queue.id!r} in {queue.store.address} is full: task {stamp.task} would have {added - done} entries there,"
                f" and max_entries is {queue.max_entries}\n"
                "  Start an exporter (`txtopo export MODULE:queue`), or look why it stands still (`txtopo export show MODULE:queue`)."
            )
        text = dataclasses.replace(tally, added=added, done=done).text()
        self._beside.put({name: text})

    def _count_finished(self) -> int:
        """How many of the entries that this task has added were told or skipped."""
        names = [self._names.bucket(bucket) for bucket in range(self._queue.buckets)]
        states = map(layout.Bucket.of, filter(None, self._beside.read(names).values()))
        return sum(state.done.get(str(self._beside.stamp.task), 0) for state in states)


def _is_deep(text: str, entry: Any) -> bool:
    if text.count("[") + text.count("{") <= NESTING_MAX:
        return False
    level = [entry]
    for _ in range(NESTING_MAX + 1):
        within = (each.values() if isinstance(each, dict) else each for each in level)
        level = [
            part for parts in within for part in parts if isinstance(part, list | tuple | dict)
        ]
        if not level:
            return False
    return True
