"""``txtopo top``: shows a run as it goes on, from the journal and ``live.json`` alone.

:func:`frame` is pure: a view in, rows out. Only :func:`_follow` knows rich and the terminal.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import importlib.util
import itertools
import os
import select
import sys
import termios
import time
import tty
import unicodedata
from collections.abc import Iterator
from typing import Any

from txtopo.command import output, signals, whereabouts
from txtopo.engine import logged
from txtopo.journal import fold, watch
from txtopo.journal.records import Record

Row = list[tuple[str, str]]
"""Texts, each with its style: a colour's name, or empty."""

REFRESH_S = 0.25

_WIDTH, _HEIGHT = 80, 24
_WIDE = 80
"""A terminal with so many columns has words beside the lanes."""
_ROOM = 10
"""A terminal with so many rows for transactions also shows sources and stores."""
_PROCESSING, _WAITING, _COMMIT = ("█", "blue"), ("·", "bright_black"), ("▓", "green")
_FAILED, _DISCARDED = ("x", "red"), ("-", "bright_black")
_STEPS = {
    "waiting": _WAITING,
    "processed": _WAITING,
    **dict.fromkeys(("sealing", "applying", "recording"), _COMMIT),
}
_GLYPHS = {"committed": None, **dict.fromkeys(fold.NOT_FAILED - {"committed"}, _DISCARDED)}
_LEGEND = (
    (_PROCESSING, "processing"),
    (_WAITING, "waiting"),
    (_COMMIT, "commit"),
    (_FAILED, "failed"),
    (_DISCARDED, "discarded"),
)


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "top",
        help="watch a run: its transactions side by side",
        description="Show a run as it goes on: its newest transactions, side by side, and its failures. Reads the files in the runs' data\n"
        "directory, and nothing else. Keys: q quits, f shows the failures, p the plan, and again the transactions.",
    )
    whereabouts.add_journal(parser)
    parser.add_argument("--once", action="store_true", help="print the present state, and end")
    output.add_json(parser)
    parser.set_defaults(do=_top)


def _top(parsed: argparse.Namespace) -> int:
    watched = watch.Watch(whereabouts.journal(parsed))
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if is_terminal and not parsed.once and not parsed.json:
        if importlib.util.find_spec("rich") is not None:
            _follow(watched)
            return 0
        print("to follow the run, type: pip install 'txtopo[top]'", file=sys.stderr)
    watched.refresh()
    if parsed.json:
        output.print_json(watched.view())
        return 0
    for row in frame(watched.view(), time.time(), _WIDTH, _HEIGHT):
        print("".join(text for text, _ in row).rstrip())
    return 0


# -- the terminal --------------------------------------------------------------------------------


def _follow(watched: watch.Watch) -> None:
    """Show frames until the key q, or a signal."""
    from rich import console, live, text

    screen = console.Console()
    shown_by = ""
    with signals.StopSignals() as stop:
        stop.watch()
        with _keys(), live.Live(console=screen, screen=True, auto_refresh=False) as shown:
            while not stop.is_requested:
                watched.refresh()
                size = screen.size
                rows = frame(watched.view(), time.time(), size.width, size.height, shown_by)
                lines = [text.Text.assemble(*row) for row in rows]
                shown.update(
                    text.Text("\n", no_wrap=True, overflow="crop").join(lines), refresh=True
                )
                if select.select([sys.stdin], [], [], REFRESH_S)[0]:
                    keys = os.read(sys.stdin.fileno(), 64)
                    if not keys or b"q" in keys:
                        return
                    for key in (each for each in keys.decode("latin-1") if each in "fp"):
                        shown_by = "" if key == shown_by else key
    raise signals.InterruptedBySignalError(stop.signum)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Let keys come one by one, without being shown. Afterwards the terminal is as before."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# -- a frame -------------------------------------------------------------------------------------


def frame(view: Record, now: float, width: int, height: int, shown_by: str = "") -> list[Row]:
    """The rows that show ``view``: at most ``height``, each with at most ``width`` columns.
    ``now`` is in seconds since 1970. ``shown_by``: the key f for failures instead of transactions, p
    for the plan."""
    rows: list[Row] = [[(_title(view, now), "bold")]]
    rows += [[(" · ".join(numbers), "")] for numbers in _numbers(view)]
    legend = [part for glyph, name in _LEGEND for part in (glyph, (f" {name}  ", ""))]
    failures = [_failure(each) for each in view["failures"]]
    below: list[Row] = [legend, [(failures[0], "red")]] if failures else [legend]
    room = max(height - len(rows) - len(below), 1)
    places = [[(line, "")] for line in _places(view)]
    if shown_by:
        stories = [line for each in view["failures"] for line in _story(each)] or ["no failure"]
        lines = stories if shown_by == "f" else _plan(view)
        rows += [[(line, "")] for line in lines[: room + len(below)]]
    elif room < _ROOM:
        rows += [*_lanes(view, now, width, room), *below]
    else:
        rows += [*_lanes(view, now, width, room - len(places)), *below, *places]
    return [_shorten(row, width) for row in rows][:height]


def _title(view: Record, now: float) -> str:
    run, present = view["run"], view["live"]
    if run is None:
        return "no run has begun"
    name = f"{view['topology_id']}, epoch {run['epoch']}: "
    silent_s = None if present is None else max(0, now - watch.seconds(present["at"]))
    if run["ended"] is not None:
        error = run["ended"].get("error")
        why = f": {logged.first_line(error)}" if error else ""
        return (
            f"{name}ended with exit code {run['ended']['exit_code']} at {run['ended']['at']}{why}"
        )
    if not run["is_alive"]:
        return name + ("died" if silent_s is None else f"died {_length(silent_s)} ago")
    if present is None or silent_s is None or silent_s > watch.SILENCE_S:
        return f"{name}silent{'' if silent_s is None else f' for {_length(silent_s)}'}"
    away = "does not answer" if present["zookeeper"]["is_away"] else "ok"
    standbys = f", {output.counted(present['standbys'], 'standby')}" if present["standbys"] else ""
    return f"{name}{present['status']['state']}, ZooKeeper {away}{standbys}"


def _places(view: Record) -> list[str]:
    """How far the source's partitions are behind, and when each store was written."""
    status = (view["live"] or {}).get("status", {})
    current, lags = status.get("current", 1), status.get("lag", {})
    sources = " · ".join(f"{name} {lag:,} behind" for name, lag in sorted(lags.items()))
    stores = " · ".join(
        f"{name} {each['recorded']}, {max(0, current - 1 - int(each['recorded'].split(':')[0]))} ago"
        for name, each in sorted(view["stores"].items())
    )
    return [
        f"{name:<10}{text}" for name, text in (("sources", sources), ("stores", stores)) if text
    ]


def _plan(view: Record) -> list[str]:
    """A line for each component: tasks, tuples in a second, skew, time per tuple, inputs."""
    components = (view["plan"] or {"components": []})["components"]
    width = max((len(each["id"]) for each in components), default=0)
    lines = []
    for each in components:
        did = view["components"].get(each["id"], {})
        rates = [did.get(f"{name}_per_s", 0) for name in ("executed", "emitted")]
        skew = f", skew {did['skew']:.2f}" if did.get("skew") else ""
        latency = f", {did['latency_s'] * 1e3:,.3f} ms/tuple" if did.get("latency_s") else ""
        inputs = ", ".join(f"{feed['from']}: {feed['grouping']}" for feed in each["inputs"])
        kind = f"{each['kind']} x{each['tasks']}"
        numbers = f"{rates[0]:,.0f} in, {rates[1]:,.0f} out/s{skew}{latency}"
        lines.append(f"{each['id']:<{width}}  {kind:<12}  {numbers}{inputs and f'  <- {inputs}'}")
    return lines


def _length(length_s: float) -> str:
    units = ((1, "s"), (60, "min"), (3600, "h"))
    size, unit = next((each for each in units if length_s < 120 * each[0]), units[-1])
    return f"{length_s / size:.0f} {unit}"


def _numbers(view: Record) -> tuple[list[str], list[str]]:
    """Counts, then rates."""
    counts, rates = [], []
    if (present := view["live"]) is not None:
        status, is_alive = present["status"], view["run"]["is_alive"]
        counts = [
            f"{status['committed']:,} committed",
            f"{len(present['active'])} {'in flight' if is_alive else 'not finished'}",
            f"{status['failed']:,} failed",
            f"{status['behind']:,} behind",
        ]
        rates = [f"{status['tuples_per_s']:,.0f} tuples/s"] if is_alive else []
    if (latency := view["latency_s"]) is not None:
        rates.append(f"latency {latency['median']:.1f} s, 95 % {latency['p95']:.1f} s")
    return counts, rates


def _failure(failure: Record) -> str:
    cause = failure["cause"] or {}
    place = (
        f"{cause['component']}, task {cause['task']}, {cause['hook']}: " if "task" in cause else ""
    )
    error = logged.first_line(cause.get("error", "")) or "no text is kept"
    committed = failure["committed_by"]
    then = "" if committed is None else f", committed by {failure['txid']}:{committed}"
    return f"{failure['txid']}:{failure['attempt']} {failure['outcome']}{then}: {place}{error}"


def _story(failure: Record) -> list[str]:
    trace = (failure["cause"] or {}).get("traceback", "")
    return [f"{failure['at']}  {_failure(failure)}", *(f"  {line}" for line in trace.splitlines())]


def _lanes(view: Record, now: float, width: int, room: int) -> list[Row]:
    """The newest transactions, one row each, all on one axis of time."""
    tries = {
        each["txid"]: [
            (
                watch.seconds(attempt["at"]),
                attempt["steps"],
                _GLYPHS.get(attempt["outcome"], _FAILED),
            )
            for attempt in each["attempts"]
        ]
        for each in view["transactions"][-room:]
    }
    over = {(each["txid"], n["attempt"]) for each in view["transactions"] for n in each["attempts"]}
    present, open_txids = view["live"], set()
    if present is not None:
        seen_at = watch.seconds(present["at"])
        later_s = max(now - seen_at, 0) if view["run"]["is_alive"] else 0.0
        for each in present["active"]:
            if (each["txid"], each["attempt"]) not in over:
                *_, last = steps = dict(each["steps"])
                steps[last] += later_s
                tries.setdefault(each["txid"], []).append((seen_at + later_s, steps, None))
                open_txids.add(each["txid"])
    shown = sorted(tries.items())[-room:]
    begins = {
        txid: min(end - sum(steps.values()) for end, steps, _ in each) for txid, each in shown
    }
    ends = {txid: max(end for end, _, _ in each) for txid, each in shown}
    if not shown:
        return []
    first, words = min(begins.values()), width >= _WIDE
    columns = max(width - (35 if words else 26), 1)
    scale = (columns - 1) / max(max(ends.values()) - first, 1e-3)
    rows: list[Row] = []
    for txid, each in shown:
        cells = [(" ", "")] * columns
        for end, steps, glyph in each:
            at = end - sum(steps.values())
            for status, length_s in steps.items():
                begin, at = at, at + length_s
                left, right = int((begin - first) * scale), int((at - first) * scale)
                cell = glyph or _STEPS.get(status, _PROCESSING)
                cells[left : right + 1] = [cell] * (right + 1 - left)
        text = f" {ends[txid] - begins[txid]:7.1f} s{' …' if txid in open_txids else '  '}"
        if len(each) > 1:
            more = "+" if len(each) >= watch.ATTEMPTS_MAX else ""
            text += f" {len(each)}{more} attempts" if words else f" {len(each)}{more}x"
        rows.append([(f"{txid:>8} ", ""), *cells, (text, "")])
    return rows


def _shorten(row: Row, width: int) -> Row:
    """``row`` in at most ``width`` columns, without characters that control the terminal."""
    characters = [(each, style) for text, style in row for each in text]
    wide = (unicodedata.east_asian_width(each) in "FW" for each, _ in characters)
    ends = [*itertools.accumulate(1 + is_wide for is_wide in wide)]
    if ends and ends[-1] > width:
        characters = [*characters[: bisect.bisect(ends, width - 1)], ("…", "")]
    return [
        ("".join(each if each.isprintable() else " " for each, _ in run), style)
        for style, run in itertools.groupby(characters, key=lambda character: character[1])
    ]
