"""Errors for a replayed transaction whose rows differ from the rows written before.

Shared by the sinks, which do not know each other. Standard library only.
"""

from __future__ import annotations

from txtopo import errors


class DividedOtherwiseError(errors.StateMismatchError):
    """Another number of tasks wrote the transaction's rows before. In a topology, the state is then
    older than the rows: the state records the task count when the transaction is sealed."""

    def __init__(self, before: int, now: int) -> None:
        super().__init__(
            f"this transaction's rows were written by {before} tasks, and the transaction now has {now}\n"
            "  The state in ZooKeeper is older than the rows. Nothing was written now. Restore the newer state, or run once with the component's"
            f" parallelism {before}."
        )
        self.before, self.now = before, now

    def __reduce__(self) -> tuple[type[DividedOtherwiseError], tuple[int, int]]:
        return DividedOtherwiseError, (self.before, self.now)


class OtherRowsError(errors.TxtopoError):
    """A replayed transaction has another number of rows than were written before."""


def other_rows(
    sink: str, component: str, task: int, txid: int, before: int, now: int, cure: str = ""
) -> OtherRowsError:
    """Return the error for a task that wrote ``before`` rows and now has ``now``. ``cure``
    continues the sentence that advises to mend the topology."""
    return OtherRowsError(
        f"the sink {sink} wrote {before} rows of component {component!r}, task {task}, for transaction {txid}, whose replay now has {now}\n"
        f"  A replayed batch must have the same tuples. Mend the spout or the bolt that changes them{cure}."
    )
