"""A topology without an end whose counts are exported to a table in the store's own PostgreSQL
database, and drivers that a test may kill.

``history`` has every sequence that the table took. Every third transaction deletes its words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.patience import wait_until
from tests.topologies.endless_words import Words, words_of
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Config,
    Fields,
    ICommitter,
    LocalCluster,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.exports import ExportQueue, PostgresExporter, leases, postgres
from txtopo.stores import SqlStore
from txtopo.topology.graph import TopologyGraph

DRIVING = "import sys; from tests.topologies import exported; exported.drive(*sys.argv[1:])"
"""A driver. Its arguments are those of :func:`drive`."""
ID = "exported"
OWN = "txtopo_sequence bigint NOT NULL, txtopo_generation text NOT NULL, txtopo_deleted boolean NOT NULL"
TABLES = (
    f"CREATE TABLE told (word text PRIMARY KEY, count bigint, {OWN})",
    "CREATE TABLE history (number bigserial, word text, count bigint, sequence bigint)",
    """CREATE FUNCTION remember() RETURNS trigger AS $$ BEGIN
    INSERT INTO history(word, count, sequence) VALUES (NEW.word, NEW.count, NEW.txtopo_sequence);
    RETURN NEW; END $$ LANGUAGE plpgsql""",
    "CREATE TRIGGER remember AFTER INSERT OR UPDATE ON told FOR EACH ROW EXECUTE FUNCTION remember()",
)


def name_of(word: str, txid: int) -> str:
    """The key for a word."""
    return f"{word}{txid % 8}"


def changes(committed: int, first: int = 1) -> Iterator[tuple[int, str, int | None]]:
    """Each new value that transactions ``first`` to ``committed`` give: txid, key and value."""
    counts = Counter[str]()
    for txid in range(1, committed + 1):
        for word, count in Counter(name_of(word, txid) for word in words_of(txid)).items():
            counts[word] = 0 if txid % 3 == 0 else counts[word] + count
            if txid >= first:
                yield txid, word, counts[word] or None


def values(committed: int) -> dict[str, int]:
    """The store's content after ``committed`` transactions."""
    newest = {word: value for _, word, value in changes(committed)}
    return {word: value for word, value in newest.items() if value is not None}


class Count(BaseTransactionalBolt, ICommitter):
    """Counts words, and queues the counts. While the file ``hold`` is there, a task makes a file
    ``.held`` beside it and waits, with its changes in the store."""

    def __init__(self, queue: ExportQueue, hold: Path | None) -> None:
        self.queue, self.hold = queue, hold

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt, self.counts = context, attempt, Counter[str]()

    def execute(self, tup: Tuple) -> None:
        self.counts[name_of(tup["word"], self.attempt.txid)] += 1

    def finish_batch(self) -> None:
        with self.queue.store.transaction(self.context, self.attempt) as transaction:
            if self.attempt.txid % 3 == 0:
                updates = {word: transaction.delete(word) for word in self.counts}
            else:
                updates = transaction.update_many(self.counts, lambda old, new: (old or 0) + new)
            for word, update in updates.items():
                self.queue.add(transaction, word, update.curr)
        if self.hold is not None and self.hold.exists():
            self.hold.with_suffix(".held").touch()
            wait_until(lambda: self.hold is None or not self.hold.exists(), "the end of the hold")


def open_queue(url: str) -> ExportQueue:
    """The queue, with its store and its exporter, in the database ``url``."""
    return ExportQueue(
        "counts",
        SqlStore(url, "counts"),
        exporter=PostgresExporter(url, "told", "word", ["count"]),
    )


def quick_queue(url: str) -> ExportQueue:
    """The queue, in a process of its own with short leases, and short locks in the table."""
    leases.LEASE_S, leases.BEAT_S = 1.0, 0.25
    postgres._LIMITS["idle_timeout_s"] = 5.0
    return open_queue(url)


def make_topology(queue: ExportQueue, id: str = ID, hold: Path | None = None) -> TopologyGraph:
    """words ×1 → count ×2."""
    builder = TransactionalTopologyBuilder(id, "words", Words())
    builder.set_bolt("count", Count(queue, hold), 2).fields_grouping("words", Fields("word"))
    return builder.build_topology()


def drive(url: str, data_dir: str, max_transactions: str = "") -> None:
    """Run in the driver process, which exports, too."""
    conf = Config(
        max_spout_pending=3,
        poll_interval_s=0.02,
        max_transactions=int(max_transactions) if max_transactions else None,
    )
    queue = quick_queue(url)
    with LocalCluster(master="local[2]", data_dir=Path(data_dir)) as cluster:
        run = cluster.submit_topology(ID, conf, make_topology(queue))
        run.export(queue)
        run.join()
