"""Writes log lines in text or JSON: tasks' lines in workers, and a command's lines.

Runs on: executor, and driver. Importing this module configures nothing.
"""

from __future__ import annotations

import io
import logging
import sys
from typing import Any, TextIO

from pyspark.logger.logger import JSONFormatter

from txtopo.topology import log


class TextFormatter(logging.Formatter):
    """By default ``time level component=… task=… txid=… attempt=… phase=…: message``."""

    def __init__(self, form: str = "%(asctime)s %(levelname)s %(fields)s%(message)s") -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:
        # The run's own lines tell txid and attempt in their text.
        context = getattr(record, "context", {}) if record.name == log.TASKS.name else {}
        fields = " ".join(f"{name}={value}" for name, value in context.items())
        record.fields = f"{fields}: " if fields else ""
        return super().formatMessage(record)


def formatter(form: str) -> logging.Formatter:
    """The formatter for the setting ``log_format``. PySpark's has the fields of its
    ``SPARK_LOG_SCHEMA``."""
    return JSONFormatter() if form == "json" else TextFormatter()


class JsonLines(io.TextIOBase):
    """A text stream whose lines become JSON on ``stream``, logged by ``txtopo.run``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._formatter = stream, JSONFormatter()

    def write(self, text: str) -> int:
        for line in text.splitlines():
            self.log(logging.INFO, line.removeprefix("txtopo: "))
        return len(text)

    def log(self, level: int, text: str, error: BaseException | None = None) -> None:
        cause = None if error is None else (type(error), error, error.__traceback__)
        record = logging.LogRecord("txtopo.run", level, "", 0, text, None, cause)
        self._stream.write(f"{self._formatter.format(record)}\n")
        self._stream.flush()


class TaskLines(logging.Handler):
    """Writes to standard error, unless the user's code has a handler for these lines."""

    def filter(self, record: logging.LogRecord) -> Any:
        users = [*log.TASKS.handlers, *logging.getLogger("txtopo").handlers, *logging.root.handlers]
        return users == [self] and super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


_lines = TaskLines()
_shown: tuple[str, str] | None = None


def show(level: str, form: str) -> None:
    """Show the lines of this worker's tasks from ``level`` on. Runs before each task."""
    global _shown
    if _shown == (level, form):
        return
    _shown = level, form
    log.TASKS.setLevel(level.upper())
    _lines.setFormatter(formatter(form))
    if not log.TASKS.handlers:
        log.TASKS.addHandler(_lines)
