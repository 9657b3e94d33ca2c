"""Kafka under ``txtopo test``: spouts and sinks on brokers in memory. The real brokers are never
asked.

A simulated spout reads the user's sample, or records that are made up. The logs also have what a
real log may have: records that retention has deleted, aborted records, markers, an open transaction,
several leader epochs. The sink's code is the real code, and its transactions fail when the
simulator says so.

Runs on: driver.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

from txtopo import errors
from txtopo.connectors.kafka import auxiliary, client, memory_brokers, memory_clients
from txtopo.connectors.kafka import source as sources
from txtopo.sinks.simulated import SimulatedSink, Written
from txtopo.topology import destination

PARTITIONS = 3
"""How many partitions a source's topic has."""
_TARGET_PARTITIONS = 64
"""How many partitions a sink's topic has. Sinks may choose the partition."""
_MADE_UP = 60
"""How many records are made up for a topic."""
_TRANSACTIONS = 5
"""How many transactions the records make."""
_KEYS, _VALUES = 3, 7
"""How many different keys and values are made up."""
_PATTERN_TOPICS = ("simulated-1", "simulated-2")
"""The topics for a spout that names a pattern."""

_ids = itertools.count()
_COLUMNS = ("topic", "partition", "key", "value", "headers", "timestamp")


class SimulatedBrokers(memory_brokers.Brokers):
    """Brokers that every schedule finds as new. Topics for sinks are made when they are first asked
    for."""

    def __init__(self, world: destination.World, address: str) -> None:
        self._begin()
        self.name = f"{address} {next(_ids)}"
        self.auxiliary_topics: set[str] = set()
        """The topics that users name for auxiliary records."""
        self._world, self._address = world, address
        self._fillings: dict[str, Callable[[str], None]] = {}
        _by_name[self.name] = self

    def _begin(self) -> None:
        super().__init__()
        # Schedules with equal rows have equal records.
        self.clock_ms = lambda: 0

    def new_id(self, topic: str) -> str:
        # Metadata has the id, and is compared with that of other schedules and processes.
        return topic

    def topic(self, name: str) -> memory_brokers.TopicLog:
        if not name.startswith(auxiliary.PREFIX) and name not in self.auxiliary_topics:
            self.make_target(name)
        return super().topic(name)

    def make_target(self, name: str) -> None:
        """Make a topic for a sink, unless there is one."""
        self.make_topic(name, _TARGET_PARTITIONS)

    def fill(self, topic: str, filling: Callable[[str], None]) -> None:
        """Let every schedule find the records that ``filling(topic)`` writes."""
        if topic not in self._fillings:
            self._fillings[topic] = filling
            filling(topic)

    def forget(self) -> None:
        """Lose everything, and fill the sources' topics again."""
        self._begin()
        for topic, filling in self._fillings.items():
            filling(topic)

    def strike(self) -> str | None:
        """How the next transaction fails, if it does."""
        return self._world.fault(self._address)


_by_name: weakref.WeakValueDictionary[str, SimulatedBrokers] = weakref.WeakValueDictionary()


@dataclasses.dataclass(frozen=True)
class SimulatedCluster(client.Cluster):
    """Stands for brokers. Has no secrets: brokers in memory ask for none."""

    name: str = ""
    """The brokers' name in this process."""

    def confluent_kafka(self) -> Any:
        brokers = _by_name[self.name]
        return memory_clients.module_over(brokers, brokers.strike)

    def reach(self, host: str, port: int, wait_s: float) -> None:
        """Brokers in memory are always within reach."""


def brokers_of(cluster: client.Cluster, world: destination.World) -> SimulatedBrokers:
    """The brokers that stand for ``cluster`` in ``world``."""
    address = f"kafka://{cluster.servers}"
    brokers: SimulatedBrokers = world.shared(address, lambda: SimulatedBrokers(world, address))
    return brokers


def cluster_of(cluster: client.Cluster, world: destination.World) -> SimulatedCluster:
    """The cluster that stands for ``cluster`` in ``world``."""
    settings = {
        name: value
        for name, value in cluster.settings.items()
        if not name.endswith(("_env", "_file"))
    }
    name = brokers_of(cluster, world).name
    return SimulatedCluster(cluster.owner, cluster.servers, settings, name)


def source_of(
    source: sources.Source,
    world: destination.World,
    sample: Sequence[Any],
    made_up: Callable[[int], Any],
) -> sources.Source:
    """The source that stands for ``source`` in ``world``. It begins at its topics' beginning. Its
    own bounds make about five transactions, in place of the user's bounds.

    :param sample: the records: values, or pairs of key and value. Text becomes UTF-8.
    :param made_up: makes a value from a number, for JSON, where there is no sample.
    """
    topics = _PATTERN_TOPICS if isinstance(source.topics, re.Pattern) else source.topics
    brokers = brokers_of(source.cluster, world)
    for record in sample:
        if not all(
            part is None or isinstance(part, str | bytes)
            for part in (record if isinstance(record, tuple) and len(record) == 2 else (record,))
        ):
            raise errors.UsageError(
                f"{source.cluster.owner}: spout.sample has {record!r:.80}\n  Give values, or tuples of key and value, as text or bytes."
            )
    records = list(sample) or [
        (f"{number % _KEYS}", json.dumps(made_up(number % _VALUES))) for number in range(_MADE_UP)
    ]
    for topic in topics:
        brokers.fill(topic, lambda topic: _fill(brokers, topic, records))
    logs = [log for topic in topics for log in brokers.topic(topic).partitions]
    return dataclasses.replace(
        source,
        cluster=cluster_of(source.cluster, world),
        topics=topics,
        records_per_batch=max(log.end - log.begin for log in logs) // _TRANSACTIONS + 1,
        records_per_transaction=None,
        start="earliest",
        client_group=None,
    )


def _fill(brokers: memory_brokers.Brokers, topic: str, records: Sequence[Any]) -> None:
    """Write ``records`` in turn to the topic's partitions, in transactions, between aborted ones.
    One partition ends in an open transaction."""
    brokers.make_topic(topic, PARTITIONS)
    brokers.are_markers_late = False
    for partition in range(PARTITIONS):
        log = brokers.log((topic, partition))
        for _ in range(2):
            brokers.append(topic, b"deleted", partition=partition)
        log.forget_before(log.end)
        share = records[partition::PARTITIONS]
        for number, record in enumerate(share):
            key, value = map(
                memory_clients.as_bytes, record if isinstance(record, tuple) else (None, record)
            )
            producer = "simulated", brokers.begin_producer("simulated")
            if number % 5 == 2:
                brokers.append(topic, value, key, partition, producer=producer)
                brokers.end_transaction(*producer, "aborted")
            if number == len(share) // 2:
                log.epoch += 1
            is_alone = number % 3 == 0
            brokers.append(topic, value, key, partition, producer=None if is_alone else producer)
            brokers.end_transaction(*producer, "committed")
    open_producer = "open", brokers.begin_producer("open")
    brokers.append(topic, value, key, 0, producer=open_producer)
    brokers.transactions.clear()
    brokers.are_markers_late = True


class SimulatedTopics(SimulatedSink):
    """Stands for a sink's topics."""

    cluster: client.Cluster
    """A :class:`SimulatedCluster`."""
    topic: str
    name: str

    def rows(self) -> list[Written]:
        rows: list[Written] = []
        name = cast(SimulatedCluster, self.cluster).name
        for transaction in _by_name[name].transactions:
            *messages, ((topic, _), last) = transaction.records
            if not transaction.id.startswith(f"{topic}."):
                continue
            record = json.loads(last.value or b"")
            if (record["target"], record["sink"]) != (self.topic, self.name):
                continue
            rows.extend(
                Written(_COLUMNS, _values(place, message), record["component"], transaction.id)
                for place, message in messages
            )
        return rows


def _values(place: memory_brokers.Partition, record: memory_brokers.Record) -> tuple[Any, ...]:
    # A replay may have other attempts, and an opaque batch another txid.
    headers = [header for header in record.headers if not header[0].startswith("txtopo-")]
    return (*place, record.key, record.value, headers, record.timestamp_ms or None)
