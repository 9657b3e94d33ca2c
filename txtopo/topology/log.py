"""The log of bolts and spouts: each line names component, task, txid, attempt and phase.

Importing this module configures nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

TASKS = logging.getLogger("txtopo.tasks")
"""The logger behind every ``context.log``."""


class TaskLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the present ``fields`` to each line, as the record's attribute ``context``."""

    def __init__(self, fields: Callable[[], Mapping[str, str]]) -> None:
        super().__init__(TASKS, {})
        self._fields = fields

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), "context": self._fields()}
        return msg, kwargs
