"""Turns a bolt instance into bytes, and back: for a bolt held between the phases (R12), and for a
fresh copy of its template (R10).

Bolts usually keep collector, context, conf and attempt in attributes. Collector, context and conf
are pickled as references, which restoring binds to the commit phase's objects. ``wire`` cuts a held
bolt's bytes into pieces. A template is unpickled once per worker, and copied.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable
from typing import IO, Any, Literal

from txtopo.dataplane import collector, column_runs, out_of_resources, wire
from txtopo.topology import conf, context, pickling

Reference = Literal["collector", "context", "conf"]


def held_reference(name: Reference) -> Any:
    """Stands in a pickle for a task's object. Only :class:`_HeldUnpickler` can resolve the
    reference."""
    raise pickle.UnpicklingError(f"a reference to the task's {name} outside a held bolt")


@functools.lru_cache(1024)
def _reference_to(kind: type) -> Reference | None:
    """The reference for objects of class ``kind``. Cached, because a class keeps its bases."""
    if issubclass(kind, collector.Collector):
        return "collector"
    if issubclass(kind, context.TopologyContext):
        return "context"
    return "conf" if issubclass(kind, conf.TopologyConf) else None


class _HeldPickler(wire.ReferencePickler):
    def reducer_override(self, obj: Any) -> Any:
        reference = _reference_to(type(obj))
        if reference is not None:
            return held_reference, (reference,)
        if column_runs.is_arrow(obj):
            return column_runs.load_batches().reduced(obj)
        return super().reducer_override(obj)


class _HeldUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], resolve: Callable[[Reference], Any]) -> None:
        super().__init__(file)
        self._resolve = resolve

    def find_class(self, module: str, name: str) -> Any:
        if name == "held_reference" and module == __name__:
            return self._resolve
        return super().find_class(module, name)


class CannotHoldError(Exception):
    """A held bolt's attribute cannot be pickled. Becomes :class:`txtopo.errors.HeldStateError`,
    with component and task."""


def dump(instance: Any, run: str) -> bytes:
    """Pickle ``instance``, by ``__getstate__`` if there is one."""
    buffer = io.BytesIO()
    _HeldPickler(buffer, run).dump(instance)
    return buffer.getvalue()


def dump_held(instance: Any, run: str, pieces: wire.PieceWriter) -> None:
    """Pickle ``instance`` into ``pieces``, for the commit phase. :class:`CannotHoldError` names the
    attribute at fault and the cures."""
    try:
        _HeldPickler(pieces, run).dump(instance)
        pieces.close()
    except out_of_resources.RAN_OUT:
        raise
    except Exception as error:
        attribute = pickling.culprit(instance, lambda value: dump(value, run))
        culprit = f"its attribute {attribute!r}" if attribute else "it"
        raise CannotHoldError(
            f"the bolt is held until its commit, but {culprit} cannot be pickled ({type(error).__name__}: {error})\n"
            "  Keep connections in context.resource(name, factory), which outlives the phases. Or leave the attribute out with"
            " __getstate__ and make it again in __setstate__ or finish_batch."
        ) from None


def load(file: IO[bytes], bindings: dict[Reference, Any]) -> Any:
    """Restore the instance in ``file``, and bind its references to ``bindings``."""

    def resolve(name: Reference) -> Any:
        return bindings[name]

    return _HeldUnpickler(file, resolve).load()
