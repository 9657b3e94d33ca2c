"""The user's topics as a sink must know them before it writes: whether they exist, how many partitions
they have, what they refuse.

A message for an unknown topic is no error of the library: it waits until the transaction's time is
over, and the transaction can then not even be aborted. So the topic is asked for first.

Runs on: executor.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import Log, UnknownTopicError
from txtopo.topology.context import TopologyContext


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that rows go to."""

    topic: str
    partitions: int
    is_compacted: bool
    bytes_max: int | None
    """Of a record; ``None`` if the brokers do not tell this user."""


def log_of(context: TopologyContext, cluster: client.Cluster) -> Log:
    """The client of this process for questions to the brokers."""
    log: Log = context.resource(f"kafka-log:{cluster.key}:{os.getpid()}", lambda: Log(cluster))
    return log


def target_of(context: TopologyContext, cluster: client.Cluster, topic: str) -> Target:
    """The topic, as the brokers describe it when this process first asks.

    :raises errors.SetupError: there is no such topic, or the user may not write to it.
    """
    target: Target = context.resource(
        f"kafka-target:{cluster.key}:{topic}:{os.getpid()}", lambda: _described(log_of(context, cluster), topic)
    )
    return target


def check_timeout(context: TopologyContext, cluster: client.Cluster, timeout_s: float) -> None:
    """Refuse a time-out of transactions above the brokers' maximum, as far as they tell it.

    :raises errors.SetupError: it is above.
    """
    context.resource(f"kafka-timeout:{cluster.key}:{timeout_s}:{os.getpid()}", lambda: _check_timeout(log_of(context, cluster), timeout_s))


def _described(log: Log, topic: str) -> Target:
    described = log.describe([topic]).get(topic)
    if described is None:
        raise UnknownTopicError(
            f"{log.cluster.owner}: there is no topic {topic!r} at {log.cluster.servers}\n  Check the name; or make the topic first."
        )
    settings: dict[str, str] = {}
    # A user may be allowed to write and not to see settings; the broker then refuses record by record.
    with contextlib.suppress(errors.SetupError):
        settings = log.settings_of(topic)
    bytes_max = settings.get("max.message.bytes")
    return Target(
        topic, described.partitions, "compact" in settings.get("cleanup.policy", ""), None if bytes_max is None else int(bytes_max)
    )


def _check_timeout(log: Log, timeout_s: float) -> bool:
    settings: dict[str, str] = {}
    with contextlib.suppress(errors.SetupError):
        settings = log.settings_of_a_broker()
    most = settings.get("transaction.max.timeout.ms")
    if most is not None and timeout_s * 1000 > int(most):
        raise timeout_too_long(log.cluster, timeout_s)
    return True


def timeout_too_long(cluster: client.Cluster, timeout_s: float) -> errors.SetupError:
    """The error for a transaction that may be open longer than the brokers allow."""
    return errors.SetupError(
        f"{cluster.owner}: transaction_timeout_s is {timeout_s:g}, which is more than the brokers at {cluster.servers} allow\n"
        "  Give less; or raise the brokers' transaction.max.timeout.ms."
    )
