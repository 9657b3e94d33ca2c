"""Takes a sink's rows: makes each row a message, and compares the message with its topic before
anything is written. Names the row that the brokers refuse all the same.

Runs on: executor. For a query of Structured Streaming also on the driver.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import ledger as ledgers
from txtopo.connectors.kafka import messages, producing, target
from txtopo.connectors.kafka.producing import Message
from txtopo.sinks import tuple_rows
from txtopo.topology import context as contexts
from txtopo.topology import transaction


class Intake:
    """Makes messages from tuples with ``fields``. The first field is the attempt.

    :param owner: the component or query, for messages.
    :raises errors.UsageError: the tuples lack a field that ``shape`` names.
    """

    def __init__(
        self,
        shape: messages.Shape,
        ledger: ledgers.Ledger,
        resource: target.Resource,
        owner: str,
        fields: Sequence[str],
        task: int,
    ) -> None:
        self._convert = messages.Convert(shape, fields, owner)
        self._shape = shape
        self._ledger = ledger
        self._targets = target.targets_of(resource, ledger.cluster)
        self._owner = owner
        self._task = task
        self._topics: dict[str, target.Target] = {}
        self._taken = 0

    def __call__(self, values: Sequence[Any]) -> Message:
        """The message for one tuple.

        :raises errors.RowRefusedError: a value does not fit the shape, or the topic refuses the
            row.
        :raises errors.SetupError: the topic does not exist.
        """
        self._taken += 1
        try:
            message = self._convert(values)
            topic = self._topics.get(message.topic)
            if topic is None or message.partition >= topic.partitions:
                has_key = self._shape.key is not None
                topic = self._targets.checked(message.topic, has_key, message.partition)
                self._topics[message.topic] = topic
            if message.partition >= topic.partitions:
                raise messages.RefusedError(
                    f"the partition is {message.partition}, and topic {message.topic} has {topic.partitions}"
                )
            if message.key is None and topic.is_compacted:
                raise messages.RefusedError(
                    f"the key is None, and topic {message.topic} is compacted: every record needs a key"
                )
        except messages.RefusedError as error:
            row = tuple_rows.described(self._convert.fields[1:], values[1:])
            raise errors.RowRefusedError(
                self._ledger.sink,
                self._owner,
                self._task,
                str(values[0]),
                self._taken,
                row,
                str(error),
            ) from error
        return message


def apply(
    ledger: ledgers.Ledger,
    context: contexts.TopologyContext,
    attempt: transaction.TransactionAttempt,
    rows: Collection[Message],
) -> bool:
    """Write the rows, as :meth:`task_ledger.TaskLedger.apply`.

    :raises errors.RowRefusedError: the brokers refuse a row.
    """
    try:
        return ledger.apply(context, attempt, rows)
    except producing.MessageRefusedError as error:
        number, row, reason = error.number, "", f"{error.said} ({error.name})"
        bytes_max = dict[str, int]()
        if error.name == "MSG_SIZE_TOO_LARGE":
            bytes_max = _bounds_that_hold(ledger, context, rows)
            if not bytes_max and "message.max.bytes" not in ledger.cluster.settings:
                reason += (
                    ". The brokers do not tell this user the topic's bound: allow the user DESCRIBE_CONFIGS of the topic,"
                    " or give client['message.max.bytes']"
                )
        if not number and error.name == "MSG_SIZE_TOO_LARGE":
            # The brokers do not say which row. It is the largest row, compared with its topic's
            # bound.
            shares = [
                len(message.value or b"") / bytes_max.get(message.topic, 1) for message in rows
            ]
            number = shares.index(max(shares)) + 1
        if number:
            message = next(itertools.islice(rows, number - 1, None))
            row = f"a record of {len(message.value or b'')} bytes, key={message.key!r}"[:300]
        raise errors.RowRefusedError(
            ledger.sink,
            context.component_id,
            context.task_index,
            str(attempt),
            number,
            row,
            reason,
        ) from error


def _bounds_that_hold(
    ledger: ledgers.Ledger, context: contexts.TopologyContext, rows: Collection[Message]
) -> dict[str, int]:
    """The bounds of the rows' topics, asked anew.

    :raises errors.FailedException: a bound was another when this process asked for it.
    """
    targets = target.targets_of(context.resource, ledger.cluster)
    known = targets.bytes_max(rows)
    targets.forget()
    bounds = targets.bytes_max(rows)
    for topic in bounds:
        if known.get(topic) != bounds[topic]:
            raise errors.FailedException(
                f"{ledger.sink}: topic {topic} had another bound on a record meanwhile: {known.get(topic)}, now {bounds[topic]}"
            )
    return bounds
