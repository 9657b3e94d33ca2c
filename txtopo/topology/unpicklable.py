"""Finds out why an object cannot be pickled: an attribute, or a global in the program. Names the
cure.

Used when pickling has failed already: tries an object's parts in turn. Executors need ``pickling``
only.

Runs on: driver.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from txtopo.topology import pickling

_GLOBAL_CURE = (
    "A program's globals travel with the code that uses them, so make the object in prepare, with context.resource(name, factory),"
    " or keep the global in a module that the program imports"
)

Attempt = Callable[[Any], object]
"""Pickles its argument, or raises."""


def problem(instance: Any, error: Exception, attempt: Attempt, cure: str) -> str:
    """The part of ``instance`` that cannot be pickled, the reason, and the cure: ``cure``, unless
    the reason is a global."""
    attribute = pickling.culprit(instance, attempt)
    part = getattr(instance, attribute, None) if attribute else instance
    user = global_user(part, attempt) or global_user(type(part), attempt)
    if user is not None:
        name, function = user
        return f"the global {name!r}, which {function} uses, cannot be pickled ({type(error).__name__}: {error}). {_GLOBAL_CURE}"
    return f"{f'its attribute {attribute!r}' if attribute else 'it'} cannot be pickled ({type(error).__name__}: {error}). {cure}"


def global_user(code: Any, attempt: Attempt) -> tuple[str, str] | None:
    """The first global that cannot be pickled, and the function that uses it. Looks at functions in
    ``code``, a function or a class."""
    seen: set[int] = set()
    waiting = [code]
    while waiting:
        part = waiting.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        for function in _functions(part):
            for name, value in _used_by(function):
                if not _fails(value, attempt):
                    continue
                if name and not isinstance(value, FunctionType | type):
                    return name, function.__qualname__
                waiting.append(value)
        if isinstance(part, type):
            waiting.extend(base for base in part.__bases__ if _fails(base, attempt))
    return None


def _functions(part: Any) -> Iterator[FunctionType]:
    """``part`` if it is a function. If it is a class, the functions in its body."""
    if isinstance(part, FunctionType):
        yield part
    elif isinstance(part, type):
        for member in vars(part).values():
            accessors = (
                (member.fget, member.fset, member.fdel)
                if isinstance(member, property)
                else (getattr(member, "__func__", member),)
            )
            yield from (
                inspect.unwrap(function)
                for function in accessors
                if isinstance(function, FunctionType)
            )


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that ``function`` reads, by name. Objects in its closure come without a name."""
    for name in dict.fromkeys(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield "", cell.cell_contents
        except ValueError:
            continue  # The cell is empty: the name is not bound yet.


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _fails(value: Any, attempt: Attempt) -> bool:
    try:
        attempt(value)
    except Exception:
        return True
    return False
