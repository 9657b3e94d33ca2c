"""Results as readers see them: by key or by prefix, at present or as of a visible transaction.

A reader needs only rows and fences, and reads outside the topology's transactions. ``visible`` has
the rules for a row. Standard library only.

Invariants:
    - A reading with ``as_of`` looks at the fences after its first row.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Iterator
from typing import Any

from txtopo import errors
from txtopo.stores import codecs, export, keys, stamps, visible


@dataclasses.dataclass(frozen=True, slots=True)
class StoredValue:
    """A value with its stamp, for people (see :meth:`Store.inspect`)."""

    curr: Any
    prev: Any
    txid: int
    attempt: int
    component: str
    task: int
    topology_id: str
    generation: str


class Results(abc.ABC):
    """Keyed results in one place, readable from anywhere."""

    name: str
    address: str
    plain: bool
    codec: codecs.Codec

    def get(
        self, key: keys.Key, default: Any = None, *, as_of: visible.VisibleTxid | None = None
    ) -> Any:
        """The committed value of ``key``, or ``default`` if there is none. See :meth:`items` for
        ``as_of``."""
        row = self.read_row(keys.encode_key(key))
        texts = self._texts((each for each in (row,) if each is not None), as_of)
        return next((codecs.decode(self.codec, text) for _, text in texts), default)

    def inspect(self, key: keys.Key) -> StoredValue | None:
        """The committed value of ``key`` with its stamp, None if there is no row. A deleted key may
        still have a row."""
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
        """Every committed ``(key, value)``, ordered by the keys' texts. The pairs are one
        consistent state, and are read lazily.

        Without ``as_of``, a pair is visible as soon as its *database* transaction has committed,
        even if the topology's transaction is under way and may be replayed. With ``as_of``, the
        pairs are the values that ``as_of.topology_id`` had written here when transaction ``as_of``
        had committed in all stores. The call fixes the state.

        :raises errors.OutrunError: the state is gone. Ask again, as :class:`txtopo.Visibility`
            does.
        :raises errors.StateMismatchError: the store has a different generation, or is older than
            ``as_of`` (R27).
        :raises errors.UsageError: the store is plain, and keeps only the last value.
        """
        return self._pairs(self._all_rows(), as_of)

    def scan(
        self, prefix: str | tuple[keys.Key | None, ...], *, as_of: visible.VisibleTxid | None = None
    ) -> Iterator[tuple[keys.Key, Any]]:
        """Like :meth:`items`, but only ``str`` keys that begin with ``prefix``, or tuples that
        begin with its elements."""
        return self._pairs(self._rows_under(prefix), as_of)

    def count(
        self,
        prefix: str | tuple[keys.Key | None, ...] | None = None,
        *,
        as_of: visible.VisibleTxid | None = None,
    ) -> int:
        """How many keys :meth:`items` gives, or :meth:`scan` with a ``prefix``. Values are not
        decoded, so any codec will do."""
        rows = self._all_rows() if prefix is None else self._rows_under(prefix)
        return sum(1 for _ in self._texts(rows, as_of))

    def to_pandas(self, *, as_of: visible.VisibleTxid | None = None) -> Any:
        """:meth:`items` as a ``pandas.DataFrame`` with the columns ``key`` and ``value``. If all
        keys are tuples with the same length, the columns ``key_0``, ``key_1``, … replace ``key``.

        A column with only ``bool``, ``int``, ``float`` or ``str`` has pandas' own type, and
        ``None`` is NaN. Any other column holds the objects themselves.
        """
        return export.pandas_frame(self.items(as_of=as_of), self.address)

    def to_arrow(self, *, schema: Any = None, as_of: visible.VisibleTxid | None = None) -> Any:
        """:meth:`items` as a ``pyarrow.Table``. ``schema`` gives the types, or Arrow finds them for
        values with the same Python type.

        :raises errors.UsageError: a column would hold a different value (the error names the key),
            or ``schema`` does not fit the columns.
        """
        return export.arrow_table(self.items(as_of=as_of), self.address, schema)

    @abc.abstractmethod
    def fences(self) -> list[stamps.Fence]:
        """All fences in this store, ordered by topology and component."""

    @abc.abstractmethod
    def read_row(self, text: str) -> stamps.Row | None:
        """A committed row, by its key's text. None if there is no row."""

    @abc.abstractmethod
    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        """The committed rows whose key's text is not below ``text``, all from one state, ordered by
        code points. Rows with reserved texts (:data:`keys.RESERVED`) may be left out."""

    def read_prefix(self, beginning: str) -> Generator[stamps.Row, None, None]:
        """The committed rows whose key's text begins with ``beginning``, in the same order."""
        with contextlib.closing(self.read_from(beginning)) as rows:
            yield from itertools.takewhile(lambda row: row.key.startswith(beginning), rows)

    def read_under(self, itself: str, beginning: str) -> Generator[stamps.Row, None, None]:
        """The committed row with the key's text ``itself``, and then the rows from
        :meth:`read_prefix`, all from one state.

        ``beginning`` is below ``itself``. A backend that can read twice in one transaction need not
        read the rows in between.
        """
        with contextlib.closing(self.read_from(beginning)) as rows:
            read = itertools.takewhile(lambda row: row.key <= itself, rows)
            under = [row for row in read if row.key == itself or row.key.startswith(beginning)]
        yield from sorted(under, key=lambda row: row.key != itself)

    def _pairs(
        self, rows: Generator[stamps.Row, None, None], as_of: visible.VisibleTxid | None
    ) -> Iterator[tuple[keys.Key, Any]]:
        return (
            (keys.decode_key(key), codecs.decode(self.codec, text))
            for key, text in self._texts(rows, as_of)
        )

    def _texts(
        self, rows: Generator[stamps.Row, None, None], as_of: visible.VisibleTxid | None
    ) -> Iterator[tuple[str, str]]:
        texts = (
            ((row.key, row.curr) for row in rows)
            if as_of is None
            else self._texts_as_of(rows, as_of)
        )
        return ((key, text) for key, text in texts if text is not None)

    def _all_rows(self) -> Generator[stamps.Row, None, None]:
        with contextlib.closing(self.read_from("")) as rows:
            yield from itertools.takewhile(lambda row: row.key < keys.RESERVED, rows)

    def _rows_under(
        self, prefix: str | tuple[keys.Key | None, ...]
    ) -> Generator[stamps.Row, None, None]:
        itself, beginning = keys.prefix_texts(prefix)
        return self.read_prefix(beginning) if itself is None else self.read_under(itself, beginning)

    def _texts_as_of(
        self, rows: Generator[stamps.Row, None, None], as_of: visible.VisibleTxid
    ) -> Iterator[tuple[str, str | None]]:
        # Fences only rise. If the fences allow the reading after its first row, the fences allowed
        # the state of all rows.
        try:
            first = list(itertools.islice(rows, 1))
            recorded = self._check_reaches(as_of)
        except BaseException:
            rows.close()  # or the traceback would keep the reader's connection
            raise
        return (
            (row.key, visible.text_of(row, as_of, recorded)) for row in itertools.chain(first, rows)
        )

    def _check_reaches(self, as_of: visible.VisibleTxid) -> stamps.Recorded:
        """Refuse if the rows read so far cannot be shown as of ``as_of``. Returns this store's
        recorded attempts."""
        visibility: object = as_of
        if not isinstance(visibility, visible.VisibleTxid):
            raise errors.UsageError(
                f"a store cannot be read as of {as_of!r}: a number does not say which attempts count\n"
                "  Give the result of txtopo.visible_txid(…)."
            )
        if self.plain:
            raise errors.UsageError(
                f"store {self.address} is plain: it keeps only the last values, and cannot show values as of transaction {int(as_of)}\n"
                "  Read the store without as_of, or leave out plain=True."
            )
        recorded = visible.recorded(as_of.stores, self.name)
        visible.check_reaches(self.address, self.fences(), as_of, recorded)
        return recorded
