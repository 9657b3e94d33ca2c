"""The outside of a simulated topology: a queue, a log that grows, and a journal. No simulated
process has a copy of these."""

from __future__ import annotations

from typing import Any, NoReturn

WORDS = tuple(f"word {n}" for n in range(8))


class Outside:
    """Like a server: one object for all processes."""

    def __init__(self) -> None:
        self.was_emitted = False
        """Not part of a reset."""
        self.reset()

    def reset(self) -> None:
        """As it was."""
        self.queue = list(WORDS)
        self.log = list(WORDS[:2])
        self.journal: dict[str, Any] = {}

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError("there is one")

    def __reduce__(self) -> str:
        return "world"


world = Outside()


def reset() -> None:
    """As it was."""
    world.reset()


def effects() -> dict[str, Any]:
    """What was written."""
    return dict(world.journal)
