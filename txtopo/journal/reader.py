"""Reads a journal, the newest segments first, and no more than a question needs.

Readers change nothing, and a run may write meanwhile. Torn lines are skipped and counted. Lines in
other formats are skipped, and the formats are noted.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection
from pathlib import Path

from txtopo.journal import fold, records, writer

WINDOW_MAX = 1000
"""More transactions are never in flight at once (``max_spout_pending``): when a transaction
commits, no later one by more than this has begun."""

_TXID = re.compile(rb'"txid":(\d+)')
_BECAUSE_OF = re.compile(rb'"because_of":"(\d+)')
COMMITTED = re.compile(
    rb'\{"v":\d+,"kind":"attempt","at":[^,]*,"txid":(\d+),"attempt":(\d+),"outcome":"committed"'
)
"""How the line of a committed attempt begins. The spout's metadata follows, and may look alike."""
_IS_COMMITTED = b'"outcome":"committed"'

Keep = Callable[[bytes], bool]


def _last_commit(data: bytes) -> re.Match[bytes] | None:
    """The last line in ``data`` about a committed attempt."""
    at = len(data)
    while (at := data.rfind(_IS_COMMITTED, 0, at)) >= 0:
        at = data.rfind(b"\n", 0, at) + 1
        if (committed := COMMITTED.match(data, at)) is not None:
            return committed
    return None


class Reader:
    """The journal in the directory ``path``. Records come segment by segment: first the
    beginning of a run, then the run's attempts as they ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.torn = 0
        """How many torn lines were met."""
        self.other_versions: set[str] = set()
        """Other formats, by version."""

    def extent(self, generation: str | None = None) -> tuple[str | None, int | None, int]:
        """The ``generation``, by default the newest one, the first txid from which its commits have
        records (``None``: there is none), and the txid after its newest commit."""
        first, current, newest_of = None, 1, generation
        for segment in writer.segments(self._path):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                data = segment.read_bytes()
                heads = self._decode(data.partition(b"\n")[0])
                if not heads:
                    continue
                if generation is None and heads[0].get("generation") != newest_of:
                    first, current, newest_of = None, 1, heads[0].get("generation")
                if heads[0].get("generation") != newest_of:
                    continue
                oldest = COMMITTED.search(data)
                newest = _last_commit(data)
                begins_at = heads[0]["current"]
                if heads[0].get("continued"):
                    begins_at = None if oldest is None else int(oldest[1])
                first = begins_at if first is None else first
                current = max(current, heads[0]["current"], int(newest[1]) + 1 if newest else 1)
        return newest_of, first, current

    def recent(self, count: int) -> list[records.Record]:
        """All records about the ``count`` newest transactions, and more."""
        newest = 0

        def keep(line: bytes) -> bool:
            nonlocal newest
            attempt = _TXID.search(line)
            newest = newest if attempt is None else max(newest, int(attempt[1]))
            return True

        return self._read(keep, lambda: newest - count)

    def about(self, txids: Collection[int]) -> list[records.Record]:
        """All records about ``txids``, about attempts discarded with them, and about runs."""

        def keep(line: bytes) -> bool:
            attempt = _TXID.search(line)
            if attempt is None or int(attempt[1]) in txids:
                return True
            behind = _BECAUSE_OF.search(line) if b'"behind"' in line else None
            return behind is not None and int(behind[1]) in txids

        lowest = min(txids, default=0)
        return self._read(keep, lambda: lowest)

    def failed(self, count: int) -> list[records.Record]:
        """All records about the ``count`` newest transactions with failed attempts."""
        txids: set[int] = set()
        for record in self._read(lambda line: COMMITTED.match(line) is None, lambda: 0):
            if record["kind"] == "attempt" and record["outcome"] not in fold.NOT_FAILED:
                txids.add(record["txid"])
        return self.about(sorted(txids)[-count:])

    def _read(self, keep: Keep, lowest: Callable[[], int]) -> list[records.Record]:
        """Lines for which ``keep``, back to a commit before which no attempt of ``lowest()`` can
        have begun, and their run's beginning."""
        self.torn, self.other_versions = 0, set()
        backwards: list[records.Record] = []
        for segment in reversed(writer.segments(self._path)):
            try:
                head, *lines, rest = segment.read_bytes().split(b"\n")
            except (FileNotFoundError, ValueError):  # removed meanwhile, or cut in its first line
                continue
            self.torn += bool(rest)
            goes_on = True
            for line in reversed(lines):
                if keep(line):
                    backwards += self._decode(line)
                committed = COMMITTED.match(line)
                if committed is not None and int(committed[1]) + WINDOW_MAX < lowest():
                    goes_on = False
                    break
            backwards += self._decode(head)
            if not goes_on:
                break
        return backwards[::-1]

    def _decode(self, line: bytes) -> list[records.Record]:
        try:
            return [records.decode(line)]
        except records.OtherVersionError as error:
            self.other_versions.add(str(error.version))
        except ValueError:
            self.torn += 1
        return []
