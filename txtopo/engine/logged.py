"""Writes a run's log lines to the logger ``txtopo``.

Runs on: driver. Levels: ``docs/configuration.md`` has the table.
"""

from __future__ import annotations

import logging
from typing import Any

from txtopo.engine.observer import LOGGER, EndedAttempt, Observer
from txtopo.topology import redaction


def first_line(text: str) -> str:
    """The first line of ``text``, without secrets."""
    return str(redaction.redacted(next(iter(text.splitlines()), "")))


class LogLines(Observer):
    """Logs a line for each event in a run of ``topology_id``."""

    def __init__(self, topology_id: str) -> None:
        self._id, self._committed = topology_id, 0
        self._context = {"topology": topology_id}

    def began(self, generation: str, epoch: int, current: int, is_resumed: bool) -> None:
        self._context["epoch"] = str(epoch)
        self._log(logging.INFO, "begins at txid %d (epoch %d)", current, epoch)

    def open_failed(self, txid: int, error: BaseException) -> None:
        text = first_line(str(error))
        self._log(logging.INFO, "replays txid %d: opening txid %d: %s", txid, txid, text, txid=txid)

    def attempt_ended(self, ended: EndedAttempt) -> None:
        failed, attempt = ended.failure, ended.attempt
        if failed is None:
            return
        level = logging.INFO if failed.kind == "outgrown" else logging.WARNING
        place: dict[str, Any] = {"txid": attempt.txid, "attempt": attempt.attempt_id}
        if failed.failure is not None:
            place |= {"component": failed.failure.component, "task": failed.failure.task}
        self._log(level, "replays txid %d: %s", attempt.txid, first_line(failed.text), **place)

    def committed(self, ended: EndedAttempt) -> None:
        self._committed += 1
        LOGGER.debug(
            "topology %r: %d transactions committed, the last with %d tuples",
            self._id,
            self._committed,
            ended.tuples,
        )

    def away(self, error: BaseException) -> None:
        """Log that the topology's ZooKeeper cannot be started now."""
        self._log(logging.WARNING, "waits for its ZooKeeper: %s", first_line(str(error)))

    def ended(self, error: BaseException | None) -> None:
        if error is not None:
            text = "ended with an error, which wait_* and join raise: %s"
            self._log(logging.ERROR, text, first_line(str(error)))

    def _log(self, level: int, text: str, *arguments: Any, **place: Any) -> None:
        context = {**self._context, **{name: str(value) for name, value in place.items()}}
        LOGGER.log(level, f"topology %r {text}", self._id, *arguments, extra={"context": context})


__all__ = ["LOGGER", "LogLines", "first_line"]
