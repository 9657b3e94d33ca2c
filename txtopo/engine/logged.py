"""The logger ``txtopo``: messages of a run to its program, beside its status.

Apart from ``status``, which the simulator uses too: there attempts fail by the thousand.

Runs on: driver. Levels: ``docs/configuration.md`` has the table.
"""

from __future__ import annotations

import logging
from typing import Any

from txtopo.engine.status import StatusBoard

LOGGER = logging.getLogger("txtopo")
"""Without a handler of the program's, Python writes warnings and errors to standard error, and
nothing else."""


def first_line(text: str) -> str:
    """The first line of ``text``."""
    return next(iter(text.splitlines()), "")


class LoggedBoard(StatusBoard):
    """A status whose changes are logged."""

    def begin(self, **changes: Any) -> None:
        super().begin(**changes)
        status = self.snapshot()
        LOGGER.info("topology %r begins at txid %d (epoch %d)", status.topology_id, status.current, status.epoch)

    def failed(self, error: str, txid: int | None, is_unexpected: bool = False, **changes: Any) -> None:
        super().failed(error, txid, is_unexpected, **changes)
        status = self.snapshot()
        id = status.topology_id
        if status.state != "failed" and txid is None:
            LOGGER.warning("topology %r waits for its ZooKeeper: %s", id, first_line(error))
        elif txid is None:
            LOGGER.error("topology %r ended with an error, which wait_* and join raise: %s", id, first_line(error))
        else:
            LOGGER.log(logging.WARNING if is_unexpected else logging.INFO, "topology %r replays txid %d: %s", id, txid, first_line(error))

    def count_commit(self, tuples: int, latency_s: float | None) -> None:
        super().count_commit(tuples, latency_s)
        if LOGGER.isEnabledFor(logging.DEBUG):
            status = self.snapshot()
            LOGGER.debug("topology %r: %d transactions committed, the last with %d tuples", status.topology_id, status.committed, tuples)


__all__ = ["LOGGER", "LoggedBoard", "first_line"]
