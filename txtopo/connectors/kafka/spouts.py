"""Transactional spouts over Kafka topics."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import txtopo.errors
from txtopo.connectors.kafka import client as clients
from txtopo.connectors.kafka import planning, reading, records, simulated
from txtopo.connectors.kafka import source as sources
from txtopo.topology import destination, spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer, with_attempt
from txtopo.topology.transaction import TransactionAttempt

_OWNER = clients.SPOUT


class _KafkaSpout(destination.Simulable):
    """The common part of both Kafka spouts."""

    sample: Sequence[Any] = ()
    """Records for ``txtopo test``, which never reads the brokers: values, or pairs of key and
    value, as text or bytes. Without a sample they are made up."""

    is_opaque = False

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
        cluster = clients.Cluster(_OWNER, servers, {} if client is None else client)
        is_several = isinstance(topics, Iterable) and not isinstance(topics, str | bytes)
        named: Any = (
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
            is_opaque=self.is_opaque,
            compacted=compacted,
            lost=lost,
            client_group=client_group,
        )
        sources.check(self.source)
        self._set_fields(fields, format, errors)

    def _set_fields(self, fields: Any, format: Any, errors: Any) -> None:
        try:
            self.fields = with_attempt(fields)
        except (TypeError, ValueError) as error:
            raise txtopo.errors.ConfigError(
                f"{_OWNER}: fields: {error}\n  Mend fields. The spout adds the field tx in front."
            ) from None
        self.format, self.errors = format, errors
        records.converter(_OWNER, tuple(self.fields)[1:], format, errors)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self.fields)

    def check_source(self) -> None:
        """Ask the brokers whether the topics exist and may be read."""
        planning.Planner(self.source, dict).close()

    def publish_nothing(self) -> None:
        """Forget ``client_group``, as for a trial, whose positions nothing but the trial reads."""
        self.source = dataclasses.replace(self.source, client_group=None)

    def simulated(self, world: destination.World) -> _KafkaSpout:
        """The spout's own code, on brokers in memory that hold the sample."""
        spout = copy.copy(self)
        spout.source = simulated.source_of(self.source, world, self.sample, self._made_up)
        return spout

    def _made_up(self, number: int) -> Any:
        """A record's value, for JSON."""
        return dict.fromkeys(tuple(self.fields)[1:], number) if self.format == "json" else number

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> planning.Planner:
        return planning.Planner(
            self.source, lambda: context.last_metadata, topology_id=context.topology_id
        )

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> _Emitter:
        convert = records.converter(_OWNER, tuple(self.fields)[1:], self.format, self.errors)
        return _Emitter(reading.reader_of(context, self.source), convert)


class KafkaTransactionalSpout(_KafkaSpout, spout.BasePartitionedTransactionalSpout):
    """Emits the records in topics, each record once and in order within its partition, as
    ``[attempt, *fields]``. A replay has the same records.

    Needs ``pip install 'txtopo[kafka]'`` on the driver and every executor.

    - ``servers``: ``"host:port"``, or several with commas between.
    - ``topics``: a name, several names, or a pattern, ``re.compile("shop-.*")``. With a pattern,
      new topics are found too.
    - ``records_per_batch``: the most offsets per partition and transaction. ``None``: all offsets.
    - ``records_per_transaction``: the most offsets over all partitions, divided by how many wait in
      each partition.
    - ``fields``: parts of a record: ``key``, ``value``, ``topic``, ``partition``, ``offset``,
      ``timestamp`` (milliseconds since 1970, or ``None``), ``headers`` (a list of name and bytes).
      With ``format="json"``: fields in the JSON object that is the value.
    - ``format``: the form of keys and values: ``"bytes"``, ``"text"`` (UTF-8), ``"json"``, or a
      callable. The callable takes a ``confluent_kafka.Message``, and returns as many values as
      there are ``fields``, or ``None`` to pass over the record. A null key or value is ``None``.
    - ``start``: where the first transaction begins: ``"earliest"``, ``"latest"``, a ``datetime``
      with a time zone (the first record at that time or later), ``"group:<id>"`` (a consumer
      group's committed offsets), or offsets, ``{"topic": {0: 17}}``. Partitions found later are
      read from their beginning.
    - ``isolation``: ``"read_committed"``, or ``"read_uncommitted"`` to also read records from open
      and aborted transactions.
    - ``refresh_s``: the time between two looks for new partitions and topics, in seconds.
    - ``errors``: ``"strict"`` stops at a record that does not fit ``format``. ``"replace"`` puts
      U+FFFD and ``None`` instead.
    - ``compacted``: take a compacted topic, although a replay may then lack records.
    - ``client_group``: publish the recorded positions as this consumer group's offsets, for lag
      dashboards. These offsets are never read.
    - ``client``: librdkafka's settings, for instance ``{"security.protocol": "SASL_SSL"}``. For a
      secret, name a variable or a file: ``"sasl.password_env"``, ``"sasl.password_file"``.

    ``txtopo test`` never reads the brokers. Set ``spout.sample`` to records for it: values, or
    pairs of key and value. Without a sample, records are made up.

    Raises :class:`~txtopo.errors.ConfigError` for an impossible argument,
    :class:`~txtopo.errors.SetupError` for a missing topic, a refused password, or brokers out of
    reach when the run begins, and :class:`~txtopo.errors.InputError` for a log that has changed
    under its position, or a record that does not fit ``format``.
    """


class OpaqueKafkaTransactionalSpout(_KafkaSpout, spout.BaseOpaquePartitionedTransactionalSpout):
    """Like :class:`KafkaTransactionalSpout`, but a replay may have other records. Each record is in
    one committed transaction. For opaque stores and sinks.

    - ``lost``: how to react if unread records are lost, by retention or because a topic was made
      again. ``"stop"`` stops the run. ``"skip"`` goes on with the records that are left, and
      reports the loss in the log and in the transaction's metadata.
    """

    is_opaque = True


class _Emitter(spout.PartitionedSpoutEmitter, spout.OpaquePartitionedSpoutEmitter):
    def __init__(self, reader: reading.Reader, convert: records.Convert) -> None:
        self._reader, self._convert = reader, convert

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        for messages in self._reader.records(metadata):
            collector.emit_all(self._convert(messages, attempt))
