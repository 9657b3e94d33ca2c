"""The exporters' contract: the target has each key's newest entry, even if entries are told again,
late, or by two processes.

The check tells every history with one or two entries and up to three calls, short histories first.
So the first broken promise is reported with a shortest history.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.exports.entries import UNASKED, Exporter, SequencedExport, export_some
from txtopo.stores.keys import Key
from txtopo.testing.contracts import equality
from txtopo.testing.contracts.violation import ContractError
from txtopo.topology import pickling

_HIGH = 2**62
"""A sequence that a float does not hold exactly."""
_DIGITS = 99_999_999
"""A sequence after which the next one has a digit more."""
_SHOWN = 4


class _Promise(NamedTuple):
    claim: str
    cure: str


_TOLD = _Promise(
    "every entry that export took from its iterator is told",
    "Write each entry that you take before export returns, and raise an error if that fails. Value None removes the key.",
)
_ORDERED = _Promise(
    "a higher sequence is newer, up to 63 bits",
    "Keep and compare sequences as 64-bit integers, not as floats or texts.",
)
_AGAIN = _Promise(
    "a repeated entry changes nothing, even after newer entries",
    "Keep the sequence beside the value, and let the target compare: write only if the stored sequence is lower.",
)
_GONE = _Promise(
    "a key that is gone stays gone when an older entry comes again",
    "Keep a mark with the sequence in place of the value that is gone.",
)
_BUCKETS = _Promise(
    "entries of different buckets are told without regard to each other",
    "Two buckets' sequences cannot be compared. Keep one for each key.",
)
_REPLAYED = _Promise(
    "entries of a replay share a sequence, and every one is told",
    "Keep a sequence for each key: with one for a bucket, a replay tells a single key.",
)
_COPIES = _Promise(
    "two exporters that tell the same entries leave the newest entries",
    "Keep the sequences in the target, not in the exporter: a second process may tell the entries, too.",
)
_NOTHING = _Promise(
    "an empty iterator changes nothing",
    "Return if there is no entry.",
)


@dataclasses.dataclass(frozen=True)
class _Call:
    """Entries ``begin`` to ``end`` of a bucket are handed out, until all are taken."""

    begin: int
    end: int
    bucket: int = 0
    by_copy: bool = False


@dataclasses.dataclass(frozen=True)
class _History:
    promise: _Promise
    entries: tuple[tuple[int, bool], ...]
    """Of each bucket: the number of the key, and whether the key is gone."""
    calls: tuple[_Call, ...]
    first: int = _HIGH
    """A sequence that the entries' sequences reach. They only grow in a bucket."""
    is_replayed: bool = False


def _tellings(entries: int, calls: int) -> Iterator[tuple[_Call, ...]]:
    """All ways to tell so many entries. No call skips entries that were not told before."""
    parts = [_Call(begin, end) for begin in range(entries) for end in range(begin + 1, entries + 1)]
    for telling in itertools.product(parts, repeat=calls):
        ends = list(itertools.accumulate((call.end for call in telling), max, initial=0))
        is_in_order = all(call.begin <= end for call, end in zip(telling, ends, strict=False))
        is_new = calls < 3 or all(one != other for one, other in itertools.pairwise(telling))
        if ends[-1] == entries and is_in_order and is_new:
            yield telling


def _in_turns(telling: tuple[_Call, ...]) -> tuple[_Call, ...]:
    return tuple(
        dataclasses.replace(call, by_copy=number % 2 == 1) for number, call in enumerate(telling)
    )


def _histories() -> Iterator[_History]:
    yield _History(_TOLD, ((0, False),), (_Call(0, 1),), 2**24)
    for first in (_DIGITS, _HIGH):
        yield _History(_ORDERED, ((0, False), (0, False)), (_Call(0, 1), _Call(1, 2)), first)
    for count, length in itertools.product((1, 2), (1, 2, 3)):
        for gone in itertools.product((False, True), repeat=count):
            for keys in ((0,) * count, tuple(range(count)))[: 1 if length == 3 else count]:
                entries = tuple(zip(keys, gone, strict=True))
                for telling in _tellings(count, length):
                    told = sum(call.end - call.begin for call in telling)
                    promise = _TOLD if told == count else _GONE if any(gone) else _AGAIN
                    yield _History(promise, entries, telling)
                    if length > 1:
                        yield _History(_COPIES, entries, _in_turns(telling))
    for entry in ((0, False), (0, True)):
        higher, lower = _Call(0, 1, bucket=1), _Call(0, 1)
        for calls in ((higher, lower), (higher, lower, higher, lower)):
            yield _History(_BUCKETS, (entry,), calls)
    yield _History(_REPLAYED, ((0, False), (1, False)), (_Call(0, 2),), is_replayed=True)
    many = tuple((number * 7 % 300, number % 5 == 0) for number in range(1000))
    whole, half = _Call(0, 1000), _Call(0, 500, by_copy=True)
    yield _History(_TOLD, many, (whole,))
    yield _History(_COPIES, many, (_Call(0, 700), half, whole, half, _Call(400, 1000)))


class _Check:
    """A target and two exporters, which get every history with keys of its own."""

    def __init__(
        self,
        exporters: tuple[Exporter, Exporter],
        read: Callable[[], Mapping[Any, Any]],
        make_key: Callable[[int], Key],
        make_value: Callable[[int], Any],
    ) -> None:
        self._exporters, self._read = exporters, read
        self._make_key, self._make_value = make_key, make_value
        self._keys, self._values = itertools.count(), itertools.count()
        self._expected: dict[Key, Any] = {}
        self._next = [0, 0]
        """By bucket."""

    def tell_nothing(self) -> None:
        self._export(_NOTHING, False, [], [])
        self._compare(_NOTHING, [])

    def tell(self, history: _History) -> None:
        buckets = [self._bucket(history, number) for number in (0, 1)]
        said: list[str] = []
        newest: dict[Key, SequencedExport] = {}
        for call in history.calls:
            left = buckets[call.bucket][call.begin : call.end]
            while left:
                taken = self._export(history.promise, call.by_copy, left, said)
                if not taken:
                    raise _error(history.promise, UNASKED, said)
                for entry in left[:taken]:
                    newest[entry.key] = max(
                        newest.get(entry.key, entry), entry, key=lambda entry: entry.sequence
                    )
                left = left[taken:]
        for entry in newest.values():
            self._expected.pop(entry.key, None)
            if entry.value is not None:
                self._expected[entry.key] = entry.value
        self._compare(history.promise, said)

    def _bucket(self, history: _History, number: int) -> list[SequencedExport]:
        """The entries of a bucket. Sequences of bucket 1 are higher."""
        names: dict[int, Key] = {}
        entries = []
        begin = max(history.first + number * 2**24, self._next[number])
        numbers = itertools.count(begin)
        if history.is_replayed:
            numbers = itertools.count(begin | (2**24 - 1), 0)
        for sequence, (key, is_gone) in zip(numbers, history.entries, strict=False):
            self._next[number] = sequence + 1
            if key not in names:
                names[key] = self._make_key(next(self._keys))
            value = None if is_gone else self._make_value(next(self._values))
            entries.append(SequencedExport("check", number, names[key], value, sequence, "first"))
        return entries

    def _export(
        self, promise: _Promise, by_copy: bool, left: list[SequencedExport], said: list[str]
    ) -> int:
        """Call ``export`` once. Returns how many entries it took, without a last one that comes
        again."""
        said.append(_describe(by_copy, left))
        try:
            return export_some(self._exporters[by_copy], left)
        except Exception as error:
            raise _error(promise, f"it raised {type(error).__name__}: {error}", said) from error

    def _compare(self, promise: _Promise, said: list[str]) -> None:
        target = dict(self._read())
        if target != self._expected:
            difference = equality.mapping_difference(target, self._expected)
            raise _error(promise, f"in the target {difference}", said)


def _describe(by_copy: bool, entries: list[SequencedExport]) -> str:
    parts = [
        f"{entry.key!r} {'is gone' if entry.value is None else f'= {equality.short(entry.value)}'} (bucket {entry.bucket}, sequence {entry.sequence})"
        for entry in entries[:_SHOWN]
    ]
    more = [f"and {len(entries) - _SHOWN} more"] if len(entries) > _SHOWN else []
    return f"export by {'a copy' if by_copy else 'the exporter'}: {', '.join([*parts, *more]) or 'no entry'}"


def _error(promise: _Promise, fact: str, said: list[str]) -> ContractError:
    history = "\n    ".join(said)
    return ContractError(
        "exporter", None, f"{promise.claim}: {fact}, after\n    {history}", promise.cure
    )


def check_exporter(
    exporter: Exporter,
    read: Callable[[], Mapping[Any, Any]],
    *,
    make_key: Callable[[int], Key] = "key {}".format,
    make_value: Callable[[int], Any] = int,
) -> int:
    """Run an exporter of your own through its whole contract. Returns how many histories were told.

    ``read()`` gives the target's present contents: the value of each key that is not gone. The
    target must be empty. A pickled copy of ``exporter`` stands for a second process. ``make_key``
    makes a different key for each number, ``make_value`` a value, not None.

    The check notices neither an exporter that returns although its target failed, nor a target
    that reads, compares and writes in separate steps: let the target do all in one.

    :raises ContractError: the first broken promise, with a shortest history that breaks it.
    :raises UsageError: the target is not empty.
    """
    if contents := dict(read()):
        raise errors.UsageError(
            f"check_exporter was given a target with {len(contents)} keys\n  Give an empty target, and empty it before each check."
        )
    try:
        copy = pickling.loads(pickling.dumps(exporter))
    except Exception as error:
        raise ContractError(
            "exporter",
            None,
            f"{type(exporter).__name__} cannot be pickled: {error}",
            "Connect when entries are exported, and leave the connection out in __getstate__.",
        ) from error
    with contextlib.closing(exporter), contextlib.closing(copy):
        check = _Check((exporter, copy), read, make_key, make_value)
        check.tell_nothing()
        histories = [*_histories()]
        for history in histories:
            check.tell(history)
        exporter.close()
        check.tell(histories[0])
    return len(histories) + 2
