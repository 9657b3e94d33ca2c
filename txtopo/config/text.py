"""Values that are text: ``500ms``, ``64m``, ``null``, JSON. They are the same wherever a setting
comes from.

Durations and sizes are spelled as in Spark (``JavaUtils.timeStringAs`` and ``byteStringAs``), and a
fraction is allowed as well. A number without a unit counts seconds, or bytes.
"""

from __future__ import annotations

import decimal
import json
import re
from typing import Any

from txtopo import errors
from txtopo.topology import redaction

_SECONDS = {
    "us": "0.000001",
    "ms": "0.001",
    "s": "1",
    "m": "60",
    "min": "60",
    "h": "3600",
    "d": "86400",
}
_BYTES = {
    "b": 0,
    "k": 10,
    "kb": 10,
    "m": 20,
    "mb": 20,
    "g": 30,
    "gb": 30,
    "t": 40,
    "tb": 40,
    "p": 50,
    "pb": 50,
}
_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([a-z]*)", re.IGNORECASE)


def impossible(key: str, value: Any, why: str) -> errors.ConfigError:
    """The error for ``key`` with an impossible ``value``. A secret value is not shown."""
    return errors.ConfigError(f"setting {key!r} is {redaction.redacted(value, key)!r}: {why}")


def check_address(servers: str) -> None:
    """Refuse credentials in a ZooKeeper address. A password may have any sign, also a slash, so its
    end cannot be known, and no part of the address is shown.

    :raises errors.ConfigError: there may be credentials.
    """
    if "@" in servers or "://" in servers:
        raise errors.ConfigError(
            "the ZooKeeper address has more than host:port[,host:port…][/chroot], perhaps a password\n"
            "  Give credentials with zookeeper_auth, zookeeper_user, and zookeeper_password_file. A path with an @ goes into zookeeper_root."
        )


def parsed(key: str, text: str, is_optional: bool) -> Any:
    """The value that ``text`` spells for our setting ``key``. The result is still text where the
    setting is text, or a number without a unit."""
    text = text.strip()
    if not text:
        raise impossible(key, text, "it is empty")
    if is_optional and text.lower() in ("null", "none"):
        return None
    if key == "user":
        return _object(key, text)
    if text.startswith('"'):
        quoted = json_or_text(text)
        return quoted if isinstance(quoted, str) else text
    if key.endswith("_s"):
        return duration_s(key, text)
    return _size_bytes(key, text) if "bytes" in key.split("_") else text


def json_or_text(text: str) -> Any:
    """``text`` as JSON where it is JSON, else as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _object(key: str, text: str) -> Any:
    value = json_or_text(text)
    if not isinstance(value, dict):
        # The text itself may hold a password, and is not shown.
        raise errors.ConfigError(
            f'setting {key!r} is no JSON object\n  Give {{"name": value}}, or a single one as {key}.name=value.'
        )
    return value


def duration_s(key: str, text: str, unit: str = "s") -> float:
    """Seconds. A number alone is in ``unit``."""
    match = _NUMBER.fullmatch(text)
    factor = _SECONDS.get((match[2] or unit).lower()) if match is not None else None
    if match is None or factor is None:
        raise impossible(
            key,
            text,
            "not a duration\n  Give a number, with us, ms, s, m, h or d behind it if it is not seconds, such as 500ms.",
        )
    return float(decimal.Decimal(match[1]) * decimal.Decimal(factor))


def _size_bytes(key: str, text: str) -> int:
    match = _NUMBER.fullmatch(text)
    shift = _BYTES.get((match[2] or "b").lower()) if match is not None else None
    size = (
        decimal.Decimal(match[1]) * (1 << shift)
        if match is not None and shift is not None
        else decimal.Decimal("0.5")
    )
    if size != size.to_integral_value():
        raise impossible(
            key,
            text,
            "not a size\n  Give bytes, or a number with k, m, g or t behind it, such as 64m (1k is 1024).",
        )
    return int(size)
