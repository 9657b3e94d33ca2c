"""Parts that exporters with a connection share. Standard library only.

Invariants:
    - A connection is in no pickle, and is not used again after an error.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from txtopo import errors
from txtopo.exports.entries import Exporter, SequencedExport
from txtopo.stores import keys

REPLAY = "Then type `txtopo export replay --from-store MODULE:queue MODULE:exporter`."
"""Ends a cure that empties the target."""


class LinkedExporter(Exporter):
    """An exporter that keeps a connection, and tells only the last of a call's entries for each
    key. ``address`` names the target in messages."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._link: Any = None

    def export(self, entries: Iterator[SequencedExport]) -> None:
        last = {entry.key: entry for entry in entries}
        if not last:
            return
        try:
            self._tell(list(last.values()))
        except BaseException:
            self.close()
            raise

    @abc.abstractmethod
    def _tell(self, last: Sequence[SequencedExport]) -> None:
        """Tell the entries ``last``, whose keys differ."""

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            # The server may be gone, which is no news at the end.
            with contextlib.suppress(Exception):
                link.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_link": None}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    def _backend(self, database: str, extra: str) -> Any:
        try:
            return importlib.import_module(f"txtopo.stores.{database}.backend")
        except ImportError as error:
            raise errors.SetupError(
                f"{self!r} needs a driver, which cannot be imported: {error}\n  Type: pip install 'txtopo[{extra}]'"
            ) from error

    def _mismatch(
        self, entry: SequencedExport, stored: str, cure: str
    ) -> errors.StateMismatchError:
        """The error if the target has the generation ``stored`` at the key of ``entry``."""
        return errors.StateMismatchError(
            f"{self.address} has generation {stored!r} at key {entry.key!r}, and the entries have generation {entry.generation!r}\n"
            f"  Two generations' sequences cannot be compared. {cure}"
        )


def text_of(key: keys.Key) -> str:
    """``key`` in the target: a text as it is, any other key as JSON."""
    return key if isinstance(key, str) else keys.encode_key(key)
