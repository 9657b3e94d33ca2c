"""A sink's rows under the simulator, for every system that sinks write to."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Written:
    """A row, with the component that wrote the row and the transaction's mark."""

    columns: tuple[str, ...]
    values: tuple[Any, ...]
    component: str
    mark: str

    def __str__(self) -> str:
        return ", ".join(
            f"{column}={value!r}" for column, value in zip(self.columns, self.values, strict=True)
        )


class SimulatedSink(abc.ABC):
    """Stands for a sink's destination, and keeps the rows for the simulator to compare."""

    @property
    @abc.abstractmethod
    def sink(self) -> str:
        """Where the rows go, for messages."""

    @abc.abstractmethod
    def rows(self) -> list[Written]:
        """The committed rows."""
