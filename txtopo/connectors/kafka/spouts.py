"""Transactional spouts over topics of Kafka."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import txtopo.errors
from txtopo.connectors.kafka import client as clients
from txtopo.connectors.kafka import planning, reading, records
from txtopo.connectors.kafka import source as sources
from txtopo.topology import spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer, with_attempt
from txtopo.topology.transaction import TransactionAttempt

_OWNER = "Kafka spout"
_OURS = {
    "group.id": "the spout joins no group; progress for dashboards is published by client_group",
    "enable.auto.commit": "positions are in ZooKeeper",
    "enable.auto.offset.store": "positions are in ZooKeeper",
    "auto.offset.reset": "a position that is gone is an error, and start says where to begin",
    "enable.partition.eof": "the end of a batch is known by it",
    "isolation.level": "give isolation",
}
"""Settings that users may not give, and why."""


class _KafkaSpout:
    """The common part of the two."""

    def _set_up(
        self,
        servers: str,
        topics: Any,
        records_per_batch: int | None,
        records_per_transaction: int | None,
        fields: Any,
        format: Any,
        start: sources.Start,
        isolation: str,
        refresh_s: float,
        errors: str,
        compacted: bool,
        client_group: str | None,
        client: Mapping[str, Any] | None,
        lost: sources.Lost,
        is_opaque: bool,
    ) -> None:
        clients.refuse_overrides(_OWNER, client or {}, _OURS)
        cluster = clients.Cluster(_OWNER, servers, {} if client is None else client)
        is_several = isinstance(topics, Iterable) and not isinstance(topics, str | bytes)
        named = (
            topics if isinstance(topics, re.Pattern) else tuple(topics) if is_several else (topics,)
        )
        self.source = sources.Source(
            cluster=cluster,
            topics=named,
            records_per_batch=records_per_batch,
            records_per_transaction=records_per_transaction,
            start=start,
            isolation=isolation,
            refresh_s=refresh_s,
            is_opaque=is_opaque,
            compacted=compacted,
            lost=lost,
            client_group=client_group,
        )
        sources.check(self.source)
        try:
            self.fields = with_attempt(fields)
        except (TypeError, ValueError) as error:
            raise txtopo.errors.ConfigError(
                f"{_OWNER}: fields: {error}\n  Mend fields; the field tx comes before them."
            ) from None
        self.format, self.errors = format, errors
        records.converter(_OWNER, tuple(self.fields)[1:], format, errors)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self.fields)

    def _emitter(self, context: TopologyContext) -> _Emitter:
        convert = records.converter(_OWNER, tuple(self.fields)[1:], self.format, self.errors)
        return _Emitter(reading.reader_of(context, self.source), convert)


class KafkaTransactionalSpout(_KafkaSpout, spout.BasePartitionedTransactionalSpout):
    """Emits the records of topics, each once and in order within its partition, as ``[attempt,
    *fields]``; a replay has the same records.

    Needs ``pip install 'txtopo[kafka]'`` on the driver and every executor.

    - ``servers``: ``"host:port"``, or several with commas between.
    - ``topics``: a name, several names, or a pattern, ``re.compile("shop-.*")``, for which new
      topics are looked for.
    - ``records_per_batch``: offsets per partition and transaction, at most; ``None``: all there
      are.
    - ``records_per_transaction``: offsets over all partitions, at most, divided by how much waits
      in each.
    - ``fields``: parts of a record: ``key``, ``value``, ``topic``, ``partition``, ``offset``,
      ``timestamp`` (milliseconds since 1970, or ``None``), ``headers`` (a list of name and bytes).
      With ``format="json"`` the fields of the object that is the value.
    - ``format``: of keys and values: ``"bytes"``, ``"text"`` (UTF-8), ``"json"``; or a callable
      that makes of a ``confluent_kafka.Message`` as many values as there are ``fields``, or
      ``None`` to pass over the record. A key or value that is null is ``None``.
    - ``start``: where the first transaction begins: ``"earliest"``, ``"latest"``, a ``datetime``
      with a time zone (the first record of that time or later), ``"group:<id>"`` (the offsets a
      consumer group has committed), or offsets, ``{"topic": {0: 17}}``. Partitions that are found
      later are read from their beginning.
    - ``isolation``: ``"read_committed"``, or ``"read_uncommitted"`` for records of transactions
      that are open or were aborted as well.
    - ``refresh_s``: how often new partitions and topics are looked for, in seconds.
    - ``errors``: ``"strict"`` stops at a record that is not as ``format`` says; ``"replace"`` puts
      U+FFFD and ``None`` instead.
    - ``compacted``: take a compacted topic all the same. A replay may lack records then.
    - ``client_group``: publish the recorded positions as offsets of this consumer group, for
      dashboards of lag. They are never read.
    - ``client``: settings of librdkafka, for instance ``{"security.protocol": "SASL_SSL"}``. A
      secret is named, by a variable or a file: ``"sasl.password_env"``, ``"sasl.password_file"``.

    Raises :class:`~txtopo.errors.ConfigError` for an impossible argument;
    :class:`~txtopo.errors.SetupError` for a missing topic, a refused password, brokers out of reach
    when the run begins; :class:`~txtopo.errors.InputError` for a log that was changed under its
    position, and for a record that is not as ``format`` says.
    """

    def __init__(
        self,
        servers: str,
        topics: str | Iterable[str] | re.Pattern[str],
        records_per_batch: int | None = 10_000,
        records_per_transaction: int | None = None,
        fields: Fields | Sequence[str] = ("value",),
        format: records.Format | Callable[[Any], Sequence[Any] | None] = "bytes",
        start: sources.Start = "earliest",
        isolation: str = "read_committed",
        refresh_s: float = 30.0,
        errors: records.DecodingErrors = "strict",
        compacted: bool = False,
        client_group: str | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_up(
            servers,
            topics,
            records_per_batch,
            records_per_transaction,
            fields,
            format,
            start,
            isolation,
            refresh_s,
            errors,
            compacted,
            client_group,
            client,
            "stop",
            is_opaque=False,
        )

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> spout.PartitionedSpoutCoordinator:
        return planning.Planner(self.source, lambda: context.last_metadata)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.PartitionedSpoutEmitter:
        return self._emitter(context)


class OpaqueKafkaTransactionalSpout(_KafkaSpout, spout.BaseOpaquePartitionedTransactionalSpout):
    """As :class:`KafkaTransactionalSpout`, but a replay may have other records: each record is in
    one committed transaction. For opaque stores and sinks.

    - ``lost``: what to do when records were lost before they were read, by retention or because a
      topic was made anew: ``"stop"``; or ``"skip"``, which goes on at what is left, and says how
      much was lost in the log and in the metadata of the transaction.
    """

    def __init__(
        self,
        servers: str,
        topics: str | Iterable[str] | re.Pattern[str],
        records_per_batch: int | None = 10_000,
        records_per_transaction: int | None = None,
        fields: Fields | Sequence[str] = ("value",),
        format: records.Format | Callable[[Any], Sequence[Any] | None] = "bytes",
        start: sources.Start = "earliest",
        isolation: str = "read_committed",
        refresh_s: float = 30.0,
        errors: records.DecodingErrors = "strict",
        compacted: bool = False,
        client_group: str | None = None,
        client: Mapping[str, Any] | None = None,
        lost: sources.Lost = "stop",
    ) -> None:
        self._set_up(
            servers,
            topics,
            records_per_batch,
            records_per_transaction,
            fields,
            format,
            start,
            isolation,
            refresh_s,
            errors,
            compacted,
            client_group,
            client,
            lost,
            is_opaque=True,
        )

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> spout.OpaquePartitionedSpoutCoordinator:
        return planning.Planner(self.source, lambda: context.last_metadata)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.OpaquePartitionedSpoutEmitter:
        return self._emitter(context)


class _Emitter(spout.PartitionedSpoutEmitter, spout.OpaquePartitionedSpoutEmitter):
    def __init__(self, reader: reading.Reader, convert: records.Convert) -> None:
        self._reader, self._convert = reader, convert

    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        self.emit_partition_batch(attempt, collector, partition, metadata)

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        for messages in self._reader.records(metadata):
            collector.emit_all(zip_rows(attempt, self._convert(messages)))


def zip_rows(
    attempt: TransactionAttempt, rows: Iterable[tuple[Any, ...]]
) -> Iterable[tuple[Any, ...]]:
    """The values of tuples: the attempt, then those of a record."""
    return ((first, *row) for first, row in zip(itertools.repeat(attempt), rows, strict=False))


__all__ = ["KafkaTransactionalSpout", "OpaqueKafkaTransactionalSpout"]
