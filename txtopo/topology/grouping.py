"""Groupings: how a receiver wants tuples spread over its tasks (R16), and how ``fields`` encodes
keys.

A grouping is only data here. ``txtopo.dataplane.route`` acts on it. The key encoding is public: it
decides for a topology's life where a key goes. So the encoding is versioned, and its test vectors
are pinned.

Key encoding, version 1: every value becomes a tag byte and a body. A key joins its values, each
preceded by its length (4 bytes, big-endian). The task is the first 8 bytes of the key's BLAKE2b
(digest size 8), big-endian, modulo the task count.

====================  =====  ====================================================================
value                 tag    body
====================  =====  ====================================================================
None                  ``0``
number                ``n``  bool, int, float and Decimal by numeric value:
                             ``numerator/denominator`` in lowest terms, decimal digits; ``nan``,
                             ``inf``, ``-inf``
str                   ``s``  UTF-8 (lone surrogates passed through)
bytes, bytearray      ``b``  as they are
UUID                  ``u``  16 bytes
date                  ``d``  ISO 8601
datetime, naive       ``t``  ISO 8601 with microseconds
datetime, aware       ``T``  the same, in UTC; where UTC has no such year, microseconds since 1970
enum                  ``e``  name, UTF-8 (``Flag.A | Flag.B`` is ``A|B``; a flag without a name is
                             refused)
tuple, list           ``l``  the encoded items, each preceded by its length
TransactionAttempt    ``a``  the txid, decimal digits: every attempt of a batch is routed alike
====================  =====  ====================================================================
"""

from __future__ import annotations

import datetime
import enum
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from typing import Any, Literal, Protocol, runtime_checkable

from txtopo.topology.stream import Fields
from txtopo.topology.transaction import TransactionAttempt

KEY_ENCODING_VERSION = 1

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

GroupingKind = Literal[
    "shuffle",
    "fields",
    "global",
    "all",
    "none",
    "local_or_shuffle",
    "direct",
    "partial_key",
    "custom",
]


@dataclass(frozen=True, slots=True)
class GroupingTraits:
    """What kinds of groupings do. The plan and the checks go by these traits, the routing by
    the kind as well."""

    stays_local: bool = False
    """All tuples of a task go to one task, which may be in the same process."""
    one_task: bool = False
    """Every tuple goes to task 0."""
    by_key: bool = False
    """The values of ``fields`` decide, so every tuple's key is encoded, for one task too."""
    spreads_keys: bool = False
    """Tuples with equal keys go to different tasks."""
    sender_chooses: bool = False
    """User code on the sender's side names the tasks."""
    many_tasks: bool = False
    """A tuple may go to several tasks, and each needs its own copy."""


TRAITS: Mapping[GroupingKind, GroupingTraits] = {
    "shuffle": GroupingTraits(spreads_keys=True),
    "fields": GroupingTraits(by_key=True),
    "global": GroupingTraits(one_task=True),
    "all": GroupingTraits(spreads_keys=True, many_tasks=True),
    "none": GroupingTraits(stays_local=True, spreads_keys=True),
    "local_or_shuffle": GroupingTraits(stays_local=True, spreads_keys=True),
    "direct": GroupingTraits(sender_chooses=True),
    "partial_key": GroupingTraits(by_key=True, spreads_keys=True),
    "custom": GroupingTraits(sender_chooses=True, many_tasks=True),
}


@runtime_checkable
class CustomGrouping(Protocol):
    """Chooses a tuple's receiving tasks (Storm: ``CustomStreamGrouping``)."""

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        """The receiving task indices (none, one or many; 0 … tasks - 1) for a tuple emitted by task
        ``task_index``. ``values[0]`` is the attempt.

        Runs on: executor. Called: once per tuple. Order: as emitted. On replay: again, on a fresh
        copy, and must choose the same tasks. So the choice may depend on the tuple and on this
        sender's earlier tuples in this attempt, and on nothing else (R17). The classic mistake:
        ``hash(str)``, which differs from process to process.
        """
        ...


@dataclass(frozen=True, slots=True)
class Grouping:
    """How one receiver wants the tuples of one stream."""

    kind: GroupingKind
    fields: Fields | None = None
    custom: CustomGrouping | None = None

    @property
    def traits(self) -> GroupingTraits:
        return TRAITS[self.kind]

    def __str__(self) -> str:
        if self.custom is not None:
            return f"custom({type(self.custom).__qualname__})"
        return f"{self.kind}({', '.join(self.fields)})" if self.fields is not None else self.kind


class UnsupportedKeyError(TypeError):
    """A value that fields grouping cannot route repeatably."""

    def __init__(self, value_type: str) -> None:
        super().__init__(value_type)
        self.value_type = value_type

    def __str__(self) -> str:
        return (
            f"fields grouping cannot route on a value of type {self.value_type}\n"
            "  Group on None, bool, int, float, Decimal, str, bytes, UUID, date, datetime, an enum, or tuples and lists of these."
            " Emit such a value as its own field."
        )


_PRINTABLE_BITS = 2000
_DECIMAL_EXPONENT_MAX = 100_000


def _digits(value: int) -> bytes:
    """``value`` in decimal. Python refuses to print integers beyond a length that an environment
    variable sets. Decimal does not."""
    return b"%d" % value if value.bit_length() <= _PRINTABLE_BITS else str(Decimal(value)).encode()


def _number(value: float | Decimal) -> bytes:
    if math.isnan(value) if isinstance(value, float) else value.is_nan():
        return b"nnan"
    if value in (float("inf"), float("-inf")):
        return b"ninf" if value > 0 else b"n-inf"
    if not value:
        return b"n0/1"
    if isinstance(value, Decimal) and abs(value.adjusted()) > _DECIMAL_EXPONENT_MAX:
        raise UnsupportedKeyError(f"decimal.Decimal beyond 1E±{_DECIMAL_EXPONENT_MAX}")
    exact = Fraction(value)
    return b"n" + _digits(exact.numerator) + b"/" + _digits(exact.denominator)


def _instant(value: datetime.datetime) -> bytes:
    try:
        return (
            value.astimezone(datetime.UTC)
            .replace(tzinfo=None)
            .isoformat(timespec="microseconds")
            .encode()
        )
    except OverflowError:
        return b"%d" % ((value - _EPOCH) // datetime.timedelta(microseconds=1))


def _name_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def encode_key(values: Sequence[Any]) -> bytes:
    """Encode a key with one or several values, in version 1."""
    parts = []
    for value in values:
        body = encode_value(value)
        parts.append(len(body).to_bytes(4, "big") + body)
    return b"".join(parts)


def encode_value(value: Any) -> bytes:
    """Encode one value, in version 1. Raises :class:`UnsupportedKeyError` for a type without an
    encoding."""
    if type(value) is str:
        return b"s" + value.encode("utf-8", "surrogatepass")
    if value is None:
        return b"0"
    if isinstance(value, enum.Enum):
        if value.name is None:
            raise UnsupportedKeyError(_name_of(value))
        return b"e" + value.name.encode()
    if isinstance(value, int):
        return b"n" + _digits(value) + b"/1"
    if isinstance(value, float | Decimal):
        return _number(value)
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray):
        return b"b" + bytes(value)
    if isinstance(value, uuid.UUID):
        return b"u" + value.bytes
    if isinstance(value, datetime.datetime):
        if value.utcoffset() is None:
            return (
                b"t"
                + value.replace(fold=0, tzinfo=None).isoformat(timespec="microseconds").encode()
            )
        return b"T" + _instant(value)
    if isinstance(value, datetime.date):
        return b"d" + value.isoformat().encode()
    if isinstance(value, tuple | list):
        try:
            return b"l" + encode_key(value)
        except RecursionError:
            name = f"{_name_of(value)}, which contains itself or is nested too deeply"
            raise UnsupportedKeyError(name) from None
    if isinstance(value, TransactionAttempt):
        return b"a%d" % value.txid
    raise UnsupportedKeyError(_name_of(value))


def task_for_key(values: Sequence[Any], num_tasks: int) -> int:
    """The task (0 … ``num_tasks - 1``) that fields grouping gives the key ``values``."""
    return int.from_bytes(blake2b(encode_key(values), digest_size=8).digest(), "big") % num_tasks


def two_tasks_for_key(values: Sequence[Any], num_tasks: int) -> tuple[int, int]:
    """The two tasks from which partial key grouping chooses for the key ``values``. They differ if
    there is more than one task.

    The first 8 bytes of the encoded key's BLAKE2b (digest size 16) give the first task. The last 8
    give the second, among the remaining tasks.
    """
    digest = blake2b(encode_key(values), digest_size=16).digest()
    first = int.from_bytes(digest[:8], "big") % num_tasks
    if num_tasks == 1:
        return first, first
    second = int.from_bytes(digest[8:], "big") % (num_tasks - 1)
    return first, second + (second >= first)
