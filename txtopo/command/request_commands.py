"""The commands ``txtopo pause``, ``resume``, ``drain`` and ``handover``: ask something of a
topology's run, from any machine that reaches its state."""

from __future__ import annotations

import argparse
import datetime
import getpass
import os
import shlex
import socket
import time
from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.command import output, show_state, whereabouts
from txtopo.state import administration, layout, opening, records, requests

POLL_S = 0.2
WAIT_S = 60.0

_COMMANDS = {
    "pause": (
        "let a topology begin no new transactions",
        "Let a topology's run finish what is in flight, and begin nothing new. The run stays, and later runs are paused, too, until\n"
        "`txtopo resume ID`.",
    ),
    "resume": ("let a paused topology go on", "Let a paused topology go on."),
    "drain": (
        "end a topology's run, wherever it is",
        "Let a topology's run finish its commits and end, as Ctrl-C in its terminal does.",
    ),
    "handover": (
        "let a waiting run take over",
        "Let a topology's run finish its commits and end, so that a run with --standby, which must be waiting, goes on.",
    ),
}


def add(commands: Any) -> None:
    """Add the commands."""
    for name, (help, description) in _COMMANDS.items():
        parser = commands.add_parser(name, help=help, description=description)
        parser.add_argument("topology", metavar="TOPOLOGY_ID")
        if name != "resume":
            parser.add_argument(
                "--wait",
                type=_seconds,
                default=WAIT_S,
                metavar="S",
                help="how many seconds to wait until it is done (default: %(default)g)",
            )
        output.add_json(parser)
        whereabouts.add_options(parser)
        parser.set_defaults(request=name, do={"pause": _pause, "resume": _resume}.get(name, _drain))
        parser.set_defaults(hands_over=name == "handover")


def _pause(parsed: argparse.Namespace) -> int:
    def paused(now: records.RequestRecord, run: dict[str, Any]) -> records.RequestRecord:
        pause = now.pause or records.PauseRecord(by=_who(), at=_now())
        return now.model_copy(update={"pause": pause})

    run = _ask(parsed, paused)

    def is_reached(opened: opening.Opened) -> bool:
        now = requests.read(opened.store, layout.Layout(parsed.topology))
        if now.pause is None:
            raise errors.UsageError(f"topology {parsed.topology!r} was resumed meanwhile")
        return now.pause.is_reached

    _wait(parsed, is_reached, "in flight are still transactions that had begun")
    reach = "".join(whereabouts.reaching(whereabouts.where(parsed)))
    cure = f"`txtopo resume {shlex.quote(parsed.topology)}{reach}` lets it go on"
    return _say(parsed, f"topology {parsed.topology} is paused: {cure}", run)


def _resume(parsed: argparse.Namespace) -> int:
    paths = layout.Layout(parsed.topology)
    with whereabouts.changing(parsed) as opened:
        administration.require_topology(opened.store, paths)
        was = requests.change(
            opened.store, paths, lambda now: now.model_copy(update={"pause": None})
        )
    did = "goes on" if was.pause else "was not paused"
    return _say(parsed, f"topology {parsed.topology} {did}")


def _drain(parsed: argparse.Namespace) -> int:
    def drained(now: records.RequestRecord, run: dict[str, Any]) -> records.RequestRecord:
        drain = records.DrainRecord(by=_who(), at=_now(), epoch=run["epoch"])
        return now.model_copy(update={"drain": drain})

    run = _ask(parsed, drained)
    new: list[dict[str, Any]] = []

    def is_over(opened: opening.Opened) -> bool:
        holder = opening.holder(opened, parsed.topology)
        if holder is not None and holder["epoch"] != run["epoch"]:
            new.append(holder)
        return bool(new) or (holder is None and not parsed.hands_over)

    _wait(parsed, is_over, "its commits, or the start of the next run, take longer")
    by = f", and {show_state.holder_text(new[0])} goes on" if new else ""
    return _say(parsed, f"{show_state.holder_text(run)} has ended{by}", run, *new)


def _say(
    parsed: argparse.Namespace,
    text: str,
    run: dict[str, Any] | None = None,
    next_run: dict[str, Any] | None = None,
) -> int:
    """Say what was done, by the asked run's lease and the next one's. Returns the exit code."""
    asked = {"topology_id": parsed.topology, "request": parsed.request, "text": text}
    return output.show(parsed, {**asked, "run": run, "next_run": next_run}, text)


def _ask(
    parsed: argparse.Namespace,
    changed: Callable[[records.RequestRecord, dict[str, Any]], records.RequestRecord],
) -> dict[str, Any]:
    """Ask the topology's run, and return its lease."""
    paths = layout.Layout(parsed.topology)
    with whereabouts.changing(parsed) as opened:
        administration.require_topology(opened.store, paths)
        run = opening.holder(opened, parsed.topology)
        if run is None or "unreadable" in run:
            last = show_state.ended_text(show_state.status_of(opened, parsed.topology))
            raise errors.FencedError(
                f"topology {parsed.topology!r} has no run that could be asked: {show_state.holder_text(run)}{last}\n"
                "  Look with `txtopo status`. To let it not run, do not start it."
            )
        if parsed.hands_over and not opened.store.children(paths.standbys):
            raise errors.FencedError(
                f"no run waits for topology {parsed.topology!r}, so nothing was asked of {show_state.holder_text(run)}\n"
                "  Start one with --standby first. A run that waits for a data directory is not seen: for its turn, type\n"
                f"  `txtopo drain {shlex.quote(parsed.topology)}`."
            )
        requests.change(opened.store, paths, lambda now: changed(now, run))
        return run


def _wait(
    parsed: argparse.Namespace, is_met: Callable[[opening.Opened], bool], why_not: str
) -> None:
    deadline = time.monotonic() + parsed.wait
    data_dir = whereabouts.data_dir(parsed)
    while not whereabouts.look(parsed, lambda opened: is_met(opening.require(opened, data_dir))):
        if time.monotonic() > deadline:
            raise errors.TxtopoError(
                f"topology {parsed.topology!r} was asked, but is not done after {parsed.wait:g} s: {why_not}\n"
                "  It will do it nevertheless. Look with `txtopo status`."
            )
        time.sleep(POLL_S)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{text} is no time to wait")
    return seconds


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user has no name
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
