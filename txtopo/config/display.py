"""Settings as people and programs read them, without secrets."""

from __future__ import annotations

import json
from typing import Any

from txtopo.config import names, sources
from txtopo.topology import redaction


def as_data(resolved: sources.Resolved) -> dict[str, dict[str, Any]]:
    """Each setting's value and origin, in the order of the documentation. The user's own settings,
    as ``user.NAME``, come last."""
    values = resolved.config.as_mapping()
    flattened = {
        **values,
        **{f"{names.USER}.{key}": value for key, value in values[names.USER].items()},
    }
    return {
        key: {"value": redaction.redacted(flattened[key], key), "origin": origin}
        for key, origin in resolved.origins.items()
    }


def as_text(resolved: sources.Resolved, with_origins: bool) -> str:
    """One line for each setting: its name, its value as ``--set`` takes the value and, if asked
    for, its origin."""
    rows = [
        (
            key,
            json.dumps(shown["value"], ensure_ascii=False),
            shown["origin"] if with_origins else "",
        )
        for key, shown in as_data(resolved).items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(
        f"{key:{widths[0]}}  {value:{widths[1]}}  {origin}".rstrip() for key, value, origin in rows
    )
