"""Metadata: JSON that must come back as it was, or a pydantic model the spout names.

Checked where it is produced, so that the error names the culprit and not, much later, the reader.
"""

from __future__ import annotations

import json
import math
from typing import Any


class NotJsonError(ValueError):
    """``path`` is where in the value, e.g. ``$.offsets[3]``."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"at {self.path}: {self.why}; metadata is JSON: None, bool, int, float, str, list, and dict with string keys"


def _check(value: Any, path: str) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise NotJsonError(path, f"{value!r} has no form in JSON")
        return value
    if type(value) in (list, tuple):
        return [_check(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise NotJsonError(path, f"the key {key!r} is a {type(key).__name__} and would come back as a string")
        return {key: _check(item, f"{path}.{key}") for key, item in value.items()}
    raise NotJsonError(path, f"a value of type {type(value).__name__} would not come back as it was")


def to_json(value: Any, metadata_type: Any = None) -> Any:
    """``value`` as plain JSON data (tuples become lists); :class:`NotJsonError` naming the path if
    it would not survive."""
    if metadata_type is not None and isinstance(value, metadata_type):
        value = json.loads(value.model_dump_json())
    return _check(value, "$")


def from_json(value: Any, metadata_type: Any = None) -> Any:
    """What a spout receives: ``value`` itself, or an instance of the model it named."""
    return value if metadata_type is None or value is None else metadata_type.model_validate(value)
