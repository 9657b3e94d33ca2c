"""The commands ``txtopo store …``: look at results, line by line, or make a store or sink and a state
fit again, as ``maintain`` does.

A line is JSON with ``key`` and ``value``, or with ``text`` if the codec that wrote the value is not
at hand.

Runs on: any machine that reaches the store and, with ``--as-of``, also the topology's ZooKeeper or
data directory.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from txtopo import errors
from txtopo.command import maintain, options, output, whereabouts
from txtopo.connectors import by_address
from txtopo.runtime.visibility import Visibility
from txtopo.state import directory, opening
from txtopo.stores import Key, Store, codecs, keys
from txtopo.stores import by_address as stores

T = TypeVar("T")

_ABSENT = object()


def add(commands: Any) -> None:
    """Add ``store`` and its commands."""
    text = "Stores: where topologies keep their results."
    store = commands.add_parser(
        "store", help="look at results, or make a store and a state fit again", description=text
    )
    actions = store.add_commands()

    get = actions.add_parser(
        "get",
        help="show the value of a key",
        description="Show the value of a key, as JSON. The exit code is 1 if the key has no value.",
    )
    _add_reading(get)
    get.add_argument(
        "key", metavar="KEY", help="the key: a text as it is, a number, or JSON as '[\"dog\",7]'"
    )
    get.set_defaults(do=_get)

    for name, do, text in (
        ("scan", _scan, "show keys and values, in order, one in a line"),
        ("count", _count, "count the keys"),
    ):
        reading = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        _add_reading(reading)
        prefix_help = "only keys with this beginning: a text, or as a JSON list a tuple's first elements (default: all keys)"
        reading.add_argument("prefix", metavar="PREFIX", nargs="?", help=prefix_help)
        reading.set_defaults(do=do, limit=None)
        if name == "scan":
            reading.add_argument("--limit", type=int, metavar="N", help="at most N keys")
        else:
            output.add_json(reading)

    show = actions.add_parser(
        "show",
        help="show a store's or sink's newest transactions",
        description="Show, as JSON lines, the newest transaction of each component that has written to a store. For a Kafka sink, show the newest\n"
        "transaction of each task, and the partitions whose readers wait for an open transaction.",
    )
    _add_kept(show)
    show.add_argument(
        "--topology",
        metavar="ID",
        help="topology id or query id, needed to find a sink's records",
    )
    options.add_verbose(show)
    show.set_defaults(do=_show)

    clear = actions.add_parser(
        "clear",
        help="remove a topology's results",
        description="Remove a topology's results from a store. For a sink, remove the records of its transactions: your rows stay.",
    )
    _add_changing(clear)
    clear.set_defaults(do=_clear)

    adopt = actions.add_parser(
        "adopt",
        help="go on from a store's present content",
        description="Take a store's present content as the result of all transactions that a topology has committed, even if another topology\n"
        "wrote it. Use after the store was emptied on purpose or restored from a copy, or after the state was reset or lost.",
    )
    _add_changing(adopt)
    adopt.add_argument(
        "--from-topology",
        metavar="ID",
        help="the id of the topology that wrote the results, which then belong to the topology in --topology",
    )
    adopt.set_defaults(do=_adopt)


def _add_place(parser: argparse.ArgumentParser) -> None:
    place = f"the store: {', '.join(stores.EXAMPLES[:-1])}, or {stores.EXAMPLES[-1]}"
    parser.add_argument("store", metavar="URL_OR_PATH", help=place)
    parser.add_argument(
        "table",
        metavar="TABLE",
        help="the store's table or name: SqlStore(url, table), RedisStore(url, name), SqliteStore(path, table)",
    )


def _add_kept(parser: argparse.ArgumentParser) -> None:
    place = (
        f"the store or sink: {', '.join(by_address.EXAMPLES[:-1])}, or {by_address.EXAMPLES[-1]}"
    )
    parser.add_argument("store", metavar="ADDRESS", help=place)
    parser.add_argument(
        "table",
        metavar="NAME",
        help="the table or name: SqlStore(url, table), RedisStore(url, name), KafkaSink(…, name=name)",
    )


def _add_reading(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument(
        "--as-of",
        metavar="ID",
        help="only the writes of completely committed transactions of the topology with this id",
    )
    whereabouts.add_options(parser)


def _add_changing(parser: argparse.ArgumentParser) -> None:
    _add_kept(parser)
    parser.add_argument("--topology", metavar="ID", required=True, help="id of the topology")
    parser.add_argument(
        "--component",
        metavar="ID",
        action="append",
        default=[],
        help="only this component's results (repeatable, default: every component's)",
    )
    whereabouts.add_execute(parser)
    whereabouts.add_options(parser)


def key_of(text: str) -> Key:
    """The key for a typed ``text``: a number or JSON if it looks so (``7``, ``["dog",7]``,
    ``"7"``), else the text itself (``dog``, and ``007``, because numbers have no leading zero)."""
    if re.fullmatch(r"0|-?[1-9][0-9]*", text):
        # Python reads no number with too many digits, and no store has such a number.
        with contextlib.suppress(ValueError):
            return int(text)
    if not text.startswith(("[", '"')):
        return text
    try:
        return keys.decode_key(text)
    except ValueError as error:
        cure = "Give a text as it is, a number, or JSON: 7, '[\"dog\",7]', '\"7\"' for the text 7, '\"[dog\"' for a text that begins like a list."
        raise errors.UsageError(f"{text} looks like JSON and is not: {error}\n  {cure}") from None


def prefix_of(text: str | None) -> str | tuple[Key | None, ...] | None:
    """The beginning that keys must have: a text, or as a JSON list a tuple's first elements. None
    stands for all keys."""
    if text is None:
        return None
    key = key_of(text)
    return text if isinstance(key, int) else key


def _read(parsed: argparse.Namespace, reading: Callable[..., T]) -> T:
    """Call ``reading``, with ``as_of=`` if only a topology's committed transactions count."""
    if parsed.as_of is None:
        return reading()
    with Visibility(
        parsed.as_of,
        zookeeper=parsed.zookeeper,
        data_dir=parsed.data_dir,
        conf=whereabouts.where(parsed),
    ) as visibility:
        return visibility.read(lambda visible: reading(as_of=visible))


def _line(store: Store, key: Key, value: Any) -> str:
    name = "text" if isinstance(store.codec, codecs.TextCodec) else "value"
    return json.dumps({"key": key, name: value}, ensure_ascii=False)


def _get(parsed: argparse.Namespace) -> int:
    store = stores.open_store(parsed.store, parsed.table)
    key = key_of(parsed.key)
    value = _read(parsed, functools.partial(store.get, key, _ABSENT))
    if value is _ABSENT:
        shown = (
            f"the number {key}; for the text, type '\"{key}\"'"
            if isinstance(key, int)
            else parsed.key
        )
        print(f"txtopo: {store.address} has no value of {shown}", file=sys.stderr)
        return 1
    print(_line(store, key, value))
    return 0


def _scan(parsed: argparse.Namespace) -> int:
    if parsed.limit is not None and parsed.limit < 0:
        raise errors.UsageError(f"--limit is {parsed.limit}\n  Give a number of lines.")
    store = stores.open_store(parsed.store, parsed.table)
    prefix = prefix_of(parsed.prefix)
    scan = store.items if prefix is None else functools.partial(store.scan, prefix)
    for key, value in itertools.islice(_read(parsed, scan), parsed.limit):
        print(_line(store, key, value))
    return 0


def _count(parsed: argparse.Namespace) -> int:
    store = stores.open_store(parsed.store, parsed.table)
    count = _read(parsed, functools.partial(store.count, prefix_of(parsed.prefix)))
    return output.show(parsed, {"count": count}, str(count))


def _show(parsed: argparse.Namespace) -> int:
    kept = by_address.open_kept(parsed.store, parsed.table, parsed.topology)
    lines = [
        json.dumps(line)
        for line in kept.shown()
        if parsed.topology in (None, line.get("topology_id", parsed.topology))
    ]
    print("\n".join(lines) or f"there are no records of a topology in {kept.address}")
    return 0


def _clear(parsed: argparse.Namespace) -> int:
    store = by_address.open_kept(parsed.store, parsed.table, parsed.topology)
    # The store does not know whether its topology runs. Ask ZooKeeper, if one is there.
    if (
        whereabouts.where(parsed).zookeeper is not None
        or directory.running(whereabouts.data_dir(parsed)) is not None
    ):
        whereabouts.look(
            parsed,
            lambda opened: (
                None if opened is None else maintain.require_stopped(opened, parsed.topology)
            ),
        )
    text = maintain.clear_store(store, parsed.topology, parsed.component, parsed.execute)
    return whereabouts.print_changes(parsed, text)


def _adopt(parsed: argparse.Namespace) -> int:
    store = by_address.open_kept(parsed.store, parsed.table, parsed.topology, must_exist=False)

    def adopt(opened: opening.Opened) -> str:
        return maintain.adopt_store(
            store, opened, parsed.topology, parsed.component, parsed.from_topology, parsed.execute
        )

    return whereabouts.print_change(parsed, adopt)
