"""Streams: the names of a tuple's values, a component's declarations, and the tuple itself.

The tuple is on the package's hottest path, so it holds two references and nothing else: its values,
and a ``TupleSource`` that all tuples of a task on a stream share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txtopo.topology.transaction import TransactionAttempt

if TYPE_CHECKING:
    import pyarrow

DEFAULT_STREAM = "default"


class Fields:
    """Ordered, unique names of a stream's values (Storm: ``org.apache.storm.tuple.Fields``).

    >>> Fields("tx", "word").index("word")
    1
    >>> Fields("tx", "word", "count").select(Fields("count", "word"), ("1:0", "cat", 3))
    (3, 'cat')
    """

    __slots__ = ("_index", "_names")

    def __init__(self, *names: str | Iterable[str]) -> None:
        flat: list[str] = []
        for name in names:
            flat.extend([name] if isinstance(name, str) else name)
        for name in flat:
            if not isinstance(name, str) or not name:
                raise ValueError(f"a field name is a non-empty string, not {name!r}")
        self._names = tuple(flat)
        self._index = {name: i for i, name in enumerate(flat)}
        if len(self._index) != len(flat):
            twice = sorted({name for name in flat if flat.count(name) > 1})
            raise ValueError(
                f"duplicate field {', '.join(map(repr, twice))} in {flat}: every field of a stream needs its own name"
            )

    def index(self, name: str) -> int:
        """The position of ``name``. Raises ``ValueError``, which names the fields, if there is
        none."""
        try:
            return self._index[name]
        except KeyError:
            raise ValueError(
                f"no field {name!r}. The fields are {', '.join(map(repr, self._names)) or 'none'}"
            ) from None

    def select(self, names: Fields | Sequence[str], values: Sequence[Any]) -> tuple[Any, ...]:
        """The values of the fields ``names``, in their order. ``values`` is laid out as these
        fields are."""
        return tuple(values[self.index(name)] for name in names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, position: int) -> str:
        return self._names[position]

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __eq__(self, other: object) -> bool:
        return self._names == other._names if isinstance(other, Fields) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._names)

    def __repr__(self) -> str:
        return f"Fields({', '.join(map(repr, self._names))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Fields, self._names


def with_attempt(*names: str | Iterable[str]) -> Fields:
    """``names`` behind the attempt's field: ``tx``, or ``_tx`` if ``tx`` is among ``names``."""
    fields = Fields(*names)
    if {"tx", "_tx"} <= {*fields}:
        raise ValueError(
            "fields 'tx' and '_tx': one of them is the attempt's\n  Rename one, or leave it out."
        )
    return Fields("_tx" if "tx" in fields else "tx", fields)


@dataclass(frozen=True, slots=True, repr=False)
class StreamSpec:
    """One declared output stream: its fields (field 0 carries the attempt), and whether the sender
    names the receiving task."""

    fields: Fields
    direct: bool = False
    schema: bytes | None = None
    """The Arrow schema of the columns, serialized, if there is one."""

    def __repr__(self) -> str:
        return f"StreamSpec({self.fields!r}{', direct=True' if self.direct else ''})"


class OutputFieldsDeclarer:
    """Collects a component's declared streams (Storm: ``OutputFieldsDeclarer``)."""

    def __init__(self) -> None:
        self._streams: dict[str, StreamSpec] = {}

    def declare(
        self,
        fields: Fields | Sequence[str],
        direct: bool = False,
        schema: pyarrow.Schema | None = None,
    ) -> None:
        """Declare the default stream."""
        self.declare_stream(DEFAULT_STREAM, fields, direct, schema)

    def declare_stream(
        self,
        stream: str,
        fields: Fields | Sequence[str],
        direct: bool = False,
        schema: pyarrow.Schema | None = None,
    ) -> None:
        """Declare ``stream``. Field 0 carries the attempt. ``schema``, if given, has the remaining
        fields: RecordBatches emitted on the stream must have this schema, and tuples that go to a
        bolt that takes columns get it. Raises ``ValueError`` if the stream is declared twice, has
        no fields, or has other fields than ``schema``."""
        if not isinstance(direct, bool):
            raise ValueError(
                f"direct is True or False, not {direct!r}. Give all field names together: Fields('tx', 'word')"
            )
        if not isinstance(stream, str) or not stream or "\0" in stream:
            raise ValueError(f"a stream id is a non-empty string without NUL, not {stream!r}")
        if stream in self._streams:
            raise ValueError(f"stream {stream!r} is declared twice")
        spec = StreamSpec(
            fields if isinstance(fields, Fields) else Fields(fields),
            direct,
            _schema_bytes(schema, stream),
        )
        if not len(spec.fields):
            raise ValueError(
                f"stream {stream!r} has no fields. The first field carries the transaction attempt: Fields('tx', ...)"
            )
        if schema is not None and list(schema.names) != list(spec.fields)[1:]:
            raise ValueError(
                f"stream {stream!r} has the fields {', '.join(spec.fields)}, but its schema has the columns {', '.join(schema.names) or 'none'}."
                " A schema names every field but the first"
            )
        self._streams[stream] = spec

    @property
    def streams(self) -> dict[str, StreamSpec]:
        """The streams declared so far, by id."""
        return dict(self._streams)


def _schema_bytes(schema: Any, stream: str) -> bytes | None:
    # Known by its methods: its class would need pyarrow here.
    if schema is None:
        return None
    if not hasattr(schema, "serialize") or not hasattr(schema, "names"):
        raise ValueError(f"the schema of stream {stream!r} is a pyarrow.Schema, not {schema!r}")
    data: bytes = schema.serialize().to_pybytes()
    return data


class TupleSource:
    """Where a tuple came from: component, task index, stream and its fields."""

    __slots__ = ("component", "fields", "stream", "task")

    def __init__(self, component: str, task: int, stream: str, fields: Fields) -> None:
        self.component, self.task, self.stream, self.fields = component, task, stream, fields


class Tuple:
    """A tuple, as a bolt's ``execute`` receives it. Value 0 is the :class:`TransactionAttempt`.

    ``tup[1]`` and ``tup["word"]`` are the short forms. Storm's getters are there as aliases.
    """

    __slots__ = ("_source", "values")

    def __init__(self, values: tuple[Any, ...], source: TupleSource) -> None:
        self.values = values
        self._source = source

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.values[self._source.fields.index(key)]
        return self.values[key]

    def get_value(self, i: int) -> Any:
        """Value ``i``. Raises ``IndexError`` beyond the last."""
        return self.values[i]

    def get_value_by_field(self, name: str) -> Any:
        """The value of field ``name``. Raises ``ValueError``, which names the fields, if there is
        none."""
        return self.values[self._source.fields.index(name)]

    get_string = get_integer = get_long = get_short = get_byte = get_value
    get_boolean = get_double = get_float = get_binary = get_value
    get_string_by_field = get_integer_by_field = get_long_by_field = get_short_by_field = (
        get_byte_by_field
    ) = get_value_by_field
    get_boolean_by_field = get_double_by_field = get_float_by_field = get_binary_by_field = (
        get_value_by_field
    )

    @property
    def attempt(self) -> TransactionAttempt:
        """The tuple's attempt."""
        attempt: TransactionAttempt = self.values[0]
        return attempt

    @property
    def fields(self) -> Fields:
        """The fields of the tuple's stream."""
        return self._source.fields

    def select(self, fields: Fields) -> tuple[Any, ...]:
        """The values of ``fields``, in their order."""
        return self._source.fields.select(fields, self.values)

    @property
    def source_component(self) -> str:
        """Id of the emitting component."""
        return self._source.component

    @property
    def source_stream_id(self) -> str:
        """Id of the tuple's stream."""
        return self._source.stream

    @property
    def source_task(self) -> int:
        """Index (0 …) of the emitting task."""
        return self._source.task

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __repr__(self) -> str:
        pairs = ", ".join(
            f"{name}={value!r}" for name, value in zip(self.fields, self.values, strict=False)
        )
        return f"Tuple({self.source_component}/{self.source_task}/{self.source_stream_id}: {pairs})"
