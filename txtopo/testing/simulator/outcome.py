"""What a schedule came to, and how it differs from what a run without failures comes to.

Apart from ``schedule`` so that comparing can be read, and argued about, alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txtopo.stores import base
from txtopo.testing.simulator.hooks import Emission

_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """``place`` holds ``found`` where a run without failures has ``expected``. ``component`` is whose doing it is, if that can be seen."""

    place: str
    found: str
    expected: str
    component: str | None = None
    effect: str | None = None
    """The key in ``effects()`` that differs."""

    def __str__(self) -> str:
        return f"{self.place} is {self.found}; without failures it is {self.expected}" if self.expected else f"{self.place}: {self.found}"


@dataclass(slots=True)
class Outcome:
    """What is left when everything has ended."""

    committed: int = 0
    stores: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """Per store, by address."""
    writers: dict[tuple[str, Any], str] = field(default_factory=dict)
    """Which component wrote a key of a store last."""
    effects: Any = None
    emitted: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    """Per txid, what each component emitted in the attempt that committed."""
    error: str | None = None
    """What ended the run, if that was no end of a run without failures."""
    error_component: str | None = None

    def read_stores(self, stores: Iterable[base.Store]) -> None:
        """Take down what ``stores`` hold."""
        for store in stores:
            self.stores[store.address] = dict(store.items())
            for key in self.stores[store.address]:
                value = store.inspect(key)
                if value is not None:
                    self.writers[store.address, key] = value.component

    def add_emissions(self, txid: int, emissions: Iterable[Emission], components: Iterable[str]) -> None:
        """Take down what ``components`` emitted for ``txid``: the tuples, not from which task they came."""
        of = {component: list[str]() for component in components}
        for component, _, stream, values in emissions:
            if component in of:
                of[component].append(shown(values) if stream == "default" else f"{stream}: {shown(values)}")
        self.emitted[txid] = {component: sorted(rows) for component, rows in of.items()}


def differences(found: Outcome, expected: Outcome, compares_outputs: bool) -> list[Difference]:
    """How ``found`` differs from ``expected``; outputs only if ``compares_outputs``."""
    if found.error is not None:
        return [Difference("the run ended with an error", found.error, "", found.error_component)]
    made = list(_stores(found, expected))
    made.extend(_effects(found.effects, expected.effects))
    if compares_outputs:
        made.extend(_outputs(found, expected))
        if found.committed != expected.committed:
            made.append(Difference("the number of transactions committed", str(found.committed), str(expected.committed)))
    return made


def shown(value: Any) -> str:
    """``value`` as text that is the same whenever the values are equal, whatever order a set or a dict has."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(shown, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{shown(key)}: {shown(item)}' for key, item in value.items()))}}}"
    if type(value) is tuple:
        return f"({', '.join(map(shown, value))})"
    return f"[{', '.join(map(shown, value))}]" if type(value) is list else repr(value)


def _stores(found: Outcome, expected: Outcome) -> Iterable[Difference]:
    for address in expected.stores.keys() | found.stores.keys():
        mine, theirs = found.stores.get(address, {}), expected.stores.get(address, {})
        for key in sorted(mine.keys() | theirs.keys(), key=repr):
            if mine.get(key) != theirs.get(key):
                writer = found.writers.get((address, key)) or expected.writers.get((address, key))
                yield Difference(f"key {key!r} of store {address}", _shown(mine, key), _shown(theirs, key), writer)


def _effects(found: Any, expected: Any) -> Iterable[Difference]:
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for key in sorted(found.keys() | expected.keys(), key=repr):
            if found.get(key) != expected.get(key):
                yield Difference(f"effects()[{key!r}]", _shown(found, key), _shown(expected, key), effect=str(key))
    elif found != expected:
        yield Difference("effects()", _short(repr(found)), _short(repr(expected)), effect="")


def _outputs(found: Outcome, expected: Outcome) -> Iterable[Difference]:
    for txid in sorted(found.emitted.keys() & expected.emitted.keys()):
        for component, rows in expected.emitted[txid].items():
            mine = found.emitted[txid].get(component, [])
            if mine != rows:
                place = f"what {component!r} emitted in transaction {txid}"
                yield Difference(place, _short(", ".join(mine) or "nothing"), _short(", ".join(rows) or "nothing"), component)


def _shown(values: Mapping[Any, Any], key: Any) -> str:
    return _short(repr(values[key])) if key in values else "absent"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
