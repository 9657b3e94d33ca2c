"""The producer of one task of a sink: transactions of Kafka, and what becomes of their errors.

A ``transactional.id`` has one producer at a time. ``init`` of a newer one ends the transaction that
an older one left open, waits until its outcome is decided, and fences the older one: from then on
every call of the older one fails.

Runs on: executor.

Invariants:
    - Errors are judged by the library's flags (retriable, requires abort, fatal) and not by codes:
      a time-out may be any of the three.
    - A producer that has met an error other than a retriable one is never used again.
    - Nothing is decided in a callback: with a fatal error pending, a callback that does anything
      ends in an error of Python's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import silence, translate

_ABORT_S = 5.0
"""How long an abort may take; without one the broker aborts after the transaction's time-out."""
_INIT_S = 30.0
_FULL_S = 0.05
"""How long to wait for room where too many messages are under way."""


class Message(NamedTuple):
    """A row as Kafka takes it."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int = -1
    """-1: by the key."""
    timestamp_ms: int = 0
    """0: when it is sent."""


class TaskProducer:
    """A producer with a ``transactional_id``; a transaction may be open for ``timeout_s``."""

    def __init__(self, cluster: client.Cluster, transactional_id: str, timeout_s: float) -> None:
        self._cluster, self._id, self._timeout_s = cluster, transactional_id, timeout_s
        self._kafka = client.library()
        self._said: Any = None
        settings = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(timeout_s * 1000),
            "enable.idempotence": True,
            "acks": "all",
            "delivery.report.only.error": True,
            "error_cb": self._hear,
        }
        with self._translated("making a producer"):
            self._producer = self._kafka.Producer(cluster.config(settings), logger=silence())
        self._is_open = False

    def init(self) -> None:
        """Become the only producer of this id, and end what the one before left open."""
        deadline = time.monotonic() + _INIT_S
        with self._translated("beginning as the only producer"):
            while True:
                try:
                    self._producer.init_transactions(max(0.1, deadline - time.monotonic()))
                    return
                except self._kafka.KafkaException as error:
                    if not error.args[0].retriable() or time.monotonic() > deadline:
                        raise

    def write(self, messages: Iterable[Message]) -> None:
        """All messages in one transaction, committed.

        :raises errors.FailedException: the outcome is not known, or nothing was written; ``init`` of
            the next producer of this id decides.
        """
        deadline = time.monotonic() + self._timeout_s
        with self._translated("writing a transaction"):
            self._producer.begin_transaction()
            self._is_open = True
            for message in messages:
                self._produce(message, deadline)
            self._commit(deadline)
            self._is_open = False

    def close(self) -> None:
        """End the producer; an open transaction is aborted, so that it holds up no reader."""
        if self._is_open:
            with contextlib.suppress(self._kafka.KafkaException):
                self._producer.purge()
                self._producer.abort_transaction(_ABORT_S)
            self._is_open = False
        self._producer.close(0)

    def _produce(self, message: Message, deadline: float) -> None:
        while True:
            try:
                self._producer.produce(
                    message.topic, value=message.value, key=message.key, partition=message.partition, timestamp=message.timestamp_ms,
                    headers=message.headers,
                )  # fmt: skip
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise errors.FailedException(f"{self._cluster.owner}: the brokers at {self._cluster.servers} took no more messages") from None
                self._producer.poll(_FULL_S)

    def _commit(self, deadline: float) -> None:
        while True:
            try:
                self._producer.commit_transaction(max(0.1, deadline - time.monotonic()))
                return
            except self._kafka.KafkaException as error:
                # The answer is late: the same call goes on where it was.
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _hear(self, error: Any) -> None:
        self._said = error

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self._kafka.KafkaException as error:
            raise translate(self._cluster, f"{doing} of {self._id}", error.args[0]) from error
