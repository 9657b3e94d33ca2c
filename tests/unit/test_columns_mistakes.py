"""Mistakes with columns, and the messages about them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

import txtopo.connectors.files
import txtopo.testing
from tests.topologies.columns import (
    PAIRS,
    ColumnsSpout,
    NotingArrowBolt,
    NotingArrowCommitter,
    batch,
)
from tests.topologies.recording import (
    NotingBasicBolt,
    NotingBolt,
    Ran,
    RowsSpout,
    builder,
    rows,
    run_once,
)
from txtopo import (
    BaseArrowBatchBolt,
    EmitError,
    FailedException,
    Fields,
    InvalidTopologyError,
    OutputFieldsDeclarer,
    SetupError,
    StreamSpec,
    Tuple,
    UserCodeError,
)
from txtopo.dataplane.column_runs import ColumnMistakeError

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
ONE = [["default", [["a", 1]]]]


def failed(ran: Ran) -> tuple[type, str]:
    assert ran.failure is not None
    error = ran.failure.to_error()
    assert isinstance(error, UserCodeError)
    return type(error), error.error


def run_emitting(
    emit: Callable[[Any, pa.RecordBatch], None], streams: Any = PAIRS, schemas: Any = None
) -> Ran:
    topology = builder(ColumnsSpout())
    topology.set_bolt("bad", NotingArrowBolt(emit, streams=streams, schemas=schemas)).none_grouping(
        "spout"
    )
    topology.set_bolt("next", NotingArrowBolt()).none_grouping("bad")
    return run_once(topology.build_topology(), {0: ONE}, cores=1)


MISTAKES: list[tuple[Callable[[Any, Any], None], str]] = [
    (
        lambda bolt, b: bolt.collector.emit_batch(b.rename_columns(["key", "values"])),
        "component 'bad' emits columns on stream 'default' with the columns key, values instead of key, value\n"
        "  Emit the declared fields, in their order, without the first (tx): the attempt is no column.",
    ),
    (
        lambda bolt, b: bolt.collector.emit_batch(b.select(["value", "key"])),
        "with the columns value, key instead of key, value",
    ),
    (
        lambda bolt, b: bolt.collector.emit_batch(batch(["tx", "key", "value"], [["x", "a", 1]])),
        "with the columns tx, key, value instead of key, value",
    ),
    (
        lambda bolt, b: bolt.collector.emit_batch(b.select(["key"])),
        "with the columns key instead of key, value",
    ),
    (
        lambda bolt, b: bolt.collector.emit_batch(b, "side"),
        "emits columns on stream 'side', which it does not declare\n  It declares 'default'.",
    ),
    (
        lambda bolt, b: bolt.collector.emit_batch(pa.Table.from_batches([b])),
        "a Table on stream 'default' instead of a pyarrow.RecordBatch",
    ),
    (
        lambda bolt, b: bolt.collector.emit_batch([bolt.attempt, "a", 1]),
        "a list on stream 'default' instead of a pyarrow.RecordBatch",
    ),
    (
        lambda bolt, b: bolt.collector.emit_batch(None),
        "emits None on stream 'default' instead of a pyarrow.RecordBatch",
    ),
    (
        lambda bolt, b: bolt.collector.emit_batch_direct(0, b),
        "directly on stream 'default', which is not a direct stream\n  Declare it with",
    ),
]


@pytest.mark.parametrize(("emit", "said"), MISTAKES)
def test_columns_that_cannot_be_delivered_are_refused_by_name(
    emit: Callable[[Any, Any], None], said: str
) -> None:
    kind, text = failed(run_emitting(emit))
    assert kind is EmitError
    assert said in text
    assert text.startswith("component 'bad' emits ")


@pytest.mark.rule(7)
def test_an_emit_of_columns_that_fails_fails_the_attempt_even_if_it_is_swallowed() -> None:
    def swallowing(bolt: NotingArrowBolt, record_batch: pa.RecordBatch) -> None:
        try:
            bolt.collector.emit_batch(record_batch.select(["key"]))
        except Exception:
            bolt.kept.clear()

    assert failed(run_emitting(swallowing))[0] is EmitError


@pytest.mark.rule(7)
def test_an_emit_of_columns_after_a_swallowed_failure_does_not_hide_it() -> None:
    """The receiver in the same process takes nothing more: there the second emit ends."""

    def going_on(bolt: NotingArrowBolt, record_batch: pa.RecordBatch) -> None:
        try:
            bolt.collector.emit_batch(record_batch.select(["key"]))
        except Exception:
            bolt.kept.clear()
        bolt.collector.emit_batch(record_batch)

    ran = run_emitting(going_on)
    assert failed(ran)[0] is EmitError
    assert ran.failure is not None
    assert (ran.failure.component, ran.failure.hook) == ("bad", "execute_batch")


def test_columns_of_other_types_than_declared_are_refused() -> None:
    other = SCHEMA.set(1, pa.field("value", pa.int32()))
    kind, text = failed(
        run_emitting(
            lambda bolt, b: bolt.collector.emit_batch(b.cast(other)), schemas={"default": SCHEMA}
        )
    )
    assert kind is EmitError
    assert (
        "whose column 'value' is int32, but the declared schema has int64\n  Call emit_batch(batch.cast(schema))."
        in text
    )


def test_a_direct_emit_of_columns_reaches_its_task_and_no_other() -> None:
    def choosing(bolt: NotingArrowBolt, record_batch: pa.RecordBatch) -> None:
        bolt.collector.emit_batch_direct(
            record_batch.column("value")[0].as_py(), record_batch, "side"
        )

    class Direct(NotingArrowBolt):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare_stream("side", Fields(PAIRS["default"]), direct=True)

    def run(task: int) -> Ran:
        topology = builder(ColumnsSpout())
        topology.set_bolt("bad", Direct(choosing)).none_grouping("spout")
        topology.set_bolt("next", NotingArrowBolt(), 3).direct_grouping("bad", "side")
        return run_once(topology.build_topology(), {0: [["default", [["a", task]]]]})

    ran = run(2)
    assert ran.failure is None, ran.failure
    assert [
        event.task
        for event in ran.events
        if event.component == "next" and event.hook == "execute_batch"
    ] == [2]
    assert (
        "emits directly on stream 'side' to task 3, but its receiver 'next' has tasks 0 … 2"
        in failed(run(3))[1]
    )


def test_columns_for_a_direct_stream_are_refused_where_no_task_is_named() -> None:
    class Direct(NotingArrowBolt):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare(Fields(PAIRS["default"]), direct=True)

    topology = builder(ColumnsSpout())
    topology.set_bolt("bad", Direct(lambda bolt, b: bolt.collector.emit_batch(b))).none_grouping(
        "spout"
    )
    topology.set_bolt("next", NotingArrowBolt()).direct_grouping("bad")
    assert (
        "which is a direct stream\n  Use emit_batch_direct(task_index, batch)."
        in failed(run_once(topology.build_topology(), {0: ONE}))[1]
    )


# -- tuples that make no columns -----------------------------------------------------------------


def run_collecting(
    monkeypatch: pytest.MonkeyPatch, *values: Any, schema: pa.Schema | None = None
) -> Ran:
    """Tuples of one field, each of which becomes a RecordBatch of its own."""
    monkeypatch.setattr("txtopo.dataplane.columns.task.ROWS_MAX", 1)

    class Declaring(RowsSpout):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare(Fields("tx", "value"), schema=schema)

    topology = builder(Declaring())
    topology.set_bolt("bolt", NotingArrowBolt()).none_grouping("spout")
    return run_once(topology.build_topology(), {0: rows(*values)}, cores=1)


def types(ran: Ran) -> list[Any]:
    return [event.details[4] for event in ran.events if event.hook == "execute_batch"]


@pytest.mark.parametrize(
    ("first", "second"), [(1, 1.5), (1.5, 1), (None, 1), (1, "a"), ("a", b"a"), (True, "no")]
)
def test_tuples_that_disagree_about_a_type_are_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, first: Any, second: Any
) -> None:
    kind, text = failed(run_collecting(monkeypatch, first, second))
    assert kind is EmitError
    assert text.startswith(
        "component 'spout', stream 'default': values of field 'value' cannot become a column of type "
    )
    assert "declarer.declare(Fields(...), schema=pa.schema([('value', pa.float64()), ...]))" in text


def test_tuples_become_columns_of_the_declared_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_collecting(monkeypatch, None, 1, 1.5, schema=pa.schema([("value", pa.float64())]))
    assert ran.failure is None, ran.failure
    assert types(ran) == [("double",)] * 3


def test_the_type_of_the_first_tuples_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert types(run_collecting(monkeypatch, 1.5, 2.0, None)) == [("double",)] * 3


def test_columns_that_python_has_no_objects_for_are_refused_where_tuples_are_wanted() -> None:
    nanoseconds = pa.array([1], pa.int64()).cast(pa.timestamp("ns"))
    topology = builder(ColumnsSpout())
    topology.set_bolt(
        "bad",
        NotingArrowBolt(
            lambda bolt, b: bolt.collector.emit_batch(b.set_column(1, "value", nanoseconds))
        ),
    ).none_grouping("spout")
    topology.set_bolt("next", NotingBolt()).none_grouping("bad")
    kind, text = failed(run_once(topology.build_topology(), {0: ONE}, cores=1))
    assert kind is EmitError
    assert (
        "column 'value' of type timestamp[ns] holds a value that Python has no object for" in text
    )
    assert "emitted to a type that keeps all of the value: a time to pa.int64()" in text


# -- declaring -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            pa.schema([("key", pa.string())]),
            "has the fields tx, key, value, but its schema has the columns key. A schema names every field but",
        ),
        (pa.schema([("tx", pa.string()), *SCHEMA]), "its schema has the columns tx, key, value"),
        (
            {"key": "string"},
            "the schema of stream 'default' is a pyarrow.Schema, not {'key': 'string'}",
        ),
    ],
)
def test_a_schema_that_does_not_fit_the_fields_is_refused_when_the_topology_is_built(
    schema: Any, said: str
) -> None:
    topology = builder(ColumnsSpout(schemas={"default": schema}))
    topology.set_bolt("bolt", NotingArrowBolt()).none_grouping("spout")
    with pytest.raises(InvalidTopologyError) as raised:
        topology.build_topology()
    assert said in str(raised.value)


def test_a_declared_schema_is_part_of_the_stream() -> None:
    declarer = OutputFieldsDeclarer()
    declarer.declare(Fields("tx", "key", "value"), schema=SCHEMA)
    assert declarer.streams["default"] == StreamSpec(
        Fields("tx", "key", "value"), schema=SCHEMA.serialize().to_pybytes()
    )


@pytest.mark.parametrize("kind", ["bolt", "spout"])
def test_without_pyarrow_a_topology_with_columns_is_not_built(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    topology = builder(ColumnsSpout() if kind == "spout" else RowsSpout())
    topology.set_bolt("bolt", NotingBolt() if kind == "spout" else NotingArrowBolt()).none_grouping(
        "spout"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SetupError,
        match=rf"component '{kind}' \(\w+\) needs pyarrow, which is not installed\n  Type: pip install 'txtopo\[arrow\]'",
    ):
        topology.build_topology()


def test_without_pyarrow_a_topology_of_tuples_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = builder()
    topology.set_bolt("bolt", NotingBolt()).none_grouping("spout")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert topology.build_topology().components["bolt"].takes_columns is False


@pytest.mark.parametrize(
    "name",
    [
        "ParquetTransactionalSpout",
        "CsvTransactionalSpout",
        "JsonLinesTransactionalSpout",
        "LinesTransactionalSpout",
    ],
)
def test_without_pyarrow_the_spouts_of_columns_name_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert getattr(txtopo.connectors.files, name).emits_columns
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="pip install"):
        getattr(txtopo.connectors.files, name)
    with pytest.raises(SetupError, match="pip install"):
        _ = txtopo.testing.ArrowMemoryTransactionalSpout
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = txtopo.connectors.files.nothing


# -- failing -------------------------------------------------------------------------------------


@pytest.mark.rule(7)
@pytest.mark.parametrize("hook", ["execute_batch", "finish_batch"])
def test_a_failure_in_a_bolt_of_columns_fails_the_attempt(hook: str) -> None:
    def fail(bolt: Any, *arguments: Any) -> None:
        raise FailedException(hook)

    topology = builder(ColumnsSpout())
    topology.set_bolt(
        "bolt", NotingArrowCommitter(*((fail, None) if hook == "execute_batch" else (None, fail)))
    ).none_grouping("spout")
    ran = run_once(topology.build_topology(), {0: ONE})
    assert ran.failure is not None
    assert (ran.failure.kind, ran.failure.component, ran.failure.hook) == ("failed", "bolt", hook)
    assert ran.failure.phase == ("processing" if hook == "execute_batch" else "commit")


def test_a_bolt_of_columns_is_not_given_tuples() -> None:
    bolt = NotingArrowBolt()
    with pytest.raises(NotImplementedError, match="NotingArrowBolt takes columns: execute_batch"):
        bolt.execute(cast(Any, None))
    with pytest.raises(TypeError, match="abstract"):
        cast(Any, BaseArrowBatchBolt)()


def test_a_basic_bolt_may_emit_columns_too() -> None:
    def emit(bolt: NotingBasicBolt, tup: Tuple, collector: Any) -> None:
        collector.emit_batch(batch(["value"], [[tup[1]], [tup[1] + 1]]))

    topology = builder()
    topology.set_bolt("middle", NotingBasicBolt(emit)).none_grouping("spout")
    topology.set_bolt("last", NotingBolt()).none_grouping("middle")
    ran = run_once(topology.build_topology(), {0: rows(1, 5)})
    assert ran.failure is None, ran.failure
    assert ran.executed("last") == [1, 2, 5, 6]


def test_a_mistake_about_columns_survives_pickling() -> None:
    assert issubclass(ColumnMistakeError, Exception)
    ran = run_emitting(lambda bolt, b: bolt.collector.emit_batch(b, "side"))
    assert ran.failure is not None
    assert ran.failure.cause is not None
