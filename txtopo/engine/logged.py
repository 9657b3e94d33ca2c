"""Writes a run's log lines to the logger ``txtopo``.

Runs on: driver. Levels: ``docs/configuration.md`` has the table.
"""

from __future__ import annotations

import logging

from txtopo.engine.observer import LOGGER, EndedAttempt, Observer
from txtopo.topology import redaction


def first_line(text: str) -> str:
    """The first line of ``text``, without secrets."""
    return str(redaction.redacted(next(iter(text.splitlines()), "")))


class LogLines(Observer):
    """Logs a line for each event in a run of ``topology_id``."""

    def __init__(self, topology_id: str) -> None:
        self._id, self._committed = topology_id, 0

    def began(self, generation: str, epoch: int, current: int, is_resumed: bool) -> None:
        LOGGER.info("topology %r begins at txid %d (epoch %d)", self._id, current, epoch)

    def open_failed(self, txid: int, error: BaseException) -> None:
        LOGGER.info(
            "topology %r replays txid %d: opening txid %d: %s",
            self._id,
            txid,
            txid,
            first_line(str(error)),
        )

    def attempt_ended(self, ended: EndedAttempt) -> None:
        failure = ended.failure
        if failure is not None:
            attempt = ended.attempt
            context = {"txid": str(attempt.txid), "attempt": str(attempt.attempt_id)}
            # User code did not fail: a worker died, or a job took too long.
            level = logging.WARNING if failure.kind in ("crash", "timeout") else logging.INFO
            LOGGER.log(
                level,
                "topology %r replays txid %d: %s",
                self._id,
                attempt.txid,
                first_line(failure.text),
                extra={"context": {"topology": self._id, **context}},
            )

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
        LOGGER.warning("topology %r waits for its ZooKeeper: %s", self._id, first_line(str(error)))

    def ended(self, error: BaseException | None) -> None:
        if error is not None:
            LOGGER.error(
                "topology %r ended with an error, which wait_* and join raise: %s",
                self._id,
                first_line(str(error)),
            )


__all__ = ["LOGGER", "LogLines", "first_line"]
