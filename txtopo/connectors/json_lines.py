"""Checks that a line is one JSON object, alike for spouts that emit tuples or columns (R38).

Python's own parser decides. Arrow's parser is quicker and more lenient: it takes two objects in a
line, ``Inf``, bytes that are not text, and ``null``, on which it crashes at the beginning of a
file. So every line is checked as bytes before Arrow sees it, and Python parses the lines in which
the two parsers could differ.

Python's own parser also takes too much: a field that is given twice, ``1e400``, half a surrogate
pair. Hooks that check each number and each object make the parser half as fast. So a line is parsed
with hooks only if :func:`is_sure` says no, or if the number of names shows that a field may be
given twice.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

BLANK = b" \t\r"
"""JSON's own white space. A line with only these characters is passed over."""

_ESCAPED = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)")
"""An escaped character. Group 1 is half a surrogate pair without the other half."""
_PAIR = re.compile(rb"(?<!\\)\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_ALIKE = bytes.maketrans(b"123456789ED]} \t\r\n", b"000000000ed,,,,,,")
"""Maps the characters that :func:`is_sure` treats alike to a single character."""
_BEYOND = re.compile(rb"0e000+,")
"""A number with at least three digits in its exponent, after :data:`_ALIKE`."""
_MANY_DIGITS = b"0" * 200
"""A number with fewer digits, and at most two digits in its exponent, fits 64 bits."""
_LONG = 1000
_BRACKETS = 200
"""A line with more brackets may be nested deeper than Python's parser goes."""
_DIGITS = re.compile(rb"[0-9]{1000}")
"""Python refuses integers with more than some thousand digits."""


class LineError(ValueError):
    """A mistake in a line. The text is a sentence without its subject."""


class MissingFieldError(LineError):
    """An object lacks a field that was asked for."""


class _Doubled(dict[str, Any]):
    """An object that gives the fields ``names`` more than once."""

    names: frozenset[str] = frozenset()


class Decoder:
    """Parses lines, and takes ``fields`` from each. All other fields need only correct syntax.
    ``defaults``: values for fields that are missing or null."""

    def __init__(self, fields: Sequence[str], defaults: Mapping[str, Any] | None = None) -> None:
        self._fields, self._defaults = fields, defaults or {}
        self._has_doubled = False
        self._decode = json.JSONDecoder(
            parse_constant=_no_number, parse_float=_number, object_pairs_hook=self._object
        ).decode
        self._plain = json.JSONDecoder(parse_constant=_no_number).raw_decode
        self._counting = json.JSONDecoder(
            parse_constant=_no_number, object_hook=self._count_names
        ).raw_decode
        self._names = 0
        self._all_of = (
            operator.itemgetter(*fields)
            if len(fields) > 1
            else lambda value: [value[field] for field in fields]
        )

    def object(self, line: str) -> dict[str, Any]:
        """Parse the object in ``line``. Raises :class:`LineError` if the line is not an object, or
        if a value for ``fields`` is ambiguous."""
        self._has_doubled = False
        try:
            value = self._decode(line)
        except (ValueError, RecursionError) as error:
            raise LineError(f"is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise LineError(f"is not a JSON object but a {type(value).__name__}")
        if self._has_doubled:
            self._check_doubled(value)
        if "\\u" in line and any(escaped[1] for escaped in _ESCAPED.finditer(line)):
            raise LineError("is not JSON: half of a surrogate pair is no character")
        return value

    def values(self, line: str, is_strict: bool, is_sure: bool) -> Sequence[Any]:
        """Parse the fields' values. A missing field is ``None``, or raises :class:`LineError` if
        ``is_strict``.

        ``is_sure`` is the answer of :func:`is_sure` for ``line``, or for a text that contains
        ``line``. ``False`` takes longer and is always right.
        """
        value = self._sure_object(line) if is_sure else None
        if value is None:
            value = self.object(line)
        for field, default in self._defaults.items():
            if value.get(field) is None:
                value[field] = default
        if not is_strict:
            return [value.get(field) for field in self._fields]
        try:
            return self._all_of(value)
        except KeyError as missing:
            names = ", ".join(map(repr, value)) or "none"
            raise MissingFieldError(f"has no field {missing.args[0]!r}; it has {names}") from None

    def _sure_object(self, line: str) -> Any:
        """Parse ``line`` without hooks. ``None`` if :meth:`object` may answer differently."""
        self._names = 0
        is_flat = line.find("{", 1) < 0
        try:
            value, end = self._plain(line) if is_flat else self._counting(line)
        except (ValueError, RecursionError):
            return None
        if (
            end != len(line)
            or type(value) is not dict
            or line.count('":') != (len(value) if is_flat else self._names)
        ):
            return None
        return value

    def _count_names(self, value: dict[str, Any]) -> dict[str, Any]:
        self._names += len(value)
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) == len(pairs):
            return fields
        self._has_doubled = True
        doubled, names = _Doubled(fields), [name for name, _ in pairs]
        doubled.names = frozenset(name for name in fields if names.count(name) > 1)
        return doubled

    def _check_doubled(self, value: dict[str, Any]) -> None:
        taken = [name for name in self._fields if name in value]
        names = [name for name in taken if isinstance(value, _Doubled) and name in value.names]
        names += [name for field in taken for name in _doubled_in(value[field])]
        if names:
            raise LineError(f"gives the field {names[0]!r} more than once")


def is_sure(text: str) -> bool:
    """Whether a doubled field is the only possible mistake in the JSON lines of ``text``.

    No number may be beyond 64 bits, and no half surrogate pair may occur. White space before a
    colon is a doubt as well: names are counted by the quotes and colons behind them. Checking many
    lines at once takes much less time than checking each.
    """
    data = text.encode("utf-8", "surrogatepass")
    alike = data.translate(_ALIKE, b"+")
    if b",:" in alike or _MANY_DIGITS in alike or _BEYOND.search(alike) is not None:
        return False
    return b"\\ud" not in alike or _HALF.search(_PAIR.sub(b"", data)) is None


def _doubled_in(value: Any) -> Iterator[str]:
    if isinstance(value, _Doubled):
        yield from sorted(value.names)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _doubled_in(each)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _number(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is beyond the numbers of 64 bits")
    return number


def objects_in(block: bytes, fields: Sequence[str]) -> int:
    """Count the lines in ``block``, text in UTF-8, that are not blank. Raises :class:`LineError`
    for the first line that is not one JSON object.

    Looks for text that Arrow would read differently. Text that Arrow itself refuses may pass. So
    may several objects in a line: then Arrow makes more records than this number.
    """
    ends = block.removesuffix(b"\n").count(b"\n")
    if _is_plain(block, ends) and not _is_doubtful(block) and not _has_long_line(block):
        return ends + 1
    lines = [line for line in (line.strip(BLANK) for line in block.split(b"\n")) if line]
    decoder = Decoder(fields)
    for line in lines:
        if (
            not line.startswith(b"{")
            or not line.endswith(b"}")
            or _is_doubtful(line)
            or _is_deep(line)
        ):
            decoder.object(line.decode())
    return len(lines)


def _is_plain(block: bytes, ends: int) -> bool:
    """Whether every line begins and ends with a brace. Counts instead of splitting, since a block
    has ten thousand lines."""
    return (
        block.startswith(b"{") and block.endswith((b"}\n", b"}")) and block.count(b"}\n{") == ends
    )


def _has_long_line(block: bytes) -> bool:
    begin = 0
    while len(block) - begin > _LONG:
        begin = block.rfind(b"\n", begin, begin + _LONG) + 1
        if not begin:
            return True
    return False


def _is_doubtful(text: bytes) -> bool:
    # Python finds one character many times as fast as three.
    return (b"N" in text and b"NaN" in text) or (b"I" in text and b"Inf" in text)


def _is_deep(line: bytes) -> bool:
    return len(line) > _LONG and (
        line.count(b"[") + line.count(b"{") > _BRACKETS or _DIGITS.search(line) is not None
    )
