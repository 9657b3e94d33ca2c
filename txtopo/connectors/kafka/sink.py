"""Writes a batch's tuples as records to a Kafka topic, exactly once (R28 to R30).

``KafkaSink`` is a committer. In ``finish_batch`` each task writes its rows and an auxiliary record
in one Kafka transaction (see ``ledger``). This module takes and checks the user's arguments.

Runs on: executor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import auxiliary, intake, messages, target
from txtopo.connectors.kafka import client as clients
from txtopo.connectors.kafka import ledger as ledgers
from txtopo.sinks import sink as sinks
from txtopo.sinks import streaming
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import Fields
from txtopo.topology.transaction import TransactionAttempt

_OWNER = "Kafka sink"


class KafkaSink(sinks.Sink):
    """A committer that writes every tuple as a record to a topic, exactly once for all readers of
    committed records.

    ``builder.set_bolt("write", KafkaSink("kafka:9092", "sales", key="article", format="json"),
    2).shuffle_grouping("prices")``

    Needs ``pip install 'txtopo[kafka]'`` on every executor, and a transactional spout: records that
    are committed to Kafka cannot be taken back.

    :param servers: ``"host:port"``, or several with commas between.
    :param topic: an existing topic, or ``"field:name"`` if a field in the tuples names the topic.
    :param key: the field for the record's key. ``None``: no key.
    :param value: the field for the record's value, for ``"bytes"`` and ``"text"``.
    :param headers: fields for headers, with bytes, ``str`` or ``None``. Give ``{header: field}`` if
        the names differ.
    :param partition: the field with the partition number. With ``None``, or if the field is
        ``None``, the key decides, as in Java's producers. Without a key, the record goes to any
        partition.
    :param timestamp: the field with the record's time: a ``datetime`` with a time zone, or
        milliseconds since 1970. ``None``: when the record is written.
    :param format: the form for key and value. ``"bytes"``. ``"text"``: a ``str`` in UTF-8.
        ``"json"``: the value is a JSON object with ``columns``. A ``str`` key is written as text,
        any other key as JSON.
    :param columns: for ``"json"``: the fields in the object. Give ``{name: field}`` if the names
        differ. If not given, all fields except the attempt and the fields for ``topic``,
        ``partition``, ``timestamp`` and ``headers``.
    :param name: the name by which the topology's state knows the sink, as ``component/name``.
    :param transactions_topic: the auxiliary topic, for this sink alone. If not given,
        ``txtopo.<topology>.<component>``. The sink makes the topic on first use, compacted, with a
        partition for each task.
    :param transaction_timeout_s: how long a task's transaction may be open, in seconds, before the
        brokers abort it. Give more time than a task needs to write its rows.
    :param stamp_headers: add the headers ``txtopo-txid`` and ``txtopo-task`` to every record.
    :param tombstones: if a value is ``None``, write a record without a value.
    :param client: librdkafka's settings. For a secret, name a variable or a file:
        ``{"sasl.password_env": "KAFKA_PASSWORD"}``.

    :raises errors.ConfigError: an impossible argument.
    """

    ledger: ledgers.Ledger
    kept_in = "auxiliary topic"
    begin_again = "The records of batch {batch_id} cannot be removed from a topic. To write the batch once more beside them,"

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | None = None,
        value: str = "value",
        headers: Sequence[str] | Mapping[str, str] = (),
        partition: str | None = None,
        timestamp: str | None = None,
        format: messages.Format = "bytes",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        name: str = ledgers.NAME,
        transactions_topic: str | None = None,
        transaction_timeout_s: float = 60,
        stamp_headers: bool = True,
        tombstones: bool = False,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.shape = messages.Shape(
            topic,
            key,
            value,
            messages.fields_by_name("headers", headers),
            partition,
            timestamp,
            format,
            None if columns is None else messages.fields_by_name("columns", columns),
            tombstones,
        )
        shape = self.shape
        fields = (
            shape.topic_field,
            shape.key,
            *shape.headers.values(),
            shape.partition,
            shape.timestamp,
        )
        written = (shape.columns or {}).values() if format == "json" else [shape.value]
        self.input_fields = Fields(
            dict.fromkeys(field for field in (*fields, *written) if field is not None)
        )
        if not isinstance(name, str) or not name or "/" in name:
            raise errors.ConfigError(f"{_OWNER}: name is {name!r}\n  Give a text without '/'.")
        check(_OWNER, transactions_topic, transaction_timeout_s)
        cluster = clients.Cluster(_OWNER, servers, dict(client or {}))
        self.ledger = ledgers.Ledger(
            cluster, topic, name, transactions_topic, float(transaction_timeout_s), stamp_headers
        )

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        super().prepare(conf, context, collector, attempt)
        self.ledger.auxiliary_topic(context.topology_id, context.component_id)
        self.check_destination(resource=context.resource)

    def check_destination(
        self, fields: Fields | None = None, resource: target.Resource = streaming.resource
    ) -> None:
        """Ask the brokers whether the topic exists and takes records. Skips a topic that a field
        names."""
        targets = target.targets_of(resource, self.ledger.cluster)
        if self.shape.topic_field is None:
            targets.checked(self.shape.topic, self.shape.key is not None)
        targets.check_timeout(self.ledger.timeout_s)

    def taker(self, context: TopologyContext, fields: Sequence[str]) -> intake.Intake:
        return intake.Intake(
            self.shape,
            self.ledger,
            context.resource,
            self.owner(context),
            fields,
            context.task_index,
        )

    def write(
        self,
        context: TopologyContext,
        attempt: TransactionAttempt,
        fields: Sequence[str],
        rows: Collection[Any],
    ) -> bool:
        return intake.apply(self.ledger, context, attempt, rows)


def check(owner: str, transactions_topic: Any, timeout_s: Any) -> None:
    """Refuse an impossible ``transactions_topic`` or ``transaction_timeout_s`` of ``owner``.

    :raises errors.ConfigError: an impossible argument.
    """
    if transactions_topic is not None and not (
        isinstance(transactions_topic, str) and auxiliary.is_topic_name(transactions_topic)
    ):
        raise errors.ConfigError(
            f"{owner}: transactions_topic is {transactions_topic!r}\n"
            f"  Give a name with letters, digits, '.', '_' and '-', {auxiliary.NAME_MAX} at most."
        )
    if (
        not isinstance(timeout_s, int | float)
        or isinstance(timeout_s, bool)
        or not 1 <= timeout_s < 2**31 / 1000
    ):
        raise errors.ConfigError(
            f"{owner}: transaction_timeout_s is {timeout_s!r}\n  Give a number of seconds, at least 1."
        )
