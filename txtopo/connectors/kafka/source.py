"""A Kafka spout's arguments: which topics, from where, how many records at a time.

They are not in ``planning``, because executors need the arguments and do not plan.
"""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import Log

Start = Literal["earliest", "latest"] | str | datetime.datetime | Mapping[str, Mapping[int, int]]
Lost = Literal["stop", "skip"]
GROUP = "group:"
"""How ``start`` begins if it names a consumer group, whose committed offsets are then the start."""


@dataclass(frozen=True)
class Source:
    """A Kafka spout's arguments, which :func:`check` checks. Connects to nothing."""

    cluster: client.Cluster
    topics: tuple[str, ...] | re.Pattern[str]
    records_per_batch: int | None
    records_per_transaction: int | None
    start: Start
    isolation: str
    refresh_s: float
    is_opaque: bool
    compacted: bool
    lost: Lost
    client_group: str | None = None

    def log(self) -> Log:
        return Log(self.cluster, self.isolation)


class LogChangedError(errors.InputError):
    """The log has changed since it was read: records at the position were lost or replaced."""

    page = "kafka.html#when-the-log-changes"


def reset_command(topology_id: str) -> str:
    """The command that shows how to begin anew, for messages."""
    return f"`txtopo state reset {shlex.quote(topology_id)}` shows the steps"


def check(source: Source) -> None:
    """Raise :class:`~txtopo.errors.ConfigError` for an impossible argument."""
    owner = source.cluster.owner

    def refuse(name: str, value: Any, allowed: str) -> errors.ConfigError:
        return errors.ConfigError(f"{owner}: {name} is {value!r}\n  Give {allowed}.")

    named = source.topics
    if isinstance(named, re.Pattern) and not isinstance(named.pattern, str):
        raise refuse("topics", named, "a pattern over text, not over bytes")
    if isinstance(source.topics, tuple) and (
        not source.topics or not all(isinstance(name, str) and name for name in source.topics)
    ):
        raise refuse(
            "topics",
            list(source.topics),
            "a topic's name, a list of names, or a pattern: re.compile('shop-.*')",
        )
    for name, count in (
        ("records_per_batch", source.records_per_batch),
        ("records_per_transaction", source.records_per_transaction),
    ):
        if count is not None and (
            not isinstance(count, int) or isinstance(count, bool) or count < 1
        ):
            raise refuse(name, count, "a whole number, at least 1, or None for no bound")
    if source.isolation not in ("read_committed", "read_uncommitted"):
        raise refuse("isolation", source.isolation, "'read_committed' or 'read_uncommitted'")
    if not isinstance(source.refresh_s, int | float) or not source.refresh_s > 0:
        raise refuse("refresh_s", source.refresh_s, "a number of seconds above 0")
    if not isinstance(source.compacted, bool):
        raise refuse("compacted", source.compacted, "True or False")
    if source.client_group is not None and not (
        isinstance(source.client_group, str) and source.client_group
    ):
        raise refuse("client_group", source.client_group, "the id of a consumer group, or None")
    if source.lost not in ("stop", "skip"):
        raise refuse("lost", source.lost, "'stop' or 'skip'")
    if source.lost == "skip" and not source.is_opaque:
        raise refuse(
            "lost",
            source.lost,
            "it to OpaqueKafkaTransactionalSpout, with opaque stores: a replay must have the same records",
        )
    _check_start(source.start, refuse)


def _check_start(start: Any, refuse: Callable[[str, Any, str], errors.ConfigError]) -> None:
    allowed = "'earliest', 'latest', 'group:<id>', a datetime with a time zone, or offsets: {'topic': {0: 17}}"
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise refuse(
                "start",
                start,
                "a datetime with a time zone, for example datetime(…, tzinfo=UTC)",
            )
    elif isinstance(start, Mapping):
        offsets: Iterable[Any] = start.values()
        if not all(isinstance(each, Mapping) for each in offsets):
            raise refuse("start", start, allowed)
        for topic, each in start.items():
            if not all(
                isinstance(number, int) and isinstance(offset, int) and number >= 0 and offset >= 0
                for number, offset in each.items()
            ):
                raise refuse(
                    f"start[{topic!r}]",
                    each,
                    "a dict from partition to offset, both whole numbers, at least 0",
                )
    elif start not in ("earliest", "latest") and not (
        isinstance(start, str) and start.startswith(GROUP) and len(start) > len(GROUP)
    ):
        raise refuse("start", start, allowed)
