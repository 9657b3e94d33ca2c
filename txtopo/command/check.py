"""``txtopo status --check``: whether a topology's facts meet conditions, for cron and probes.

Invariants: a fact that is not known meets no condition.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txtopo import errors
from txtopo.engine import logged
from txtopo.journal import fold, live, reader, recording, watch

FIELDS = ("age", "attempts", "failed", "behind", "running", "lag")

AGAIN_S = 0.5
"""A check that fails looks once more after so long: the run may be between two transactions, and
``live.json`` is a moment old."""

_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}
_CONDITION = re.compile(r"([a-z]+)(<=|>=|<|=|>)(\d+(?:\.\d+)?)")

Fact = float | str
"""A number, or the reason for which there is none."""

Statuses = Callable[[], tuple[list[dict[str, Any]], str]]
"""Gives the topologies' statuses, as ``show_state.status_of``, and the text if there are none."""


def conditions(text: str) -> list[tuple[str, str, float]]:
    """The conditions in ``text``, such as ``age<300 attempts<5``: field, comparison, number.

    :raises UsageError: ``text`` has an unknown field, or is no list of conditions.
    """
    parsed = [_CONDITION.fullmatch(word) for word in text.split()]
    known = [match.groups() for match in parsed if match and match[1] in FIELDS]
    if not known or len(known) < len(parsed):
        raise errors.UsageError(
            f"--check does not take {text!r}\n  Give conditions such as 'age<300 attempts<5'. Fields: {', '.join(FIELDS)}.\n"
            f"  Comparisons: {' '.join(_COMPARE)}."
        )
    return [(field, sign, float(number)) for field, sign, number in known]


def run(checked: list[tuple[str, str, float]], statuses: Statuses, data_dir: Path) -> int:
    """Print a line for each topology. Returns the exit code: 0 if all meet the conditions, else
    1."""
    lines, is_met = _look(checked, statuses, data_dir)
    if not is_met:
        time.sleep(AGAIN_S)
        lines, is_met = _look(checked, statuses, data_dir)
    print("\n".join(lines))
    return 0 if is_met else 1


def _look(
    checked: list[tuple[str, str, float]], statuses: Statuses, data_dir: Path
) -> tuple[list[str], bool]:
    try:
        shown, nothing = statuses()
    except errors.ZooKeeperUnavailableError as error:
        return [logged.first_line(str(error))], False
    lines, is_met = [], bool(shown)
    for status in shown:
        id = status["topology_id"]
        known = facts(status, recording.place(data_dir, id), time.time())
        unmet = list(filter(None, (_unmet(known[each[0]], *each) for each in checked)))
        said = unmet or [f"{field} {_text(known[field])}" for field, _, _ in checked]
        lines.append(f"{id}: {', '.join(said)}")
        is_met = is_met and not unmet
    return lines or [logged.first_line(nothing)], is_met


def _unmet(fact: Fact, field: str, sign: str, number: float) -> str | None:
    """How ``fact`` fails the condition. None if it does not."""
    if isinstance(fact, str):
        return f"{field} is not known: {fact}"
    is_met = _COMPARE[sign](fact, number)
    return None if is_met else f"{field} is {_text(fact)}, not {sign}{number:g}"


def _text(fact: Fact) -> str:
    return fact if isinstance(fact, str) else f"{fact:.0f}"


def facts(status: dict[str, Any], path: Path, now_s: float) -> dict[str, Fact]:
    """The facts by field, from a topology's ``status`` and the journal in ``path``, if its run
    writes there."""
    try:
        now = live.of_run(path, status)
        known = _facts(status, now, path, now_s)
    except OSError as error:
        known = dict.fromkeys(FIELDS, f"{error.filename or path} cannot be read: {error.strerror}")
    ended = status["ended"]
    if ended is not None:
        known |= {name: ended[name] for name in ("failed", "behind")}
    return {**known, "running": int(status["running"])}


def _facts(
    status: dict[str, Any], now: dict[str, Any] | None, path: Path, now_s: float
) -> dict[str, Fact]:
    if now is None:
        return dict.fromkeys(FIELDS, f"its run keeps no {live.NAME} in {path}")
    silent_s = now_s - watch.seconds(now["at"])
    if status["running"] and silent_s > watch.SILENCE_S:
        return dict.fromkeys(FIELDS, f"{path / live.NAME} is {silent_s:.0f} s old")
    shown = now["status"]
    current, committed_at, lag = shown["current"], shown["last_commit_at"], shown["lag"]
    view = fold.fold(reader.Reader(path).about([current - 1, current]), now["generation"])
    tried, last = view.transactions.get(current), view.transactions.get(current - 1)
    if committed_at is None and last is not None and last.committed is not None:
        committed_at = last.committed["at"]
    age: Fact = (
        "the journal has no commit" if committed_at is None else now_s - watch.seconds(committed_at)
    )
    in_flight = status["running"] and any(each["txid"] == current for each in now["active"])
    return {
        "age": 0.0 if status["running"] and shown["idle"] else age,
        "attempts": (0 if tried is None else len(tried.attempts)) + in_flight,
        "failed": shown["failed"],
        "behind": shown["behind"],
        "lag": sum(lag.values()) if lag else "the spout does not tell",
    }
