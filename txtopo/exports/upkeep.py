"""Looks at a queue, and mends it by hand: stopped buckets go on, a lost target is told anew.

Runs on: any machine that reaches the store. Standard library only.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from txtopo import errors
from txtopo.exports import entries, exporting, layout, leases
from txtopo.exports.queue import ExportQueue
from txtopo.stores import direct, keys, stamps
from txtopo.stores.visible import VisibleTxid

LOGGER = logging.getLogger("txtopo")


@dataclasses.dataclass(frozen=True, slots=True)
class BucketStatus:
    """One bucket."""

    bucket: int
    holder: str
    """The exporter that has it. Empty if none has."""
    txid: int
    """The transaction of the last entry that was told or skipped, 0 if there is none."""
    waits_txid: int | None
    """The first waiting entry's transaction. None if no entry waits."""
    waits_since: float | None
    """When that transaction was opened, in seconds since 1970."""
    stopped: Mapping[str, Any] | None
    """The entry at which the bucket stopped: ``sequence``, ``key``, ``value``, ``task``, ``error``,
    ``attempts``, ``goes_on`` (the target is away, and the entry is tried again)."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue, at one look."""

    entries: int
    """How many entries wait, with those from transactions under way."""
    skipped: list[dict[str, Any]]
    """The entries that were skipped: ``bucket``, ``sequence``, ``key``, ``value``, ``error``."""
    buckets: list[BucketStatus]


def status(queue: ExportQueue) -> QueueStatus:
    """Look at ``queue``. The cost does not depend on how many entries wait."""
    names = layout.Names(queue.id)
    with queue.store.direct() as rows:
        tallies, states, skipped = rows.read_ranges(
            [names.all_of("a"), names.all_of("b"), names.all_of("x")], layout.ROWS_MAX
        )
        firsts = rows.read_ranges([names.entries_of(bucket) for bucket in range(queue.buckets)], 1)
    known = {row.key: layout.Bucket.of(row.curr) for row in states if row.curr}
    waiting = 0
    for row in tallies:
        (tally := layout.Tally.of(row.curr or "")).check(
            queue.id, queue.store.address, queue.buckets
        )
        task = str(int(row.key[-6:]))
        waiting += tally.added - sum(state.done.get(task, 0) for state in known.values())
    buckets = []
    for bucket, first in enumerate(firsts):
        state = known.get(names.bucket(bucket), layout.Bucket())
        txid = state.sequence >> entries.SEQUENCE_BITS
        since = json.loads(first[0].curr or "")["at"] if first else None
        waits = layout.Place.of(first[0].key).txid if first else None
        buckets.append(BucketStatus(bucket, state.holder, txid, waits, since, state.stopped))
    return QueueStatus(
        waiting,
        [json.loads(row.curr or "") for row in skipped],
        buckets,
    )


def topology_of(queue: ExportQueue) -> str | None:
    """The topology that adds to ``queue``. None if nothing was ever added."""
    with queue.store.direct() as rows:
        (tallies,) = rows.read_ranges([layout.Names(queue.id).all_of("a")], 1)
    if not tallies:
        return None
    layout.Tally.of(tallies[0].curr or "").check(queue.id, queue.store.address, queue.buckets)
    return tallies[0].stamp.topology_id


def entries_of(queue: ExportQueue) -> Iterator[entries.SequencedExport]:
    """All entries that wait, bucket by bucket, in order, recorded or not."""
    names = layout.Names(queue.id)
    with queue.store.direct() as rows:
        for bucket in range(queue.buckets):
            for sequence, row, (key, value) in _lines(rows, names, bucket):
                yield entries.SequencedExport(
                    queue.id, bucket, keys.with_tuples(key), value, sequence, row.stamp.generation
                )


def retry(queue: ExportQueue, buckets: list[int]) -> list[int]:
    """Let ``buckets`` that have stopped go on, all if none is named. Returns which."""
    return [entry["bucket"] for entry in _go_on(queue, buckets, skips=False)]


def skip(queue: ExportQueue, bucket: int) -> dict[str, Any]:
    """Move ``bucket`` on over the entry at which it stopped, and keep the entry among the skipped
    ones, in one step. Returns the entry."""
    skipped = _go_on(queue, [bucket], skips=True)
    if not skipped:
        raise errors.UsageError(
            f"bucket {bucket} of export queue {queue.id!r} has not stopped\n  Look with `txtopo export show MODULE:queue`."
        )
    return skipped[0]


def _lines(
    rows: direct.Direct, names: layout.Names, bucket: int
) -> Iterator[tuple[int, stamps.Row, tuple[Any, Any]]]:
    """The entries of ``bucket``: sequence, row, and key with value."""
    begin, end = names.entries_of(bucket)
    sequence = -1
    while page := rows.read_ranges([(begin, end)], exporting.PAGE_ROWS)[0]:
        begin = f"{page[-1].key}~"
        for row in page:
            first = layout.Place.of(row.key).txid << entries.SEQUENCE_BITS
            for key, value in json.loads(row.curr or "")["entries"]:
                sequence = max(sequence + 1, first)
                yield sequence, row, (key, value)


def _go_on(queue: ExportQueue, buckets: list[int], skips: bool) -> list[dict[str, Any]]:
    """Let stopped ones of ``buckets`` go on. Returns the entries at which they had stopped."""
    names, passed = layout.Names(queue.id), []
    with queue.store.direct() as rows:
        (stored,) = rows.read_ranges([names.all_of("b")], queue.buckets)
        for row in stored:
            bucket, state = int(row.key[-4:]), layout.Bucket.of(row.curr or "")
            if (stopped := state.stopped) is None or (buckets and bucket not in buckets):
                continue
            entry = {name: stopped[name] for name in ("sequence", "key", "value", "error")}
            passed.append({"bucket": bucket, **entry})
            new, more = dataclasses.replace(state, stopped=None), dict[str, str]()
            if skips:
                new.sequence, done = stopped["sequence"], collections.Counter(state.done)
                done[str(stopped["task"])] += 1
                new.done = dict(done)
                more[names.skipped(bucket, new.sequence)] = layout.encode(passed[-1])
            texts = {row.key: new.text(), **more}
            new_rows = [stamps.Row(key, row.stamp, None, 0, [text]) for key, text in texts.items()]
            if not rows.exchange({row.key: row.curr, **dict.fromkeys(more)}, new_rows):
                raise errors.UsageError(
                    f"bucket {bucket} of export queue {queue.id!r} was changed meanwhile\n  Type the command again."
                )
    return passed


def replay(queue: ExportQueue, exporter: entries.Exporter, visible: VisibleTxid) -> int:
    """Tell the value that every key in the store has as of ``visible``, for a target that was lost
    and is empty. Returns how many entries were told.

    Their sequence lies between those of entries up to ``visible`` and those of later entries. A
    queue that was exported for an earlier generation then goes on in the present one. Entries of the
    earlier one that still wait are dropped, because their sequences are the earlier one's. The log
    says how many.

    :raises errors.OutrunError: the store has gone on too far. Ask again.
    """
    sequence = ((int(visible) + 1) << entries.SEQUENCE_BITS) - 1
    generation, told = layout.generation_of(visible), 0
    values = queue.store.items(as_of=visible)
    if queue.entry_of is not None:
        values = _queued(itertools.starmap(queue.entry_of, values))
    while portion := list(itertools.islice(values, exporting.BATCH)):
        by_bucket = collections.defaultdict[int, list[entries.SequencedExport]](list)
        for key, value in portion:
            bucket = layout.bucket_of(keys.encode_key(key), queue.buckets)
            by_bucket[bucket].append(
                entries.SequencedExport(queue.id, bucket, key, value, sequence, generation)
            )
        for of_bucket in by_bucket.values():
            entries.export_all(exporter, of_bucket)
        told += len(portion)
    _enter(queue, visible)
    return told


def _queued(pairs: Iterator[tuple[Any, Any] | None]) -> Iterator[tuple[Any, Any]]:
    """Keys and values as they come back from a queue."""
    for pair in pairs:
        if pair is not None:
            key, value = json.loads(layout.entry(keys.encode_key(pair[0]), pair[1]))
            yield keys.with_tuples(key), value


def _enter(queue: ExportQueue, visible: VisibleTxid) -> None:
    """Let the buckets belong to the generation of ``visible``, and drop adopted entries."""
    names, generation = layout.Names(queue.id), layout.generation_of(visible)
    with queue.store.direct() as rows:
        (stored,) = rows.read_ranges([names.all_of("b")], queue.buckets)
        texts = {row.key: row.curr or "" for row in stored}
        for bucket in range(queue.buckets):
            name = names.bucket(bucket)
            state = layout.Bucket.of(texts[name]) if name in texts else layout.Bucket()
            if state.generation == generation:
                continue
            removed, done, dropped = set[str](), collections.Counter(state.done), 0
            for sequence, old, _ in _lines(rows, names, bucket):
                is_adopted = old.stamp.attempt == stamps.UNKNOWN_ATTEMPT
                is_told, task = sequence <= state.sequence, str(layout.Place.of(old.key).task)
                if is_adopted or old.stamp.generation != visible.generation:
                    removed.add(old.key)
                    done[task] += not is_told
                    dropped += not is_told
                else:
                    done[task] -= is_told  # told once more
            new = layout.Bucket(state.epoch + 1, generation=generation, done=dict(done))
            if not rows.exchange(
                {name: texts.get(name)}, [leases.row(name, new.text(), visible, names)], removed
            ):
                raise errors.UsageError(
                    f"export queue {queue.id!r} was changed meanwhile\n  Type the command again."
                )
            if dropped:
                LOGGER.warning(
                    "export queue %r, bucket %d: %d entries that waited when the store was adopted are dropped,"
                    " and the target has the store's values only",
                    queue.id,
                    bucket,
                    dropped,
                )
