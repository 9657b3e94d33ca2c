"""The ``:name`` parameters in a user's statement. Texts, quoted names and comments, which differ
between databases, have no parameters.

Invariants: all text except ``:name`` stays unchanged. No database would notice a wrongly replaced
text. Standard library only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Literal

Dialect = Literal["sqlite", "postgresql", "mysql"]

_COMMENTS_DEEP = 8
"""PostgreSQL's block comments nest. Comments are recognised at least to this depth."""

_DOUBLED = "{0}(?:[^{0}]|{0}{0})*{0}"
"""A text between quotes. A doubled quote is part of the text."""
_ESCAPED = r"{0}(?:[^{0}\\]|\\.|{0}{0})*{0}"
"""As above, and a backslash keeps the next character from ending the text."""
_LINE, _BLOCK = r"--[^\n]*", r"/\*.*?\*/"
_NAME = r"(?<![:\w\\]):(?P<name>[A-Za-z_]\w*)"
"""A parameter, but not PostgreSQL's cast ``::``, nor a slice's end."""


def _nested(depth: int) -> str:
    inner = "(?!)" if depth == 0 else _nested(depth - 1)
    return rf"/\*(?:[^*/]|\*(?!/)|/(?!\*)|{inner})*\*/"


_SKIPPED: dict[Dialect, tuple[str, ...]] = {
    "sqlite": (
        _DOUBLED.format("'"),
        _DOUBLED.format('"'),
        _DOUBLED.format("`"),
        r"\[[^\]]*\]",
        _LINE,
        _BLOCK,
    ),
    "postgresql": (
        r"(?<![\w$])[eE]" + _ESCAPED.format("'"),
        _DOUBLED.format("'"),
        _DOUBLED.format('"'),
        r"(?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$",
        _LINE,
        _nested(_COMMENTS_DEEP),
    ),
    "mysql": (
        _ESCAPED.format("'"),
        _ESCAPED.format('"'),
        _DOUBLED.format("`"),
        r"--(?=\s|$)[^\n]*",
        r"\#[^\n]*",
        _BLOCK,
    ),
}


@functools.cache
def _pattern(dialect: Dialect) -> re.Pattern[str]:
    return re.compile("|".join((*_SKIPPED[dialect], _NAME)), re.DOTALL)


def dialect_of(database: str) -> Dialect:
    """The dialect for ``database``, a path or a URL."""
    scheme = database.partition("://")[0] if "://" in database else ""
    return (
        "postgresql"
        if scheme.startswith("postgres")
        else "mysql"
        if scheme.startswith(("mysql", "mariadb"))
        else "sqlite"
    )


def table_of(statement: str, dialect: Dialect) -> str:
    """The table that ``statement`` inserts into. Empty if the table is not plain to see."""
    after = r"(?=\s*\(|\s+(?:VALUES?|SELECT|WITH|AS|SET)\b)"  # The name ends here.
    match = re.match(
        rf'\s*(?:INSERT|REPLACE)\b[\w\s]*?\bINTO\s+(?:(\w+(?:\.\w+)?)|"(\w+)"){after}',
        statement,
        re.IGNORECASE,
    )
    plain, quoted = match.groups() if match else ("", "")
    return quoted or (plain.lower() if dialect == "postgresql" else plain)


def names(statement: str, dialect: Dialect) -> Iterator[str]:
    """The names in ``statement``, in order, with repetitions."""
    return (match["name"] for match in _pattern(dialect).finditer(statement) if match["name"])


def replaced(statement: str, dialect: Dialect, sort: Callable[[str], str]) -> str:
    """``statement`` with each ``:name`` as ``sort(name)``."""
    return _pattern(dialect).sub(
        lambda match: sort(match["name"]) if match["name"] else match[0], statement
    )
