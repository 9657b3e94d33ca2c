"""Emitting: the collector a spout or bolt receives."""

from __future__ import annotations

import datetime
import decimal
import fractions
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from txtopo.dataplane import route, wire
from txtopo.dataplane.route import Row, Send
from txtopo.topology.bolt import BasicOutputCollector
from txtopo.topology.stream import DEFAULT_STREAM, StreamSpec
from txtopo.topology.transaction import TransactionAttempt

_IMMUTABLE = frozenset(
    {
        TransactionAttempt,
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        datetime.date,
        datetime.datetime,
        datetime.time,
        datetime.timedelta,
        decimal.Decimal,
        fractions.Fraction,
        uuid.UUID,
    }
)


def is_immutable(value: Any) -> bool:
    """Whether ``value`` can be shared between sender and receivers as it is."""
    return type(value) in _IMMUTABLE or (
        type(value) is tuple and all(is_immutable(item) for item in value)
    )


_MANY = 1024
"""After so many emitted rows, a task counts its waiting rows. So many light rows are a fraction of
``Outbox.PACK_BYTES`` at most."""

_HEAVY = 256
"""Up to this length, in characters or bytes, a row's text and bytes are not counted: the bound on
the row count is enough."""

_BATCH_WEIGHT = 1024
"""A RecordBatch weighs about so many bytes at least, however few its rows."""

_LIGHT = _IMMUTABLE - {str, bytes}


def weight(value: Any) -> int:
    """Count the characters and bytes in an immutable ``value``."""
    if type(value) is tuple:
        return sum(map(weight, value))
    return len(value) if isinstance(value, str | bytes) else 0


_DIRECT = "\0direct "


def direct_stream(stream: str, task: int) -> str:
    """Name a direct emit to ``task`` on ``stream`` in a recording. No user's stream contains the
    separator."""
    return f"{stream}{_DIRECT}{task}"


def with_own_copies(send: Send, run: str) -> Send:
    """Wrap ``send`` for rows that several tasks in this process receive: ``send`` gets a copy if
    the row is mutable."""

    def send_own(row: Row) -> None:
        send(row if is_immutable(row) else wire.load_values(wire.dump_values(row, run)))

    return send_own


class EmitMistakeError(Exception):
    """An emit cannot be delivered. Becomes :class:`txtopo.errors.EmitError`, with component and
    task."""


class _Port:
    """One stream's receivers: ``sends`` has a function for each, and ``send`` sends to all."""

    __slots__ = ("arity", "send", "sends")

    def __init__(self, arity: int) -> None:
        self.arity = arity
        self.sends: tuple[Send, ...] = ()
        self.send: Send = _ignore

    def add(self, send: Send) -> None:
        self.sends = (*self.sends, send)
        self.send = send if len(self.sends) == 1 else route.to_all(self.sends)


class Collector(BasicOutputCollector):
    """Checks a row, freezes it, and gives it to every send function of its stream (R14).

    ``on_failure`` gets the error of a failed emit before the error is raised. The bolt may swallow
    the exception, but the tuple is lost, or has reached only some receivers, so the attempt has
    failed (R7).
    """

    def __init__(
        self,
        component: str,
        attempt: TransactionAttempt,
        outputs: Mapping[str, StreamSpec],
        run: str,
    ) -> None:
        self._component, self._attempt, self._run = component, attempt, run
        self._outputs = outputs
        self._arity: dict[str, int] = {}
        self._ports: dict[str, _Port] = {}
        self._direct_ports: dict[str, list[tuple[str, Sequence[Send]]]] = {}
        for stream, spec in outputs.items():
            self._arity[stream] = len(spec.fields)
            if spec.direct:
                self._direct_ports[stream] = []
            else:
                self._ports[stream] = _Port(len(spec.fields))
        self._pairs: Send | None = None
        """Sends rows with two values on the default stream. ``None`` if the stream has more or
        fewer fields."""
        self._counted, self._left = _MANY, _MANY
        self.on_failure: Callable[[BaseException], None] = _ignore
        self.on_heavy: Callable[[int], None] = _ignore
        """Gets a heavy row's weight before the row is sent, so that the slot can make room."""
        self.on_many: Callable[[], None] = _nothing
        """Called after every ``_MANY`` rows, so that waiting rows are counted. A count after each
        row would cost more than the emit."""
        self.connect_columns: Callable[[], Any] = _no_columns
        """Makes the ports for columns, a :class:`txtopo.dataplane.columns.ports.ColumnPorts`, when
        the first RecordBatch is emitted."""
        self._column_ports: Any = None

    @property
    def emitted(self) -> int:
        """Rows emitted so far."""
        return self._counted - self._left

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self._many()

    def _many(self) -> None:
        self._counted, self._left = self._counted + _MANY, _MANY
        self.on_many()

    def connect(self, stream: str, send: Send) -> None:
        self._ports[stream].add(send)
        if stream == DEFAULT_STREAM and self._ports[stream].arity == 2:
            self._pairs = self._ports[stream].send

    def connect_direct(self, stream: str, receiver: str, lanes: Sequence[Send]) -> None:
        """Add a receiver of the direct ``stream``, with one function per task."""
        self._direct_ports[stream].append((receiver, lanes))

    def disconnect(self) -> None:
        """Let go of the slot, whose tasks are done: a cycle would keep their rows until Python
        looks for garbage."""
        self.on_heavy, self.on_many, self.connect_columns = _ignore, _nothing, _no_columns

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        try:
            # Most rows are an attempt and one value. For such rows ``_emit`` is written out here,
            # which takes half the time.
            send = self._pairs
            if (
                type(values) is list
                and len(values) == 2
                and stream is DEFAULT_STREAM
                and send is not None
            ):
                first, value = values
                kind = type(value)
                if first is self._attempt and (
                    len(value) <= _HEAVY if kind is str else kind in _LIGHT
                ):
                    self._left -= 1
                    send((first, value))
                    if not self._left:
                        self._many()
                    return
            self._emit(values, stream)
        except BaseException as error:
            self.on_failure(error)
            raise

    def emit_all(self, rows: Iterable[Sequence[Any]], stream: str = DEFAULT_STREAM) -> None:
        attempt, send = self._attempt, self._pairs
        for row in rows:  # errors in the caller's iterator are the caller's affair
            try:
                if (
                    type(row) is tuple
                    and len(row) == 2
                    and stream is DEFAULT_STREAM
                    and send is not None
                ):
                    first, value = row
                    kind = type(value)
                    if first is attempt and (
                        len(value) <= _HEAVY if kind is str else kind in _LIGHT
                    ):
                        self._left -= 1
                        send(row)
                        if not self._left:
                            self._many()
                        continue
                self._emit(row, stream)
            except BaseException as error:
                self.on_failure(error)
                raise

    def _emit(self, values: Sequence[Any], stream: str) -> None:
        """Check, freeze and send any row."""
        try:
            row = tuple(values)
        except TypeError:
            self._refuse(values, stream)
            raise
        port = self._ports.get(stream)
        if (
            port is None
            or len(row) != port.arity
            or (row[0] is not self._attempt and row[0] != self._attempt)
        ):
            raise EmitMistakeError(self._mistake(row, stream))
        length = 0
        for value in row:
            kind = type(value)
            if kind is str or kind is bytes:
                length += len(value)
            elif kind not in _LIGHT:
                self._send(row, port.sends)
                break
        else:
            if length > _HEAVY:
                self.on_heavy(length)
            send = port.send
            send(row)
        self._count()

    def _send(self, row: Row, sends: Sequence[Send]) -> None:
        """Send ``row`` as emitted, or send each receiver a copy without shared mutable values."""
        if is_immutable(row):
            self.on_heavy(weight(row))
            for send in sends:
                send(row)
            return
        for send, copy in zip(sends, self._copies(row, len(sends)), strict=True):
            send(copy)

    def _copies(self, row: Row, count: int) -> list[Row]:
        """Copies of ``row`` that share no mutable value with ``row`` or with each other."""
        try:
            data = wire.dump_values(row, self._run)
            copies = [wire.load_values(data) for _ in range(count)]
        except MemoryError:
            raise
        except Exception as error:
            raise EmitMistakeError(
                f"component {self._component!r} emits a value that cannot be pickled ({type(error).__name__}: {error})\n  Emit plain data."
            ) from None
        self.on_heavy(len(data) * count)
        return copies

    def emit_direct(
        self, task_index: int, values: Sequence[Any], stream: str = DEFAULT_STREAM
    ) -> None:
        try:
            try:
                row = tuple(values)
            except TypeError:
                self._refuse(values, stream)
                raise
            if (
                len(row) != self._arity.get(stream, -1)
                or row[0] != self._attempt
                or stream not in self._direct_ports
            ):
                raise EmitMistakeError(self._mistake(row, stream, directly=True))
            for receiver, lanes in self._direct_ports[stream]:
                if not isinstance(task_index, int) or not 0 <= task_index < len(lanes):
                    raise EmitMistakeError(
                        f"component {self._component!r} emits directly on stream {stream!r} to task {task_index!r},"
                        f" but its receiver {receiver!r} has tasks 0 … {len(lanes) - 1}"
                    )
            self._count()
            self._send(row, [lanes[task_index] for _, lanes in self._direct_ports[stream]])
        except BaseException as error:
            self.on_failure(error)
            raise

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        self._emit_columns(batch, stream, None)

    def emit_batch_direct(self, task_index: int, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        self._emit_columns(batch, stream, task_index)

    def _emit_columns(self, batch: Any, stream: str, task: int | None) -> None:
        try:
            if self._column_ports is None:
                self._column_ports = self.connect_columns()
            sends = self._column_ports.sends(batch, stream, task)
            if batch.num_rows:
                self._counted += batch.num_rows
                self.on_heavy(batch.nbytes + _BATCH_WEIGHT)
                for send in sends:
                    send(batch)
        except BaseException as error:
            self.on_failure(error)
            raise

    def send_recorded_batch(self, stream: str, batch: Any) -> None:
        """Emit a RecordBatch that was checked when it was recorded."""
        stream, _, task = stream.partition(_DIRECT)
        self._emit_columns(batch, stream, int(task) if task else None)

    def send_recorded(self, stream: str, row: Row) -> None:
        """Emit a row that was checked and frozen when it was recorded."""
        self._count()
        stream, _, task = stream.partition(_DIRECT)
        sends = (
            [lanes[int(task)] for _, lanes in self._direct_ports[stream]]
            if task
            else self._ports[stream].sends
        )
        if len(sends) < 2:
            for send in sends:
                send(row)
        else:
            self._send(row, sends)

    def _refuse(self, values: Any, stream: str) -> None:
        """Raise an error that names the fields, unless ``values`` are a sequence and the error came
        from elsewhere."""
        if isinstance(values, Iterable):
            return
        fields = ", ".join(self._outputs[stream].fields) if stream in self._outputs else "tx, …"
        raise EmitMistakeError(
            f"component {self._component!r} emits {values!r} on stream {stream!r}, which is no list of values\n"
            f"  Call emit([attempt, ...]) for ({fields})."
        ) from None

    def _mistake(self, row: Row, stream: str, directly: bool = False) -> str:
        where = f"component {self._component!r} emits {'directly ' if directly else ''}on stream {stream!r}"
        if stream not in self._outputs:
            return f"{where}, which it does not declare\n  It declares {', '.join(map(repr, self._outputs)) or 'none: define declare_output_fields'}."
        if directly != self._outputs[stream].direct:
            cure = (
                "Declare it with direct=True, or use emit(values)."
                if directly
                else "Use emit_direct(task_index, values)."
            )
            return f"{where}, which is {'not ' if directly else ''}a direct stream\n  {cure}"
        fields = ", ".join(self._outputs[stream].fields)
        if len(row) != self._arity[stream]:
            return f"{where} {len(row)} values for the {self._arity[stream]} fields ({fields})"
        cure = f"Call emit([attempt, ...]) or emit([tup[0], ...]) for ({fields})."
        return f"{where} with {row[0]!r} as first value instead of the current attempt, {self._attempt!r}\n  {cure}"


def _ignore(told: object) -> None:
    pass


def _nothing() -> None:
    pass


def _no_columns() -> Any:
    raise AssertionError("this collector is not connected")
