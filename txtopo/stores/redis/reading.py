"""Reads a store in Redis outside transactions: one key, the fences, or all rows in order, from one
state.

Readers also take servers that writers refuse, such as replicas. Needs redis-py.

Rows are read in pages, each by one script, so that the server is never busy for long. Each page
names the store's version. If the version changes between pages, all rows are read again, in pages
ten times as large. The last time there is only one page, which no writer can interrupt. So every
reading ends and sees one state, even under constant writing. The price is memory: rows are held
until the last page is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txtopo import errors
from txtopo.stores import keys as key_texts
from txtopo.stores import rows as versions
from txtopo.stores import stamps
from txtopo.stores.redis import connection as connections
from txtopo.stores.redis import layout
from txtopo.stores.redis import session as sessions

PAGE_ROWS = 2_000
"""How many rows a page has at first."""

READINGS_MAX = 4
"""How often all rows are read if writers interrupt. The last time in one page."""


class Reader:
    """Reads store ``name`` over ``link``. Values must have the form ``form``. ``address`` is for
    messages."""

    def __init__(self, link: connections.Link, name: str, address: str, form: str) -> None:
        self._link, self._name, self._address, self._form = link, name, address, form
        self._names = layout.Names(name)

    @property
    def exists(self) -> bool:
        """Whether the store exists. Raises if the store has a different layout or a different
        form."""
        stored = self.form
        if stored is not None:
            versions.check_form(self._address, stored, self._form)
        return stored is not None

    @property
    def form(self) -> str | None:
        """The stored values' form, None if the store does not exist."""
        version, form = self._link.ask("HMGET", self._names.meta, "layout", "form")
        if version is None:
            return None
        check_layout(self._address, self._name, version)
        return str(form.decode())

    def row(self, text: str) -> stamps.Row | None:
        """The committed row with key ``text``."""
        kept = self._link.ask("HGET", self._names.rows, text) if self.exists else None
        return None if kept is None else layout.row_of(text, kept.decode())

    def fences(self) -> list[stamps.Fence]:
        """The store's fences, in order."""
        return sessions.fences_of(self._link, self._names) if self.exists else []

    def rows_from(self, text: str, beginning: str = "") -> Iterator[stamps.Row]:
        """The rows whose key's text is not below ``text`` and begins with ``beginning``, in order
        and from one state, without reserved texts. All rows are read before this method returns."""
        pairs = self.state(*_bounds(text, beginning))[1] if self.exists else []
        return (layout.row_of(key.decode(), row.decode()) for key, row in pairs)

    def first_rows(self, ranges: Sequence[tuple[str, str]], limit: int) -> list[list[stamps.Row]]:
        """The first rows in each range, all from one state, in one round trip. See
        :meth:`txtopo.stores.direct.Direct.read_ranges`."""
        bounds = [f"{side}{text}" for pair in ranges for side, text in zip("[(", pair, strict=True)]
        names = [self._names.meta, self._names.order, self._names.rows]
        version, form, _, _, *portions = self._link.run(layout.RANGES, names, [limit, *bounds])
        if version is None:
            return [[] for _ in ranges]
        check_layout(self._address, self._name, version)
        versions.check_form(self._address, form.decode(), self._form)
        return [
            [layout.row_of(key.decode(), row.decode()) for key, row in _pairs(*portion)]
            for portion in portions
        ]

    def state(self, low: bytes = b"-", high: bytes = b"+") -> tuple[str, list[tuple[bytes, bytes]]]:
        """A state's ``born`` and version, and its rows from ``low`` to ``high``, by default all:
        key and row as stored."""
        size = PAGE_ROWS
        for _ in range(READINGS_MAX - 1):
            if (pages := self._pages(low, high, size)) is not None:
                return pages
            size *= 10
        state, keys, rows = self._page(low, high, -1)
        return state, _pairs(keys, rows)

    def _pages(
        self, low: bytes, high: bytes, size: int
    ) -> tuple[str, list[tuple[bytes, bytes]]] | None:
        """The rows from all pages, None if the store changed between two pages."""
        first, keys, rows = self._page(low, high, size)
        pairs = _pairs(keys, rows)
        while len(keys) == size:
            state, keys, rows = self._page(b"(" + keys[-1], high, size)
            if state != first:
                return None
            pairs += _pairs(keys, rows)
        return first, pairs

    def _page(self, low: bytes, high: bytes, size: int) -> tuple[str, list[bytes], list[bytes]]:
        names = [self._names.meta, self._names.order, self._names.rows]
        _, _, *state, (keys, rows) = self._link.run(layout.RANGES, names, [size, low, high])
        return " ".join("" if part is None else part.decode() for part in state), keys, rows


def check_layout(address: str, name: str, version: bytes) -> None:
    """Refuse a store with a different layout version."""
    if int(version) != layout.LAYOUT_VERSION:
        raise errors.StateMismatchError(
            f"the server of {address} holds store {name!r} in layout {int(version)}; this txtopo knows layout {layout.LAYOUT_VERSION}\n"
            "  Nothing was changed. Use the txtopo that wrote the store, or another name."
        )


def _bounds(text: str, beginning: str) -> tuple[bytes, bytes]:
    # UTF-8 never has a byte 0xff, so every key with this beginning is below.
    end = beginning.encode() + b"\xff" if beginning else key_texts.RESERVED.encode()
    return b"[" + text.encode(), b"(" + end


def _pairs(keys: list[bytes], rows: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(keys, rows, strict=True))
