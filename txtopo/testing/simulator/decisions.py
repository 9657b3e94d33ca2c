"""Decides a schedule's faults, their places, and the order among concurrent steps: by chance,
written down, or played again.

A schedule is its *script*. The script has the faults, each with the name of the place where it
strikes, and the few moments at which a step other than the first in line was chosen. Everything
else follows. A script with parts left out is a script too, which is how a violation is made short.

Invariants: without chance, a :class:`Decisions` depends on its script alone. At most ``FAULTS_MAX``
faults strike.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

from txtopo.testing.simulator.fault_kinds import KINDS, TRACE_PREFIXES, FaultKind

FAULTS_MAX = 8

_TARGETS = (1, 1, 2)
"""How many faults to aim at for each kind that takes part."""

_TAKES_PART = 0.35
"""How likely a kind is to take part."""

_UNKNOWN = 3
"""The assumed opportunities for a kind that has none without other faults."""

_REORDER_RATES = (0.0, 0.1, 0.4)
"""How often a step other than the first in line may be chosen."""


_shuffler = random.Random()
"""Seeded before each use: a new generator would be seeded twice."""

_ATTEMPT = re.compile(r"(attempt \d+):\d+")


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` strikes at ``where``, once, in the way ``how``. ``attempt 3:any`` stands for
    transaction 3's first attempt that gets there."""

    kind: FaultKind
    where: str
    how: Any

    def __str__(self) -> str:
        return f"{self.where}: {TRACE_PREFIXES.get(self.kind, '')}{self.how}"

    @property
    def in_any_attempt(self) -> Fault:
        """The fault at the same place in any attempt. The fault still strikes when faults that led
        to more attempts are left out."""
        return Fault(self.kind, _in_any_attempt(self.where), self.how)


def _in_any_attempt(where: str) -> str:
    return _ATTEMPT.sub(r"\1:any", where)


@dataclass(frozen=True, slots=True)
class Script:
    """All decisions in a schedule. ``picks`` are pairs: the choice's number, and the index chosen
    instead of 0."""

    faults: tuple[Fault, ...] = ()
    picks: tuple[tuple[int, int], ...] = ()
    shuffle_seed: int | None = None
    """Puts slots and chunks in a random order. ``None``: in order."""


@dataclass(slots=True)
class Chance:
    """Makes decisions that are not played back. ``rates`` has, for each fault kind, the probability
    at each opportunity."""

    rng: random.Random
    rates: Mapping[str, float]
    reorder_rate: float
    shuffle_seed: int | None

    @classmethod
    def of(cls, seed: int, opportunities: Mapping[str, int]) -> Chance:
        """Make the chances for ``seed``. Some fault kinds take part and some do not, because many
        at once hide each other's effects."""
        rng = random.Random(seed)
        rates: dict[str, float] = {}
        for kind in KINDS:
            if rng.random() < _TAKES_PART:
                rates[kind] = min(0.9, rng.choice(_TARGETS) / opportunities.get(kind, _UNKNOWN))
        return cls(
            rng,
            rates,
            rng.choice(_REORDER_RATES),
            rng.randrange(1 << 30) if rng.random() < 0.5 else None,
        )


@dataclass(slots=True)
class Decisions:
    """Decides each open question in a schedule. Without ``chance``, ``script`` decides."""

    script: Script = field(default_factory=Script)
    chance: Chance | None = None
    opportunities: Counter[str] = field(default_factory=Counter)
    """How often each fault kind could have struck."""
    struck: list[Fault] = field(default_factory=list)
    """The faults that struck, in order."""
    _planned: dict[tuple[str, str], Any] = field(init=False)
    _picks: dict[int, int] = field(init=False)
    _picked: list[tuple[int, int]] = field(default_factory=list)
    _moments: int = 0

    def __post_init__(self) -> None:
        self._planned = {(fault.kind, fault.where): fault.how for fault in self.script.faults}
        self._picks = dict(self.script.picks)

    def may_strike(self, *kinds: FaultKind) -> bool:
        """Whether any fault in ``kinds`` can strike. If not, thousands of hooks need no name."""
        return self.chance is None or any(kind in self.chance.rates for kind in kinds)

    def strike(self, kind: FaultKind, where: str, ways: Sequence[Any]) -> Any:
        """Decide how ``kind`` strikes at ``where``: one of ``ways``, or ``None`` for no fault."""
        self.opportunities[kind] += 1
        how: Any = None
        if self._planned:
            key = (
                (kind, where) if (kind, where) in self._planned else (kind, _in_any_attempt(where))
            )
            how = self._planned.pop(key, None)
        elif (
            self.chance is not None
            and len(self.struck) < FAULTS_MAX
            and self.chance.rng.random() < self.chance.rates.get(kind, 0.0)
        ):
            how = self.chance.rng.choice(ways)
        if how is not None:
            self.struck.append(Fault(kind, where, how))
        return how

    def pick(self, count: int) -> int:
        """Choose which of ``count`` steps comes first: 0, the first in line, unless decided
        otherwise."""
        if count < 2:
            return 0
        self._moments += 1
        chosen = 0
        if self.chance is None:
            chosen = min(self._picks.get(self._moments, 0), count - 1)
        elif self.chance.reorder_rate and self.chance.rng.random() < self.chance.reorder_rate:
            chosen = self.chance.rng.randrange(count)
        if chosen:
            self._picked.append((self._moments, chosen))
        return chosen

    @property
    def shuffle_seed(self) -> int | None:
        return self.script.shuffle_seed if self.chance is None else self.chance.shuffle_seed

    def shuffled(self, items: MutableSequence[Any], where: str) -> None:
        """Put ``items`` into an order that depends on ``where`` alone."""
        if self.shuffle_seed is not None and len(items) > 1:
            _shuffler.seed(f"{self.shuffle_seed}/{where}")
            _shuffler.shuffle(items)

    def written_down(self) -> Script:
        return Script(tuple(self.struck), tuple(self._picked), self.shuffle_seed)
