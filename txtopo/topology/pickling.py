"""Pickling code and objects for executors, also when they were defined in ``__main__``.

Apart because an executor with a bare interpreter has no cloudpickle of its own; pyspark always ships one.
"""

from __future__ import annotations

import importlib
import io
import pickle
from typing import Any


def _load_cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return importlib.import_module("pyspark.cloudpickle")


cloudpickle = _load_cloudpickle()


class _RecordingPickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
    """Notes every class that travels by value, so that executors can name it instead of carrying it (see ``dataplane.wire``)."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.by_value: list[type] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "__main__" and obj not in self.by_value:
            self.by_value.append(obj)
        return super().reducer_override(obj)


def dumps(obj: Any) -> bytes:
    """``obj`` as bytes; code defined in ``__main__`` travels along."""
    data: bytes = cloudpickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    return data


def dumps_with_classes(obj: Any) -> tuple[bytes, tuple[type, ...]]:
    """``obj`` as bytes, and the classes in it that travel by value."""
    buffer = io.BytesIO()
    pickler = _RecordingPickler(buffer)
    pickler.dump(obj)
    return buffer.getvalue(), tuple(pickler.by_value)


def loads(data: bytes) -> Any:
    """The inverse of :func:`dumps`."""
    return pickle.loads(data)


