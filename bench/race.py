"""Turns, medians and ratios: how samples of several contenders become a result.

Contenders take turns block by block, so that a machine that is slower for a minute is slower for
all of them. A ratio is that of the medians; beside it stands the range of the ratios of single
rounds, which says how far to trust it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.process import Sample

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Ratio:
    """``value`` is that of the medians, ``low`` … ``high`` the range over the rounds. ``target`` is
    ``None`` where there is none to reach."""

    what: str
    value: float
    low: float
    high: float
    better: Better
    target: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; ``None`` without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "higher" else self.value <= self.target


def interleaved(
    blocks: Mapping[str, Callable[[], Sample]], rounds: int, warm_up: int = 1
) -> dict[str, list[Sample]]:
    """``rounds`` samples of each of ``blocks``, taken in turns, after ``warm_up`` turns that do not
    count."""
    for _ in range(warm_up):
        for block in blocks.values():
            block()
    samples: dict[str, list[Sample]] = {name: [] for name in blocks}
    for _ in range(rounds):
        for name, block in blocks.items():
            samples[name].append(block())
    return samples


def values(samples: Sequence[Sample], key: str) -> list[float]:
    """The value of ``key`` in each of ``samples``."""
    return [float(sample[key]) for sample in samples]


def median(samples: Sequence[Sample], key: str) -> float:
    """The median of ``key``."""
    return statistics.median(values(samples, key))


def ratio(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    better: Better,
    target: float | None = None,
) -> Ratio:
    """``ours`` to ``theirs``: measured in the same rounds, in the same order."""
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{name}: {len(ours)} rounds of ours and {len(theirs)} of theirs")
    single = [our / their for our, their in zip(ours, theirs, strict=True)]
    return Ratio(
        name,
        statistics.median(ours) / statistics.median(theirs),
        min(single),
        max(single),
        better,
        target,
    )
