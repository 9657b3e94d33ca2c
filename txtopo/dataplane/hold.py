"""Turns a bolt instance into bytes, and back: for a bolt held between the phases (R12), and for a
fresh copy of its template (R10).

Bolts usually keep collector, context, conf and attempt in attributes. Collector, context and conf
are pickled as references, which restoring binds to the commit phase's objects. ``wire`` cuts a held
bolt's bytes into pieces. A template is unpickled once per worker, and copied.
"""

from __future__ import annotations

import io
import pickle
import threading
from typing import IO, Any, Literal

from txtopo.dataplane import collector, column_runs, out_of_resources, wire
from txtopo.topology import conf, context, pickling

Reference = Literal["collector", "context", "conf"]


_loading = threading.local()
"""``bindings`` are those of the :func:`load` under way in this thread, if any."""


def held_reference(name: Reference) -> Any:
    """Stands in a pickle for a task's object. Only :func:`load` can resolve the reference."""
    bindings = getattr(_loading, "bindings", None)
    if bindings is None:
        raise pickle.UnpicklingError(f"a reference to the task's {name} outside a held bolt")
    return bindings[name]


class _HeldPickler(wire.ReferencePickler):
    def reducer_override(self, obj: Any) -> Any:
        # `isinstance` would ask abstract classes, for each object in each held bolt.
        classes = type(obj).__mro__
        if collector.Collector in classes:
            return held_reference, ("collector",)
        if context.TopologyContext in classes:
            return held_reference, ("context",)
        if conf.TopologyConf in classes:
            return held_reference, ("conf",)
        if column_runs.is_arrow(obj):
            return column_runs.load_batches().reduced(obj)
        return super().reducer_override(obj)


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

    # Not by an unpickler with a method in Python, which would be called for each class.
    outer, _loading.bindings = getattr(_loading, "bindings", None), bindings
    try:
        return pickle.load(file)
    finally:
        _loading.bindings = outer
