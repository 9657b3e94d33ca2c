"""Topics and their settings: makes, widens and deletes topics, and asks for settings.

Runs on: driver and executor. Raises the same errors as :mod:`txtopo.connectors.kafka.log`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import Log, UnknownTopicError


class TopicAdmin:
    """Asks about topics and changes them, through the client in ``log``."""

    def __init__(self, log: Log) -> None:
        self._log, self._kafka = log, log.cluster.confluent_kafka()

    def settings_of(self, topic: str) -> dict[str, str]:
        with self._log.translated(f"asking for the settings of topic {topic}"):
            return self._settings(self._kafka.admin.ResourceType.TOPIC, topic)

    def compacted(self, topics: Iterable[str]) -> list[str]:
        """The compacted topics in ``topics``, sorted."""
        resources = [
            self._kafka.admin.ConfigResource(self._kafka.admin.ResourceType.TOPIC, topic)
            for topic in topics
        ]
        compacted = []
        with self._log.translated("asking for the settings of topics"):
            answers = (
                self._log.admin.describe_configs(resources, request_timeout=client.CALL_TIMEOUT_S)
                if resources
                else {}
            )
        for resource, future in answers.items():
            try:
                with self._log.translated(f"asking for the settings of topic {resource.name}"):
                    if "compact" in future.result()["cleanup.policy"].value:
                        compacted.append(resource.name)
            except UnknownTopicError:
                continue
        return sorted(compacted)

    def settings_of_a_broker(self) -> dict[str, str]:
        with self._log.translated("asking for the settings of a broker"):
            brokers = self._log.admin.list_topics("txtopo", timeout=client.CALL_TIMEOUT_S).brokers
            if not brokers:  # a broker that has just come back may name none
                raise errors.FailedException(
                    f"{self._log.cluster.owner}: the brokers at {self._log.cluster.servers} name no broker"
                )
            return self._settings(self._kafka.admin.ResourceType.BROKER, str(min(brokers)))

    def _settings(self, kind: Any, name: str) -> dict[str, str]:
        resource = self._kafka.admin.ConfigResource(kind, name)
        (future,) = self._log.admin.describe_configs(
            [resource], request_timeout=client.CALL_TIMEOUT_S
        ).values()
        return {name: entry.value for name, entry in future.result().items()}

    def make_topic(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        """Make a topic, with the brokers' own replication factor, unless the topic exists."""
        new = self._kafka.admin.NewTopic(name, partitions, -1, config=settings)
        with self._log.translated(f"making topic {name}"):
            self._change(
                self._log.admin.create_topics([new], request_timeout=client.CALL_TIMEOUT_S),
                "TOPIC_ALREADY_EXISTS",
            )

    def widen_topic(self, name: str, partitions: int) -> None:
        """Widen a topic to ``partitions``, unless it has as many already."""
        new = self._kafka.admin.NewPartitions(name, partitions)
        with self._log.translated(f"adding partitions to topic {name}"):
            self._change(
                self._log.admin.create_partitions([new], request_timeout=client.CALL_TIMEOUT_S),
                "INVALID_PARTITIONS",
            )

    def delete_topic(self, name: str) -> None:
        with self._log.translated(f"deleting topic {name}"):
            self._change(
                self._log.admin.delete_topics([name], request_timeout=client.CALL_TIMEOUT_S),
                "UNKNOWN_TOPIC_OR_PART",
            )

    def _change(self, futures: dict[str, Any], done: str) -> None:
        """Wait for a change. The error ``done`` means that another process has made the change."""
        (future,) = futures.values()
        try:
            future.result()
        except self._kafka.KafkaException as error:
            if error.args[0].name() != done:
                raise
