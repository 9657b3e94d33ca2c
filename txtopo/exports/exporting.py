"""Takes entries out of a queue and hands them to an exporter, each bucket's in order.

Only recorded transactions' entries are taken: others may still be taken back (R31). Told entries are
removed in one exchange with the bucket's state. A process that dies before the exchange, or is
overtaken, leaves the entries to be told again. Runs on: the driver, or a process of ``txtopo
export``. Standard library only.

Invariants:
    - A bucket's position moves only over entries that the exporter took from its iterator in a call
      that returned, or that a person skipped.
    - An entry has the same sequence for every reader: a transaction's rows in a bucket are removed
      together, when the last entry has been told.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import itertools
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from txtopo import errors
from txtopo.exports import entries, layout, leases
from txtopo.exports.queue import ExportQueue
from txtopo.stores import direct, keys, stamps
from txtopo.stores import visible as visibles
from txtopo.stores.visible import VisibleTxid
from txtopo.topology import redaction

LOGGER = logging.getLogger("txtopo")

BATCH = 1000
"""The most entries in a call."""

BATCH_CHARACTERS = 2**20
"""How many characters of entries a call gets, unless a single entry is longer."""

PAGE_ROWS = 256
"""How many rows from all buckets together are in memory. A row may have a megabyte."""

POLL_S = 0.1
"""Pause between looks for a newly recorded transaction, if nothing tells of one."""

PAUSE_S = 1.0
"""Pause after the state or the store did not answer."""

AWAY_S = 60.0
"""How long state and store may give no answer, where nothing else bounds the wait."""

_CURES = {
    True: "\n  It goes on when the target is there again.",
    False: "\n  See `txtopo export show MODULE:queue`, then retry or skip.",
}

_NO_WAY = (
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    socket.EAI_AGAIN,
)
"""Numbers of errors that say that no way leads to a host."""
_BEHIND_MAX = 10
"""How many errors behind an error are looked at."""

ERROR_CHARACTERS = 2000
"""How much of an error is kept."""

BACK_OFF_MAX_S = 30.0
"""The longest pause before entries are handed to a failing exporter again."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    """An entry that was read and is still to be told."""

    entry: entries.SequencedExport
    task: int
    characters: int
    row: str
    """The key of its row."""
    ends_row: bool


@dataclasses.dataclass(slots=True)
class _Reading:
    """How far a held bucket has been read."""

    epoch: int
    position: int
    """The bucket's sequence after the last change."""
    at: str
    """The key from which the next rows are read."""
    txid: int = 0
    ordinal: int = 0
    """How many entries from ``txid`` were read."""
    lines: collections.deque[_Line] = dataclasses.field(default_factory=collections.deque)
    told: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    """Txids and keys of rows that were told to their end, and are to be removed."""
    whole_to: int = -1
    """The last transaction that was visible when all visible entries had been read."""
    failures: collections.Counter[bool] = dataclasses.field(default_factory=collections.Counter)
    """In a row, by whether they said that the target is away: an outage is no attempt at the entry,
    and no end of its refusals."""
    alone_until: int = 0
    """Entries up to this sequence are told singly, because one has failed."""
    due: float = 0.0

    @property
    def is_suspect(self) -> bool:
        """Whether the next entry may be the one at fault."""
        return self.position < self.alone_until


class Exporting:
    """An exporter at work on a queue, for one thread.

    :param visible: gives the topology's last recorded transaction.
    :param max_attempts: after so many failures in a row the bucket stops, until a person has it
        tried again or skips the entry.
    """

    def __init__(
        self,
        queue: ExportQueue,
        exporter: entries.Exporter,
        visible: Callable[[], VisibleTxid],
        *,
        max_attempts: int = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(exporter, entries.Exporter):
            raise errors.UsageError(
                f"export queue {queue.id!r} was given {exporter!r}\n  Give an Exporter, such as HttpExporter(…)."
            )
        if type(max_attempts) is not int or max_attempts < 1:
            raise errors.UsageError(
                f"the export of queue {queue.id!r} has max_attempts={max_attempts!r}\n  Give a positive integer."
            )
        self._queue, self.exporter, self._visible = queue, exporter, visible
        self._max_attempts, self._clock = max_attempts, clock
        self._is_stopped: Callable[[], bool] = lambda: False
        self._names = layout.Names(queue.id)
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        """Names this exporter in the buckets' rows."""
        self._leases = leases.Leases(
            self._names, queue.store.address, queue.buckets, self.holder, clock
        )
        self._readings: dict[int, _Reading] = {}
        self._rows: direct.Direct | None = None
        self._known: VisibleTxid | None = None
        self._most = BATCH
        """How many entries the next call gets, at most."""

    def run(
        self,
        is_stopped: Callable[[], bool],
        wake: threading.Event,
        ends: threading.Event,
        end_s: float,
    ) -> None:
        """Export until ``is_stopped()``, or, after ``ends`` is set, until nothing is left, but not for
        longer than ``end_s`` seconds. ``wake`` is set when there may be something to do.

        :raises errors.TxtopoError: a person must mend something: store and state do not fit, an
            exporter cannot begin. Failing targets stop buckets only.
        :raises errors.FailedException: with ``ends`` set and an infinite ``end_s``, a store that gives
            no answer for :data:`AWAY_S`. The same holds for the state, with its error.
        """
        told, lost, deadline = "", float("inf"), float("inf")

        def is_over() -> bool:
            nonlocal deadline
            if ends.is_set():
                deadline = min(deadline, self._clock() + end_s)
            return is_stopped() or self._clock() > deadline

        self._is_stopped = is_over
        try:
            while not is_stopped():
                wake.clear()
                pause, why = 0.0, ""
                is_over()  # the time to the end begins
                try:
                    if not self.step():
                        pause = POLL_S
                        if ends.is_set() and self.is_empty():
                            return
                    lost = float("inf")
                except (errors.FailedException, errors.ZooKeeperUnavailableError) as error:
                    lost = min(lost, self._clock())
                    is_lost = self._clock() - lost > AWAY_S
                    if is_lost and ends.is_set() and deadline == float("inf"):
                        raise
                    pause, why = PAUSE_S, str(error)
                if why and why != told:
                    LOGGER.warning("export queue %r waits: %s", self._queue.id, why)
                told = why
                if is_over():
                    if not is_stopped():
                        LOGGER.warning("export queue %r: entries are left", self._queue.id)
                    return
                wake.wait(pause)
        finally:
            self.close()

    def step(self) -> bool:
        """Tell each bucket's next entries. False if there were none to tell now."""
        visible = self._visible()
        generation = layout.generation_of(visible)
        if self._known is not None and layout.generation_of(self._known) != generation:
            raise errors.StateMismatchError(
                f"topology {visible.topology_id!r} has begun anew while export queue {self._queue.id!r} was exported\n"
                "  Empty the target, and start the exporter again."
            )
        self._known = visible
        self._rows = self._rows or self.open_rows()
        self._leases.tend(self._rows, visible)
        self._begin(visible)
        active = [
            held
            for held in self._leases.held.values()
            if not held.state.waits_for_a_person
            and self._readings[held.number].due <= self._clock()
        ]
        self._read([held for held in active if self._wants_more(held, visible)], visible)
        suspects = [held for held in active if self._readings[held.number].is_suspect]
        others = [held for held in active if not self._readings[held.number].is_suspect]
        others.sort(key=lambda held: self._readings[held.number].position)
        told = 0
        for group in (others, *([held] for held in suspects)):
            if self._is_stopped():
                break
            self._leases.tend(self._rows, visible)
            told += self._tell([held for held in group if self._leases.holds(held)], visible)
        return told > 0

    def open_rows(self) -> direct.Direct:
        """Open a connection to the queue's store, for another thread's :meth:`is_empty`."""
        return self._queue.store.direct()

    def is_empty(self, rows: direct.Direct | None = None) -> bool:
        """Whether no entry of a transaction that is recorded now is left, in buckets that do not wait
        for a person. Looks at other exporters' buckets, too, by the exporter's own connection unless
        ``rows`` is given."""
        visible = self._visible()
        if rows is None:
            rows = self._rows = self._rows or self.open_rows()
        (stored,) = rows.read_ranges([self._names.all_of("b")], self._queue.buckets)
        stopped = {
            row.key for row in stored if row.curr and layout.Bucket.of(row.curr).waits_for_a_person
        }
        ranges = [
            (
                self._names.entries_from(number, 0),
                self._names.entries_from(number, int(visible) + 1),
            )
            for number in range(self._queue.buckets)
            if self._names.bucket(number) not in stopped
        ]
        recorded = visibles.recorded(visible.stores, self._queue.store.name)
        # Rows that do not count lie behind those that do: the queue has one writing component.
        firsts = rows.read_ranges(ranges, 1)
        return not any(_is_recorded(row, recorded) for page in firsts for row in page)

    def close(self) -> None:
        """Leave the buckets to others, and end connections."""
        try:
            if self._rows is not None and self._known is not None:
                self._leases.release(self._rows, self._known)
        except (errors.FailedException, errors.TxtopoError) as error:
            LOGGER.warning("export queue %r could not leave its buckets: %s", self._queue.id, error)
        finally:
            if self._rows is not None:
                self._rows.close()
            self._rows = None
            self.exporter.close()

    def _begin(self, visible: VisibleTxid) -> None:
        """Begin to read the buckets that are newly held, or that a person has moved on."""
        new = [
            held
            for held in self._leases.held.values()
            if (known := self._readings.get(held.number)) is None
            or (known.epoch, known.position) != (held.state.epoch, held.state.sequence)
        ]
        if new:
            self._check([held.state for held in new], visible)
        for held in new:
            self._read_anew(held)

    def _read_anew(self, held: leases.Held, alone_until: int = 0) -> None:
        state = held.state
        at = self._names.entries_from(held.number, state.sequence >> entries.SEQUENCE_BITS)
        self._readings[held.number] = _Reading(
            state.epoch, state.sequence, at, alone_until=alone_until
        )

    def _check(self, states: Sequence[layout.Bucket], visible: VisibleTxid) -> None:
        """Refuse a queue that does not belong to the state (R27)."""
        queue, generation = self._queue, layout.generation_of(visible)
        other = [state.generation for state in states if state.generation != generation]
        if other:
            but = (
                ", unless the queue is new since the state was restored" if visible.restored else ""
            )
            raise errors.StateMismatchError(
                f"export queue {queue.id!r} in {queue.store.address} belongs to generation {other[0]} of topology {visible.topology_id!r},"
                f" and ZooKeeper is at generation {generation}\n"
                f"  Sequences from two generations cannot be compared. Empty the target{but}.\n"
                "  Then type `txtopo export replay --from-store MODULE:queue MODULE:exporter`.\n"
                "  Entries that waited when the store was adopted are dropped then. `txtopo export show MODULE:queue` counts them."
            )
        # Entries of recorded transactions do not change any more, however far the store has gone on.
        with contextlib.suppress(errors.OutrunError):
            visibles.check_reaches(
                queue.store.address,
                queue.store.fences(),
                visible,
                visibles.recorded(visible.stores, queue.store.name),
            )

    def _wants_more(self, held: leases.Held, visible: VisibleTxid) -> bool:
        reading = self._readings[held.number]
        return not reading.lines and reading.whole_to != visible

    def _read(self, wanted: Sequence[leases.Held], visible: VisibleTxid) -> None:
        """Read the next rows for the buckets in ``wanted``."""
        assert self._rows is not None
        readings = [self._readings[held.number] for held in wanted]
        ranges = [
            (reading.at, self._names.entries_from(held.number, int(visible) + 1))
            for held, reading in zip(wanted, readings, strict=True)
        ]
        # A part for each held bucket, read or not: so no more of their rows are ever in memory.
        most = max(PAGE_ROWS // max(len(self._leases.held), 1), 1)
        pages = self._rows.read_ranges(ranges, most) if ranges else []
        recorded = visibles.recorded(visible.stores, self._queue.store.name)
        for held, reading, page in zip(wanted, readings, pages, strict=True):
            reading.whole_to = int(visible) if len(page) < most else -1
            for row in page:
                reading.at = f"{row.key}~"
                if _is_recorded(row, recorded):
                    self._take_in(held, reading, row, visible)

    def _take_in(
        self, held: leases.Held, reading: _Reading, row: stamps.Row, visible: VisibleTxid
    ) -> None:
        queue, place = self._queue, layout.Place.of(row.key)
        if place.txid != reading.txid:
            reading.txid, reading.ordinal = place.txid, 0
        pairs = json.loads(row.curr or "")["entries"]
        size = len(row.curr or "") // len(pairs)
        for index, (key, value) in enumerate(pairs, 1):
            sequence = (place.txid << entries.SEQUENCE_BITS) + reading.ordinal
            reading.ordinal += 1
            if reading.ordinal > entries.ENTRIES_MAX:
                raise errors.TxtopoError(
                    f"transaction {place.txid} has more than {entries.ENTRIES_MAX} entries in a bucket of export queue {queue.id!r}\n"
                    "  Make the batches smaller."
                )
            if sequence > held.state.sequence:
                entry = entries.SequencedExport(
                    queue.id,
                    held.number,
                    keys.with_tuples(key),
                    value,
                    sequence,
                    layout.generation_of(visible),
                )
                ends = index == len(pairs)
                reading.lines.append(_Line(entry, place.task, size, row.key, ends))
            elif index == len(pairs):
                reading.told.append((place.txid, row.key))

    def _tell(self, group: Sequence[leases.Held], visible: VisibleTxid) -> int:
        """Hand the group's next entries to the exporter, and move on over those that it took.
        Returns how many."""
        batch = [line for held in group for line in self._batch(held, len(group))][: self._most]
        began, told = self._clock(), 0
        if batch:
            try:
                handed = [line.entry for line in batch]
                if len(batch) == 1:  # it is kept, if the call fails
                    value = json.loads(json.dumps(handed[0].value))
                    handed = [dataclasses.replace(handed[0], value=value)]
                told = entries.export_some(self.exporter, handed)
                if not told:
                    raise RuntimeError(entries.UNASKED)
            except errors.TxtopoError:
                raise  # a person must mend it, for all buckets
            except Exception as error:
                self._failed(group, batch, error, visible)
                return 0
            self._most = min(2 * self._most, BATCH)
            took_s = self._clock() - began
            if took_s > leases.LEASE_S:
                LOGGER.warning(
                    "export queue %r: a call took %d s, and others may take its buckets after %d s",
                    self._queue.id,
                    took_s,
                    leases.LEASE_S,
                )
            if took_s > leases.LEASE_S / 2:
                self._most = max(told // 2, 1)  # a longer call would lose the buckets
        self._move(group, batch[:told], visible)
        return told

    def _batch(self, held: leases.Held, of: int) -> list[_Line]:
        """A bucket's next lines, for a call that serves ``of`` buckets."""
        reading = self._readings[held.number]
        most, characters = 1 if reading.is_suspect else -(-BATCH // of), 0
        batch: list[_Line] = []
        for line in itertools.islice(reading.lines, most):
            characters += line.characters
            if batch and characters > BATCH_CHARACTERS // of:
                break
            batch.append(line)
        return batch

    def _move(
        self, group: Sequence[leases.Held], told: Sequence[_Line], visible: VisibleTxid
    ) -> None:
        """Remember that ``told`` were told, and remove whole transactions' rows, in one exchange."""
        assert self._rows is not None
        new, removed = dict[int, layout.Bucket](), list[str]()
        moved = dict[int, _Reading]()
        lines_of = collections.defaultdict[int, list[_Line]](list)
        for line in told:
            lines_of[line.entry.bucket].append(line)
        for held in group:
            reading, lines = self._readings[held.number], lines_of[held.number]
            state = held.state
            if lines:
                done = collections.Counter(state.done)
                done.update(str(line.task) for line in lines)
                sequence = lines[-1].entry.sequence
                state = dataclasses.replace(state, sequence=sequence, done=dict(done), stopped=None)
            for line in lines:
                reading.lines.popleft()
                if line.ends_row:
                    reading.told.append((line.entry.txid, line.row))
            # A transaction's rows stay until its last entry is told: they number the entries.
            unfinished = reading.lines[0].entry.txid if reading.lines else reading.txid
            if not reading.lines and reading.whole_to >= 0:
                unfinished += 1
            over = [key for txid, key in reading.told if txid < unfinished]
            if lines or over:
                new[held.number], moved[held.number] = state, reading
                del self._readings[held.number]  # until it is certain
                removed += over
                reading.told = [(txid, key) for txid, key in reading.told if txid >= unfinished]
        if new and self._leases.change(self._rows, visible, new, removed):
            for number, reading in moved.items():
                reading.failures.clear()
                reading.due, reading.position = 0.0, new[number].sequence
                self._readings[number] = reading

    def _failed(
        self,
        group: Sequence[leases.Held],
        batch: Sequence[_Line],
        error: Exception,
        visible: VisibleTxid,
    ) -> None:
        """Remember a failure. After a call with several entries each is told singly, so that the
        entry at fault is known."""
        assert self._rows is not None
        if len(batch) > 1:
            last = {line.entry.bucket: line.entry.sequence for line in batch}
            for held in group:
                if held.number in last:  # the exporter may have changed the values in memory
                    self._read_anew(held, last[held.number])
            LOGGER.warning(
                "export queue %r tells its next %d entries singly: %s",
                self._queue.id,
                len(batch),
                _safe_text(error),
            )
            return
        entry = batch[0].entry
        held = next(held for held in group if held.number == entry.bucket)
        reading = self._readings[held.number]
        reading.alone_until = max(reading.alone_until, entry.sequence)
        is_away = _is_outage(error)
        reading.failures[is_away] += 1
        pause = min(0.1 * 2 ** min(reading.failures.total(), 10), BACK_OFF_MAX_S)
        reading.due, attempts = self._clock() + pause, reading.failures[is_away]
        stops = attempts >= self._max_attempts
        LOGGER.log(
            logging.ERROR if stops else logging.WARNING,
            "export queue %r, bucket %d %s key %r (attempt %d of %d): %s",
            self._queue.id,
            held.number,
            "stops at" if stops else "has failed at",
            entry.key,
            attempts,
            self._max_attempts,
            f"{_safe_text(error)}{_CURES[is_away] if stops else ''}",
        )
        if not stops:
            return
        stopped = {
            "sequence": entry.sequence,
            "key": entry.key,
            "value": entry.value,
            "task": batch[0].task,
            "error": _safe_text(error),
            "attempts": attempts,
            "goes_on": is_away,
        }
        self._leases.change(
            self._rows, visible, {held.number: dataclasses.replace(held.state, stopped=stopped)}
        )
        if not is_away:
            del self._readings[held.number]


def _is_outage(error: Exception) -> bool:
    """Whether ``error``, or an error behind an ``OSError``, says that the target is away. Clients for
    HTTP raise an ``OSError`` of their own, for a service's refusal too."""
    if isinstance(error, errors.FailedException):
        return True
    behind: BaseException | None = error if isinstance(error, OSError) else None
    for _ in range(_BEHIND_MAX):
        if isinstance(behind, ConnectionError | TimeoutError) or (
            isinstance(behind, OSError) and behind.errno in _NO_WAY
        ):
            return True
        behind = behind and (behind.__cause__ or behind.__context__)
    return False


def _safe_text(error: Exception) -> str:
    """An exporter's error as it may be stored and shown: without passwords and control characters."""
    return redaction.printable(
        redaction.redacted(f"{type(error).__name__}: {error}")[:ERROR_CHARACTERS]
    )


def _is_recorded(row: stamps.Row, recorded: stamps.Recorded) -> bool:
    """Whether the attempt that wrote ``row`` counts."""
    last = recorded.get(row.stamp.component)
    return last is not None and row.stamp.txid <= last.txid
