"""A Kafka sink as a query of Structured Streaming needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from txtopo.connectors import streaming
from txtopo.connectors.kafka import intake, ledger, messages
from txtopo.topology import context as contexts
from txtopo.topology import transaction as attempts


class Writes(streaming.Writes):
    """Writes to the topics of a ledger; the auxiliary topic is ``txtopo.<query>.foreach_batch`` or
    ``txtopo.<query>.foreach``."""

    def __init__(self, ledger: ledger.Ledger, shape: messages.Shape) -> None:
        self._ledger, self._shape = ledger, shape
        self.address, self.known_as, self.place = ledger.address, ledger.name, "auxiliary topic"

    def taker(self, names: Sequence[str], query_id: str, batch_id: int) -> Callable[[tuple[Any, ...]], messages.Message]:
        # A tuple of a topology begins with its attempt; a row of a query does not.
        take = intake.Intake(self._shape, self._ledger, streaming.resource, query_id, ("batch", *names))
        return lambda values: take((batch_id, *values))

    def write(self, context: contexts.TopologyContext, txid: int, names: Sequence[str], rows: Sequence[Any]) -> bool:
        if not context.known_stores:
            # The first batch for this sink: what the topics hold is taken as it is.
            context.known_stores = None
        return intake.apply(self._ledger, context, attempts.TransactionAttempt(txid, 0), rows)

    def clearing(self, query_id: str) -> str:
        return self._ledger.place.command("clear", query_id)

    def again(self, batch_id: int) -> str:
        return f"What was written of batch {batch_id} cannot be removed from a topic. To write the batch once more beside it,"
