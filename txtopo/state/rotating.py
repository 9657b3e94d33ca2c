"""Keeps one value per txid, and only the newest few: Storm's ``RotatingTransactionalState`` (R24).

This sorted map with rules for the next txid knows nothing about leases or seals. Changes are
written at once. When *deferred*, changes are collected until :meth:`take_operations` hands them
over for a larger multi.

Invariants:
- The memory equals the store, but for the txids in ``pending``. After a failed write, the store is
  read again before use.
- Values are kept encoded: no caller can change a stored value through an object that went in or
  came out.
- ``init`` is never called under the lock that :meth:`take_operations` needs: a slow ``init`` delays
  opening, never a commit.
- In strict order the txids have no gap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar, cast

from txtopo import errors
from txtopo.state import base, records
from txtopo.topology import transaction

NULL = b"null"
TXID_DIGITS = 10
IN_ORDER = "Values are made in txid order, without gaps."

V = TypeVar("V")


class StrictOrderError(errors.TxtopoError):
    """A txid was asked for out of order (Storm: ``IllegalStateException``): a gap, or a txid below
    an existing txid."""


class RotatingTransactionalState(Generic[V]):
    """Values by txid under the znode ``path`` in ``store``.

    Values are JSON, or the type that ``codec`` makes from JSON. A skipped txid has the value None.
    ``check(txid, value, data)`` is called before a value is accepted, and may raise to refuse the
    value; ``data`` is the encoded value.
    """

    def __init__(
        self,
        store: base.StateStore,
        path: str,
        strict_order: bool = False,
        deferred: bool = False,
        codec: records.Codec[V] | None = None,
        check: Callable[[int, V, bytes], None] | None = None,
    ) -> None:
        """Load the stored values. Unless deferred, make ``path`` and its parents if missing.

        :raises UnreadableStateError: a stored value cannot be understood.
        """
        self._store, self._path = store, base.check_path(path)
        self._strict, self._deferred = strict_order, deferred
        self._codec: records.Codec[V] = codec or cast("records.Codec[V]", records.JsonCodec())
        self._check = check
        self._opening = threading.RLock()
        self._lock = threading.RLock()
        self._data: dict[int, bytes] = {}
        self._stored: set[int] = set()
        self._changed: set[int] = set()
        self._cleaned_below = transaction.INIT_TXID
        self._is_doubtful = False
        if not deferred:
            store.ensure(path)
        self._load()

    def get_state(self, txid: int, init: Callable[[int, V | None], V]) -> V | None:
        """The value of ``txid``. A txid without a value gets, and keeps,
        ``init(txid, value of the txid below or None)``.

        Without strict order, a txid below an existing txid gets None, and ``init`` is not called.

        :raises StrictOrderError: in strict order, the txid before has no value, or a later txid has
            one.
        """
        return self._get_or_make(txid, init)[0]

    def get_state_or_create(self, txid: int, init: Callable[[int, V | None], V]) -> V | None:
        """Like :meth:`get_state`, but None if this call made the value."""
        value, was_made = self._get_or_make(txid, init)
        return None if was_made else value

    def _get_or_make(self, txid: int, init: Callable[[int, V | None], V]) -> tuple[V | None, bool]:
        with self._opening:
            with self._lock:
                self._reload_if_doubtful()
                if txid in self._data:
                    return self._decode(txid), False
                self._require_order(txid)
                if any(other > txid for other in self._data):
                    self._put(txid, NULL)
                    return None, True
                before = max((other for other in self._data if other < txid), default=None)
                last = None if before is None else self._decode(before)
            value = init(txid, last)
            data = self._encode(txid, value)
            with self._lock:
                if txid in self._data:
                    return self._decode(txid), False
                # The txid before may have committed meanwhile, and been cleaned away. If it was
                # removed instead, this value has no predecessor.
                if (
                    self._strict
                    and before is not None
                    and before not in self._data
                    and before >= self._cleaned_below
                ):
                    raise StrictOrderError(
                        f"{self._path}: txid {before} was removed while the value of {txid} was made from it\n  Ask again."
                    )
                self._put(txid, data)
                return self._decode(txid), True

    def get_last_state(self) -> V | None:
        """The greatest txid's value, None without a txid."""
        with self._lock:
            self._reload_if_doubtful()
            return self._decode(max(self._data)) if self._data else None

    def find(self, txid: int) -> V | None:
        """The value of ``txid``, None without a value."""
        with self._lock:
            self._reload_if_doubtful()
            return self._decode(txid) if txid in self._data else None

    def override_state(self, txid: int, value: V) -> None:
        """Set the value of ``txid``, in any order, over any earlier value."""
        _require_txid(txid)
        data = self._encode(txid, value)
        with self._lock:
            self._reload_if_doubtful()
            self._put(txid, data)

    def remove_state(self, txid: int) -> None:
        """Forget the value of ``txid``, if there is a value."""
        with self._lock:
            self._reload_if_doubtful()
            if self._data.pop(txid, None) is not None:
                self._change({txid})

    def has_cache(self, txid: int) -> bool:
        """Whether ``txid`` has a value, even None."""
        with self._lock:
            self._reload_if_doubtful()
            return txid in self._data

    def cleanup_before(self, txid: int) -> None:
        """Forget every txid below ``txid``, even if that leaves none."""
        with self._lock:
            self._reload_if_doubtful()
            self._cleaned_below = max(self._cleaned_below, txid)
            below = {other for other in self._data if other < txid}
            for other in below:
                del self._data[other]
            if below:
                self._change(below)

    def txids(self) -> list[int]:
        """All txids with a value, ascending."""
        with self._lock:
            self._reload_if_doubtful()
            return sorted(self._data)

    @property
    def pending(self) -> frozenset[int]:
        """Txids with a change that is not handed over yet. Empty unless deferred."""
        with self._lock:
            return frozenset(self._changed)

    def take_operations(
        self, bytes_max: int | None = None, required: Collection[int] = ()
    ) -> list[base.Operation]:
        """Hand over the changes since the last call, at most one operation per txid.

        Removals and the txids in ``required`` are always handed over. The other txids follow in
        ascending order, as long as all operations together have at most ``bytes_max`` bytes. From
        here on the changes count as performed: if their multi is not applied, this object has to be
        made anew.
        """
        with self._lock:
            removed = sorted(txid for txid in self._changed if txid not in self._data)
            needed = sorted(
                txid for txid in self._changed if txid in self._data and txid in required
            )
            taken = [*removed, *needed]
            size = base.size_of([self._operation(txid) for txid in taken])
            for txid in sorted(self._changed.difference(taken)):
                size += base.size_of([self._operation(txid)])
                # Stop at the first change that does not fit, so that the stored txids have no gaps.
                if bytes_max is not None and size > bytes_max:
                    break
                taken.append(txid)
            operations = [self._operation(txid) for txid in taken]
            self._changed.difference_update(taken)
            self._stored.difference_update(removed)
            self._stored.update(txid for txid in taken if txid in self._data)
            return operations

    def required_bytes(self, values: dict[int, V]) -> int:
        """Least size, in bytes, that :meth:`take_operations` hands over once ``values`` have been
        set."""
        with self._lock:
            removed = [
                self._operation(txid)
                for txid in self._changed
                if txid not in self._data and txid not in values
            ]
            return base.size_of(
                [
                    *removed,
                    *(
                        base.Set(self._path_of(txid), self._codec.encode(value))
                        for txid, value in values.items()
                    ),
                ]
            )

    def _load(self) -> None:
        data: dict[int, bytes] = {}
        for name in self._store.children(self._path):
            path = f"{self._path}/{name}"
            if not (
                name.isascii()
                and name.isdigit()
                and name == _name_of(int(name))
                and int(name) >= transaction.INIT_TXID
            ):
                raise errors.UnreadableStateError(
                    path, f"its name is not a txid with {TXID_DIGITS} digits"
                )
            node = self._store.get(path)
            if node is not None:
                self._decode_value(path, node.data)
                data[int(name)] = node.data
        self._data, self._stored, self._changed, self._is_doubtful = data, set(data), set(), False

    def _reload_if_doubtful(self) -> None:
        if self._is_doubtful:
            self._load()

    def _require_order(self, txid: int) -> None:
        _require_txid(txid)
        if not self._strict:
            return
        if any(other > txid for other in self._data):
            raise StrictOrderError(
                f"{self._path}: txid {txid} has no value, but txid {max(self._data)} has\n  {IN_ORDER}"
            )
        if txid != transaction.INIT_TXID and txid - 1 not in self._data:
            newest = f"the newest is {max(self._data)}" if self._data else "there is none"
            raise StrictOrderError(
                f"{self._path}: txid {txid} cannot follow, for {newest}\n  {IN_ORDER}"
            )

    def _put(self, txid: int, data: bytes) -> None:
        self._data[txid] = data
        self._change({txid})

    def _change(self, txids: set[int]) -> None:
        self._changed |= txids
        # A value that was made and forgotten between two hand-overs never reaches the store.
        self._changed = {
            txid for txid in self._changed if txid in self._data or txid in self._stored
        }
        if self._deferred:
            return
        try:
            operations = self.take_operations()
            if operations:
                self._store.multi(operations)
        except BaseException:
            self._is_doubtful = True
            raise

    def _operation(self, txid: int) -> base.Operation:
        path = self._path_of(txid)
        if txid not in self._data:
            return base.Delete(path)
        return (
            base.Set(path, self._data[txid])
            if txid in self._stored
            else base.Create(path, self._data[txid])
        )

    def _path_of(self, txid: int) -> str:
        return f"{self._path}/{_name_of(txid)}"

    def _encode(self, txid: int, value: V) -> bytes:
        data = self._codec.encode(value)
        if self._check is not None:
            self._check(txid, value, data)
        return data

    def _decode(self, txid: int) -> V | None:
        return self._decode_value(self._path_of(txid), self._data[txid])

    def _decode_value(self, path: str, data: bytes) -> V | None:
        # A txid is skipped only without strict order. In strict order the codec reads null.
        return None if data == NULL and not self._strict else self._codec.decode(path, data)


def _name_of(txid: int) -> str:
    return f"{txid:0{TXID_DIGITS}d}"


def _require_txid(txid: Any) -> None:
    if not isinstance(txid, int) or isinstance(txid, bool) or txid < transaction.INIT_TXID:
        raise ValueError(f"{txid!r} is not a txid: txids are 1, 2, 3 …")
