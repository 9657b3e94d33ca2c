"""Metadata: plain JSON, or a pydantic model the spout names.

Metadata is checked where it is made, so that the error names the component and the hook. Accepted
metadata can be written (:mod:`txtopo.plain_json`).
"""

from __future__ import annotations

import json
from typing import Any

from txtopo import plain_json


def to_json(value: Any, metadata_type: Any = None) -> Any:
    """``value`` as plain JSON data (tuples become lists).

    :raises txtopo.plain_json.NotJsonError: ``value`` would not come back as it was; names the path.
    """
    if metadata_type is not None and isinstance(value, metadata_type):
        try:
            value = json.loads(value.model_dump_json())
        except ValueError as error:
            raise plain_json.NotJsonError("$", f"the model cannot be JSON: {error}") from None
    return plain_json.plain(value)


def from_json(value: Any, metadata_type: Any = None) -> Any:
    """The metadata for a spout: ``value`` itself, or an instance of the model ``metadata_type``."""
    return value if metadata_type is None or value is None else metadata_type.model_validate(value)
