"""The commands ``txtopo files …`` and ``txtopo kafka abort``: look at files that a ``FileSink`` has
written, and remove garbage; end transactions that tasks with Kafka sinks have left open.

Runs on: any machine that reaches the files, or the brokers.
"""

from __future__ import annotations

import argparse
from typing import Any

from txtopo.command import options, output, whereabouts
from txtopo.connectors.files import committed
from txtopo.connectors.files import upkeep as file_upkeep
from txtopo.connectors.kafka import upkeep as topics


def add_files(commands: Any) -> None:
    """Add ``files`` and its commands."""
    parser = commands.add_parser(
        "files",
        help="look at files that a sink has written",
        description="Files of a FileSink: committed transactions, missing files, garbage.",
    )
    actions = parser.add_commands()

    listed = actions.add_parser(
        "list",
        help="list committed transactions",
        description="List committed transactions, in order, each with its files and rows.",
    )
    _add_root(listed)
    listed.add_argument(
        "--after", type=int, default=0, metavar="TXID", help="only later transactions"
    )
    listed.add_argument("--json", action="store_true", help="as JSON, with the files' paths")
    options.add_verbose(listed)
    listed.set_defaults(do=_list)

    verified = actions.add_parser(
        "verify",
        help="check that all committed files are there",
        description="Check that all files of committed transactions are there, with the size they were written with. The exit code is 1 if not.",
    )
    _add_root(verified)
    output.add_json(verified)
    options.add_verbose(verified)
    verified.set_defaults(do=_verify)

    vacuumed = actions.add_parser(
        "vacuum",
        help="remove files of failed attempts",
        description="Remove files that attempts have written and no transaction has. They are a day old, and their transactions are over.",
    )
    _add_root(vacuumed)
    whereabouts.add_execute(vacuumed)
    options.add_verbose(vacuumed)
    vacuumed.set_defaults(do=_vacuum)


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "root", metavar="ROOT", help="the directory, or an address: s3://bucket/folder?endpoint=URL"
    )


def _list(parsed: argparse.Namespace) -> int:
    records = file_upkeep.require_records(parsed.root)
    read = committed.Committed(records.log, after=parsed.after, isolation="read_all")
    if parsed.json:
        output.print_json(
            {
                "transactions": [
                    {"txid": txid, "files": [file.as_data() for file in files]}
                    for txid, files in read
                ]
            }
        )
        return 0
    for txid, files in read:
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        print(f"{txid}: {rows} rows in {len(files)} files, {size} bytes")
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    problems = file_upkeep.require_records(parsed.root).problems()
    text = "\n".join(problems) or "all committed files are there"
    output.show(parsed, {"problems": problems}, text)
    return 1 if problems else 0


def _vacuum(parsed: argparse.Namespace) -> int:
    records = file_upkeep.require_records(parsed.root)
    garbage = records.garbage()
    if parsed.execute:
        records.log.storage.delete([entry.path for entry in garbage])
    done = "removed" if parsed.execute else "would remove"
    size = sum(entry.bytes for entry in garbage)
    lines = [f"{done} {len(garbage)} files, {size} bytes", *(f"  {each.path}" for each in garbage)]
    return whereabouts.print_changes(parsed, "\n".join(lines))


def add_kafka(commands: Any) -> None:
    """Add ``kafka`` and its command."""
    parser = commands.add_parser(
        "kafka",
        help="look after transactions of Kafka sinks",
        description="Kafka sinks: their open transactions.",
    )
    abort = parser.add_commands().add_parser(
        "abort",
        help="end open transactions",
        description="End the transactions that a topology's tasks have left open, so that readers wait no longer.\n"
        "The brokers end them by themselves after transaction_timeout_s. A running topology replays an ended transaction.",
    )
    abort.add_argument(
        "address",
        metavar="ADDRESS",
        help="the brokers, as `txtopo store` takes them: kafka://host:port?setting=value",
    )
    abort.add_argument("--topology", metavar="ID", required=True, help="topology id or query id")
    whereabouts.add_execute(abort)
    options.add_verbose(abort)
    abort.set_defaults(do=_abort)


def _abort(parsed: argparse.Namespace) -> int:
    ids = topics.open_topics(parsed.address, "", parsed.topology).abort(dry_run=not parsed.execute)
    done = "ended" if parsed.execute else "would end"
    head = f"{done} the open transactions of {len(ids)} transactional ids:"
    return whereabouts.print_changes(parsed, "\n  ".join([head, *ids]))
