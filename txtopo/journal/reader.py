"""Reads a journal, the newest segments first, and no more than a question needs.

Changes nothing, so a run may write meanwhile. Torn lines are skipped and counted. Lines in another
version of the format are skipped, and their versions noted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path

from txtopo.journal import records, writer

WINDOW_MAX = 1000
"""More transactions are never in flight at once (``max_spout_pending``): when a transaction
commits, no later one by more than this has begun."""

_TXID = re.compile(rb'"(?:txid":|because_of":")(\d+)')
_COMMITTED = re.compile(rb'"txid":(\d+),"attempt":\d+,"outcome":"committed"')
_ATTEMPT = b'"kind":"attempt"'
_IS_COMMITTED = b'"outcome":"committed"'

Keep = Callable[[bytes], bool]


class Reader:
    """The journal in the directory ``path``. Records come in the order of the segments: first the
    beginning of a run, then the run's attempts as they ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.torn = 0
        """How many torn lines were met."""
        self.other_versions: set[str] = set()
        """Other versions of the format that were met."""

    @property
    def exists(self) -> bool:
        """Whether there is a journal."""
        return bool(writer.segments(self._path))

    def since(self, txid: int) -> list[records.Record]:
        """All records about ``txid`` and later transactions, and more."""
        return self._read(lambda line: True, lambda: txid)

    def recent(self, count: int) -> list[records.Record]:
        """All records about the ``count`` newest transactions, and more."""
        newest = 0

        def keep(line: bytes) -> bool:
            nonlocal newest
            committed = _COMMITTED.search(line)
            if committed is not None:
                newest = max(newest, int(committed[1]))
            return True

        return self._read(keep, lambda: newest - count)

    def about(self, txids: Collection[int]) -> list[records.Record]:
        """All records about ``txids``, about attempts discarded with them, and about runs."""

        def keep(line: bytes) -> bool:
            return _ATTEMPT not in line or any(int(txid) in txids for txid in _TXID.findall(line))

        return self._read(keep, lambda: min(txids, default=0))

    def failed(self, count: int) -> list[records.Record]:
        """All records about the ``count`` newest transactions with failed attempts."""
        txids: set[int] = set()
        for record in self._read(lambda line: _IS_COMMITTED not in line, lambda: 0):
            if record["kind"] == "attempt" and record["outcome"] not in ("behind", "abandoned"):
                txids.add(record["txid"])
        return self.about(sorted(txids)[-count:])

    def _read(self, keep: Keep, lowest: Callable[[], int]) -> list[records.Record]:
        """Lines for which ``keep``, back to the segment in which no attempt of ``lowest()`` can
        have begun."""
        self.torn, self.other_versions = 0, set()
        read: list[list[records.Record]] = []
        for segment in reversed(writer.segments(self._path)):
            try:
                data = segment.read_bytes()
            except FileNotFoundError:  # the run has removed it meanwhile
                break
            *lines, rest = data.split(b"\n")
            self.torn += bool(rest)
            read.append([record for line in lines if keep(line) for record in self._decoded(line)])
            committed = _COMMITTED.search(data)
            if committed is not None and int(committed[1]) + WINDOW_MAX < lowest():
                break
        return [record for part in reversed(read) for record in part]

    def _decoded(self, line: bytes) -> list[records.Record]:
        try:
            return [records.decode(line)]
        except records.OtherVersionError as error:
            self.other_versions.add(str(error.version))
        except ValueError:
            self.torn += 1
        return []
