"""A SQL sink as a query of Structured Streaming needs it."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from txtopo.connectors import streaming, tuple_rows
from txtopo.connectors.sinks.sql import ledger as sql_ledger
from txtopo.topology import context as contexts
from txtopo.topology import transaction as attempts


class Writes(streaming.Writes):
    """Writes to the table of a ledger. The attempt of a transaction stands for the division of its
    rows among its writers."""

    def __init__(self, ledger: sql_ledger.Ledger, fields: tuple[str, ...]) -> None:
        self._ledger, self._fields = copy.copy(ledger), fields
        self._ledger.has_one_attempt = True
        self.address, self.known_as, self.place = ledger.sink, ledger.name, "table"

    def taker(self, names: Sequence[str], query_id: str, batch_id: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        return tuple_rows.taker(names, self._fields or self._columns(names), query_id, self._ledger.target.statement is not None)

    def write(self, context: contexts.TopologyContext, txid: int, names: Sequence[str], rows: Sequence[Any]) -> bool:
        return self._ledger.apply(context, attempts.TransactionAttempt(txid, context.num_tasks), self._columns(names), rows)

    def clearing(self, query_id: str) -> str:
        return f"txtopo store clear {shlex.quote(self._ledger.location)} {self._ledger.name} --topology {shlex.quote(query_id)}"

    def again(self, batch_id: int) -> str:
        return f"Remove the rows of batch {batch_id} from the table,"

    def _columns(self, names: Sequence[str]) -> tuple[str, ...]:
        return self._ledger.target.columns or tuple(names)
