"""Redaction: hides passwords wherever a setting is shown, also in error messages and ``txtopo
config show``.

Invariants: in doubt too much is hidden. A password may contain any separator of a URL's parts, so
its end cannot be known. An ``@`` is no doubt if a plain host of ``http`` or ``https`` comes before.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "***"

_SECRET = re.compile(
    r"password|passwd|passphrase|secret|token|credential|key\.pem"
    r"|(api|access|private|account|signing|encryption)[_.\- ]?key|(?<![a-z])(pwd|pass|pw)(?![a-z])",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"[_.\-]?(file|path|provider|providers|enabled|class)$", re.IGNORECASE)
"""A name with this ending is the place or the form of a secret, and no secret."""

_PLAIN_HOST = r"(?<=http|ttps)://(?:\[[^/?#@\s]*\]|[^/?#@:\[\s]*)(?::\d{1,5})?(?:[/?#\s]|$)"
"""The host of an address whose clients end the host at the first slash."""
PASSWORD_IN_URL = re.compile(rf"(?i)(?!{_PLAIN_HOST})(://[^/@:\s]*(?::|%3a)).*(?=@)")
"""Up to the last @: an earlier @ may belong to the password."""
_PASSWORD_IN_PATH = re.compile(
    r"(?i)(?<![\w.+\-])([a-z][a-z0-9.+\-]++:/[^/@:\s]*(?::|%3a))\S*(?=@)"
)
"""The same in a ``Path``, which has one slash for two, and often a colon without a password."""

_NAMED = re.compile(
    r"""(?<![\w.\-%])(?P<name>[\w.\-%]++)(?P<sign>["']?\s*=\s*|["']\s*:\s*)"""
    r"""(?P<value>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|(?:(?![&;][\w.\-%]+=)\S)+)"""
)
"""``name=value`` in an address or a connection string, up to white space or the next name. Also
``"name": "value"``. A name is tried from its first letter only: a long word takes no long time."""


def printable(text: str) -> str:
    """``text`` without control characters, which could command a terminal. Lines remain."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def is_secret(key: str) -> bool:
    """Whether the value of ``key`` is always hidden, judged by the name: password, token, api_key,
    …, but not password_file."""
    return _SECRET.search(key) is not None and _NO_SECRET.search(key) is None


def redacted(value: Any, key: str = "") -> Any:
    """``value`` of the setting ``key`` as it may be shown: ``***`` replaces secrets at any depth,
    and passwords in addresses."""
    if value is not None and is_secret(key):
        return HIDDEN
    if isinstance(value, Mapping):
        return {redacted(inner): redacted(item, str(inner)) for inner, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return list(_arguments(value))
    if isinstance(value, bytes):
        return _text(value.decode("latin-1")).encode("latin-1")
    return _text(value) if isinstance(value, str) else value


def _arguments(items: Iterable[Any]) -> Iterator[Any]:
    """Each of ``items``, redacted. The word after an option such as ``--password`` is the option's
    value."""
    option = ""
    for item in items:
        yield redacted(item, option)
        option = item if isinstance(item, str) and item.startswith("-") and "=" not in item else ""


def _text(text: str) -> str:
    """``text`` without the secrets that can be told from the rest."""

    def hide(match: re.Match[str]) -> str:
        name = urllib.parse.unquote(match["name"])
        return f"{match['name']}{match['sign']}{HIDDEN}" if is_secret(name) else match[0]

    text = _PASSWORD_IN_PATH.sub(rf"\1{HIDDEN}", text)
    return _NAMED.sub(hide, PASSWORD_IN_URL.sub(rf"\1{HIDDEN}", text))
