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


def log_of(resource: Resource, cluster: client.Cluster) -> Log:
    """This process's client for questions to the brokers."""
    log: Log = resource(f"kafka-log:{cluster.key}:{os.getpid()}", lambda: Log(cluster))
    return log


def target_of(
    resource: Resource, cluster: client.Cluster, topic: str, partition: int = -1
) -> Target:
    """The topic as the brokers describe it. This process asks once, and again if ``partition`` is
    beyond the known partitions.

    :raises errors.SetupError: the topic does not exist, or the user may not describe it.
    """
    targets = _targets(resource, cluster)
    if topic not in targets or partition >= targets[topic].partitions:
        targets[topic] = _described(log_of(resource, cluster), topic, partition + 1)
    return targets[topic]


def forget(resource: Resource, cluster: client.Cluster) -> None:
    """Ask the brokers again for every topic."""
    _targets(resource, cluster).clear()


def checked(
    resource: Resource, cluster: client.Cluster, topic: str, has_key: bool, partition: int = -1
) -> Target:
    """Like :func:`target_of`, but refuse a compacted topic if the rows have no key.

    :raises errors.SetupError: the topic is compacted, and the rows have no key.
    """
    target = target_of(resource, cluster, topic, partition)
    if target.is_compacted and not has_key:
        raise errors.SetupError(
            f"{cluster.owner}: topic {topic} is compacted: every record needs a key\n  Give key='field', or another topic."
        )
    return target


def check_timeout(resource: Resource, cluster: client.Cluster, timeout_s: float) -> None:
    """Refuse a transaction time-out above the brokers' maximum, if the brokers tell the maximum.

    :raises errors.SetupError: the time-out is too long.
    """
    resource(
        f"kafka-timeout:{cluster.key}:{timeout_s}:{os.getpid()}",
        lambda: _check_timeout(log_of(resource, cluster), timeout_s),
    )


def bytes_max(
    resource: Resource, cluster: client.Cluster, rows: Collection[producing.Message]
) -> dict[str, int]:
    """The bound on a record, for each topic in ``rows`` whose bound the brokers tell. Empty if the
    user has set ``message.max.bytes``."""
    if "message.max.bytes" in cluster.settings:
        return {}
    known = {
        topic: target_of(resource, cluster, topic).bytes_max
        for topic in {message.topic for message in rows}
    }
    return {topic: bound for topic, bound in known.items() if bound is not None}


def sizes_of(
    resource: Resource, cluster: client.Cluster, rows: Collection[producing.Message]
) -> producing.Sizes:
    """A producer's bounds for ``rows``."""
    bounds = bytes_max(resource, cluster, rows).values()
    return producing.Sizes(max(bounds), min(bounds)) if bounds else producing.OF_THE_LIBRARY


def _targets(resource: Resource, cluster: client.Cluster) -> dict[str, Target]:
    known: dict[str, Target] = resource(f"kafka-targets:{cluster.key}:{os.getpid()}", dict)
    return known


def _described(log: Log, topic: str, partitions: int) -> Target:
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


def _check_timeout(log: Log, timeout_s: float) -> bool:
    settings: dict[str, str] = {}
    with contextlib.suppress(errors.SetupError):
        settings = _settings_of_a_broker(log)
    most = settings.get("transaction.max.timeout.ms")
    if most is not None and timeout_s * 1000 > int(most):
        raise producing.timeout_too_long(log.cluster, timeout_s)
    return True


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
