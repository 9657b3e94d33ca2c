"""Results as readers see them: by key or by prefix, as they are or as of a visible transaction.

Apart from ``base``, whose stores write, are adopted and are cleared: a reader needs rows and fences
only, and reads outside any transaction of the topology. ``visible`` has the rules for a row.
Standard library only.

Invariants:
    - A reading with ``as_of`` looks at the fences after it has read its first row.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Generator, Iterator
from typing import Any

from txtopo import errors
from txtopo.stores import codecs, export, keys, stamps, visible


@dataclasses.dataclass(frozen=True, slots=True)
class StoredValue:
    """A value with its stamp, for people looking into a store (:meth:`Store.inspect`)."""

    curr: Any
    prev: Any
    txid: int
    attempt: int
    component: str
    task: int
    topology_id: str
    generation: str


class Results(abc.ABC):
    """Keyed results in one place, to be read from anywhere."""

    name: str
    address: str
    plain: bool
    codec: codecs.Codec

    def get(
        self, key: keys.Key, default: Any = None, *, as_of: visible.VisibleTxid | None = None
    ) -> Any:
        """The committed value of ``key``, ``default`` if there is none; see :meth:`items` for
        ``as_of``."""
        row = self.read_row(keys.encode_key(key))
        texts = self._texts(iter(() if row is None else (row,)), as_of)
        return next((codecs.decode(self.codec, text) for _, text in texts), default)

    def inspect(self, key: keys.Key) -> StoredValue | None:
        """The committed value of ``key`` with its stamp, None if there is no such row; a deleted
        key may still have one."""
        row = self.read_row(keys.encode_key(key))
        if row is None:
            return None
        stamp = row.stamp
        return StoredValue(
            codecs.decode(self.codec, row.curr),
            codecs.decode(self.codec, row.prev),
            stamp.txid,
            stamp.attempt,
            stamp.component,
            stamp.task,
            stamp.topology_id,
            stamp.generation,
        )

    def items(self, *, as_of: visible.VisibleTxid | None = None) -> Iterator[tuple[keys.Key, Any]]:
        """Every committed ``(key, value)``, ordered by the key's text: one consistent state of the
        store, read as you go.

        The pairs are those of every transaction of the *database*, also of a transaction of the
        topology that is under way and may be replayed. With ``as_of``, the pairs are the values
        that ``topology_id`` had written here when that transaction had committed in all stores. The
        call fixes the state that is read.

        :raises errors.OutrunError: the state is gone; ask again, as :class:`txtopo.Visibility`
            does.
        :raises errors.StateMismatchError: the store is of another generation, or older than
            ``as_of`` (R27).
        :raises errors.UsageError: the store is plain, and knows no value before the last.
        """
        return self._pairs(self.read_from(""), as_of)

    def scan(
        self, prefix: str | tuple[keys.Key | None, ...], *, as_of: visible.VisibleTxid | None = None
    ) -> Iterator[tuple[keys.Key, Any]]:
        """Like :meth:`items`, only the ``str`` keys that begin with ``prefix``, or the tuples whose
        first elements it is."""
        return self._pairs(self._rows_under(prefix), as_of)

    def count(
        self,
        prefix: str | tuple[keys.Key | None, ...] | None = None,
        *,
        as_of: visible.VisibleTxid | None = None,
    ) -> int:
        """How many keys :meth:`items` gives, or :meth:`scan` with a ``prefix``. Values are not
        decoded, so that any codec will do."""
        rows = self.read_from("") if prefix is None else self._rows_under(prefix)
        return sum(1 for _ in self._texts(rows, as_of))

    def to_pandas(self, *, as_of: visible.VisibleTxid | None = None) -> Any:
        """:meth:`items` as a ``pandas.DataFrame``: columns ``key`` and ``value``; ``key_0``,
        ``key_1``, … where all keys are tuples of one length.

        A column of ``bool``, ``int``, ``float`` or ``str`` alone is one of pandas', where ``None``
        is NaN; any other holds the objects themselves.
        """
        return export.pandas_frame(self.items(as_of=as_of), self.address)

    def to_arrow(self, *, schema: Any = None, as_of: visible.VisibleTxid | None = None) -> Any:
        """The same as a ``pyarrow.Table``, with the types that ``schema`` gives, or else that Arrow
        finds for values of one type of Python.

        :raises errors.UsageError: a column would hold another value than the store; the error names
            the key. ``schema`` names other columns.
        """
        return export.arrow_table(self.items(as_of=as_of), self.address, schema)

    @abc.abstractmethod
    def fences(self) -> list[stamps.Fence]:
        """Every fence of this store, ordered by topology and component."""

    @abc.abstractmethod
    def read_row(self, text: str) -> stamps.Row | None:
        """One committed row, by the text of its key; None if there is no row."""

    @abc.abstractmethod
    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        """The committed rows of one state whose key's text is not below ``text``, ordered by code
        points."""

    def read_prefix(self, beginning: str) -> Iterator[stamps.Row]:
        """The committed rows whose key's text begins with ``beginning``, in the same order."""
        return itertools.takewhile(
            lambda row: row.key.startswith(beginning), self.read_from(beginning)
        )

    def read_under(self, itself: str, beginning: str) -> Iterator[stamps.Row]:
        """The committed row of the key's text ``itself``, and then those of :meth:`read_prefix`,
        all of one state.

        ``beginning`` is below ``itself``. A backend that can read twice in one transaction need not
        read the rows between the two.
        """
        read = itertools.takewhile(lambda row: row.key <= itself, self.read_from(beginning))
        under = [row for row in read if row.key == itself or row.key.startswith(beginning)]
        yield from sorted(under, key=lambda row: row.key != itself)

    def _pairs(
        self, rows: Iterator[stamps.Row], as_of: visible.VisibleTxid | None
    ) -> Iterator[tuple[keys.Key, Any]]:
        return (
            (keys.decode_key(key), codecs.decode(self.codec, text))
            for key, text in self._texts(rows, as_of)
        )

    def _texts(
        self, rows: Iterator[stamps.Row], as_of: visible.VisibleTxid | None
    ) -> Iterator[tuple[str, str]]:
        texts = (
            ((row.key, row.curr) for row in rows)
            if as_of is None
            else self._texts_as_of(rows, as_of)
        )
        return ((key, text) for key, text in texts if text is not None)

    def _rows_under(self, prefix: str | tuple[keys.Key | None, ...]) -> Iterator[stamps.Row]:
        itself, beginning = keys.prefix_texts(prefix)
        return self.read_prefix(beginning) if itself is None else self.read_under(itself, beginning)

    def _texts_as_of(
        self, rows: Iterator[stamps.Row], as_of: visible.VisibleTxid
    ) -> Iterator[tuple[str, str | None]]:
        # Fences only rise. If the fences allow the reading after the first row was read, they
        # allowed it for the state of all rows.
        first = list(itertools.islice(rows, 1))
        recorded = self._check_reaches(as_of)
        return (
            (row.key, visible.text_of(row, as_of, recorded)) for row in itertools.chain(first, rows)
        )

    def _check_reaches(self, as_of: visible.VisibleTxid) -> stamps.Recorded:
        """Refuse if the rows read up to now cannot be shown as of ``as_of``; return the recorded
        attempts of this store."""
        visibility: object = as_of
        if not isinstance(visibility, visible.VisibleTxid):
            raise errors.UsageError(
                f"a store cannot be read as of {as_of!r}: a number does not say which attempts count\n"
                "  Give what txtopo.visible_txid(…) returns."
            )
        if self.plain:
            raise errors.UsageError(
                f"store {self.address} is plain: it keeps no value before the last, so what it held as of transaction {int(as_of)} cannot be told\n"
                "  Read it as it is; or leave out plain=True."
            )
        recorded = visible.recorded(as_of.stores, self.name)
        visible.check_reaches(self.address, self.fences(), as_of, recorded)
        return recorded
