"""A bolt instance as bytes, and back: held between the phases (R12), or a fresh copy of its
template (R10). The objects of its task are references.

A held bolt has usually kept its collector, context, conf and attempt in attributes. These are not
pickled but named, and bound to the commit phase's own when the bolt is restored. ``wire`` cuts the
bytes of a held bolt into pieces. A template is unpickled once per worker, and copied.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import IO, Any, Literal

from txtopo.dataplane import collector, column_runs, out_of_resources, wire
from txtopo.topology import conf, context, pickling

Reference = Literal["collector", "context", "conf"]


def held_reference(name: Reference) -> Any:
    """Stands in a pickle for something of the task; :class:`_HeldUnpickler` resolves it, nothing
    else can."""
    raise pickle.UnpicklingError(f"a reference to the task's {name} outside a held bolt")


class _HeldPickler(wire.ReferencePickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, collector.Collector):
            return held_reference, ("collector",)
        if isinstance(obj, context.TopologyContext):
            return held_reference, ("context",)
        if isinstance(obj, conf.TopologyConf):
            return held_reference, ("conf",)
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
    """A member of a held bolt cannot be pickled; becomes :class:`txtopo.errors.HeldStateError` with
    component and task."""


def dump(instance: Any, run: str) -> bytes:
    """``instance`` as bytes; honours ``__getstate__``."""
    buffer = io.BytesIO()
    _HeldPickler(buffer, run).dump(instance)
    return buffer.getvalue()


def dump_held(instance: Any, run: str, pieces: wire.PieceWriter) -> None:
    """``instance`` into ``pieces``, for the commit phase; :class:`CannotHoldError` naming the
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
            "  Keep connections in context.resource(name, factory), which outlives the phases; or leave the attribute out with"
            " __getstate__ and make it again in __setstate__ or finish_batch."
        ) from None


def load(file: IO[bytes], bindings: dict[Reference, Any]) -> Any:
    """The instance in ``file``, its references bound to ``bindings``."""

    def resolve(name: Reference) -> Any:
        return bindings[name]

    return _HeldUnpickler(file, resolve).load()
