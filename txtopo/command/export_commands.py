"""The commands ``txtopo export …``: export a queue in a process without Spark, look at it, mend it.

Runs on: any machine that reaches the store, the topology's ZooKeeper or data directory, and the
target.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
import threading
import time
from typing import Any

from txtopo import errors
from txtopo.command import options, output, target, whereabouts
from txtopo.command.signals import StopSignals
from txtopo.exports import Exporter, ExportQueue, upkeep
from txtopo.exports.exporting import Exporting
from txtopo.runtime.visibility import Visibility

ACTIONS = ("run", "show", "retry", "skip", "replay")

_QUEUE_HELP = "the queue: package.module:attribute or file.py:attribute"
_WAIT_S = 0.1


def add(commands: Any) -> None:
    """Add ``export`` and its commands."""
    export = commands.add_parser(
        "export",
        help="tell another system what a queue holds",
        description="Export queues. `txtopo export QUEUE [EXPORTER]` is short for `txtopo export run QUEUE [EXPORTER]`.",
    )
    actions = export.add_commands()

    run = actions.add_parser(
        "run",
        help="export a queue, until it is stopped",
        description="Export a queue, until the first Ctrl-C or SIGTERM. Several such processes, and run.export in a driver, share the buckets.",
    )
    _add_queue(run)
    _add_exporter(run)
    run.add_argument(
        "--max-attempts",
        type=int,
        default=10,
        metavar="N",
        help="failures in a row after which a bucket stops (default: 10)",
    )
    run.add_argument("--until-empty", action="store_true", help="end when nothing is left")
    whereabouts.add_options(run)
    run.set_defaults(do=_run)

    shown = actions.add_parser(
        "show",
        help="show what waits, and what has stopped",
        description="Show a queue: entries that wait, since when, and per bucket its exporter, its lag and why it stopped.",
    )
    _add_queue(shown)
    shown.add_argument("--json", action="store_true", help="as JSON")
    options.add_verbose(shown)
    shown.set_defaults(do=_show)

    retried = actions.add_parser(
        "retry",
        help="let stopped buckets go on",
        description="Let stopped buckets try their entry again.",
    )
    _add_queue(retried)
    retried.add_argument("--bucket", type=int, metavar="N", help="only this bucket")
    options.add_verbose(retried)
    retried.set_defaults(do=_retry)

    skipped = actions.add_parser(
        "skip",
        help="pass over the entry at which a bucket stopped",
        description="Pass over the entry at which a bucket stopped. The entry is kept: `txtopo export show --json` has it.",
    )
    _add_queue(skipped)
    skipped.add_argument("--bucket", type=int, metavar="N", required=True, help="the bucket")
    options.add_verbose(skipped)
    skipped.set_defaults(do=_skip)

    replayed = actions.add_parser(
        "replay",
        help="tell every key's present value, for a target that was lost",
        description="Tell the value that every key of the queue's store has now. The target must be empty, or hold nothing newer.",
    )
    _add_queue(replayed)
    _add_exporter(replayed)
    replayed.add_argument(
        "--from-store",
        action="store_true",
        required=True,
        help="entries are the store's keys and values, as the queue's entry_of makes them",
    )
    whereabouts.add_options(replayed)
    replayed.set_defaults(do=_replay)


def completed(arguments: list[str]) -> list[str]:
    """``arguments`` with ``run`` after ``export`` where no action is named."""
    if len(arguments) > 1 and arguments[0] == "export" and ":" in arguments[1]:
        return ["export", "run", *arguments[1:]]
    return arguments


def _add_queue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help=_QUEUE_HELP)


def _add_exporter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "exporter",
        metavar="EXPORTER",
        nargs="?",
        help="the exporter, named like the queue (default: the queue's exporter=)",
    )


def _queue(parsed: argparse.Namespace) -> ExportQueue:
    queue: ExportQueue = target.instance(parsed.queue, ExportQueue, "an ExportQueue")
    return queue


def _exporter(parsed: argparse.Namespace, queue: ExportQueue) -> Exporter:
    if parsed.exporter is not None:
        exporter: Exporter = target.instance(parsed.exporter, Exporter, "an Exporter")
        return exporter
    if queue.exporter is None:
        raise errors.UsageError(
            f"export queue {queue.id!r} has no exporter\n  Name one as second argument, or make the queue with exporter=…."
        )
    return queue.exporter


def _visibility(parsed: argparse.Namespace, topology_id: str) -> Visibility:
    settings = whereabouts.where(parsed)
    return Visibility(topology_id, conf=settings)


def _topology_of(queue: ExportQueue) -> str:
    topology_id = upkeep.topology_of(queue)
    if topology_id is None:
        raise errors.UsageError(
            f"nothing was ever added to export queue {queue.id!r} in {queue.store.address}\n"
            "  Run its topology first, and look at the store's address."
        )
    return topology_id


def _run(parsed: argparse.Namespace) -> int:
    queue = _queue(parsed)
    exporter = _exporter(parsed, queue)
    stop, ends = threading.Event(), threading.Event()
    if parsed.until_empty:
        ends.set()
    with StopSignals() as signals:
        signals.watch()
        while (topology_id := upkeep.topology_of(queue)) is None and not parsed.until_empty:
            if signals.is_requested:
                return 0
            time.sleep(_WAIT_S)
        if topology_id is None:
            return 0
        with _visibility(parsed, topology_id) as visibility:
            exporting = Exporting(
                queue, exporter, visibility.txid, max_attempts=parsed.max_attempts
            )
            print(
                f"txtopo: exporting queue {queue.id!r} of topology {topology_id!r}, until Ctrl-C",
                file=sys.stderr,
            )
            exporting.run(stop, _Wake(signals, stop), ends, float("inf"))
    stopped = [each for each in upkeep.status(queue).buckets if each.stopped is not None]
    if parsed.until_empty and stopped:
        raise errors.TxtopoError(
            f"{len(stopped)} buckets of export queue {queue.id!r} have stopped\n  Look with `txtopo export show {parsed.queue}`."
        )
    return 0


class _Wake(threading.Event):
    """Waits in short pieces, and asks between two of them whether a signal came."""

    def __init__(self, signals: StopSignals, stop: threading.Event) -> None:
        super().__init__()
        self._signals, self._stop = signals, stop

    def wait(self, timeout: float | None = None) -> bool:
        deadline = time.monotonic() + (timeout or 0.0)
        while not self._signals.is_requested and time.monotonic() < deadline:
            super().wait(min(_WAIT_S, max(deadline - time.monotonic(), 0.0)))
        if self._signals.is_requested:
            self._stop.set()
        return self.is_set()


def _show(parsed: argparse.Namespace) -> int:
    queue = _queue(parsed)
    shown = upkeep.status(queue)
    if parsed.json:
        output.print_json(dataclasses.asdict(shown))
    else:
        print("\n".join(_lines(queue, shown)))
    return 0


def _lines(queue: ExportQueue, shown: upkeep.QueueStatus) -> list[str]:
    since = shown.waits_since
    oldest = "" if since is None else f", the oldest since {_time(since)}"
    lines = [
        f"export queue {queue.id!r} in {queue.store.address}: {shown.entries} entries wait{oldest}"
    ]
    if shown.skipped:
        lines.append(f"  {len(shown.skipped)} entries were skipped: --json shows them")
    for each in shown.buckets:
        if each.waits_since is None and each.stopped is None:
            continue
        waits = (
            ""
            if each.waits_since is None
            else f" from transaction {each.waits_txid}, since {_time(each.waits_since)}"
        )
        lines.append(f"  bucket {each.bucket} waits{waits}, held by {each.holder or 'no exporter'}")
        if each.stopped is not None:
            lines.append(
                f"    stopped at key {each.stopped['key']!r} after {each.stopped['attempts']} attempts: {each.stopped['error']}"
            )
    return lines


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def _retry(parsed: argparse.Namespace) -> int:
    buckets = upkeep.retry(_queue(parsed), [] if parsed.bucket is None else [parsed.bucket])
    print(f"{len(buckets)} buckets go on: {', '.join(map(str, buckets)) or 'none had stopped'}")
    return 0


def _skip(parsed: argparse.Namespace) -> int:
    entry = upkeep.skip(_queue(parsed), parsed.bucket)
    print(f"bucket {parsed.bucket} goes on behind key {entry['key']!r}, which is kept as skipped")
    return 0


def _replay(parsed: argparse.Namespace) -> int:
    queue = _queue(parsed)
    exporter = _exporter(parsed, queue)
    with _visibility(parsed, _topology_of(queue)) as visibility:
        told = visibility.read(lambda visible: upkeep.replay(queue, exporter, visible))
    exporter.close()
    print(f"told the values of {told} keys")
    return 0
