"""The commands ``txtopo kafka …``: look after the auxiliary topics of Kafka sinks.

Apart from ``store_commands``, since a sink has no results to read: its rows are in topics of the
user's. ``connectors.kafka.upkeep`` does the work.

Runs on: any machine that reaches the brokers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.command import maintain, options, where
from txtopo.connectors.kafka import client, upkeep
from txtopo.state import directory, opening

Do = Callable[[argparse.Namespace], int]

_OWNER = "txtopo kafka"


def add(commands: Any, help_of: Callable[[argparse.ArgumentParser], Do]) -> None:
    """Add ``kafka`` and its commands; ``help_of(parser)`` is the action that shows the help."""
    text = "Kafka sinks: their auxiliary topics, which say what is written."
    kafka = commands.add_parser("kafka", help="look after what Kafka sinks remember", description=text)
    kafka.set_defaults(do=help_of(kafka))
    actions = kafka.add_subparsers(title="commands", metavar="COMMAND", parser_class=options.Parser)

    show = actions.add_parser(
        "show", help="show the last transaction of each task",
        description="Show the last transaction of each task of a topology's Kafka sinks, and the partitions whose readers wait for an open\n"
        "transaction: JSON, one in a line.",
    )  # fmt: skip
    _add_place(show)
    options.add_verbose(show)
    show.set_defaults(do=_show)

    for name, do, text, description in (
        ("abort", _abort, "end open transactions", "End the transactions that tasks of a topology have left open, so that readers wait no longer.\n"
         "The brokers do so by themselves after transaction_timeout_s. A topology that runs replays a transaction."),
        ("clear", _clear, "forget what is written", "Delete the auxiliary topics of a topology; records in your topics stay."),
        ("adopt", _adopt, "go on from what the topics hold", "Take what the topics hold as the result of all transactions a topology has committed:\n"
         "after the auxiliary topic was lost or restored from a copy, or after the state was reset or lost."),
    ):  # fmt: skip
        changing = actions.add_parser(name, help=text, description=description, epilog=where.DRY_RUN)
        _add_place(changing)
        where.add_execute(changing)
        if do is _abort:
            options.add_verbose(changing)
        else:
            changing.add_argument("--component", metavar="ID", action="append", default=[], help="only this component; may be repeated")
            where.add_options(changing)
        changing.set_defaults(do=do)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("servers", metavar="SERVERS", help="the brokers: host:port, or several with commas between")
    parser.add_argument("topology", metavar="TOPOLOGY_ID", help="id of the topology, or of the query")
    parser.add_argument("--topic", metavar="NAME", help="the auxiliary topic, if the sink was given transactions_topic")
    parser.add_argument("--name", metavar="NAME", default="kafka", help="the name of the sink, if it was given one (default: %(default)s)")
    parser.add_argument(
        "--client", metavar="KEY=VALUE", action="append", default=[], help="a setting of librdkafka; may be repeated, as in "
        "--client security.protocol=SASL_SSL --client sasl.password_env=KAFKA_PASSWORD",
    )  # fmt: skip


def _topics(parsed: argparse.Namespace) -> upkeep.AuxiliaryTopics:
    settings = {}
    for setting in parsed.client:
        name, separator, value = setting.partition("=")
        if not separator:
            raise errors.UsageError(f"--client is {setting!r}\n  Give KEY=VALUE.")
        settings[name] = value
    return upkeep.AuxiliaryTopics(client.Cluster(_OWNER, parsed.servers, settings), parsed.topology, parsed.topic, parsed.name)


def _show(parsed: argparse.Namespace) -> int:
    topics = _topics(parsed)
    print("\n".join(map(json.dumps, topics.shown())) or f"there is no auxiliary topic {topics.address}")
    return 0


def _abort(parsed: argparse.Namespace) -> int:
    ids = _topics(parsed).abort(dry_run=not parsed.execute)
    print("\n".join([f"{'ended' if parsed.execute else 'would end'} whatever is open of {len(ids)} transactional ids:", *(f"  {id}" for id in ids)]))
    return where.say_how_to_execute(parsed)


def _clear(parsed: argparse.Namespace) -> int:
    # The topics alone do not know whether their topology runs; where it can be known, ask.
    if where.where(parsed).zookeeper is not None or directory.running(where.data_dir(parsed)) is not None:
        where.look(parsed, lambda opened: None if opened is None else maintain.require_stopped(opened, parsed.topology))
    print(maintain.clear_store(_topics(parsed), parsed.topology, parsed.component, parsed.execute))
    return where.say_how_to_execute(parsed)


def _adopt(parsed: argparse.Namespace) -> int:
    def adopt(opened: opening.Opened) -> str:
        return maintain.adopt_store(_topics(parsed), opened, parsed.topology, parsed.component, None, parsed.execute)

    print(where.changed(parsed, adopt))
    return where.say_how_to_execute(parsed)
