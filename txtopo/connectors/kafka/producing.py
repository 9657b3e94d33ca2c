"""The producer of one task of a sink: transactions of Kafka, and what their errors mean.

A ``transactional.id`` has one producer at a time. The first act of a producer,
:meth:`TaskProducer.init`, ends the transaction that the one before left open, waits until its
outcome is decided, and fences the one before: every later call of it fails. So after ``init`` the
last record of the id is settled, and stays the last until this producer commits.

Runs on: executor.

Invariants:
    - Errors are judged by the library's flags (retriable, requires abort, fatal) and not by codes:
      a time-out may be any of the three.
    - A producer whose call failed for good is never used again.
    - While a transaction is open, the library calls one function of Python's, in ``flush``: with a
      fatal error pending, a function called by ``commit_transaction`` ends in an error of Python's
      own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import silence, translate

Headers = list[tuple[str, bytes | None]]

INIT_S = 30.0
"""How long a producer waits for the outcome of the transaction before."""
_ABORT_S = 5.0
"""How long an abort may take; without it the broker aborts after the transaction's time-out."""
_FULL_S = 0.05
"""How long to wait for room where too many messages are under way."""
_AT_LEAST_S = 0.1

_REFUSALS = (
    "MSG_SIZE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE",
    "INVALID_RECORD",
    "INVALID_TIMESTAMP",
    "INVALID_MSG",
    "INVALID_MSG_SIZE",
    "_UNKNOWN_PARTITION",
    "_INVALID_ARG",
)
"""Names of errors of a message, which no second try mends."""


class Message(NamedTuple):
    """A row as Kafka takes it."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int = -1
    """-1: by the key."""
    timestamp_ms: int = 0
    """0: when it is sent."""


class Sizes(NamedTuple):
    """Bounds on the messages and batches of a producer, in bytes."""

    message: int = 1_000_000
    batch: int = 1_000_000
    """Of several messages for one partition; a larger message goes alone."""

    def serve(self, wanted: Sizes) -> bool:
        """Whether a producer with these bounds does for ``wanted``."""
        return self.message >= wanted.message and self.batch <= wanted.batch


OF_THE_LIBRARY = Sizes()


class MessageRefusedError(Exception):
    """A message that the library or the brokers do not take. ``number`` counts from 1; 0: they did
    not say which."""

    def __init__(self, name: str, said: str, number: int) -> None:
        super().__init__(name, said, number)
        self.name, self.said, self.number = name, said, number


class TimeoutTooLongError(Exception):
    """The brokers do not let a transaction be open for so long."""


class TaskProducer:
    """The producer of ``transactional_id``, whose transactions are open for ``timeout_s`` at most."""

    def __init__(
        self,
        cluster: client.Cluster,
        transactional_id: str,
        timeout_s: float,
        sizes: Sizes = OF_THE_LIBRARY,
    ) -> None:
        self._cluster, self._id, self._timeout_s = cluster, transactional_id, timeout_s
        self._kafka = cluster.confluent_kafka()
        settings = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(timeout_s * 1000),
            "enable.idempotence": True,
            "acks": "all",
        }
        # As Java's producers: equal keys come to the partitions that other programs expect.
        defaults: dict[str, Any] = {
            "partitioner": "murmur2_random",
            "message.max.bytes": sizes.message,
            "batch.size": sizes.batch,
        }
        with self._translated("making the producer"):
            self._producer = self._kafka.Producer(
                {**defaults, **cluster.config(settings)}, logger=silence()
            )
        self._is_open = False

    def init(self, topic: str) -> None:
        """Become the only producer of this id. ``topic`` is any that the user may describe.

        :raises TimeoutTooLongError: ``timeout_s`` is above the brokers' maximum.
        :raises errors.SetupError: the user may not write with this id.
        :raises errors.FailedException: the brokers do not answer.
        """
        deadline = time.monotonic() + INIT_S
        with self._translated("beginning"):
            # Without a connection the library looks for the coordinator only every half second. The
            # first answer may end the connection that brought it, the second is of a broker that
            # stays.
            for _ in range(2):
                self._producer.list_topics(topic, timeout=client.CALL_TIMEOUT_S)
            while True:
                try:
                    self._producer.init_transactions(max(_AT_LEAST_S, deadline - time.monotonic()))
                    return
                except self._kafka.KafkaException as error:
                    if error.args[0].name() == "INVALID_TRANSACTION_TIMEOUT":
                        raise TimeoutTooLongError from error
                    if not error.args[0].retriable() or time.monotonic() > deadline:
                        raise

    def write(
        self,
        messages: Iterable[Message],
        more_headers: Headers,
        last: Message,
        end: int | None = None,
    ) -> None:
        """All ``messages``, each with ``more_headers``, and then ``last``, in one transaction,
        committed; unless ``last`` is not at offset ``end``. None: at any.

        Whether an interrupted transaction was committed is not known before the next ``init``.

        :raises MessageRefusedError: a message is not taken.
        :raises errors.FailedException: the transaction was aborted, or its outcome is not known; or
            another producer has begun.
        """
        deadline = time.monotonic() + self._timeout_s
        with self._translated("writing"):
            self._producer.begin_transaction()
            self._is_open = True
            for number, message in enumerate(messages, start=1):
                headers = [*message.headers, *more_headers] if message.headers else more_headers
                self._produce(message, headers, number, deadline)
            reports: list[tuple[Any, int]] = []
            self._produce(
                last,
                [],
                0,
                deadline,
                lambda error, message: reports.append((error, message.offset())),
            )
            self._producer.flush(max(_AT_LEAST_S, deadline - time.monotonic()))
            # A message that was not taken is told by the commit.
            if end is not None and (
                not reports or (reports[0][0] is None and reports[0][1] != end)
            ):
                place = (
                    f"offset {reports[0][1]}" if reports else "an offset that no broker has told,"
                )
                raise errors.FailedException(
                    f"{self._where('writing')}: the record is at {place} of topic {last.topic}, partition {last.partition}, which had"
                    f" ended at {end}, as a broker had said\n  The transaction is aborted, and tried again."
                )
            self._commit(deadline)
            self._is_open = False

    def close(self) -> None:
        """End the producer. An open transaction is aborted, so that no reader waits for it; unless
        its commit is under way: then the next ``init`` ends it."""
        if self._is_open:
            with contextlib.suppress(self._kafka.KafkaException):
                self._producer.abort_transaction(_ABORT_S)
            self._is_open = False
        # Not its close(), which waits for messages that nobody wants any more.
        del self._producer

    def _produce(
        self,
        message: Message,
        headers: Headers,
        number: int,
        deadline: float,
        report: Callable[[Any, Any], None] | None = None,
    ) -> None:
        is_new = True
        while True:
            try:
                self._producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    message.partition,
                    report,
                    timestamp=message.timestamp_ms,
                    headers=headers,
                )
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise errors.FailedException(
                        f"{self._where('writing')}: no room for more messages for {self._timeout_s:g} s"
                    ) from None
                self._producer.poll(_FULL_S)
            except self._kafka.KafkaException as error:
                if error.args[0].name() == "_UNKNOWN_PARTITION" and is_new:
                    # The topic may have got it since this producer asked.
                    self._producer.list_topics(message.topic, timeout=client.CALL_TIMEOUT_S)
                    is_new = False
                elif error.args[0].name() in _REFUSALS:
                    raise MessageRefusedError(
                        error.args[0].name(), error.args[0].str(), number
                    ) from error
                else:
                    raise

    def _commit(self, deadline: float) -> None:
        while True:
            try:
                self._producer.commit_transaction(max(_AT_LEAST_S, deadline - time.monotonic()))
                return
            except self._kafka.KafkaException as error:
                refusal = error.args[0]
                if refusal.name() in _REFUSALS:
                    raise MessageRefusedError(refusal.name(), refusal.str(), 0) from error
                # The answer is late: the same call again goes on waiting for it.
                if not refusal.retriable() or time.monotonic() > deadline:
                    raise

    def _where(self, doing: str) -> str:
        return f"{self._cluster.owner}: {doing} as {self._id} at {self._cluster.servers}"

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self._kafka.KafkaException as error:
            raise translate(self._cluster, f"{doing} as {self._id}", error.args[0]) from error
