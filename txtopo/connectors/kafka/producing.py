"""A sink task's producer: runs Kafka transactions and translates their errors.

A ``transactional.id`` has one producer at a time. A producer first calls :meth:`TaskProducer.init`,
which ends the transaction that the last producer left open, waits until its outcome is decided, and
fences the last producer: its later calls fail. So after ``init`` the id's last record is settled,
and stays the last record until this producer commits.

Runs on: executor.

Invariants:
    - Errors are judged by the library's flags (retriable, requires abort, fatal), not by codes: a
      time-out may have any flag.
    - A producer whose call failed for good is never used again.
    - A fatal error, such as a newer producer with the same id, fails the attempt also where the
      library calls the report of a record while the error is pending. Python then ends the call in
      a ``SystemError``, whose cause is the fatal error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import Quiet, not_made, translate

Headers = list[tuple[str, bytes | None]]

INIT_S = 30.0
"""How long a producer waits for the last transaction's outcome."""
_ABORT_S = 5.0
"""How long an abort may take. After a failed abort, the broker aborts at the transaction's
time-out."""
_FULL_S = 0.05
"""How long to wait for room when too many messages are under way."""
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
"""Errors about a message that no second try mends."""


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
    """Bounds on a producer's messages and batches, in bytes."""

    message: int = 1_000_000
    batch: int = 1_000_000
    """Bounds several messages for one partition. A larger message goes alone."""

    def serve(self, wanted: Sizes) -> bool:
        """Whether a producer with these bounds can write within ``wanted``."""
        return self.message >= wanted.message and self.batch <= wanted.batch


OF_THE_LIBRARY = Sizes()


class MessageRefusedError(Exception):
    """The library or the brokers refuse a message. ``number`` counts messages from 1, and is 0 if
    unknown."""

    def __init__(self, name: str, said: str, number: int) -> None:
        super().__init__(name, said, number)
        self.name, self.said, self.number = name, said, number


class TaskProducer:
    """The producer for ``transactional_id``. Its transactions are open for ``timeout_s`` at most.

    :raises errors.ConfigError: the library makes no producer with these settings.
    """

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
        # Like Java's producers: equal keys go to the partitions that other programs expect.
        defaults: dict[str, Any] = {
            "partitioner": "murmur2_random",
            "message.max.bytes": sizes.message,
            "batch.size": sizes.batch,
        }
        try:
            self._producer = self._kafka.Producer(
                {**defaults, **cluster.config(settings)}, logger=Quiet()
            )
        except self._kafka.KafkaException as error:
            raise not_made(cluster, error, "Mend client, or transaction_timeout_s.") from error
        self._is_open = False

    def init(self, topic: str) -> None:
        """Become the only producer with this id. ``topic`` is any topic that the user may describe.

        :raises errors.SetupError: ``timeout_s`` is above the brokers' maximum, or the user may not
            write with this id.
        :raises errors.FailedException: the brokers do not answer.
        """
        deadline = time.monotonic() + INIT_S
        with self._translated("beginning"):
            # Without a connection the library looks for the coordinator only every half second. The
            # first answer may end its own connection. The second answer comes from a broker that
            # stays.
            for _ in range(2):
                self._producer.list_topics(topic, timeout=client.CALL_TIMEOUT_S)
            while True:
                try:
                    self._producer.init_transactions(max(_AT_LEAST_S, deadline - time.monotonic()))
                    return
                except self._kafka.KafkaException as error:
                    if error.args[0].name() == "INVALID_TRANSACTION_TIMEOUT":
                        raise timeout_too_long(self._cluster, self._timeout_s) from error
                    if not error.args[0].retriable() or time.monotonic() > deadline:
                        raise

    def write(
        self,
        messages: Iterable[Message],
        more_headers: Headers,
        last: Message,
        end: int | None = None,
    ) -> None:
        """Write ``messages`` and then ``last`` in one transaction, and commit.

        If the transaction is interrupted, only the next ``init`` tells whether it was committed.

        :param more_headers: added to each message in ``messages``.
        :param end: the offset at which ``last`` must be, or the transaction is aborted. ``None``:
            any offset.
        :raises MessageRefusedError: the library or the brokers refuse a message.
        :raises errors.FailedException: the transaction was aborted, its outcome is unknown, or
            another producer has begun.
        """
        deadline = time.monotonic() + self._timeout_s
        with self._translated("writing"):
            self._producer.begin_transaction()
            self._is_open = True
            for number, message in enumerate(messages, start=1):
                headers = [*message.headers, *more_headers] if message.headers else more_headers
                # The library takes longer for an empty list than for none.
                self._produce(message, headers or None, number, deadline)
            reports: list[tuple[Any, int]] = []
            self._produce(
                last,
                None,
                0,
                deadline,
                lambda error, message: reports.append((error, message.offset())),
            )
            self._producer.flush(max(_AT_LEAST_S, deadline - time.monotonic()))
            # The commit reports a refused message.
            if end is not None and (
                not reports or (reports[0][0] is None and reports[0][1] != end)
            ):
                place = f"offset {reports[0][1]}" if reports else "an unknown offset"
                raise errors.FailedException(
                    f"{self._where('writing')}: the record is at {place} in topic {last.topic}, partition {last.partition}, which had"
                    f" ended at {end}, as a broker had said\n  The transaction is aborted, and tried again."
                )
            self._commit(deadline)
            self._is_open = False

    def close(self) -> None:
        """End the producer. Abort an open transaction, so that readers need not wait. If the commit
        is under way, the next ``init`` ends the transaction instead."""
        if self._is_open:
            with contextlib.suppress(self._kafka.KafkaException, SystemError):
                self._producer.abort_transaction(_ABORT_S)
            self._is_open = False
        # Its close() would wait for messages that are no longer needed.
        del self._producer

    def _produce(
        self,
        message: Message,
        headers: Headers | None,
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
                    # The topic may have got the partition since this producer asked.
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
                # The answer is late: the same call waits on.
                if not refusal.retriable() or time.monotonic() > deadline:
                    raise

    def _where(self, doing: str) -> str:
        return f"{self._cluster.owner}: {doing} as {self._id} at {self._cluster.servers}"

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (self._kafka.KafkaException, SystemError) as error:
            fault = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(fault, self._kafka.KafkaException):
                raise
            raise translate(self._cluster, f"{doing} as {self._id}", fault.args[0]) from error


@contextlib.contextmanager
def only_producer(
    cluster: client.Cluster, topic: str, task: int, timeout_s: float
) -> Iterator[TaskProducer]:
    """The only producer with the id of a task in the auxiliary topic ``topic``, until the block
    ends. Ends the transaction that the last producer left open."""
    with contextlib.closing(TaskProducer(cluster, f"{topic}.{task}", timeout_s)) as producer:
        producer.init(topic)
        yield producer


def timeout_too_long(cluster: client.Cluster, timeout_s: float) -> errors.SetupError:
    """The error for a transaction that may be open longer than the brokers allow."""
    return errors.SetupError(
        f"{cluster.owner}: transaction_timeout_s is {timeout_s:g}, which is more than the brokers at {cluster.servers} allow\n"
        "  Give less, or raise the brokers' transaction.max.timeout.ms."
    )
