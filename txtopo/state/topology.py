"""Keeps one topology's durable state, which two writes move on: *seal* and *record*.

A transaction is **sealed** before its first commit task starts: from then on effects may exist, and
a restart first replays exactly this transaction (R23). A transaction is **recorded** when it has
committed: ``current`` moves on, in one multi with everything that follows from the commit (R25).
Metadata for transactions that were opened meanwhile goes with the next write.

Only here do ``lease`` (who may write), ``writer`` (exactly once) and ``rotating`` (one value per
txid) meet. This module does not look into metadata.

Invariants:
- ``current`` only grows, by one. A txid is recorded only after it was sealed, for the same attempt.
- The record for ``current - 1`` is kept, because the metadata for ``current`` is made from it.
- After a write with an unknown outcome, or a write by another coordinator, this object never writes
  again.
"""

from __future__ import annotations

import datetime
import threading
import time
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from txtopo import errors
from txtopo.state import (
    base,
    components,
    layout,
    lease,
    positions,
    records,
    retry,
    rotating,
    writer,
)
from txtopo.topology import transaction

SETTING = "metadata_bytes_max"
METADATA_BYTES_MAX = 512 * 1024

Holder = lease.Holder
End = lease.End


@dataclass(frozen=True, slots=True)
class Seal:
    """Effects of ``attempt`` may exist. ``tasks`` counts each component's tasks. ``metadata``
    replays the batch. ``opened_at``, aware, is when the transaction was opened: no replay changes
    this time (R36)."""

    attempt: transaction.TransactionAttempt
    tasks: Mapping[str, int]
    metadata: Any = None
    opened_at: datetime.datetime | None = None

    def to_record(self) -> records.TxidRecord:
        return records.TxidRecord(
            txid=self.attempt.txid,
            status="sealed",
            attempt_id=self.attempt.attempt_id,
            tasks=dict(self.tasks),
            metadata=self.metadata,
            opened_at=None if self.opened_at is None else self.opened_at.isoformat(),
        )


class TopologyState:
    """One topology's state, held by one coordinator. Made by :meth:`open`.

    Thread-safe: one thread may open transactions (``txids``) while another commits them and a third
    stops the topology.
    """

    txids: rotating.RotatingTransactionalState[records.TxidRecord]
    """Records for every open txid and the last committed txid: strict, deferred. Changes are
    written with the next multi."""

    def __init__(
        self,
        store: base.StateStore,
        paths: layout.Layout,
        held: lease.Lease,
        waits: retry.Retry,
        metadata_bytes_max: int,
    ) -> None:
        """Load the stored state; the lease is taken already. Use :meth:`open`."""
        self._store = store
        self._paths = paths
        self._lease = held
        self._waits = waits
        self._bytes_max = metadata_bytes_max
        self._writing = threading.Lock()
        self._ended: errors.TxtopoError | None = None
        self._is_closed = False
        self._writer = writer.Writer(store, paths, held, waits)
        self._written_at_renewal = -1
        self._positions = positions.Positions(store, paths.positions)
        self._reading = threading.Lock()
        self._positions_of = self.current - 1
        stores = records.StoresRecord.find(store, paths.stores)
        if stores is None:
            raise errors.UnreadableStateError(
                paths.stores, "it is missing, although the topology has a generation"
            )
        self.known_stores: Mapping[str, transaction.RecordedAttempt] = stores.attempts
        """The stores with results from this generation, by ``component/store`` name: the last
        recorded attempt that opened each (R27, R31), with the count of its store transactions
        (R34)."""
        self.made_of = components.Components.find(store, paths.components)
        """The topology's components at the last write, None before the first write (R35)."""
        self._unwritten: list[base.Operation] = []
        """Operations that go out with the next write, a seal or a record."""
        self._says_made_of = self.made_of is not None
        self.txids = rotating.RotatingTransactionalState(
            store,
            paths.txids,
            strict_order=True,
            deferred=True,
            codec=_TxidCodec(),
            check=self._check_record,
        )
        if self.current > transaction.INIT_TXID and not self.txids.has_cache(self.current - 1):
            raise errors.UnreadableStateError(
                paths.txids,
                f"the record of txid {self.current - 1}, the last committed txid, is missing",
            )

    @classmethod
    def open(
        cls,
        store: base.StateStore,
        topology_id: str,
        holder: Holder,
        displaces: bool = False,
        metadata_bytes_max: int = METADATA_BYTES_MAX,
        wait_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        abandoned: threading.Event | None = None,
    ) -> TopologyState:
        """Take the topology and load its state. Make the state, with a random generation, if the
        topology is new.

        With ``displaces`` an existing lease does not count: its holder is known to be dead, because
        the store is ours alone, or is to be fenced, and will notice at its next write. ``wait_s``
        is how long any call waits for a ZooKeeper that is away. The event ``abandoned``, when set,
        acts like :meth:`abandon`, even while this call waits.

        :raises HeldError: a live coordinator holds the topology. Names its host, pid and start.
        :raises UnreadableStateError: a record cannot be understood. Nothing was changed but the
            epoch.
        :raises ZooKeeperUnavailableError: no answer for ``wait_s``.
        """
        paths = layout.Layout(topology_id)
        held = lease.Lease(
            store, paths, holder, displaces, new_id, lambda epoch: _first_nodes(paths, epoch)
        )
        waits = retry.Retry(store, wait_s, clock, abandoned)
        waits.call(held.take)
        try:
            return waits.call(lambda: cls(store, paths, held, waits, metadata_bytes_max))
        except BaseException:
            with suppress(base.StateConflictError, base.StateUnavailableError):
                held.release()
            raise

    @property
    def generation(self) -> str:
        """This incarnation's random id (R27)."""
        return self._lease.generation

    @property
    def taken_from(self) -> records.LeaseRecord | None:
        """The lease that was replaced, if there was one."""
        return self._lease.taken_from

    @property
    def epoch(self) -> int:
        """How often this topology has been taken, this time included: 1, 2, 3 … (R1, R26)."""
        return self._lease.epoch

    @property
    def current(self) -> int:
        """The next txid to commit. 1 for a new topology."""
        return self._writer.current

    def remember(self, made_of: components.Components) -> None:
        """Name the topology's present components in the next write, a seal or a record."""
        if made_of != self.made_of:
            data = made_of.encode()
            path = self._paths.components
            self._unwritten = [
                base.Set(path, data) if self._says_made_of else base.Create(path, data)
            ]
            self.made_of = made_of

    def positions(self) -> dict[int, Any]:
        """Metadata by partition, after the commit of ``current - 1``."""
        return self._positions.all()

    def committed_positions(self) -> tuple[int, dict[int, Any]]:
        """The newest recorded txid (0 without one) and metadata by partition after its commit. The
        two belong together, even while another thread records."""
        with self._reading:
            return self._positions_of, self._positions.all()

    def sealed(self) -> records.TxidRecord | None:
        """The record for ``current`` if sealed, else None. The transaction's effects may exist, and
        it must be replayed as the record says."""
        record = self.txids.find(self.current)
        return record if record is not None and record.status == "sealed" else None

    def seal(
        self,
        attempt: transaction.TransactionAttempt,
        tasks: Mapping[str, int],
        metadata: Any,
        opened_at: datetime.datetime | None = None,
    ) -> None:
        """Make durable that effects of ``attempt`` may exist; ``attempt.txid`` is ``current``. One
        multi.

        Replaces the txid's stored record, and keeps ``metadata`` and ``opened_at`` unchanged.
        Sealing again, for a new attempt, is allowed.

        :raises BatchTooLargeError: the record exceeds ``metadata_bytes_max``. Nothing was changed.
        """
        self._write(self.current, [], Seal(attempt, tasks, metadata, opened_at))

    def require_recordable(self, txid: int, positions: Mapping[int, Any]) -> None:
        """Refuse everything that :meth:`record` would refuse, now, before effects of ``txid`` can
        exist.

        :raises BatchTooLargeError: recording that ``positions`` have moved would take more than
            ``metadata_bytes_max``.
        """
        newest = transaction.RecordedAttempt(
            txid, transaction.attempt_id(self.epoch + 1, 0), records.COUNT_MAX
        )
        size = self._required_bytes(
            [
                *self._positions.operations(positions),
                self._set_stores(dict.fromkeys(self.known_stores, newest)),
            ],
            None,
        )
        if size > self._bytes_max:
            raise self._too_large(f"the record of txid {txid}", size, len(positions))

    def record(
        self,
        attempt: transaction.TransactionAttempt,
        positions: Mapping[int, Any],
        touched_stores: Mapping[str, int] = types.MappingProxyType({}),
        next_seal: Seal | None = None,
    ) -> None:
        """Make durable that ``attempt``, a sealed attempt, has committed. One multi.

        ``positions`` is the metadata for the partitions that moved. ``touched_stores`` counts the
        attempt's committed store transactions, by ``component/store`` name (R34). ``next_seal``
        seals the next txid in the same multi. Only if the two do not fit into one multi, a second
        multi seals.

        :raises BatchTooLargeError: one write would exceed ``metadata_bytes_max``. That write was
            not made.
        """
        sealed = self.sealed()
        if sealed is None or (sealed.txid, sealed.attempt_id) != (attempt.txid, attempt.attempt_id):
            raise ValueError(
                f"attempt {attempt} cannot be recorded: the sealed attempt is {sealed and f'{sealed.txid}:{sealed.attempt_id}'}"
            )
        if next_seal is not None and next_seal.attempt.txid != attempt.txid + 1:
            raise ValueError(
                f"the seal of {next_seal.attempt} cannot follow the record of {attempt}"
            )
        opened = {
            name: transaction.RecordedAttempt(attempt.txid, attempt.attempt_id, count)
            for name, count in touched_stores.items()
        }
        stores = {**self.known_stores, **opened}
        operations = self._positions.operations(positions)
        if stores != self.known_stores:
            operations.append(self._set_stores(stores))
        self.txids.cleanup_before(attempt.txid)
        rides_along = (
            next_seal
            if next_seal is not None
            and self._required_bytes(operations, next_seal) <= self._bytes_max
            else None
        )
        self._write(
            attempt.txid + 1,
            operations,
            rides_along,
            subject=f"the record of txid {attempt.txid}",
            partitions=len(positions),
        )
        with self._reading:
            self._positions.apply(positions)
            self._positions_of = attempt.txid
        self.known_stores = stores
        if next_seal is not None and rides_along is None:
            self._write(self.current, [], next_seal)

    def renew(self) -> None:
        """Take the lease again if its session has expired. Notice if the topology was taken while
        nothing was written.

        To be called now and then. Costs no round trip while transactions are written, because every
        write checks the epoch. Does not wait for a ZooKeeper that is away.

        :raises FencedError: another coordinator has taken the topology meanwhile.
        """
        written, self._written_at_renewal = self._written_at_renewal, self._writer.written
        if (
            written != self._writer.written and not self._lease.is_in_doubt
        ) or not self._writing.acquire(blocking=False):
            return
        try:
            self._raise_if_ended()
            with suppress(base.StateUnavailableError):
                self._ending(
                    self._lease.reclaim if self._lease.is_in_doubt else self._lease.require_epoch
                )
        finally:
            self._writing.release()

    def require_held(self) -> None:
        """Check that the topology is still ours: a fenced coordinator need not know yet. Waits for
        ZooKeeper like a write.

        :raises FencedError: another coordinator has taken the topology.
        :raises ZooKeeperUnavailableError: no answer for as long as we wait.
        """
        with self._writing:
            self._raise_if_ended()
            self._ending(lambda: self._waits.call(self._lease.require_epoch))

    def abandon(self) -> None:
        """Make a call that waits for ZooKeeper raise, and every later write, too. Runs on: any
        thread."""
        self._waits.abandon()

    def close(self, end: End | None = None) -> None:
        """Abandon, and give the lease back: the next coordinator need not wait for the session to
        end. Keeps how the run ended. May be called again.

        Does not wait for ZooKeeper. If ZooKeeper is away, the lease ends with the session.
        """
        self._waits.abandon()
        with self._writing:
            if not self._is_closed:
                self._is_closed = True
                with suppress(base.StateConflictError, errors.ZooKeeperUnavailableError):
                    self._lease.release(end)

    def _write(
        self,
        current: int,
        operations: Sequence[base.Operation],
        seal: Seal | None,
        subject: str = "",
        partitions: int = 0,
    ) -> None:
        with self._writing:
            self._raise_if_ended()
            sealed: dict[int, records.TxidRecord] = {}
            if seal is not None:
                if seal.attempt.txid != current:
                    raise ValueError(
                        f"attempt {seal.attempt} cannot be sealed: the next txid to commit is {current}"
                    )
                sealed[seal.attempt.txid] = seal.to_record()
                if not subject:
                    subject = f"the seal of txid {seal.attempt.txid}"
                    partitions = _entries(seal.metadata)
            size = self._required_bytes(operations, seal)
            if size > self._bytes_max:
                raise self._too_large(subject, size, partitions)
            for txid, record in sealed.items():
                self.txids.override_state(txid, record)
            operations = [*operations, *self._unwritten]
            fixed = [*self._writer.fixed_operations(current), *operations]
            changes = self.txids.take_operations(
                self._bytes_max - base.size_of(fixed), required=sealed
            )
            inside: list[writer.Inside] = (
                [("record.inside", self.current)] if current != self.current else []
            )
            inside.extend(("seal.inside", txid) for txid in sealed)
            self._ending(lambda: self._writer.write(current, [*operations, *changes], inside))
            self._says_made_of = self._says_made_of or bool(self._unwritten)
            self._unwritten = []

    def _set_stores(self, stores: Mapping[str, transaction.RecordedAttempt]) -> base.Operation:
        return base.Set(self._paths.stores, records.StoresRecord.of(stores).encode())

    def _required_bytes(self, operations: Sequence[base.Operation], seal: Seal | None) -> int:
        values = {} if seal is None else {seal.attempt.txid: seal.to_record()}
        return base.size_of(
            [*self._writer.fixed_operations(self.current), *operations, *self._unwritten]
        ) + self.txids.required_bytes(values)

    def _check_record(self, txid: int, record: records.TxidRecord, data: bytes) -> None:
        if record.txid != txid:
            raise ValueError(f"the record of txid {record.txid} cannot be kept under txid {txid}")
        size = base.size_of(self._writer.fixed_operations(self.current)) + base.size_of(
            [base.Create(f"{self._paths.txids}/{txid:010d}", data)]
        )
        if size > self._bytes_max:
            raise self._too_large(f"the record of txid {txid}", size, _entries(record.metadata))

    def _too_large(self, subject: str, size: int, partitions: int) -> errors.BatchTooLargeError:
        return errors.BatchTooLargeError(
            f"{subject}, with the metadata of {partitions} partitions,",
            size,
            self._bytes_max,
            SETTING,
            f"Let fewer than {partitions} partitions move in one transaction, make their metadata smaller, or raise {SETTING} "
            f"(beyond 1 MiB also the ZooKeeper servers' jute.maxbuffer).",
        )

    def _ending(self, call: Callable[[], None]) -> None:
        """Call ``call()``. If it fails for good, this object writes nothing any more."""
        try:
            call()
        except base.StateUnavailableError:
            raise
        except errors.TxtopoError as error:
            self._ended = error
            raise
        except BaseException:
            self._ended = errors.ZooKeeperUnavailableError(
                "a write was interrupted, its outcome is unknown\n  Run the topology again: it resumes."
            )
            raise

    def _raise_if_ended(self) -> None:
        if self._ended is not None:
            raise self._ended


class _TxidCodec(records.Codec[records.TxidRecord]):
    """Codec for records, each with its znode's txid."""

    def encode(self, value: records.TxidRecord) -> bytes:
        return value.encode()

    def decode(self, path: str, data: bytes) -> records.TxidRecord:
        record = records.TxidRecord.decode(path, data)
        if record.txid != int(path.rpartition("/")[2]):
            raise errors.UnreadableStateError(path, f"it is the record of txid {record.txid}")
        return record


def _first_nodes(paths: layout.Layout, epoch: records.EpochRecord) -> list[base.Create]:
    return [
        writer.Writer.first_node(paths, epoch, transaction.INIT_TXID),
        base.Create(paths.txids),
        base.Create(paths.positions),
        base.Create(paths.stores, records.StoresRecord.of({}).encode()),
    ]


def _entries(metadata: Any) -> int:
    """How many partitions ``metadata`` has, for a message. ``metadata`` is a dict by partition, or
    has such a dict under ``partitions``."""
    if not isinstance(metadata, Mapping):
        return 1
    partitions = metadata.get("partitions")
    return len(partitions) if isinstance(partitions, Mapping) else len(metadata)
