"""An export queue's rows, among its store's rows.

Keys, in their texts' order (numbers have leading zeros)::

    ~<queue>~a<task>                                  how many entries a task has added, with buckets and first generation
    ~<queue>~b<bucket>                                a bucket's state: its exporter, and the last told entry
    ~<queue>~e<bucket>~<txid>~<task>~<number>~<chunk> entries of one store transaction (its number in the task and attempt), in order
    ~<queue>~x<bucket>~<sequence>                     an entry that was skipped

Values are JSON. Tasks write ``a`` and ``e`` with the store's fence, exporters write ``b`` and ``x``
and remove ``e``. Standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from txtopo import errors
from txtopo.stores import keys
from txtopo.stores.visible import VisibleTxid
from txtopo.topology import grouping

CHUNK_BYTES = 32_000
"""How many characters of entries a row takes, unless a single entry is longer. It stays, like
:data:`CHUNK_ENTRIES` and ``queue.ENTRIES_HELD_MAX``: a replay must cut a transaction's entries into
the rows that an earlier version wrote."""

CHUNK_ENTRIES = 1000
"""How many entries a row takes."""

ROWS_MAX = 100_000
"""How many tasks and skipped entries are read."""

AFTER = "\x7f"
"""Sorts behind ``~``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """The keys of the queue ``queue``."""

    queue: str

    def added(self, task: int) -> str:
        return f"~{self.queue}~a{task:06d}"

    def bucket(self, bucket: int) -> str:
        return f"~{self.queue}~b{bucket:04d}"

    def entries(self, bucket: int, txid: int, task: int, number: int, chunk: int) -> str:
        return f"{self.entries_from(bucket, txid)}{task:06d}~{number:06d}~{chunk:06d}"

    def entries_from(self, bucket: int, txid: int) -> str:
        """Where the entries in ``bucket`` begin that transaction ``txid`` and later ones added."""
        return f"~{self.queue}~e{bucket:04d}~{txid:016d}~"

    def entries_of(self, bucket: int) -> tuple[str, str]:
        return f"~{self.queue}~e{bucket:04d}~", f"~{self.queue}~e{bucket:04d}{AFTER}"

    def skipped(self, bucket: int, sequence: int) -> str:
        return f"~{self.queue}~x{bucket:04d}~{sequence:019d}"

    def all_of(self, kind: str) -> tuple[str, str]:
        """The range with all keys for the letter ``kind``: ``a``, ``b`` or ``x``."""
        return f"~{self.queue}~{kind}", f"~{self.queue}~{kind}{AFTER}"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A row's transaction and task."""

    txid: int
    task: int

    @classmethod
    def of(cls, text: str) -> Place:
        _, _, _, txid, task, _, _ = text.split("~")
        return cls(int(txid), int(task))


def encode(value: Any) -> str:
    """``value`` as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check_queue(queue: str, buckets: int) -> None:
    """Refuse a wrong id, or a wrong number of buckets."""
    if not isinstance(queue, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", queue):
        raise errors.UsageError(
            f"an export queue cannot have the id {queue!r}\n  Use up to 40 letters, digits, _, . and -."
        )
    if type(buckets) is not int or not 1 <= buckets <= 256:
        raise errors.UsageError(
            f"export queue {queue!r} has buckets={buckets!r}\n  Give 1 to 256. Buckets are exported side by side, and the number stays."
        )


@dataclasses.dataclass(slots=True)
class Bucket:
    """A bucket's state. Compared as text when it is exchanged."""

    epoch: int = 0
    """Grows whenever another exporter takes the bucket."""
    holder: str = ""
    beat: int = 0
    """Changes while the holder lives."""
    generation: str = ""
    sequence: int = 0
    """The last entry that was told or skipped."""
    done: dict[str, int] = dataclasses.field(default_factory=dict)
    """By task: how many entries were told or skipped."""
    stopped: dict[str, Any] | None = None
    """The entry that stopped the bucket: ``sequence``, ``key``, ``value``, ``task``, ``error``,
    ``attempts``, ``goes_on`` (the target is away, and the entry is tried again)."""

    @property
    def waits_for_a_person(self) -> bool:
        """Whether the bucket has stopped until a person has it tried again, or skips the entry."""
        return self.stopped is not None and not self.stopped["goes_on"]

    @classmethod
    def of(cls, text: str) -> Bucket:
        return cls(**json.loads(text))

    def text(self) -> str:
        return encode({name: getattr(self, name) for name in self.__slots__})


def generation_of(visible: VisibleTxid) -> str:
    """In which sequences can be compared: a state that was restored from a copy counts again from an
    older txid, in its old generation."""
    return f"{visible.generation}+{visible.restored}" if visible.restored else visible.generation


def portions(texts: list[str]) -> Iterator[list[str]]:
    """``texts`` in portions for one row each."""
    begin, size = 0, 0
    for end, text in enumerate(texts):
        size += len(text)
        if end > begin and (size > CHUNK_BYTES or end - begin >= CHUNK_ENTRIES):
            yield texts[begin:end]
            begin, size = end, len(text)
    yield texts[begin:]


def chunk(opened_at: float, entries: list[str]) -> str:
    """A row's value for ``entries``, each made by :func:`entry`. ``opened_at``: seconds since
    1970."""
    return f'{{"at":{opened_at!r},"entries":[{",".join(entries)}]}}'


def entry(key: str, value: Any) -> str:
    """An entry as it stands in a chunk. ``key`` is the key's text in the store."""
    return f"[{key},{keys.encode_value(value)}]"


@functools.lru_cache(maxsize=1 << 14)
def bucket_of(key: str, buckets: int) -> int:
    """The bucket for a key (R16), from its text in the store, which has an enum's value in place of
    the enum. Keys come again in later transactions."""
    return grouping.task_for_key([keys.decode_key(key)], buckets)


@dataclasses.dataclass(frozen=True, slots=True)
class Tally:
    """How many entries a task has ever added."""

    buckets: int
    added: int
    generation: str
    """In which the task began to add. Remains if the store is adopted."""
    done: int = 0
    """How many were told or skipped when the task last looked."""

    @classmethod
    def of(cls, text: str) -> Tally:
        return cls(*json.loads(text))

    def text(self) -> str:
        return encode([self.buckets, self.added, self.generation, self.done])

    def check(self, queue: str, address: str, buckets: int) -> None:
        """Refuse another number of buckets than entries were added with."""
        if self.buckets != buckets:
            raise errors.UsageError(
                f"export queue {queue!r} in {address} has {self.buckets} buckets, not {buckets}\n"
                f"  Give buckets={self.buckets}, or choose another id for a new queue."
            )
