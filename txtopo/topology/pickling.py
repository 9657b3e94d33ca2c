"""Pickles code and objects for executors, also if no executor can import their definitions: from
``__main__``, say.

An executor with a bare interpreter has no cloudpickle of its own, but pyspark always ships one. A
pickle names the functions that will undo it. So a pickle from the driver's cloudpickle can be read
only where a module has the name ``cloudpickle``: on such an executor, pyspark's copy.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any


def _load_cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        bundled = importlib.import_module("pyspark.cloudpickle")
        sys.modules["cloudpickle"] = bundled
        sys.modules["cloudpickle.cloudpickle"] = importlib.import_module(
            "pyspark.cloudpickle.cloudpickle"
        )
        return bundled


cloudpickle = _load_cloudpickle()

FILE_MODULE = "__txtopo_main__"
"""The module name for the file given to ``txtopo run``. The script's classes travel by value, like
those in ``__main__``."""


class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
    """Pickles all that cloudpickle can, functions under ``functools.lru_cache`` without their
    caches, and code with its file name.

    cloudpickle names a cached function, as ``pickle`` does. A process that cannot import the
    function's module cannot find the function by name. Since 3.1.3 cloudpickle replaces the file
    name by ``<dynamic-code>``, and a traceback would show no line of the user's code.
    """

    dispatch_table: Any

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        if (
            program := sys.modules.get("__mp_main__")
        ) is not None:  # a program that multiprocessing has spawned
            travel_by_value(program)
        # A chain of two tables is asked by code in Python, for each object in each held bolt.
        first, second = self.dispatch_table.maps
        self.dispatch_table = {**second, **first}
        super().__init__(file, protocol=protocol)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if not issubclass(kind, _OVERRIDDEN):
            return NotImplemented
        if kind is CodeType:
            return _with_file_name(obj, self.dispatch_table[CodeType](obj))
        if kind is _CACHED and _is_in(obj.__module__, by_value_modules()):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if _is_ours(obj):
            return NotImplemented
        return super().reducer_override(obj)


def _is_ours(obj: Any) -> bool:
    """Whether ``obj`` is one of txtopo's own classes or functions, which every process imports by
    name. cloudpickle would find this out in many steps."""
    module = obj.__module__
    return (
        isinstance(module, str)
        and module.startswith("txtopo.")
        and not _is_in(module, by_value_modules())
        and getattr(sys.modules.get(module), obj.__qualname__, None) is obj
    )


_CACHED = type(functools.lru_cache(len))

_OVERRIDDEN = (type, FunctionType, CodeType, _CACHED)
"""Only objects of these classes are pickled in another way than their class says."""

_NO_FILE_NAME = "<dynamic-code>"


def _with_file_name(code: CodeType, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """``reduced``, which makes ``code`` again, with the code's file name."""
    make, arguments, *others = reduced
    named = (
        code.co_filename if type(argument) is str and argument == _NO_FILE_NAME else argument
        for argument in arguments
    )
    return (make, tuple(named), *others)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """``function`` with a new, empty cache."""
    return functools.lru_cache(**parameters)(function)


class _RecordingPickler(Pickler):
    """Notes every class that travels by value, so that a pickle for executors can name the class
    instead of carrying its code (see ``dataplane.wire``).

    ``visit`` is called with every object that is no plain data, however deep.
    """

    def __init__(self, file: io.BytesIO, visit: Callable[[Any], None] | None) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.by_value: list[type] = []
        self._visit = visit

    def reducer_override(self, obj: Any) -> Any:
        if self._visit is not None:
            self._visit(obj)
        if (
            isinstance(obj, type)
            and _is_in(obj.__module__, by_value_modules())
            and obj not in self.by_value
        ):
            self.by_value.append(obj)
        return super().reducer_override(obj)


def by_value_modules() -> list[str]:
    """Names of the modules, and packages, whose code travels with its users."""
    return ["__main__", *sorted(cloudpickle.list_registry_pickle_by_value())]


def _is_in(module: str, packages: list[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def travel_by_value(module: ModuleType) -> None:
    """From now on, let definitions in ``module`` travel by value, as those in ``__main__`` do.
    ``module`` must be in ``sys.modules``."""
    cloudpickle.register_pickle_by_value(module)


def dumps(obj: Any) -> bytes:
    """``obj`` as bytes. Code of :func:`by_value_modules` travels along."""
    buffer = io.BytesIO()
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(obj)
    return buffer.getvalue()


def dumps_with_classes(
    obj: Any, visit: Callable[[Any], None] | None = None
) -> tuple[bytes, tuple[type, ...]]:
    """``obj`` as bytes, and the classes in it that travel by value. ``visit`` is called with every
    object in ``obj`` that is no plain data."""
    buffer = io.BytesIO()
    pickler = _RecordingPickler(buffer, visit)
    pickler.dump(obj)
    return buffer.getvalue(), tuple(pickler.by_value)


def loads(data: bytes) -> Any:
    """The inverse of :func:`dumps`."""
    return pickle.loads(data)


def culprit(instance: Any, attempt: Callable[[Any], object]) -> str | None:
    """The name of the first attribute that ``instance`` is pickled with and ``attempt`` refuses, if
    there is one. ``attempt`` pickles one attribute alone."""
    try:
        state = instance.__getstate__()
    except Exception:
        return None
    for attributes in state if isinstance(state, tuple) else (state,):
        for name, value in attributes.items() if isinstance(attributes, dict) else ():
            try:
                attempt(value)
            except Exception:
                return str(name)
    return None
