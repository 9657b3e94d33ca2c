"""The command ``txtopo kafka abort``: ends transactions that tasks with Kafka sinks have left open.

Runs on: any machine that reaches the brokers.
"""

from __future__ import annotations

import argparse
from typing import Any

from txtopo.command import options, whereabouts
from txtopo.connectors.kafka import upkeep


def add(commands: Any) -> None:
    """Add ``kafka`` and its command."""
    kafka = commands.add_parser(
        "kafka",
        help="look after transactions of Kafka sinks",
        description="Kafka sinks: their open transactions.",
    )
    actions = kafka.add_commands()
    abort = actions.add_parser(
        "abort",
        help="end open transactions",
        epilog=whereabouts.DRY_RUN,
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
    ids = upkeep.open_topics(parsed.address, "", parsed.topology).abort(dry_run=not parsed.execute)
    done = "ended" if parsed.execute else "would end"
    print(f"{done} the open transactions of {len(ids)} transactional ids:")
    for id in ids:
        print(f"  {id}")
    return whereabouts.say_how_to_execute(parsed)
