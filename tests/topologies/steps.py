"""A topology for every kind of spout, with every kind of store, made to be killed in the middle of
a commit.

::

    numbers ×2 ──fields──► keep ×2 (committer) ──global──► seen ×1

``keep`` adds the numbers of a batch by key to two stores, in two store transactions in turn, and
tells ``seen`` the results of the stores; ``seen`` writes the results down in a third. Where a batch
does not change, ``keep`` also sets the values of a plain store. The stores may be in as many
places. Workers import this module: all of it is quick to import.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.topologies.step_spouts import PARTITIONS, SPOUTS, Source, write_down
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store


@dataclass(frozen=True)
class Variant:
    """One of the topologies: over a spout of ``kind``, with at most ``pending`` transactions open."""

    kind: str
    pending: int

    @property
    def name(self) -> str:
        """Short and unique."""
        return f"{self.kind}-{self.pending}"

    @property
    def topology_id(self) -> str:
        """The id of its state."""
        return f"steps-{self.name}"

    @property
    def is_opaque(self) -> bool:
        """Whether a replay may have other tuples."""
        return self.kind.startswith("opaque")

    @property
    def partitions(self) -> int:
        """How many partitions the source has; a spout that has none reads a single sequence."""
        return 1 if self.kind in ("plain", "committer") else PARTITIONS

    def stores(self, databases: Sequence[str]) -> dict[str, Store]:
        """By name: with transactional values where they may be, with opaque values, with the notes
        of ``seen``, and with plain values where they may be.

        They are in ``databases`` in turn. The topologies side by side begin with another one each,
        so that in each database every name is found at the points of even and of odd numbers.
        """
        number = VARIANTS.index(self) if self in VARIANTS else 0
        names = (
            ("first", "second", "seen") if self.is_opaque else ("first", "second", "seen", "plain")
        )
        return {
            name: _open_store(
                databases[(number + number // 4 + place) % len(databases)],
                f"{name}_{self.name.replace('-', '_')}",
                opaque=name != "plain" and (self.is_opaque or name == "second"),
                plain=name == "plain",
            )
            for place, name in enumerate(names)
        }

    def journal(self, directory: Path) -> Path:
        """The file for the notes of workers."""
        return directory / f"journal-{self.name}"


def _open_store(database: str, table: str, *, opaque: bool, plain: bool) -> Store:
    if database.startswith("redis:"):
        return RedisStore(database, table, opaque=opaque, plain=plain)
    if "://" in database:
        return SqlStore(database, table, opaque=opaque, plain=plain)
    return SqliteStore(f"{database}-{table}", table, opaque=opaque, plain=plain)


class Keep(BaseTransactionalBolt, ICommitter):
    """Adds to the sum of each key, in one store after the other; counts every number and remembers
    the batch there.

    In a plain store the committer sets the content of the batch, and for each key the last
    transaction with the key.
    """

    def __init__(self, stores: Iterable[Store], journal: Path, plain: Store | None = None) -> None:
        self.stores, self.journal, self.plain = list(stores), journal, plain

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.numbers: defaultdict[int, list[int]] = defaultdict(list)

    def execute(self, tup: Tuple) -> None:
        self.numbers[tup["key"]].append(tup["n"])

    def finish_batch(self) -> None:
        batch = {key: sorted(numbers) for key, numbers in sorted(self.numbers.items())}
        write_down(
            self.journal,
            "kept",
            self.attempt,
            self.context.task_index,
            [n for numbers in batch.values() for n in numbers],
        )
        for number, store in enumerate(self.stores):
            with store.transaction(self.context, self.attempt) as transaction:
                for key, numbers in batch.items():
                    update = transaction.update(
                        ("sum", key), functools.partial(_added, sum(numbers))
                    )
                    transaction.update(
                        ("batch", self.attempt.txid, key), functools.partial(_appended, numbers)
                    )
                    self.collector.emit([self.attempt, number, key, update.prev or 0, update.curr])
                # Keys of this attempt only: such writes must be taken back too (R31).
                transaction.update_many(
                    {("number", n): 1 for numbers in batch.values() for n in numbers}, _counted
                )
        if self.plain is not None:
            with self.plain.transaction(self.context, self.attempt) as transaction:
                transaction.put_many(
                    {("batch", self.attempt.txid, key): numbers for key, numbers in batch.items()}
                )
                transaction.put_many({("latest", key): self.attempt.txid for key in batch})

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "store", "key", "prev", "curr"))


def _added(delta: int, old: int | None) -> int:
    return (old or 0) + delta


def _counted(old: int | None, delta: int) -> int:
    return (old or 0) + delta


def _appended(values: list[Any], old: list[Any] | None) -> list[Any]:
    # Double applications show.
    return [*(old or []), *values]


class Seen(BaseTransactionalBolt):
    """Remembers the stores' results of each batch: results that come once (R28)."""

    def __init__(self, store: Store, journal: Path) -> None:
        self.store, self.journal = store, journal

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.results: list[list[int]] = []

    def execute(self, tup: Tuple) -> None:
        self.results.append(list(tup.values[1:]))

    def finish_batch(self) -> None:
        write_down(
            self.journal, "seen", self.attempt, self.context.task_index, sorted(self.results)
        )
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update(
                ("seen", self.attempt.txid), functools.partial(_appended, sorted(self.results))
            )


VARIANTS = tuple(
    Variant(kind, pending)
    for number, kind in enumerate(SPOUTS)
    for pending in ((1, 2) if number % 2 else (2, 1))
)


def make_topology(
    variant: Variant, directory: Path, databases: Sequence[str], size: int, life: int
) -> Any:
    """The topology of ``variant``; its journal is kept in ``directory``."""
    journal, stores = variant.journal(directory), variant.stores(databases)
    builder = TransactionalTopologyBuilder(
        variant.topology_id, "numbers", SPOUTS[variant.kind](Source(journal, size, life)), 2
    )
    keep = Keep([stores["first"], stores["second"]], journal, stores.get("plain"))
    builder.set_bolt("keep", keep, 2).fields_grouping("numbers", Fields("key"))
    builder.set_bolt("seen", Seen(stores["seen"], journal)).global_grouping("keep")
    return builder.build_topology()
