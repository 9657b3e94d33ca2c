"""The bolt that takes whole columns: a ``pyarrow.RecordBatch`` at a time instead of a tuple.

Apart from the other bolts because of its input, whole columns; it is built, held and committed as
they are. pyarrow is an extra, and this module only names it: a driver or an executor that runs no
such bolt need not have it.
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

    Where a sender emits tuples they are collected into RecordBatches first; where a receiver takes
    tuples, the RecordBatches that this bolt emits are taken apart: both kinds of bolts mix freely.
    It may be an ``ICommitter``. It needs ``pip install 'txtopo[arrow]'``.
    """

    emits_columns = True

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        """Begin a batch; as for every batch bolt. Keep the attempt, if it is wanted: it is not a
        column."""

    @abc.abstractmethod
    def execute_batch(self, batch: pyarrow.RecordBatch) -> None:
        """Take some tuples of the batch, one row each. The columns are the sender's fields without
        the first, which is the attempt.

        Runs on: executor. Called: as often as it takes to give every tuple meant for this task
        once; never with zero rows. Order: the rows come by source component, source task and
        emission (R17); all rows of one call are of one task and stream, which ``context.source``
        names. How many rows come at once may change with the plan: RecordBatches are merged and
        split on their way. On replay: again. The classic mistake: taking one call for the whole
        transaction; a result that is known only at the end of the batch belongs in
        ``finish_batch``.
        """

    def execute(self, tup: Tuple) -> None:
        """Not called: tuples that are meant for this bolt come as columns."""
        raise NotImplementedError(f"{type(self).__name__} takes columns: execute_batch")


def takes_columns(component: Any) -> bool:
    """Whether ``component`` is a bolt that takes columns."""
    return isinstance(component, BaseArrowBatchBolt)


def emits_columns(component: Any) -> bool:
    """Whether ``component`` declares that it emits columns."""
    return isinstance(component, _Component) and bool(component.emits_columns)


def require_pyarrow(who: str) -> None:
    """:class:`~txtopo.errors.SetupError` if pyarrow, which ``who`` needs, is not installed here."""
    if importlib.util.find_spec("pyarrow") is None:
        raise errors.SetupError(
            f"{who} needs pyarrow, which is not installed\n  Type: pip install 'txtopo[arrow]'"
        )
