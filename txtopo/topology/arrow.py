"""The bolt that takes whole columns: a ``pyarrow.RecordBatch`` at a time instead of a tuple.

The bolt is built, held and committed like other bolts. pyarrow is an extra, and this module only
names pyarrow: a driver or an executor without such a bolt need not have it.
"""

from __future__ import annotations

import abc
import importlib.util
from typing import TYPE_CHECKING, Any

from txtopo import errors
from txtopo.topology.bolt import BatchOutputCollector, IBatchBolt, _Component
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import Tuple
from txtopo.topology.transaction import TransactionAttempt

if TYPE_CHECKING:
    import pyarrow


class BaseArrowBatchBolt(IBatchBolt):
    """A batch bolt that sees its tuples as columns. Subclass it and define ``execute_batch``.

    Bolts with tuples and bolts with columns mix freely. Tuples from a sender are first collected
    into RecordBatches. RecordBatches from this bolt are taken apart for a receiver that takes
    tuples. The bolt may be an ``ICommitter``. It needs ``pip install 'txtopo[arrow]'``.
    """

    emits_columns = True

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        """Begin a batch, as in every batch bolt. Keep the attempt if you need it: the attempt is
        not a column."""

    @abc.abstractmethod
    def execute_batch(self, batch: pyarrow.RecordBatch) -> None:
        """Take some of the batch's tuples, one row each. The columns are the sender's fields
        without the first, the attempt.

        Runs on: executor. Called: until each tuple meant for this task was given once, never with
        zero rows. Order: rows come by source component, source task and emission (R17). All rows in
        a call come from one task and stream, named by ``context.source``. The plan may change how
        many rows come at once: RecordBatches are merged and split on their way. On replay: again.
        The classic mistake: taking one call for the whole transaction. A result that is known only
        when the batch ends belongs in ``finish_batch``.
        """

    def execute(self, tup: Tuple) -> None:
        """Not called: tuples for this bolt come as columns."""
        raise NotImplementedError(f"{type(self).__name__} takes columns: execute_batch")


def takes_columns(component: Any) -> bool:
    """Whether ``component`` is a bolt that takes columns."""
    return bool(getattr(component, "takes_columns", isinstance(component, BaseArrowBatchBolt)))


def emits_columns(component: Any) -> bool:
    """Whether the class of ``component`` sets ``emits_columns``."""
    return isinstance(component, _Component) and bool(component.emits_columns)


def require_pyarrow(user: str) -> None:
    """As :func:`require` for pyarrow."""
    require("pyarrow", user, "arrow")


def require(package: str, user: str, extra: str) -> None:
    """Raise :class:`~txtopo.errors.SetupError` if ``package``, which ``user`` needs, is not
    installed here."""
    if importlib.util.find_spec(package) is None:
        raise errors.SetupError(
            f"{user} needs {package}, which is not installed\n  Type: pip install 'txtopo[{extra}]'"
        )
