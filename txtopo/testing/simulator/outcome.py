"""Compares a schedule's outcome with the outcome of a run without failures."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txtopo.dataplane import column_runs
from txtopo.exports import ExportQueue, upkeep
from txtopo.sinks.simulated import SimulatedSink
from txtopo.stores import base
from txtopo.testing.emissions import Emission

_SHOWN_MAX = 200
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
"""Types whose values show themselves. Each schedule shows thousands of values."""


@dataclass(frozen=True, slots=True)
class Difference:
    """``place`` holds ``found`` where a run without failures has ``expected``. ``component`` is the
    component at fault, if known."""

    place: str
    found: str
    expected: str
    component: str | None = None
    effect: str | None = None
    """The key in ``effects()`` that differs."""
    is_lack: bool = False
    """Only tuples are missing."""

    def __str__(self) -> str:
        return (
            f"{self.place} is {self.found}; without failures it is {self.expected}"
            if self.expected
            else f"{self.place}: {self.found}"
        )


@dataclass(slots=True)
class Outcome:
    """Stores, rows, emissions and effects after a schedule's end."""

    committed: int = 0
    stores: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """Per store, by address."""
    writers: dict[tuple[str, Any], str] = field(default_factory=dict)
    """Which component wrote a store's key last."""
    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per sink, by its table: how often each row, as text, is in the sink."""
    row_writers: dict[tuple[str, str], str] = field(default_factory=dict)
    """Which component wrote a sink's row."""
    effects: Any = None
    emitted: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    """Per txid, the tuples from the spout and the held components in the committed attempt."""
    batches: dict[int, Any] = field(default_factory=dict)
    """Per txid, the metadata as stored. An opaque spout stores none."""
    error: str | None = None
    """The error that ended the run. ``None`` if the run ended well."""
    error_component: str | None = None

    def read_stores(self, stores: Iterable[Any]) -> None:
        """Record the content of ``stores``, as far as it can be compared."""
        for store in stores:
            if isinstance(store, SimulatedSink):
                self._read_sink(store)
            elif isinstance(store, ExportQueue):
                name = f"export queue {store.id!r} in {store.store.address}"
                self.stores[name] = {entry.key: entry.value for entry in upkeep.entries_of(store)}
            elif isinstance(store, base.Store):
                self.stores[store.address] = dict(store.items())
                for key in self.stores[store.address]:
                    value = store.inspect(key)
                    if value is not None:
                        self.writers[store.address, key] = value.component

    def _read_sink(self, sink: SimulatedSink) -> None:
        """Record the rows without the auxiliary ones, in which opaque batches may rightly differ."""
        rows = self.rows.setdefault(sink.sink, {})
        for row in sink.rows():
            rows[str(row)] = rows.get(str(row), 0) + 1
            self.row_writers[sink.sink, str(row)] = row.component

    def add_emissions(
        self, txid: int, emissions: Iterable[Emission], components: Iterable[str]
    ) -> None:
        """Keep the tuples that ``components`` emitted for ``txid``, without their tasks."""
        of = {component: list[str]() for component in components}
        for component, _, stream, values in emissions:
            if component in of:
                texts = (
                    [shown(values)]
                    if isinstance(values, tuple)
                    else _rows_shown(column_runs.load_batches().to_stream(values))
                )
                of[component].extend(
                    texts if stream == "default" else [f"{stream}: {text}" for text in texts]
                )
        self.emitted[txid] = {component: sorted(rows) for component, rows in of.items()}


def differences(actual: Outcome, expected: Outcome, compares_outputs: bool) -> list[Difference]:
    """List how ``actual`` differs from ``expected``. Outputs count only if ``compares_outputs``."""
    if actual.error is not None:
        return [Difference("the run ended with an error", actual.error, "", actual.error_component)]
    differing = [*_stores(actual, expected), *_rows(actual, expected)]
    differing.extend(_effects(actual.effects, expected.effects))
    if compares_outputs:
        differing.extend(_outputs(actual, expected))
        if actual.committed != expected.committed:
            differing.append(
                Difference(
                    "the number of transactions committed",
                    str(actual.committed),
                    str(expected.committed),
                )
            )
    return differing


def shown(value: Any) -> str:
    """Write ``value`` as text. Equal values give equal text, also if a set or dict has another
    order."""
    if type(value) in _SCALARS:
        return repr(value)
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(shown, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{shown(key)}: {shown(item)}' for key, item in value.items()))}}}"
    if type(value) is tuple:
        return f"({', '.join([repr(item) if type(item) in _SCALARS else shown(item) for item in value])})"
    return f"[{', '.join(map(shown, value))}]" if type(value) is list else repr(value)


@functools.lru_cache(maxsize=64)
def _rows_shown(stream: bytes) -> list[str]:
    """Write a RecordBatch's rows as text, from an Arrow IPC stream. Many schedules emit the same
    batches, which may have thousands of rows."""
    arrow = column_runs.load_batches()
    return [shown(row[1:]) for batch in arrow.loaded(stream) for row in arrow.rows(batch, None)]


def _stores(actual: Outcome, expected: Outcome) -> Iterable[Difference]:
    for address in expected.stores.keys() | actual.stores.keys():
        ours, theirs = actual.stores.get(address, {}), expected.stores.get(address, {})
        for key in sorted(ours.keys() | theirs.keys(), key=repr):
            if ours.get(key) != theirs.get(key):
                writer = actual.writers.get((address, key)) or expected.writers.get((address, key))
                yield Difference(
                    f"key {key!r} of store {address}",
                    _text_at(ours, key),
                    _text_at(theirs, key),
                    writer,
                )


def _rows(actual: Outcome, expected: Outcome) -> Iterable[Difference]:
    for sink in sorted(expected.rows.keys() | actual.rows.keys()):
        ours, theirs = actual.rows.get(sink, {}), expected.rows.get(sink, {})
        for row in sorted(ours.keys() | theirs.keys()):
            if ours.get(row) != theirs.get(row):
                writer = actual.row_writers.get((sink, row)) or expected.row_writers.get(
                    (sink, row)
                )
                yield Difference(
                    f"row {row} of sink {sink}",
                    _times(ours.get(row, 0)),
                    _times(theirs.get(row, 0)),
                    writer,
                )


def _times(count: int) -> str:
    return "absent" if not count else "there once" if count == 1 else f"there {count} times"


def _effects(actual: Any, expected: Any) -> Iterable[Difference]:
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        for key in sorted(actual.keys() | expected.keys(), key=repr):
            if actual.get(key) != expected.get(key):
                yield Difference(
                    f"effects()[{key!r}]",
                    _text_at(actual, key),
                    _text_at(expected, key),
                    effect=str(key),
                )
    elif (
        isinstance(actual, list)
        and isinstance(expected, list)
        and (counts := _item_counts(actual, expected))
    ):
        for item, (ours, theirs) in counts.items():
            yield Difference(f"{short(item)} in effects()", _times(ours), _times(theirs), effect="")
    elif actual != expected:
        yield Difference("effects()", short(repr(actual)), short(repr(expected)), effect="")


def _item_counts(actual: Iterable[Any], expected: Iterable[Any]) -> dict[str, tuple[int, int]]:
    """Count each item on both sides, as text, and keep those whose counts differ."""
    ours, theirs = Counter(map(shown, actual)), Counter(map(shown, expected))
    return {
        item: (ours[item], theirs[item])
        for item in sorted(ours | theirs)
        if ours[item] != theirs[item]
    }


def _outputs(actual: Outcome, expected: Outcome) -> Iterable[Difference]:
    for txid in sorted(actual.emitted.keys() & expected.emitted.keys()):
        for component, rows in expected.emitted[txid].items():
            ours = actual.emitted[txid].get(component, [])
            if ours != rows:
                place = f"what {component!r} emitted in transaction {txid}"
                yield Difference(
                    place,
                    short(", ".join(ours) or "nothing"),
                    short(", ".join(rows) or "nothing"),
                    component,
                )


def _text_at(values: Mapping[Any, Any], key: Any) -> str:
    return short(repr(values[key])) if key in values else "absent"


def short(text: str) -> str:
    """Cut ``text`` to a readable length."""
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
