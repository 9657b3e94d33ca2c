"""Asks about the user's topics before a sink writes: whether a topic exists, how many partitions it
has, and which records it refuses.

The library raises no error for a message to an unknown topic. The message waits until the
transaction's time is over, and the transaction can then not even be aborted.

Runs on: executor.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import client, producing
from txtopo.connectors.kafka.log import Log, UnknownTopicError

Resource = Callable[[str, Callable[[], Any]], Any]
"""``TopologyContext.resource``, or its substitute outside a topology."""


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that rows go to."""

    partitions: int
    is_compacted: bool
    bytes_max: int | None
    """The bound on a record. ``None`` if the brokers do not tell this user."""


class Targets:
    """The topics in ``cluster`` as this process knows them, and the client that asks about them."""

    def __init__(self, cluster: client.Cluster) -> None:
        self.log = Log(cluster)
        self._cluster = cluster
        self._known: dict[str, Target] = {}
        self._allowed_s = 0.0
        """The longest transaction time-out that was checked."""

    def close(self) -> None:
        self.log.close()

    def target(self, topic: str, partition: int = -1) -> Target:
        """The topic as the brokers describe it. They are asked once, and again if ``partition`` is
        beyond the known partitions.

        :raises errors.SetupError: the topic does not exist, or the user may not describe it.
        """
        if topic not in self._known or partition >= self._known[topic].partitions:
            self._known[topic] = _look_up(self.log, topic, partition + 1)
        return self._known[topic]

    def forget(self) -> None:
        """Ask the brokers again for every topic."""
        self._known.clear()

    def checked(self, topic: str, has_key: bool, partition: int = -1) -> Target:
        """Like :meth:`target`, but refuse a compacted topic if the rows have no key.

        :raises errors.SetupError: the topic is compacted, and the rows have no key.
        """
        target = self.target(topic, partition)
        if target.is_compacted and not has_key:
            raise errors.SetupError(
                f"{self._cluster.owner}: topic {topic} is compacted: every record needs a key\n  Give key='field', or another topic."
            )
        return target

    def check_timeout(self, timeout_s: float) -> None:
        """Refuse a transaction time-out above the brokers' maximum, if the brokers tell the maximum.

        :raises errors.SetupError: the time-out is too long.
        """
        if timeout_s <= self._allowed_s:
            return
        settings: dict[str, str] = {}
        with contextlib.suppress(errors.SetupError):
            settings = _settings_of_a_broker(self.log)
        most = settings.get("transaction.max.timeout.ms")
        if most is not None and timeout_s * 1000 > int(most):
            raise producing.timeout_too_long(self._cluster, timeout_s)
        self._allowed_s = timeout_s

    def bytes_max(self, rows: Collection[producing.Message]) -> dict[str, int]:
        """The bound on a record, for each topic in ``rows`` whose bound the brokers tell. Empty if
        the user has set ``message.max.bytes``."""
        if "message.max.bytes" in self._cluster.settings:
            return {}
        known = {topic: self.target(topic).bytes_max for topic in {row.topic for row in rows}}
        return {topic: bound for topic, bound in known.items() if bound is not None}

    def sizes_of(self, rows: Collection[producing.Message]) -> producing.Sizes:
        """A producer's bounds for ``rows``."""
        bounds = self.bytes_max(rows).values()
        return producing.Sizes(max(bounds), min(bounds)) if bounds else producing.OF_THE_LIBRARY


def targets_of(resource: Resource, cluster: client.Cluster) -> Targets:
    """This process's knowledge of ``cluster``."""
    targets: Targets = resource(
        f"kafka-targets:{cluster.key}:{os.getpid()}", lambda: Targets(cluster)
    )
    return targets


def _look_up(log: Log, topic: str, partitions: int) -> Target:
    described = log.describe_surely({topic: partitions}).get(topic)
    if described is None:
        raise UnknownTopicError(
            f"{log.cluster.owner}: there is no topic {topic!r} at {log.cluster.servers}\n  Check the name, or make the topic first."
        )
    settings: dict[str, str] = {}
    # A user may be allowed to write, and not to see settings. The broker then refuses record by
    # record.
    with contextlib.suppress(errors.SetupError):
        settings = log.settings_of([topic]).get(topic, {})
    bytes_max = settings.get("max.message.bytes")
    return Target(
        described.partitions,
        "compact" in settings.get("cleanup.policy", ""),
        None if bytes_max is None else int(bytes_max),
    )


def _settings_of_a_broker(log: Log) -> dict[str, str]:
    admin = log.cluster.confluent_kafka().admin
    with log.translated("asking for the settings of a broker"):
        brokers = log.admin.list_topics("txtopo", timeout=client.CALL_TIMEOUT_S).brokers
        if not brokers:  # a broker that has just come back may name none
            raise errors.FailedException(
                f"{log.cluster.owner}: the brokers at {log.cluster.servers} name no broker"
            )
        resource = admin.ConfigResource(admin.ResourceType.BROKER, str(min(brokers)))
        (future,) = log.admin.describe_configs(
            [resource], request_timeout=client.CALL_TIMEOUT_S
        ).values()
        return {name: entry.value for name, entry in future.result().items()}
