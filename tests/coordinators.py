"""A coordinator under a test's hand: events in, commands out, in the words of the tests."""

from __future__ import annotations

from typing import Any

from txtopo import TransactionAttempt
from txtopo.coordinator import messages
from txtopo.coordinator.coordinator import Policy, TransactionCoordinator
from txtopo.coordinator.messages import Command, Event
from txtopo.coordinator.transitions import Status


def attempt(txid: int, n: int = 0) -> TransactionAttempt:
    """The ``n``-th try of ``txid`` in epoch 1."""
    return TransactionAttempt(txid, n)


class Played:
    """A started coordinator. ``commands`` are those of the last event."""

    def __init__(
        self, epoch: int = 1, current: int = 1, known: tuple[int, ...] = (), **policy: Any
    ) -> None:
        self.coordinator = TransactionCoordinator(Policy(**policy), epoch, current, known)
        self.commands: list[Command] = self.coordinator.start()

    def __call__(self, *events: Event) -> list[Command]:
        """Handle ``events``; the commands of the last one."""
        for event in events:
            self.commands = self.coordinator.handle(event)
        return self.commands

    @property
    def statuses(self) -> dict[str, str]:
        """Status by attempt, as text."""
        return {str(attempt): status.value for attempt, status in self.coordinator.active.values()}

    def status(self, txid: int) -> Status:
        """The status of the live attempt of ``txid``."""
        return self.coordinator.active[txid][1]

    def live(self, txid: int) -> TransactionAttempt:
        """The live attempt of ``txid``."""
        return self.coordinator.active[txid][0]

    def open(self, *txids: int) -> list[Command]:
        """The spout is ready for ``txids``."""
        return self(*(messages.Opened(txid) for txid in txids))

    def process(self, *txids: int) -> list[Command]:
        """The live attempts of ``txids`` are processed."""
        return self(*(messages.Processed(self.live(txid)) for txid in txids))

    def commit(self, txid: int) -> list[Command]:
        """``txid``, whose turn it is, is sealed (if it is not yet), applied and recorded."""
        if self.status(txid) is Status.SEALING:
            self(messages.Sealed(self.live(txid)))
        return self(messages.Applied(self.live(txid)), messages.Recorded(self.live(txid)))

    def fail(self, txid: int, kind: messages.FailureKind = "failed") -> list[Command]:
        """The live attempt of ``txid`` fails."""
        return self(messages.Failed(self.live(txid), kind))
