"""The errors of a transaction that comes again other than it was written.

Shared by the sinks, which do not know each other. Standard library only.
"""

from __future__ import annotations

from txtopo import errors


class DividedOtherwiseError(errors.StateMismatchError):
    """A transaction was begun with another division of its rows among its writers. The state of a
    topology has the division of a sealed transaction, unless the state is an older one."""

    def __init__(self, before: int, now: int) -> None:
        super().__init__(
            f"rows of this transaction were written by {before} tasks, and it now has {now}\n"
            "  The state in ZooKeeper is older than the rows. Nothing was written now. Restore the newer state; or run once with the component's"
            f" parallelism {before}."
        )
        self.before, self.now = before, now

    def __reduce__(self) -> tuple[type[DividedOtherwiseError], tuple[int, int]]:
        return DividedOtherwiseError, (self.before, self.now)


class OtherRowsError(errors.TxtopoError):
    """A transaction that was written has another number of rows when it comes again."""


def other_rows(
    sink: str, component: str, task: int, txid: int, before: int, now: int, cure: str = ""
) -> OtherRowsError:
    """The error for a task that wrote ``before`` rows and now has ``now``; ``cure`` is another one
    than to mend the topology."""
    return OtherRowsError(
        f"the sink {sink} wrote {before} rows of component {component!r}, task {task}, for transaction {txid}, whose replay now has {now}\n"
        f"  A replayed batch must have the same tuples. Mend the spout or the bolt that changes them{cure}."
    )
