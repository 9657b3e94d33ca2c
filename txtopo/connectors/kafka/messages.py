"""Makes Kafka messages from tuples: which fields become topic, key, value and headers, and in which
form.

Standard library only. Objects can be pickled: a sink is held between a transaction's phases.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from txtopo import errors, plain_json
from txtopo.connectors.kafka.producing import Message

Format = Literal["bytes", "text", "json"]
FORMATS = ("bytes", "text", "json")
FIELD = "field:"
"""How ``topic`` begins if a field names the topic. The field's name follows."""
OWN_HEADERS = "txtopo-"
"""How the names of a sink's own headers begin."""


class RefusedError(Exception):
    """A row cannot become a message. The text says why."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a tuple becomes a message. The constructor checks the arguments.

    :raises errors.ConfigError: an impossible argument.
    """

    topic: str
    key: str | None = None
    value: str = "value"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The field, by header name."""
    partition: str | None = None
    timestamp: str | None = None
    format: Format = "bytes"
    columns: Mapping[str, str] | None = None
    """The field, by its name in the JSON object. ``None``: all fields that have no other use."""
    tombstones: bool = False

    def __post_init__(self) -> None:
        _refuse_unless(
            isinstance(self.topic, str) and bool(self.topic.removeprefix(FIELD)),
            "topic",
            self.topic,
            "a topic's name, or 'field:name'",
        )
        for name in ("key", "partition", "timestamp"):
            field = getattr(self, name)
            _refuse_unless(
                field is None or (isinstance(field, str) and bool(field)),
                name,
                field,
                "the name of a field, or None",
            )
        _refuse_unless(
            isinstance(self.value, str) and bool(self.value),
            "value",
            self.value,
            "the name of a field",
        )
        _refuse_unless(
            self.format in FORMATS, "format", self.format, f"one of {', '.join(map(repr, FORMATS))}"
        )
        if self.format == "json" and self.value != "value":
            raise errors.ConfigError(
                f"Kafka sink: value is {self.value!r}, but with format='json' the value is an object of columns\n"
                "  Give columns=[…] instead, or make the text in a bolt and give format='text'."
            )
        if self.format != "json" and self.columns is not None:
            raise errors.ConfigError(
                f"Kafka sink: columns are for format='json', and format is {self.format!r}\n  Leave one of them out."
            )
        ours = [name for name in self.headers if name.lower().startswith(OWN_HEADERS)]
        if ours:
            raise errors.ConfigError(
                f"Kafka sink: the header {ours[0]!r} begins with {OWN_HEADERS}\n  Give another name: {{'name': 'field'}}."
            )

    @property
    def topic_field(self) -> str | None:
        """The field that names the topic."""
        return self.topic.removeprefix(FIELD) if self.topic.startswith(FIELD) else None


def fields_by_name(argument: str, names: Any) -> dict[str, str]:
    """``headers`` or ``columns`` as users give them, a list of fields or ``{name: field}``."""
    fields = (
        dict(names)
        if isinstance(names, Mapping)
        else {name: name for name in names}
        if _is_list(names)
        else None
    )
    if fields is None or not all(
        isinstance(text, str) and text for text in (*fields, *fields.values())
    ):
        raise errors.ConfigError(
            f"Kafka sink: {argument} is {names!r}\n  Give a list of fields, or {{'name': 'field'}}."
        )
    if len(fields) != len(names):
        raise errors.ConfigError(
            f"Kafka sink: {argument} is {names!r}, which has a name twice\n  Give each name once."
        )
    return fields


def _is_list(names: Any) -> bool:
    return (
        isinstance(names, Sequence)
        and not isinstance(names, str | bytes)
        and all(isinstance(name, str) for name in names)
    )


def _refuse_unless(is_right: bool, name: str, value: Any, allowed: str) -> None:
    if not is_right:
        raise errors.ConfigError(f"Kafka sink: {name} is {value!r}\n  Give {allowed}.")


class Convert:
    """Makes messages from tuples with ``fields``.

    :param component: the sink's component, for messages.
    :raises errors.UsageError: the tuples lack a field that ``shape`` names.
    """

    def __init__(self, shape: Shape, fields: Sequence[str], component: str) -> None:
        self.shape, self.fields = shape, tuple(fields)
        self._component = component
        self._topic = self._place(shape.topic_field)
        self._key = self._place(shape.key)
        self._partition = self._place(shape.partition)
        self._timestamp = self._place(shape.timestamp)
        self._headers = [
            (name, self._required_place(field)) for name, field in shape.headers.items()
        ]
        self._value, self._columns = -1, list[tuple[str, int]]()
        if shape.format == "json":
            columns = self._all_others() if shape.columns is None else shape.columns
            self._columns = [(name, self._required_place(field)) for name, field in columns.items()]
        else:
            self._value = self._required_place(shape.value)

    def __call__(self, values: Sequence[Any]) -> Message:
        """The message for a tuple with ``values``.

        :raises RefusedError: a value does not fit the shape.
        """
        shape = self.shape
        value: bytes | None
        if self._value < 0:
            value = _json({name: values[place] for name, place in self._columns})
        else:
            value = _encoded(shape.format, shape.value, values[self._value])
            if value is None and not shape.tombstones:
                raise RefusedError(
                    f"the field {shape.value!r} is None, which deletes the key from a compacted topic\n  If that is meant, give tombstones=True"
                )
        key = None if self._key is None else _key(shape.format, str(shape.key), values[self._key])
        topic = (
            shape.topic
            if self._topic is None
            else _topic(str(shape.topic_field), values[self._topic])
        )
        headers = (
            [(name, _header(name, values[place])) for name, place in self._headers]
            if self._headers
            else None
        )
        partition = -1 if self._partition is None else _partition(values[self._partition])
        timestamp_ms = 0 if self._timestamp is None else _timestamp_ms(values[self._timestamp])
        return Message(topic, value, key, headers, partition, timestamp_ms)

    def _all_others(self) -> dict[str, str]:
        shape = self.shape
        taken = {shape.topic_field, shape.partition, shape.timestamp, *shape.headers.values()}
        return {name: name for name in self.fields[1:] if name not in taken}

    def _place(self, field: str | None) -> int | None:
        return None if field is None else self._required_place(field)

    def _required_place(self, field: str) -> int:
        if field not in self.fields:
            raise errors.UsageError(
                f"the sink of {self._component!r} gets no field {field!r}; there are {', '.join(self.fields[1:])}\n"
                "  Name the tuples' fields in key=, value=, columns=, headers=, partition= and timestamp=."
            )
        return self.fields.index(field)


def _encoded(format: Format, field: str, value: Any) -> bytes | None:
    if value is None:
        return None
    if format == "bytes":
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise RefusedError(
            f"the field {field!r} has a {type(value).__name__}, and format='bytes' takes bytes\n  Give format='text' or 'json'"
        )
    if not isinstance(value, str):
        raise RefusedError(
            f"the field {field!r} has a {type(value).__name__}, and format='text' takes str\n  Give format='bytes' or 'json'"
        )
    return _utf8(field, value)


def _key(format: Format, field: str, value: Any) -> bytes | None:
    if format != "json":
        return _encoded(format, field, value)
    if value is None:
        return None
    return _utf8(field, value) if isinstance(value, str) else _json(value, f"the field {field!r}, ")


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(f"the field {field!r} has no form in UTF-8: {error}") from error


def _json(value: Any, place: str = "") -> bytes:
    try:
        return plain_json.encode(value)
    except plain_json.NotJsonError as error:
        raise RefusedError(f"{place}{error}") from error


def _topic(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise RefusedError(f"the field {field!r} names the topic, and is {value!r}")
    return value


def _header(name: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _utf8(name, value)
    raise RefusedError(
        f"the header {name!r} would be a {type(value).__name__}, and a header takes bytes, str or None"
    )


def _partition(value: Any) -> int:
    if value is None:
        return -1
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RefusedError(
            f"the partition is {value!r}, and not a whole number from 0, or None (chosen by the key)"
        )
    return value


def _timestamp_ms(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = round(value.timestamp() * 1000)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise RefusedError(
            f"the timestamp is {value!r}, and not a datetime with a time zone, milliseconds after 1970, or None (now)"
        )
    return value
