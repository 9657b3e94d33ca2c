"""Finds clues in a component's code that explain changing results: clocks, dice, threads,
addresses, hashes. The functions are read, not run.

``diagnosis`` asks only about a component that is at fault already: a clock alone is no mistake.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import os
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from txtopo.testing.simulator import processes

Clue = Literal["clock", "chance", "thread", "address", "hash"]

_MODULES: dict[str, Clue] = {
    "time": "clock",
    "random": "chance",
    "_random": "chance",
    "uuid": "chance",
    "secrets": "chance",
    "numpy.random": "chance",
    "threading": "thread",
    "_thread": "thread",
    "concurrent.futures": "thread",
    "concurrent.futures.thread": "thread",
    "multiprocessing": "thread",
}
_VALUES: tuple[tuple[Any, Clue], ...] = (
    (os.urandom, "chance"),
    (builtins.id, "address"),
    (builtins.hash, "hash"),
    (builtins.set, "hash"),
    (builtins.frozenset, "hash"),
)
_SETS = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
_OF_THE_CLOCK = frozenset({"now", "utcnow", "today"})
"""Methods in ``datetime``, in ``date`` and in classes from libraries."""
_IMPORTING = frozenset({"__import__", "import_module", "modules"})
"""Beside such a name, a text may name a module."""


def clues_in(classes: Iterable[type]) -> dict[Clue, str]:
    """Find the clues in the user's functions in ``classes``, and in the user's functions and
    classes that these name. Each clue has its function, line and file."""
    clues: dict[Clue, str] = {}
    seen: set[types.CodeType] = set()
    for base in (base for cls in classes for base in cls.__mro__):
        for clue, text in _clues_of(base, seen):
            clues.setdefault(clue, text)
    return clues


def _clues_of(value: Any, seen: set[types.CodeType]) -> Iterator[tuple[Clue, str]]:
    for function in processes.functions_of(value) if isinstance(value, type) else [value]:
        if processes.is_users(function) and function.__code__ not in seen:
            seen.add(function.__code__)
            yield from _uses(function, function.__code__, seen)


def _uses(
    function: types.FunctionType, code: types.CodeType, seen: set[types.CodeType]
) -> Iterator[tuple[Clue, str]]:
    line, value, word, imports = code.co_firstlineno, None, "", _IMPORTING & {*code.co_names}
    local: dict[Any, Any] = {}
    for instruction in dis.get_instructions(code):
        line = (
            instruction.positions.lineno
            if instruction.positions is not None and instruction.positions.lineno is not None
            else line
        )
        operation, name = instruction.opname, instruction.argval
        clue: Clue | None = None
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            value, word = function.__globals__.get(name, getattr(builtins, name, None)), name
        elif operation in ("LOAD_ATTR", "LOAD_METHOD"):
            with contextlib.suppress(
                Exception
            ):  # A module may import another module when a name is read.
                value = getattr(value, name) if isinstance(value, types.ModuleType) else None
            word = f"{word}.{name}".lstrip(".")
            clue = "clock" if name in _OF_THE_CLOCK else None
        elif operation == "IMPORT_NAME" or (
            operation == "LOAD_CONST" and imports and isinstance(name, str)
        ):
            value, word = sys.modules.get(name), name
        elif operation == "STORE_FAST":
            local[name], value = value, None
        elif operation.startswith("LOAD_FAST"):
            value, word = local.get(name), str(name)
        elif not operation.startswith(("CALL", "PRECALL", "BINARY")):
            value = None
            word = "a set" if operation in _SETS else ""
            clue = "hash" if operation in _SETS else None
        clue = clue or _clue(value)
        if clue is not None:
            name = function.__qualname__.rpartition("<locals>.")[2]
            yield clue, f"{name} uses {word}, line {line} of {os.path.basename(code.co_filename)}"
        yield from _clues_of(value, seen)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _uses(function, constant, seen)


def _clue(value: Any) -> Clue | None:
    for known, clue in _VALUES:
        if value is known:
            return clue
    if isinstance(value, types.ModuleType):
        return _MODULES.get(value.__name__)
    return (
        _MODULES.get(
            getattr(value, "__module__", None) or type(getattr(value, "__self__", None)).__module__
        )
        if callable(value)
        else None
    )
