"""Makes columns from Kafka records, straight from a consumer's messages: no tuple is made.

Importing this module imports pyarrow.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import txtopo.errors
from txtopo.connectors import json_columns, json_lines
from txtopo.connectors.kafka import records
from txtopo.topology import exact_columns

FORMATS = ("bytes", "text", "json", "avro")
_CURE = "Mend the schema, or take such records with format='bytes' and judge them in a bolt."

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.dictionary(pa.int32(), pa.string()),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "headers": pa.map_(pa.string(), pa.binary()),
}

Values = list[Any]
"""Each message's value: ``bytes``, or ``None``."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns are made from records, and how. The constructor checks the arguments.

    :raises txtopo.errors.ConfigError: arguments that contradict each other.
    """

    owner: str
    fields: tuple[str, ...]
    format: str
    value_schema: Any
    avro_schema: Any
    schema_id: int | None
    errors: str

    def __post_init__(self) -> None:
        def refuse(fact: str) -> txtopo.errors.ConfigError:
            return txtopo.errors.ConfigError(f"{self.owner}: {fact}")

        if self.format not in FORMATS:
            raise refuse(
                f"format is {self.format!r}\n  Give one of {', '.join(map(repr, FORMATS))}."
            )
        if not self.fields or any(name not in records.PARTS for name in self.fields):
            raise refuse(f"fields is {self.fields!r}\n  Give some of {', '.join(records.PARTS)}.")
        if self.errors not in ("strict", "replace"):
            raise refuse(f"errors is {self.errors!r}\n  Give 'strict' or 'replace'.")
        is_decoded = self.format in ("json", "avro")
        if is_decoded and (
            not isinstance(self.value_schema, pa.Schema)
            or not self.value_schema.names
            or "value" not in self.fields
        ):
            raise refuse(
                f"format is {self.format!r}, schema is {self.value_schema!r}, and fields is {self.fields!r}\n"
                "  Give the columns and their types: schema=pa.schema([('word', pa.string()), ('n', pa.int64())]).\n"
                "  These columns take the place of 'value' in fields."
            )
        if not is_decoded and self.value_schema is not None:
            raise refuse(
                f"schema is for values in JSON or Avro, and format is {self.format!r}\n  Give format='json' or 'avro', or no schema."
            )
        if (self.format == "avro") != (self.avro_schema is not None):
            cure = (
                "Give both: the schema that the values were written with, as a dict or as its text."
            )
            raise refuse(f"avro_schema and format='avro' go together\n  {cure}")
        for id in self.avro_schemas if self.schema_id is None else [self.schema_id]:
            if id is not None and (
                self.format != "avro" or type(id) is not int or not 0 <= id < 1 << 32
            ):
                raise refuse(
                    f"schema_id is {id!r}\n  Give the number that a schema registry gave avro_schema, with format='avro'."
                )
        names = self.schema.names
        for name in names:
            if names.count(name) > 1:
                raise refuse(
                    f"there are two columns {name!r}\n  Remove one from fields, or from schema."
                )
        if self.format == "json":
            json_columns.check_schema(self.owner, self.schema_of_value)
        if self.format == "avro":
            _check_avro(refuse, self.avro_schemas.values(), self.schema_of_value)

    @property
    def schema_of_value(self) -> pa.Schema:
        """The columns that take the place of ``value``."""
        return self.value_schema.remove_metadata()

    @property
    def avro_schemas(self) -> dict[Any, Any]:
        """The Avro schemas by id. A single schema without an id has the id ``None``. Texts are
        parsed."""
        is_by_id = (
            self.schema_id is None
            and isinstance(self.avro_schema, Mapping)
            and any(type(id) is int for id in self.avro_schema)
        )
        schemas = self.avro_schema if is_by_id else {self.schema_id: self.avro_schema}
        try:
            return {
                id: json.loads(schema) if isinstance(schema, str) else schema
                for id, schema in schemas.items()
            }
        except ValueError as error:
            raise txtopo.errors.ConfigError(
                f"{self.owner}: avro_schema is no JSON: {error}"
            ) from None

    @property
    def schema(self) -> pa.Schema:
        columns: list[pa.Field] = []
        for name in self.fields:
            if name == "value" and self.value_schema is not None:
                columns += self.schema_of_value
            else:
                columns.append(
                    pa.field(
                        name,
                        pa.string()
                        if self.format == "text" and name in ("key", "value")
                        else _TYPES[name],
                    )
                )
        return pa.schema(columns)


class Converter:
    """Makes a RecordBatch from some messages in one partition."""

    def __init__(self, columns: Columns) -> None:
        self._columns, self._owner, self._schema = columns, columns.owner, columns.schema
        self._parts = [self._part(name) for name in columns.fields]

    def batch(self, messages: list[Any]) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        for part in self._parts:
            arrays += part(messages)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _part(self, name: str) -> Callable[[list[Any]], Sequence[pa.Array]]:
        columns = self._columns
        if name == "value" and columns.format == "json":
            return _Json(columns).arrays
        if name == "value" and columns.format == "avro":
            return _Avro(columns).arrays
        if name in ("key", "value") and columns.format == "text":
            return lambda messages: [self._texts(name, messages)]
        if name == "topic":
            return _topics
        part = records.part(name)
        return lambda messages: [pa.array(map(part, messages), _TYPES[name])]

    def _texts(self, name: str, messages: list[Any]) -> pa.Array:
        try:
            return pa.array(map(records.part(name), messages), pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            of_record = records.converter(self._owner, (name,), "text", self._columns.errors)
            return pa.array([text for (text,) in of_record(messages)], pa.string())


def _topics(messages: list[Any]) -> Sequence[pa.Array]:
    return [
        pa.DictionaryArray.from_arrays(
            pa.repeat(pa.scalar(0, pa.int32()), len(messages)), [messages[0].topic()]
        )
    ]


class _Decoded:
    """Decodes values. An error names the place of the refused value."""

    def __init__(self, columns: Columns) -> None:
        self._columns, self._schema = columns, columns.schema_of_value

    def refused(self, message: Any, mistake: str) -> txtopo.errors.InputError:
        return txtopo.errors.InputError(
            f"{self._columns.owner}: {records.where(message)} {mistake}\n  {_CURE}"
        )

    def checked(self, messages: list[Any]) -> Values:
        """The values, refusing ``None`` unless ``errors`` is ``"replace"``."""
        values = [message.value() for message in messages]
        if self._columns.errors == "strict" and None in values:
            cure = "Give errors='replace', which makes null columns."
            raise txtopo.errors.InputError(
                f"{self._columns.owner}: {records.where(messages[values.index(None)])} has no value\n  {cure}"
            )
        return values


class _Json(_Decoded):
    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self._parser = json_columns.Parser(self._schema)
        self._decoder = json_lines.Decoder(self._schema.names)

    def arrays(self, messages: list[Any]) -> Sequence[pa.Array]:
        values = [b"{}" if value is None else value for value in self.checked(messages)]
        try:
            return self._parse(values)
        except json_columns.CANNOT_BE_READ as error:
            number, first = json_columns.first_refused(values, self._parse, error)
            raise self.refused(messages[number], json_columns.mistake(first)) from None

    def _parse(self, values: Values) -> Sequence[pa.Array]:
        lines = b"\n".join(values)
        if lines.count(b"\n") >= len(values):
            lines = b"\n".join([self._line(value) if b"\n" in value else value for value in values])
        batches = self._parser.records(lines)
        if sum(batch.num_rows for batch in batches) != len(values):
            raise json_lines.LineError("is not one JSON object")
        columns: Sequence[pa.Array] = (
            batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        ).columns
        return columns

    def _line(self, value: bytes) -> bytes:
        """``value``, an object over several lines, as one line. In JSON, line ends are white space,
        and never part of a text."""
        self._decoder.object(value.decode())
        return value.replace(b"\n", b" ")


class _Avro(_Decoded):
    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self._library = _library(columns.owner)
        parsed = {
            id: self._library.parse_schema(schema) for id, schema in columns.avro_schemas.items()
        }
        self._written = {
            b"" if id is None else b"\0" + id.to_bytes(4, "big"): schema
            for id, schema in parsed.items()
        }

    def arrays(self, messages: list[Any]) -> Sequence[pa.Array]:
        values = self.checked(messages)
        rows = [
            {} if value is None else self._record(message, value)
            for message, value in zip(messages, values, strict=True)
        ]
        return [
            self._array([row.get(field.name) for row in rows], field, messages)
            for field in self._schema
        ]

    def _record(self, message: Any, value: bytes) -> Mapping[str, Any]:
        written = self._written.get(b"") or self._written.get(value[:5])
        if written is None:
            ids = " or ".join(map(str, self._columns.avro_schemas))
            raise self.refused(
                message, f"does not begin with the schema id {ids}, but with {value[:5]!r}"
            )
        stream = io.BytesIO(value)
        stream.seek(0 if b"" in self._written else 5)
        try:
            record: Mapping[str, Any] = self._library.schemaless_reader(stream, written, None)
        except Exception as error:
            # The library passes on any error from its steps: about numbers, texts, time zones,
            # missing data.
            raise self.refused(
                message,
                f"is no Avro of avro_schema: {type(error).__name__} {exact_columns.first_line(error)}".rstrip(),
            ) from error
        if stream.tell() != len(value):
            raise self.refused(
                message, f"has {len(value) - stream.tell()} bytes behind its Avro of avro_schema"
            )
        return record

    def _array(self, values: Values, field: pa.Field, messages: list[Any]) -> pa.Array:
        try:
            return exact_columns.array(values, field.type, True)
        except exact_columns.ChangedValueError as error:
            fact = f"has {error.shown} in field {field.name!r}, which is no value of a column of type {field.type}: {error.why}"
            raise self.refused(messages[error.row], fact) from None


def _library(owner: str) -> Any:
    try:
        return importlib.import_module("fastavro")
    except ImportError as error:
        raise txtopo.errors.SetupError(
            f"{owner}: the library for Avro cannot be imported: {error}\n  Type: pip install 'txtopo[avro]', for the interpreter of every executor."
        ) from error


def _check_avro(
    refuse: Callable[[str], txtopo.errors.ConfigError], schemas: Iterable[Any], schema: pa.Schema
) -> None:
    for written in schemas:
        if (
            not isinstance(written, Mapping)
            or written.get("type") != "record"
            or not isinstance(written.get("fields"), list)
        ):
            raise refuse(
                f"avro_schema is {str(written)[:60]!r}\n  Give a record schema: {{'type': 'record', 'name': …, 'fields': […]}}."
            )
    names = [
        field.get("name") if isinstance(field, Mapping) else None
        for written in schemas
        for field in written["fields"]
    ]
    for name in schema.names:
        if name not in names:
            raise refuse(
                f"avro_schema has no field {name!r}, but has {', '.join(map(repr, names))}\n  Mend schema, or avro_schema."
            )
