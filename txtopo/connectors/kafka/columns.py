"""Transactional spouts over Kafka topics that emit columns.

They plan and read like the spouts that emit tuples. Only the records' form differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

import txtopo.errors
from txtopo.connectors.kafka import reading, records, spouts
from txtopo.connectors.kafka.column_records import Columns, Converter
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import OutputFieldsDeclarer, with_attempt
from txtopo.topology.transaction import TransactionAttempt

Format = Literal["bytes", "text", "json", "avro"]

_MADE_UP: dict[Any, Callable[[int], Any]] = {
    pa.types.is_string: str,
    pa.types.is_boolean: bool,
    pa.types.is_integer: int,
    pa.types.is_floating: float,
}
"""Makes a value for a column, by the column's type. Other columns are null."""


class _InColumns(spouts._KafkaSpout):
    """Gives a Kafka spout its columns."""

    emits_columns = True

    def __init__(
        self,
        servers: str,
        topics: Any,
        *,
        fields: Sequence[str] = ("value",),
        format: Format = "bytes",
        schema: pa.Schema | None = None,
        avro_schema: Mapping[Any, Any] | str | None = None,
        schema_id: int | None = None,
        errors: records.DecodingErrors = "strict",
        **reading: Any,
    ) -> None:
        named = (fields,) if isinstance(fields, str) else tuple(fields)
        self.columns = Columns(spouts._OWNER, named, format, schema, avro_schema, schema_id, errors)
        super().__init__(servers, topics, errors=errors, **reading)

    def _set_fields(self, fields: Any, format: Any, errors: Any) -> None:
        self.fields = with_attempt(self.columns.schema.names)
        self.format, self.errors = self.columns.format, errors

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self.fields, schema=self.columns.schema)

    def _made_up(self, number: int) -> Any:
        if self.format == "avro":
            raise txtopo.errors.UsageError(
                f"{spouts._OWNER}: no Avro records are made up for txtopo test, which never reads the brokers\n"
                "  Set spout.sample to a list of values, as bytes."
            )
        return (
            {
                field.name: make(number)
                for field in self.columns.value_schema
                for is_type, make in _MADE_UP.items()
                if is_type(field.type)
            }
            if self.format == "json"
            else number
        )

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> spouts._Emitter:
        return _ColumnEmitter(reading.reader_of(context, self.source), Converter(self.columns))


class KafkaColumnSpout(_InColumns, spouts.KafkaTransactionalSpout):
    """Emits the records in topics as RecordBatches, each record once and in order within its
    partition. A replay has the same records.

    Needs ``pip install 'txtopo[kafka,arrow]'`` on the driver and every executor, for Avro also
    ``'txtopo[avro]'``.

    - ``servers``, ``topics``, ``records_per_batch``, ``records_per_transaction``, ``start``,
      ``isolation``, ``refresh_s``, ``compacted``, ``client_group``, ``client``: as for
      :class:`~txtopo.connectors.kafka.KafkaTransactionalSpout`.
    - ``fields``: parts of a record, one column each: ``key``, ``value`` (bytes, or text with
      ``format="text"``), ``topic`` (dictionary-encoded text), ``partition`` (``int32``), ``offset``
      (``int64``), ``timestamp`` (``int64``, milliseconds since 1970, or null), ``headers`` (a map
      from text to bytes, in order, in which names may be equal).
    - ``format``: ``"bytes"``, ``"text"`` (UTF-8), ``"json"`` or ``"avro"``. The last two make a
      value into the columns in ``schema``, which take the place of ``value`` in ``fields``. Keys
      stay bytes.
    - ``schema``: these columns and their types. JSON objects are read as by
      :class:`~txtopo.connectors.files.JsonLinesTransactionalSpout`. A missing field becomes null.
    - ``avro_schema``: the record schema that the values were written with, as a dict or as the text
      of its file. Give several, ``{id: schema}``, if each value begins with its schema's number in
      a registry. A column that a schema lacks becomes null.
    - ``schema_id``: the number that a schema registry gave ``avro_schema``, if values begin with
      the number (a byte 0 and four bytes). A value with another number is refused.
    - ``errors``: ``"strict"`` stops at a record that does not fit ``format``. ``"replace"`` puts
      U+FFFD in texts for bytes that are not UTF-8, and null columns for a null value.

    Raises the same errors as that spout. Executors also raise :class:`~txtopo.errors.InputError`,
    with topic, partition and offset, for a value that does not fit ``schema``, or a number that its
    column would change.
    """


class OpaqueKafkaColumnSpout(_InColumns, spouts.OpaqueKafkaTransactionalSpout):
    """Like :class:`KafkaColumnSpout`, but a replay may have other records. Each record is in one
    committed transaction. For opaque stores and sinks.

    - ``lost``: as for :class:`~txtopo.connectors.kafka.OpaqueKafkaTransactionalSpout`.
    """


class _ColumnEmitter(spouts._Emitter):
    def __init__(self, reader: reading.Reader, converter: Converter) -> None:
        self._reader, self._converter = reader, converter

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        for messages in self._reader.records(metadata):
            collector.emit_batch(self._converter.batch(messages))
