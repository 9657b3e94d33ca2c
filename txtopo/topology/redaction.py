"""What of a setting may be shown: not the passwords.

Apart from ``conf`` because error messages and ``txtopo config show`` must not show them either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"

_SECRET = re.compile("password|passwd|secret|token", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(://[^/@:\s]*:)[^/@\s]+(?=@)")


def is_secret(key: str) -> bool:
    """Whether what is kept under ``key`` is shown to nobody: its name contains password, passwd, secret or token, and is not that of a file."""
    return _SECRET.search(key) is not None and not key.endswith("_file")


def redacted(value: Any, key: str = "") -> Any:
    """``value``, kept under ``key``, as it may be shown: secrets are replaced by ``***``, at any depth, and so are passwords in URLs."""
    if value is not None and is_secret(key):
        return HIDDEN
    if isinstance(value, Mapping):
        return {inner: redacted(item, str(inner)) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return _PASSWORD_IN_URL.sub(rf"\1{HIDDEN}", value) if isinstance(value, str) else value
