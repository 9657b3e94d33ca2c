"""The rows of a sink under the simulator, whichever system the sink writes to.

Apart from the simulated sinks, which are in the folders of their systems.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Written:
    """One row: its values, its writer's component, and the mark of its transaction."""

    columns: tuple[str, ...]
    values: tuple[Any, ...]
    component: str
    mark: str

    def __str__(self) -> str:
        return ", ".join(
            f"{column}={value!r}" for column, value in zip(self.columns, self.values, strict=True)
        )


class SimulatedSink(abc.ABC):
    """A destination that stands for a sink's, and keeps the rows for the simulator to compare."""

    @property
    @abc.abstractmethod
    def sink(self) -> str:
        """Where the rows go, for messages."""

    @abc.abstractmethod
    def rows(self) -> list[Written]:
        """The committed rows."""


__all__ = ["SimulatedSink", "Written"]
