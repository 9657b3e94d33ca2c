"""The ``:name`` parameters of a user's statement. Texts, quoted names and comments, which differ
from database to database, have none.

Apart from ``sql_target`` because it is a grammar, and a database does not notice a wrongly replaced
text. Standard library only.

Invariants: all text but a ``:name`` stays unchanged.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Literal

Dialect = Literal["sqlite", "postgresql", "mysql"]

_COMMENTS_DEEP = 8
"""PostgreSQL's block comments nest; comments are recognised at least to this depth."""

_DOUBLED = "{0}(?:[^{0}]|{0}{0})*{0}"
"""Between quotes, of which a doubled one is part of the text."""
_ESCAPED = r"{0}(?:[^{0}\\]|\\.|{0}{0})*{0}"
"""As above, and a backslash keeps its next character from ending the text."""
_LINE, _BLOCK = r"--[^\n]*", r"/\*.*?\*/"
_NAME = r"(?<![:\w\\]):(?P<name>[A-Za-z_]\w*)"
"""Not the ``::`` of PostgreSQL's casts, nor the end of a slice."""


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
    """The dialect of the database at ``database``, a path or a URL."""
    scheme = database.partition("://")[0] if "://" in database else ""
    return (
        "postgresql"
        if scheme.startswith("postgres")
        else "mysql"
        if scheme.startswith(("mysql", "mariadb"))
        else "sqlite"
    )


def table_of(statement: str, dialect: Dialect) -> str:
    """The name of the table that ``statement`` inserts into; empty if it is not plain to see."""
    after = r"(?=\s*\(|\s+(?:VALUES?|SELECT|WITH|AS|SET)\b)"  # Nothing that goes on with the name.
    match = re.match(
        rf'\s*(?:INSERT|REPLACE)\b[\w\s]*?\bINTO\s+(?:(\w+(?:\.\w+)?)|"(\w+)"){after}',
        statement,
        re.IGNORECASE,
    )
    plain, quoted = match.groups() if match else ("", "")
    return quoted or (plain.lower() if dialect == "postgresql" else plain)


def names(statement: str, dialect: Dialect) -> Iterator[str]:
    """The names in ``statement``, in their order, each as often as it is there."""
    return (match["name"] for match in _pattern(dialect).finditer(statement) if match["name"])


def replaced(statement: str, dialect: Dialect, sort: Callable[[str], str]) -> str:
    """``statement`` with each ``:name`` as ``sort(name)``."""
    return _pattern(dialect).sub(
        lambda match: sort(match["name"]) if match["name"] else match[0], statement
    )
