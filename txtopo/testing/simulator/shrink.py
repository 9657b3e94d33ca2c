"""Shortens a script that shows a violation: leaves out parts as long as the violation shows.

Shrinking knows no topologies: its arguments are a question and a script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txtopo.testing.simulator.decisions import Script

TRIES_MAX = 300
"""How many scripts to try. Each script costs one schedule."""


def shrink(script: Script, shows_it: Callable[[Script], bool]) -> Script:
    """Find the smallest part of ``script`` for which ``shows_it`` holds, as far as the search gets."""
    tries = 0
    improved = True
    while improved:
        improved = False
        for smaller in _smaller(script):
            if tries >= TRIES_MAX:
                return script
            tries += 1
            if shows_it(smaller):
                script, improved = smaller, True
                break
    return script


def _smaller(script: Script) -> Iterator[Script]:
    """Yield shorter scripts made from ``script``, those with the largest cuts first."""
    faults, picks, seed = script.faults, script.picks, script.shuffle_seed
    if picks and seed is not None:
        yield Script(faults)
    if picks:
        yield Script(faults, (), seed)
    if seed is not None:
        yield Script(faults, picks, None)
    anywhere = tuple(dict.fromkeys(fault.in_any_attempt for fault in faults))
    if anywhere != faults:
        yield Script(anywhere, (), None)
        yield Script(anywhere, picks, seed)
    for i in range(len(faults)):
        yield Script((*faults[:i], *faults[i + 1 :]), (), seed)
        if picks:
            yield Script((*faults[:i], *faults[i + 1 :]), picks, seed)
    half = len(picks) // 2
    if half:
        yield Script(faults, picks[:half], seed)
        yield Script(faults, picks[half:], seed)
    for i in range(len(picks)):
        yield Script(faults, (*picks[:i], *picks[i + 1 :]), seed)
