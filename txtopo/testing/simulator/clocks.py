"""Simulated clocks: user code sees a time that is hours, days or months later, and the clock may
jump.

A transaction is replayed when its driver is back: after a night, or after a holiday. So the modules
``time`` and ``datetime`` in user namespaces are replaced by copies that add to the time. An import
inside a function gets the copies, too. Libraries, txtopo among them, keep the real time. Clocks
give ordinary values. ``datetime`` is a C type whose methods cannot be replaced, so a subclass
without instances stands for it. Clocks that only measure, such as ``time.monotonic``, are not
shifted.

``processes`` knows the namespaces, and ``schedule`` decides when the clock jumps.

Invariants: while no clock is shifted, the namespaces hold their own modules and functions.
"""

from __future__ import annotations

import builtins
import datetime
import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

DAY_S = 86_400.0
ANOTHER_TIME_S = 397 * DAY_S + 7 * 3600 + 13 * 60 + 29
"""Seconds to another minute, hour, day, weekday, month and year."""

JUMPS: Mapping[str, float] = MappingProxyType(
    {
        "the clock jumps by an hour": 3600.0 + 7 * 60 + 13,
        "the clock jumps by a day": DAY_S + 3 * 3600 + 11 * 60 + 17,
        "the clock jumps by a month": 31 * DAY_S + 5 * 3600 + 17 * 60 + 19,
    }
)
"""How far a clock jumps, in seconds: never full minutes, hours or days alone."""

_shift_s = 0.0


def _time() -> float:
    return time.time() + _shift_s


def _of_now(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Wrap ``function``: its argument number ``place`` defaults to the shifted present."""

    def of_now(*args: Any) -> Any:
        has_time = len(args) > place and args[place] is not None
        return (
            function(*args)
            if has_time
            else function(
                *args[:place], _time() if function is not time.strftime else time.localtime(_time())
            )
        )

    return of_now


def _asctime(*args: Any) -> str:
    return time.asctime(*args) if args else time.ctime(_time())


class _Shifted(type):
    """Metaclass of a stand-in: instances of the real class count as the stand-in's instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _REAL[cls])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(_REAL.get(subclass, subclass), _REAL[cls])


class ShiftedDate(datetime.date, metaclass=_Shifted):
    """Stands for ``datetime.date``."""

    def __new__(cls, *args: Any, **named: Any) -> Any:
        return datetime.date(*args, **named)

    @classmethod
    def today(cls) -> Any:
        return datetime.date.fromtimestamp(_time())


class ShiftedDatetime(datetime.datetime, metaclass=_Shifted):
    """Stands for ``datetime.datetime``."""

    def __new__(cls, *args: Any, **named: Any) -> Any:
        return datetime.datetime(*args, **named)

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return datetime.datetime.fromtimestamp(_time(), tz)

    @classmethod
    def today(cls) -> Any:
        return cls.now()

    @classmethod
    def utcnow(cls) -> Any:
        return datetime.datetime.fromtimestamp(_time(), datetime.UTC).replace(tzinfo=None)


_REAL: dict[type, type] = {ShiftedDate: datetime.date, ShiftedDatetime: datetime.datetime}


def _copy_of(module: ModuleType, **other: Any) -> ModuleType:
    copied = ModuleType(module.__name__, module.__doc__)
    copied.__dict__.update({**vars(module), **other})
    return copied


_TIME = _copy_of(
    time,
    time=_time,
    time_ns=lambda: time.time_ns() + int(_shift_s * 1e9),
    asctime=_asctime,
    localtime=_of_now(time.localtime, 0),
    gmtime=_of_now(time.gmtime, 0),
    ctime=_of_now(time.ctime, 0),
    strftime=_of_now(time.strftime, 1),
)
_DATETIME = _copy_of(datetime, datetime=ShiftedDatetime, date=ShiftedDate)
_IMPORTLIB = _copy_of(
    importlib,
    import_module=lambda name, package=None: (
        _MODULES.get(name) or importlib.import_module(name, package)
    ),
)
_MODULES: dict[str, ModuleType] = {"time": _TIME, "datetime": _DATETIME, "importlib": _IMPORTLIB}
_INSTEAD: dict[int, Any] = {
    id(importlib): _IMPORTLIB,
    id(importlib.import_module): vars(_IMPORTLIB)["import_module"],
    id(time): _TIME,
    id(datetime): _DATETIME,
    id(datetime.datetime): ShiftedDatetime,
    id(datetime.date): ShiftedDate,
    **{
        id(getattr(time, name)): getattr(_TIME, name)
        for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime")
    },
}
"""Stand-ins, by the identity of the object to replace."""


class Clocks:
    """The clocks in user code, whose globals are ``namespaces``."""

    def __init__(self, namespaces: Sequence[dict[str, Any]]) -> None:
        self._namespaces = namespaces
        self._replaced: list[tuple[dict[str, Any], str, Any]] = []
        self._import: Any = None

    def shift(self, by_s: float) -> None:
        """From now on, let user code see a time ``by_s`` seconds later than the real time."""
        global _shift_s
        _shift_s = by_s
        if by_s and self._import is None:
            self._install()

    def restore(self) -> None:
        """Give user code the real time again."""
        global _shift_s
        _shift_s = 0.0
        if self._import is None:
            return
        builtins.__import__, self._import = self._import, None
        while self._replaced:
            namespace, name, value = self._replaced.pop()
            if namespace.get(name) is _INSTEAD[id(value)]:
                namespace[name] = value

    def _install(self) -> None:
        for namespace in self._namespaces:
            for name, value in namespace.items():
                if id(value) in _INSTEAD:
                    self._replaced.append((namespace, name, value))
        for namespace, name, value in self._replaced:
            namespace[name] = _INSTEAD[id(value)]
        original = self._import = builtins.__import__
        users = {id(namespace) for namespace in self._namespaces}

        def importing(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> ModuleType:
            # The function `__import__` is called without globals.
            if (
                name in _MODULES
                and id(sys._getframe(1).f_globals if globals is None else globals) in users
            ):
                return _MODULES[name]
            imported: ModuleType = original(name, globals, locals, fromlist, level)
            return imported

        builtins.__import__ = importing
