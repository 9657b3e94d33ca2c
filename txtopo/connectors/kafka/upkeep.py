"""Looks after a topology's auxiliary topics, for people: shows records, ends open transactions,
adopts, clears.

Runs on: the command line. The class has a store's methods for changes, so that the store commands
serve sinks as well. All methods raise :class:`~txtopo.errors.UsageError` if the brokers do not
answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import urllib.parse
from collections.abc import Iterable
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import auxiliary, client, producing
from txtopo.connectors.kafka.auxiliary import SCHEME, TOPIC, AuxiliaryTopic, Record, address_of
from txtopo.connectors.kafka.log import Log, UnknownTopicError, partitions_of
from txtopo.connectors.kafka.messages import FIELD
from txtopo.sinks.task_ledger import fences_of
from txtopo.stores import place as places
from txtopo.topology import kept

_TIMEOUT_S = 60.0
"""How long a transaction may be open."""


def open_topics(address: str, name: str, topology_id: str | None) -> AuxiliaryTopics:
    """A topology's auxiliary topics at ``address``, for sinks with the name ``name``.

    :raises errors.UsageError: the address cannot be read, or no topology is given.
    """
    if not topology_id:
        raise errors.UsageError(
            "the auxiliary topics of Kafka sinks are named after their topology\n  Give --topology ID."
        )
    servers, _, query = address.removeprefix(f"{SCHEME}://").partition("?")
    options: dict[str, str] = {}
    for setting in query.split("&") if query else []:
        option, separator, value = setting.partition("=")
        if not separator:
            # The text may be a password, so it is not in the message.
            raise errors.UsageError(
                f"a setting behind the ? in the address has no =\n  Write {SCHEME}://host:port?setting=value&setting=value."
            )
        options[urllib.parse.unquote(option)] = urllib.parse.unquote(value)
    topic = options.pop(TOPIC, None)
    return AuxiliaryTopics(client.Cluster("Kafka sink", servers, options), topology_id, topic, name)


class AuxiliaryTopics:
    """A topology's auxiliary topics.

    :param topic: the sink's ``transactions_topic``, if the user gave one.
    :param name: the sink's name in the topology's state, empty for all sinks.
    """

    def __init__(
        self,
        cluster: client.Cluster,
        topology_id: str,
        topic: str | None = None,
        name: str = "kafka",
    ) -> None:
        self._cluster, self._topology_id, self._topic, self.name = cluster, topology_id, topic, name
        self._log = Log(cluster)

    @property
    def address(self) -> str:
        return f"kafka://{self._cluster.servers}#{self._topic or auxiliary.PREFIX + self._topology_id + '.*'}"

    @kept.asking("the brokers")
    def records(self, is_showing: bool = False) -> dict[str, dict[int, Record | None]]:
        """The last record by topic and task, None if a task has no record.

        :param is_showing: do not wait until open transactions have ended.
        :raises errors.UsageError: a transaction stays open.
        """
        beginning = f"{auxiliary.PREFIX}{self._topology_id}."
        names = [self._topic] if self._topic else self._log.topic_names(beginning)
        by_topic: dict[str, dict[int, Record | None]] = {}
        for name in names:
            topic = AuxiliaryTopic(self._log, name)
            tasks = range(topic.partitions())
            if not tasks:
                continue
            try:
                ends = topic.ends(tasks)
                records = topic.last_records(ends)
            except UnknownTopicError:
                continue  # deleted meanwhile
            except errors.StateMismatchError:
                if self._topic:
                    raise
                continue  # another program's topic, whose name happens to begin alike
            # Topic names for topology "a.b" begin like names for "a".
            is_ours = records or self._topic or "." not in name.removeprefix(beginning)
            if is_ours and all(
                record.topology_id == self._topology_id and self.name in ("", record.sink)
                for record in records.values()
            ):
                if not is_showing:
                    # A transaction may have been decided since the records were read.
                    with contextlib.suppress(errors.FailedException):
                        topic.wait_until_decided(tasks)
                    if topic.undecided(tasks):
                        place = f"{shlex.quote(address_of(self._cluster, self._topic))} --topology {shlex.quote(self._topology_id)} --execute"
                        raise errors.UsageError(
                            f"the auxiliary topic {name} has an open transaction\n  Type `txtopo kafka abort {place}`, and then this command again."
                        )
                    decided = topic.ends(tasks)
                    records = records if decided == ends else topic.last_records(decided)
                by_topic[name] = {task: records.get(task) for task in tasks}
        return by_topic

    @kept.asking("the brokers")
    def shown(self) -> list[dict[str, Any]]:
        """The records, and the partitions whose readers wait for an open transaction, as JSON-able
        values."""
        lines: list[dict[str, Any]] = []
        targets: dict[str, None] = {}
        for name, records in self.records(is_showing=True).items():
            undecided = AuxiliaryTopic(self._log, name).undecided(records)
            for task, record in records.items():
                line = {"topic": name, "task": task, "is_open": task in undecided}
                lines.append({**line, **({} if record is None else dataclasses.asdict(record))})
                if record is not None and not record.target.startswith(FIELD):
                    targets[record.target] = None
        partitions = partitions_of(self._log.describe(targets))
        stable = self._log.ends(partitions)
        ends = self._log.ends(partitions, "read_uncommitted")
        for place in partitions:
            if stable[place].offset < ends[place].offset:
                waiting = {"readers_wait_at": stable[place].offset, "end": ends[place].offset}
                lines.append({"target": place[0], "partition": place[1], **waiting})
        return lines

    @kept.asking("the brokers")
    def abort(self, dry_run: bool) -> list[str]:
        """End all tasks' open transactions, and return the ids that were begun once more. With
        ``dry_run``, only return the ids."""
        ids = []
        for name, records in self.records(is_showing=True).items():
            for task in records:
                ids.append(f"{name}.{task}")
                if not dry_run:
                    with producing.only_producer(self._cluster, name, task, _TIMEOUT_S):
                        pass
        return ids

    @kept.asking("the brokers")
    def has_records(self, topic: str) -> bool:
        """Whether the user's topic ``topic`` has records."""
        partitions = partitions_of(self._log.describe([topic]))
        beginnings = self._log.beginnings(partitions)
        ends = self._log.ends(partitions, "read_uncommitted")
        return any(beginnings[place].offset < ends[place].offset for place in partitions)

    # -- as a store -------------------------------------------------------------------------------

    def command(self, action: str, topology_id: str) -> str:
        return places.Place(
            self.name, self.address, address_of(self._cluster, self._topic), "", opaque=False
        ).command(action, topology_id)

    def exists(self) -> bool:
        return bool(self.records())

    def fences(self) -> list[kept.Fence]:
        """Each component's newest record."""
        return fences_of(
            record
            for records in self.records().values()
            for record in records.values()
            if record is not None
        )

    @kept.asking("the brokers")
    def adopt(
        self,
        topology_id: str,
        generation: str,
        txid: int,
        components: Iterable[str],
        *,
        from_topology: str | None = None,
        dry_run: bool = False,
    ) -> kept.StoreChange:
        """Accept the topics' contents as the result of transactions 1 to ``txid`` in this
        generation. Stop the topology first."""
        kept.refuse_from_topology(from_topology)
        if self._topic and len(set(components)) > 1:
            raise errors.UsageError(
                f"{self._topic} is the auxiliary topic of one component, and these have a sink {self.name!r}: {', '.join(sorted(set(components)))}\n"
                "  Give --component ID."
            )
        rows = fences = 0
        for component in sorted(set(components)):
            name = self._topic or auxiliary.topic_name(topology_id, component)
            topic = AuxiliaryTopic(self._log, name)
            before = topic.partitions()
            tasks = before or 1
            rows, fences = rows + tasks, fences + 1
            if dry_run:
                continue
            topic.make(tasks, before)
            for task in range(tasks):
                record = Record(
                    topology_id,
                    component,
                    task,
                    generation,
                    txid,
                    kept.CLOSED_ATTEMPT,
                    tasks,
                    0,
                    0,
                    "",
                    self.name,
                )
                message = producing.Message(name, record.value, record.key, partition=task)
                with producing.only_producer(self._cluster, name, task, _TIMEOUT_S) as producer:
                    producer.write([], [], message)
        return kept.StoreChange(rows, fences)

    @kept.asking("the brokers")
    def clear(
        self, topology_id: str, components: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> kept.StoreChange:
        """End the topology's open transactions, and delete its auxiliary topics, or only those of
        ``components``. The user's topics stay. Stop the topology first."""
        rows = fences = 0
        before = self.records()
        if not dry_run and self.abort(dry_run=False) and self.records() != before:
            raise errors.UsageError("a late task has just committed\n  Type this command again.")
        for name, records in before.items():
            known = [record for record in records.values() if record is not None]
            if known and (components is None or known[0].component in components):
                rows, fences = rows + len(known), fences + 1
                if not dry_run:
                    AuxiliaryTopic(self._log, name).delete()
        return kept.StoreChange(rows, fences)
