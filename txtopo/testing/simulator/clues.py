"""Clues in the code of a component to results that change from run to run: clocks, dice, threads,
addresses, hashes. The functions are read, not run.

Apart from ``diagnosis``, which asks only about a component that is at fault already: a clock alone
is no mistake.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import datetime
import dis
import random
import secrets
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from txtopo.testing.simulator.processes import is_users

Clue = Literal["clock", "chance", "thread", "address", "hash"]

_MODULES: dict[str, Clue] = {
    "time": "clock", "_datetime": "clock", "datetime": "clock", "random": "chance", "_random": "chance", "uuid": "chance", "secrets": "chance",
    "threading": "thread", "_thread": "thread", "concurrent.futures": "thread", "concurrent.futures.thread": "thread", "multiprocessing": "thread",
}  # fmt: skip
_VALUES: tuple[tuple[Any, Clue], ...] = (
    (time, "clock"), (datetime, "clock"), (random, "chance"), (uuid, "chance"), (secrets, "chance"), (threading, "thread"),
    (concurrent.futures, "thread"), (builtins.id, "address"), (builtins.hash, "hash"), (builtins.set, "hash"), (builtins.frozenset, "hash"),
)  # fmt: skip
_SETS = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})


def clues_in(classes: Iterable[type]) -> dict[Clue, str]:
    """The clues in the user's functions of ``classes``, each with its function and line."""
    clues: dict[Clue, str] = {}
    for cls in classes:
        for base in cls.__mro__:
            for name, value in vars(base).items():
                if isinstance(value, types.FunctionType) and is_users(value):
                    for clue, word, line in _uses(value, value.__code__):
                        clues.setdefault(clue, f"{cls.__name__}.{name} uses {word}, line {line}")
    return clues


def _uses(function: Callable[..., Any], code: types.CodeType) -> Iterator[tuple[Clue, str, int]]:
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno if instruction.positions is not None and instruction.positions.lineno is not None else line
        if instruction.opname in _SETS:
            yield "hash", "a set", line
        elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            name = str(instruction.argval)
            clue = _clue(getattr(function, "__globals__", {}).get(name, getattr(builtins, name, None)))
            if clue is not None:
                yield clue, name, line
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _uses(function, constant)


def _clue(value: Any) -> Clue | None:
    for known, clue in _VALUES:
        if value is known:
            return clue
    if isinstance(value, types.ModuleType | None) or not callable(value):
        return None
    return _MODULES.get(getattr(value, "__module__", None) or type(getattr(value, "__self__", None)).__module__)
