"""The entries in an export queue, and the exporters' base class.

Runs on executors, drivers and exporting processes: standard library only.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from txtopo import errors

SEQUENCE_BITS = 24
"""How many bits of a sequence count a bucket's entries in a transaction."""

ENTRIES_MAX = 2 ** (SEQUENCE_BITS - 1)
"""The most entries for a bucket in a transaction. The numbers' upper half is for replays."""


@dataclasses.dataclass(frozen=True, slots=True)
class SequencedExport:
    """An entry: a key with its new value."""

    queue: str
    """The queue's id."""
    bucket: int
    """The queue's part with all entries for ``key``, in order."""
    key: Any
    """As it was given to ``add``: a ``str``, an ``int``, or a tuple with these and ``None``."""
    value: Any
    """As JSON gives it back: tuples became lists."""
    sequence: int
    """Grows with every entry in a bucket, while the generation stays, except that all entries of a
    replay have one. Fits 63 bits."""
    generation: str
    """The topology's generation (R27), with a sign for the newest restored copy of the state, if
    there is one. Sequences from two generations cannot be compared."""

    @property
    def txid(self) -> int:
        """The transaction that added the entry."""
        return self.sequence >> SEQUENCE_BITS

    @property
    def is_replayed(self) -> bool:
        """Whether ``txtopo export replay`` tells the entry: all entries of a replay have the last
        sequence of their transaction."""
        return (self.sequence + 1) % (1 << SEQUENCE_BITS) == 0


class Exporter(abc.ABC):
    """Tells another system what changed.

    It may be called with the same entries again, after entries with higher sequences, and in two
    processes at once: a process may have died after it told the system, or may be slow and tell it
    later. So the system must keep each key's sequence, and refuse entries without a higher one.
    ``txtopo.testing.check_exporter`` tells whether it does.
    """

    promise: ClassVar[str] = "at least once, in order, and a target refuses old sequences"
    """How entries reach the system, for people: ``explain`` shows it."""

    @abc.abstractmethod
    def export(self, entries: Iterator[SequencedExport]) -> None:
        """Tell the system, and return when it is certain. ``entries`` need not be read to their
        end: the last one that was taken, and all behind it, then come again.

        Runs on: the driver (``run.export``), or a process of ``txtopo export``. Called: by one
        thread. Each bucket's entries are in order. On an exception all of ``entries`` come again.
        After some exceptions a bucket stops. It goes on by itself if the exception says that the
        system is away: a ``FailedException``, ``ConnectionError`` or ``TimeoutError``, an
        ``OSError`` for a host that cannot be reached, or an ``OSError`` raised from one of these.
        Leave ``entry.value`` as it is, unless the call takes all ``entries``: one that was taken
        and not told is the same object.
        """

    def close(self) -> None:
        """End connections. The next :meth:`export` opens them again."""


UNASKED = "export() returned without asking for a second entry"


def export_some(exporter: Exporter, entries: Sequence[SequencedExport]) -> int:
    """Call ``export`` once. Returns how many of ``entries`` are told: those after which the exporter
    asked for the next one."""
    told = 0

    def handed_out() -> Iterator[SequencedExport]:
        nonlocal told
        for entry in entries:
            yield entry
            told += 1

    exporter.export(handed_out())
    return told


def export_all(exporter: Exporter, entries: Sequence[SequencedExport]) -> None:
    """Call ``export`` until all ``entries``, a bucket's, are told.

    :raises errors.TxtopoError: a call told no entry.
    """
    while entries:
        told = export_some(exporter, entries)
        if not told:
            raise errors.TxtopoError(
                f"{UNASKED}\n  Read on: the last entry that was taken comes again."
            )
        entries = entries[told:]


class EntryRefusedError(Exception):
    """The system does not take an entry, and would not take the entry again.

    ``key`` is the entry's key, ``why`` the reason. No ``TxtopoError``, because only the entry's
    bucket stops, after some attempts.
    """

    def __init__(self, key: Any, why: str) -> None:
        super().__init__(key, why)
        self.key, self.why = key, why

    def __str__(self) -> str:
        return (
            f"the entry for key {self.key!r} is refused: {self.why}\n"
            "  Mend the target, then retry. Or skip the entry, and mend the component that adds such entries."
        )
