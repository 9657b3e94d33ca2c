"""Simulates worker processes: each has its own module globals, class attributes and resources, and
may be replaced by a fresh process.

In Spark, a topology's tasks run in several processes, which outlive transactions and then suddenly
do not. Code that keeps values in a global therefore sees earlier tasks' values. Here the globals in
the user's modules are exchanged when another process becomes active.

Invariants: outside a simulation the globals are as before. Between two switches only the active
process changes its globals.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import os
import pickle
import site
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from txtopo import errors
from txtopo.dataplane import worker
from txtopo.topology import pickling

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes)
_SCALARS = (*_CONSTANTS, frozenset)
_CONTAINERS = (dict, list, set, tuple, bytearray, deque)
_LIBRARIES = tuple(
    os.path.join(os.path.realpath(place), "")
    for place in (
        *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        os.path.dirname(errors.__file__),
    )
)

_FOLDERS_OF_PACKAGES = ("site-packages", "dist-packages")
"""Also libraries in an environment whose packages this environment can import."""

Owner = dict[str, Any] | type | FunctionType
"""Where a variable lives: a module's globals, a class, or a function, whose defaults are kept."""


def is_users(function: Callable[..., Any] | Any) -> bool:
    """Whether ``function`` is the user's own: neither from Python's library, nor from an installed
    package, nor from txtopo."""
    if not isinstance(function, FunctionType):
        return False
    path = function.__code__.co_filename
    # The methods that ``dataclass`` has made belong to the class's module.
    return _is_users_file(
        function.__globals__.get("__file__", path) if path == "<string>" else path
    )


@functools.lru_cache(4096)
def _is_users_file(path: str | None) -> bool:
    # Cached, because a search reads thousands of functions in a few files.
    if path is None or path.startswith("<frozen"):
        return False
    real = os.path.realpath(path)
    return not real.startswith(_LIBRARIES) and not any(
        folder in real for folder in _FOLDERS_OF_PACKAGES
    )


def functions_of(cls: type) -> Iterator[FunctionType]:
    """Yield the functions, methods and getters that ``cls`` defines, without inherited functions."""
    for value in list(vars(cls).values()):
        inner = (
            value.__func__
            if isinstance(value, classmethod | staticmethod)
            else value.fget
            if isinstance(value, property)
            else value
        )
        if isinstance(inner, FunctionType):
            yield inner


class Variables:
    """The variables in which user code could keep a value between two tasks."""

    def __init__(self, classes: Iterable[type]) -> None:
        self.namespaces: list[dict[str, Any]] = []
        """The globals in the user's modules."""
        self._classes: list[type] = []
        self._seen: set[int] = set()
        """Identities of the classes and namespaces already searched."""
        self._functions: list[FunctionType] = []
        for cls in classes:
            self._add_class(cls)
        self.places: list[tuple[Owner, str]] = []
        for namespace in self.namespaces:
            self.places.extend(
                (namespace, name)
                for name, value in namespace.items()
                if not name.startswith("__") and _is_data(value)
            )
        for cls in self._classes:
            # An enumeration's members never change: Python refuses another value.
            members = list(cls.__members__) if isinstance(cls, enum.EnumType) else []
            names = [name for name in vars(cls) if not name.startswith("_") and name not in members]
            self.places.extend((cls, name) for name in names if _is_data(vars(cls)[name]))
        for function in self._functions:
            self.places.extend(
                (function, name)
                for name in ("__defaults__", "__kwdefaults__")
                if _has_container(getattr(function, name))
            )
        self.places = [place for place in self.places if _can_be_copied(_get(place))]
        # The globals come first. A switch between processes takes as long as a look at a variable.
        self._globals = [(owner, name) for owner, name in self.places if isinstance(owner, dict)]
        self._attributes = self.places[len(self._globals) :]

    def _add_class(self, cls: type) -> None:
        for base in cls.__mro__:
            if id(base) in self._seen:
                continue
            self._seen.add(id(base))
            functions = [function for function in functions_of(base) if is_users(function)]
            if not functions:
                continue
            self._classes.append(base)
            self._functions.extend(functions)
            for function in functions:
                self._add_namespace(function.__globals__)
            for value in list(vars(base).values()):
                if isinstance(value, type):
                    self._add_class(value)

    def _add_namespace(self, namespace: dict[str, Any]) -> None:
        if id(namespace) in self._seen:
            return
        self._seen.add(id(namespace))
        self.namespaces.append(namespace)
        for value in list(namespace.values()):
            if isinstance(value, type):
                self._add_class(value)
            elif is_users(value):
                self._functions.append(value)
                self._add_namespace(value.__globals__)
            elif isinstance(value, ModuleType) and _is_users_file(getattr(value, "__file__", None)):
                self._add_namespace(vars(value))

    def values(self) -> list[Any]:
        return [owner[name] for owner, name in self._globals] + list(map(_get, self._attributes))

    def put(self, values: list[Any]) -> None:
        attributes = values[len(self._globals) :]
        for (namespace, name), value in zip(self._globals, values, strict=False):
            namespace[name] = value
        for (owner, name), value in zip(self._attributes, attributes, strict=True):
            # Setting a class's attribute empties Python's cache of its methods.
            if _get((owner, name)) is not value:
                setattr(owner, name, value)

    def names(self) -> list[str]:
        return [_variable_name(owner, name) for owner, name in self.places]


def _variable_name(owner: Owner, name: str) -> str:
    if isinstance(owner, FunctionType):
        return f"the default of a parameter of {owner.__qualname__}"
    if isinstance(owner, type):
        return f"{owner.__qualname__}.{name}"
    module = owner.get("__name__", pickling.FILE_MODULE)
    return name if module == pickling.FILE_MODULE else f"{module}.{name}"


def _get(place: tuple[Owner, str]) -> Any:
    owner, name = place
    if isinstance(owner, FunctionType):
        return getattr(owner, name)
    return owner[name] if isinstance(owner, dict) else vars(owner)[name]


def _has_container(defaults: tuple[Any, ...] | dict[str, Any] | None) -> bool:
    values = defaults.values() if isinstance(defaults, dict) else defaults or ()
    return any(isinstance(value, dict | list | set | bytearray | deque) for value in values)


def _is_data(value: Any) -> bool:
    if isinstance(value, _SCALARS + _CONTAINERS):
        return True
    # An object from a user's class may keep a value. An object from a library is more likely a
    # client or a lock.
    return not isinstance(value, type) and any(
        is_users(function) for function in functions_of(type(value))
    )


def _can_be_copied(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


class _Copier:
    """Copies values as they were, by pickle where possible, which is much faster."""

    def __init__(self, values: list[Any]) -> None:
        self._values = list(values)
        # Processes may share a value that never changes.
        self._copied = [n for n, value in enumerate(values) if type(value) not in _CONSTANTS]
        self._originals = copy.deepcopy([values[n] for n in self._copied])
        self._pickled: bytes | None = None
        with contextlib.suppress(Exception):
            self._pickled = pickle.dumps(self._originals, pickle.HIGHEST_PROTOCOL)

    def copy(self) -> list[Any]:
        values = list(self._values)
        if self._copied:
            copies = (
                copy.deepcopy(self._originals)
                if self._pickled is None
                else pickle.loads(self._pickled)
            )
            for n, value in zip(self._copied, copies, strict=True):
                values[n] = value
        return values


class Process:
    """A process: its resources, and its variables while another process is active."""

    def __init__(self, values: list[Any]) -> None:
        self.values, self.resources = values, worker.Resources()


class Processes:
    """A simulation's processes. ``driver`` and the numbered workers are made when they first become
    active."""

    def __init__(self, classes: Iterable[type]) -> None:
        self.variables = Variables(classes)
        self._pristine = _Copier(self.variables.values())
        self._outside = Process(self.variables.values())
        self._all: dict[str, Process] = {}
        self._active = self._outside

    def switch_to(self, name: str) -> Process:
        """Make process ``name`` active, as a fresh process if there is none."""
        process = self._all.get(name)
        if process is None:
            process = self._all[name] = Process(self._pristine.copy())
        self._switch(process)
        return process

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """No simulated process is active while this context lasts."""
        on = self._active
        self.leave()
        try:
            yield
        finally:
            self._switch(on)

    def leave(self) -> None:
        """Make no process active: the globals are those of the simulating program."""
        self._switch(self._outside)

    def _switch(self, process: Process) -> None:
        if process is not self._active:
            self._active.values = self.variables.values()
            self.variables.put(process.values)
            self._active = process

    def end(self, name: str) -> None:
        process = self._all.pop(name, None)
        if process is None:
            return
        if process is self._active:
            self.leave()
        process.resources.close()

    def end_all(self) -> None:
        self.leave()
        for name in list(self._all):
            self.end(name)

    def changed_between(self, before: Sequence[str], after: Sequence[str]) -> list[str]:
        """List the names of variables whose :meth:`shown` differs."""
        names = self.variables.names()
        return [name for name, old, new in zip(names, before, after, strict=True) if old != new]

    def shown(self) -> list[str]:
        """Write the active process's variables as text that changes when a variable does."""
        return [_show(value) for value in self.variables.values()]


def _show(value: Any) -> str:
    if isinstance(value, _SCALARS + _CONTAINERS):
        return repr(value)
    return f"{type(value).__qualname__} {getattr(value, '__dict__', None)!r}"


def classes_of(instances: Iterable[Any]) -> list[type]:
    """List the classes of ``instances`` and of their attributes' values."""
    classes: list[type] = []
    for instance in instances:
        for part in [instance, *getattr(instance, "__dict__", {}).values()]:
            if type(part) not in classes and type(part).__module__ not in sys.builtin_module_names:
                classes.append(type(part))
    return classes
