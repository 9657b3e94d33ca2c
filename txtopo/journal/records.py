"""Defines a line of the journal: JSON in UTF-8, at most one line per attempt.

A line's first field is ``v``, this format's version. ``docs/watching.md`` lists all fields.
Fields may be added within a version.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import socket
from collections.abc import Mapping
from typing import Any, Literal

from txtopo import config, errors
from txtopo.engine.attempts import AttemptFailedError
from txtopo.engine.observer import EndedAttempt
from txtopo.plan import explain
from txtopo.state import liveness
from txtopo.topology import redaction
from txtopo.topology.graph import TopologyGraph
from txtopo.version import VERSION

FORMAT = 1

TEXT_MAX = 4096
"""Longest error or traceback in a record, in characters."""

_SECRET_MAX = 16 * 1024

Fullness = Literal["full", "lean"]
"""full: everything · lean: no metadata, and no text that user code makes."""

Record = dict[str, Any]


class OtherVersionError(Exception):
    """A line was written by another version, ``version``, of the format."""

    def __init__(self, version: object) -> None:
        super().__init__(version)
        self.version = version


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode(record: Mapping[str, Any]) -> bytes:
    """``record`` as a line.

    :raises ValueError, TypeError: some value has no form in JSON.
    """
    text = _encode({"v": FORMAT, **record})
    # A lone surrogate, as in a file's name, has no form in UTF-8.
    return text.encode(errors="backslashreplace") + b"\n"


def decode(line: bytes) -> Record:
    """The record in ``line``.

    :raises OtherVersionError: another txtopo version has written the line.
    :raises ValueError: the line is torn.
    """
    record = json.loads(line)
    if not isinstance(record, dict) or "v" not in record:
        raise ValueError("no record")
    if record["v"] != FORMAT:
        raise OtherVersionError(record["v"])
    return record


def facts(graph: TopologyGraph, name: str, conf: config.Config, master: str, spark: str) -> Record:
    """The facts about a run that are known before it begins. Your own settings are left out: bolts
    may keep secrets there under any name."""
    settings = conf.model_dump(mode="json", exclude_unset=True, exclude={"user"})
    return {
        "topology_id": graph.id,
        "name": name,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": liveness.process_identity(),
        "txtopo": VERSION,
        "python": platform.python_version(),
        "spark": spark,
        "master": redaction.redacted(master),
        "settings": redaction.redacted(settings),
        "tasks": graph.task_counts,
        "plan": {"components": [explain.component(each) for each in graph.components.values()]},
    }


def run_began(
    facts: Record, at: float, generation: str, epoch: int, current: int, is_resumed: bool
) -> Record:
    """The record for a run's beginning, with its :func:`facts`."""
    return {
        "kind": "began",
        "at": time_of(at),
        "generation": generation,
        "epoch": epoch,
        "current": current,
        "resumed": is_resumed,
        **facts,
    }


def attempt(ended: EndedAttempt, at: float, fullness: Fullness) -> Record:
    """The record for ``ended``. ``at`` is the time of the end, in seconds since 1970."""
    is_full = fullness == "full"
    record: Record = {
        "kind": "attempt",
        "at": time_of(at),
        "txid": ended.attempt.txid,
        "attempt": ended.attempt.attempt_id,
        "outcome": ended.outcome,
        "latency_s": round(ended.latency_s, 6),
        "steps": {status: round(length_s, 6) for status, length_s in ended.steps},
        "tuples": ended.tuples,
        "executed": ended.executed,
        "emitted": ended.emitted,
    }
    if ended.opened_at is not None:
        record["opened_at"] = iso(ended.opened_at)
    if ended.because_of is not None:
        record["because_of"] = str(ended.because_of)
    if ended.failure is not None:
        record["cause"] = _cause(ended.failure, is_full)
    for name in ("widest", "stores", "counters"):
        if value := getattr(ended, name):
            record[name] = value
    for name in ("busy_s", "work_s"):
        if lengths_s := getattr(ended, name):
            record[name] = {key: round(length_s, 6) for key, length_s in lengths_s.items()}
    if is_full and ended.metadata is not None:
        record["meta"] = ended.metadata
    return record


def run_ended(error: BaseException | None, at: float, fullness: Fullness) -> Record:
    """The record for a run's end."""
    return {
        "kind": "ended",
        "at": time_of(at),
        "exit_code": 0 if error is None else errors.exit_code_of(error),
        "error": text_of(error) if error is None or fullness == "full" else type(error).__name__,
    }


def text_of(error: BaseException | None) -> str | None:
    """The text of ``error`` as it may be kept, also if its class cannot show it."""
    if error is None:
        return None
    try:
        return shown(str(error) or type(error).__name__)
    except Exception:
        return type(error).__name__


def shown(text: str) -> str:
    """``text`` as it may be kept: without secrets and control characters, and with a bound. A long
    text loses its middle: a traceback's last line says most."""
    half = TEXT_MAX // 2
    if len(text) <= TEXT_MAX + _SECRET_MAX:
        first = last = _clean(text)
        if len(first) <= TEXT_MAX:
            return first
    else:  # A secret at a cut is whole when it is looked for, or is left out.
        first = _clean(text[: half + _SECRET_MAX])[:-_SECRET_MAX]
        last = _clean(text[-half - _SECRET_MAX :])[_SECRET_MAX:]
    return f"{first[: half - 3]} … {last[-half:]}"


def _clean(text: str) -> str:
    return redaction.printable(str(redaction.redacted(text)))


def _cause(failed: AttemptFailedError, is_full: bool) -> Record:
    failure = failed.failure
    if failure is None:
        return {"error": shown(failed.text)} if is_full else {}
    return {
        "component": failure.component,
        "task": failure.task,
        "phase": failure.phase,
        "hook": failure.hook,
        "error": shown(failure.error if is_full else failure.error.partition(":")[0]),
        **({"traceback": shown(failure.traceback)} if is_full and failure.traceback else {}),
    }


def time_of(at: float) -> str:
    """``at``, in seconds since 1970, as ISO 8601 in UTC."""
    return iso(datetime.datetime.fromtimestamp(at, datetime.UTC))


def iso(time: datetime.datetime) -> str:
    """``time``, which is in UTC, as ISO 8601."""
    return time.isoformat(timespec="milliseconds")[:-6] + "Z"
