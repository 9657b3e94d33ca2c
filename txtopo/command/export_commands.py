"""The commands ``txtopo export …``: export a queue in a process without Spark, look at it, mend it.

Runs on: any machine that reaches the store, the topology's ZooKeeper or data directory, and the
target.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.command import options, output, target, whereabouts
from txtopo.command.signals import StopSignals
from txtopo.exports import Exporter, ExportQueue, upkeep
from txtopo.exports.exporting import Exporting
from txtopo.runtime.visibility import Visibility

ACTIONS = ("run", "show", "retry", "skip", "replay")

_QUEUE_HELP = "the queue: package.module:attribute or file.py:attribute"
_EXPORTER_HELP = "the exporter, named like the queue (default: the queue's exporter=)"
_WAIT_S = 0.1


def add(commands: Any) -> None:
    """Add ``export`` and its commands."""
    export = commands.add_parser(
        "export",
        help="tell another system what a queue holds",
        description="Export queues. `txtopo export MODULE:queue [EXPORTER]` is short for `txtopo export run MODULE:queue [EXPORTER]`.",
    )
    actions = export.add_commands()

    def command(
        name: str, do: Any, help: str, description: str, exports: bool = False
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(
            name, help=help, description=description
        )
        parser.add_argument("queue", metavar="QUEUE", help=_QUEUE_HELP)
        parser.set_defaults(do=functools.partial(_answered, do))
        if exports:
            parser.add_argument("exporter", metavar="EXPORTER", nargs="?", help=_EXPORTER_HELP)
            whereabouts.add_options(parser)
        else:
            options.add_verbose(parser)
        return parser

    run = command(
        "run",
        _run,
        "export a queue, until it is stopped",
        "Export a queue, until the first Ctrl-C or SIGTERM. Several such processes, and run.export in a driver, share the buckets.",
        exports=True,
    )
    run.add_argument(
        "--max-attempts",
        type=int,
        default=10,
        metavar="N",
        help="failures in a row after which a bucket stops (default: 10)",
    )
    run.add_argument("--until-empty", action="store_true", help="end when nothing is left")
    shown = command(
        "show",
        _show,
        "show what waits, and what has stopped",
        "Show a queue: entries that wait, since when, and per bucket its exporter, its oldest entry and why it stopped.",
    )
    shown.add_argument("--json", action="store_true", help="as JSON")
    retried = command(
        "retry",
        _retry,
        "let stopped buckets go on",
        "Let stopped buckets try their entry again.",
    )
    retried.add_argument("--bucket", type=int, metavar="N", help="only this bucket")
    skipped = command(
        "skip",
        _skip,
        "pass over the entry at which a bucket stopped",
        "Pass over the entry at which a bucket stopped. The entry is kept: `txtopo export show QUEUE --json` has it.",
    )
    skipped.add_argument("--bucket", type=int, metavar="N", required=True, help="the bucket")
    replayed = command(
        "replay",
        _replay,
        "tell every key's present value, for a target that was lost",
        "Tell the value that every key of the queue's store has now. The target must be empty, or hold nothing newer.",
        exports=True,
    )
    replayed.add_argument(
        "--from-store",
        action="store_true",
        required=True,
        help="entries are the store's keys and values, as the queue's entry_of makes them",
    )


def completed(arguments: list[str]) -> list[str]:
    """``arguments`` with ``run`` after ``export`` where no action is named."""
    if len(arguments) > 1 and arguments[0] == "export" and ":" in arguments[1]:
        return ["export", "run", *arguments[1:]]
    return arguments


def _answered(do: Callable[[argparse.Namespace], int], parsed: argparse.Namespace) -> int:
    try:
        return do(parsed)
    except errors.FailedException as error:
        raise errors.TxtopoError(
            f"{error}\n  Start what does not answer, or mend its address. Then type the command again."
        ) from error


def _queue(parsed: argparse.Namespace) -> ExportQueue:
    queue: ExportQueue = target.instance(parsed.queue, ExportQueue, "an ExportQueue")
    return queue


def _nothing_in(queue: ExportQueue) -> str:
    return (
        f"nothing was ever added to export queue {queue.id!r} in {queue.store.address}\n"
        "  Run its topology first, and look at the store's address."
    )


def _exporter(parsed: argparse.Namespace, queue: ExportQueue) -> Exporter:
    if parsed.exporter is not None:
        exporter: Exporter = target.instance(parsed.exporter, Exporter, "an Exporter")
        return exporter
    if queue.exporter is None:
        raise errors.UsageError(
            f"export queue {queue.id!r} has no exporter\n  Name one as second argument, or make the queue with exporter=…."
        )
    return queue.exporter


def _run(parsed: argparse.Namespace) -> int:
    queue = _queue(parsed)
    exporter = _exporter(parsed, queue)
    ends = threading.Event()
    if parsed.until_empty:
        ends.set()
    with StopSignals() as signals:
        topology_id, shown = None, ""
        while topology_id is None and not signals.is_requested:
            try:
                topology_id = upkeep.topology_of(queue)
                if topology_id is None and parsed.until_empty:
                    print(f"txtopo: {_nothing_in(queue)}", file=sys.stderr)
                    return 0
            except errors.FailedException as error:
                if parsed.until_empty:
                    raise
                if (why := str(error)) != shown:
                    print(f"txtopo: export queue {queue.id!r} waits: {why}", file=sys.stderr)
                shown = why
            if topology_id is None:
                time.sleep(_WAIT_S)
        if topology_id is None:
            return 0
        with Visibility(topology_id, conf=whereabouts.where(parsed)) as visibility:
            exporting = Exporting(
                queue, exporter, visibility.txid, max_attempts=parsed.max_attempts
            )
            print(
                f"txtopo: exporting queue {queue.id!r} of topology {topology_id!r}, until Ctrl-C",
                file=sys.stderr,
            )
            exporting.run(lambda: signals.is_requested, threading.Event(), ends, float("inf"))
    if not parsed.until_empty:
        return 0
    stopped = [each for each in upkeep.status(queue).buckets if each.stopped is not None]
    if stopped:
        raise errors.TxtopoError(
            f"export queue {queue.id!r} has {output.counted(len(stopped), 'stopped bucket')}\n  Look with `txtopo export show {parsed.queue}`."
        )
    return 0


def _show(parsed: argparse.Namespace) -> int:
    queue = _queue(parsed)
    shown = upkeep.status(queue)
    return output.show(parsed, dataclasses.asdict(shown), "\n".join(_lines(queue, shown)))


def _lines(queue: ExportQueue, shown: upkeep.QueueStatus) -> list[str]:
    since = [each.waits_since for each in shown.buckets if each.waits_since is not None]
    oldest = f", the oldest since {_time(min(since))}" if since else ""
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
    print(
        f"let {output.counted(len(buckets), 'bucket')} go on: {', '.join(map(str, buckets)) or 'none had stopped'}"
    )
    return 0


def _skip(parsed: argparse.Namespace) -> int:
    entry = upkeep.skip(_queue(parsed), parsed.bucket)
    print(f"bucket {parsed.bucket} goes on behind key {entry['key']!r}, which is kept as skipped")
    return 0


def _replay(parsed: argparse.Namespace) -> int:
    queue = _queue(parsed)
    exporter = _exporter(parsed, queue)
    topology_id = upkeep.topology_of(queue)
    if topology_id is None:
        raise errors.UsageError(_nothing_in(queue))
    visibility = Visibility(topology_id, conf=whereabouts.where(parsed))
    with visibility, contextlib.closing(exporter):
        told = visibility.read(lambda visible: upkeep.replay(queue, exporter, visible))
    print(f"told the values of {told} keys")
    return 0
