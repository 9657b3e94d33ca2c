"""Keep an index of links, page → referrers, and export each change to another database.

::

    documents ──fields(document)──► links ×2 (committer) ──fields(page)──► referrers ×2

A line is a document's newest version, with its links. ``links`` compares the links with those of
the version before, and emits links that are new or gone. ``referrers`` keeps each page's referrers
in its store, and queues "this page now has these referrers" in the same store transaction. A page
without referrers is gone from the index. An exporter tells the queue's entries when their
transaction is recorded: it may die at any moment, and the index has the newest referrers all the
same, since a row keeps its sequence and takes no older entry.

Type ``txtopo run starter/inverted_index.py``, and, meanwhile or afterwards, ``txtopo export
starter/inverted_index.py:queue --until-empty``. The index is the table ``pages`` in the SQLite file
.txtopo/pages.db. INDEX_DATABASE names another file, or a database server, such as
``postgresql+psycopg://user@host/shop``: the first export then names the statement that makes the
table. The store is the file that TXTOPO_STARTER_STORE names, otherwise .txtopo/inverted-index.db.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Config,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    StateMismatchError,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.connectors.files import FileTransactionalSpout
from txtopo.exports import Exporter, ExportQueue, PostgresExporter, SequencedExport
from txtopo.stores import SqliteStore

LINKS = Path(__file__).with_name("links.jsonl")
STORE_PATH = ".txtopo/inverted-index.db"
INDEX = os.environ.get("INDEX_DATABASE") or ".txtopo/pages.db"
TABLE = "CREATE TABLE IF NOT EXISTS pages(page TEXT PRIMARY KEY, referrers TEXT, sequence INTEGER, generation TEXT)"
TELL = (
    "INSERT INTO pages VALUES (?, ?, ?, ?) ON CONFLICT (page) DO UPDATE SET referrers = excluded.referrers,"
    " sequence = excluded.sequence WHERE generation = excluded.generation AND sequence < excluded.sequence"
)


class SqliteIndex(Exporter):
    """Keeps the newest referrers of each page in an SQLite table. The row of a page that is gone
    stays, with its sequence: an older entry may come late."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    def export(self, entries: Iterator[SequencedExport]) -> None:
        with closing(self.connect()) as database, database:
            generation = ""
            for entry in entries:
                referrers = None if entry.value is None else json.dumps(entry.value)
                generation = entry.generation
                database.execute(TELL, [entry.key, referrers, entry.sequence, generation])
            others = "SELECT 1 FROM pages WHERE generation <> ? LIMIT 1"
            if generation and database.execute(others, [generation]).fetchone():
                raise StateMismatchError(
                    f"{self.path} has pages of before the topology was reset\n"
                    "  Remove the file, and type: txtopo export replay starter/inverted_index.py:queue --from-store"
                )

    def read(self) -> dict[str, list[str]]:
        """The index: each page's referrers."""
        with closing(self.connect()) as database:
            rows = database.execute("SELECT page, referrers FROM pages WHERE referrers IS NOT NULL")
            return {page: json.loads(referrers) for page, referrers in rows}

    def connect(self) -> sqlite3.Connection:
        """A connection to the database, which has the table."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=60)
        database.execute(TABLE)
        return database


class Links(BaseTransactionalBolt, ICommitter):
    """Keeps each document's links. Emits (page, document, whether there is a link) for each link
    that is new or gone, the same on every replay (R28)."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.links: dict[str, list[str]] = {}

    def execute(self, tup: Tuple) -> None:
        self.links[tup["document"]] = tup["links"]

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            updates = transaction.update_many(self.links, lambda old, links: links)
            for document, update in updates.items():
                before, now = set(update.prev or ()), set(update.curr)
                for page in sorted(before ^ now):
                    self.collector.emit([self.attempt, page, document, page in now])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "page", "document", "is_linked"))


class Referrers(BaseTransactionalBolt):
    """Keeps each page's referrers, and queues the new ones. Downstream of a committer, it finishes
    in the commit phase, too (R12)."""

    def __init__(self, store: SqliteStore, queue: ExportQueue) -> None:
        self.store, self.queue = store, queue

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.changes: dict[str, dict[str, bool]] = defaultdict(dict)

    def execute(self, tup: Tuple) -> None:
        self.changes[tup["page"]][tup["document"]] = tup["is_linked"]

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            for page, update in transaction.update_many(self.changes, changed).items():
                if not update.curr:
                    update = transaction.delete(page)
                self.queue.add(transaction, page, update.curr)


def changed(old: list[str] | None, changes: dict[str, bool]) -> list[str]:
    """The new referrers of a page in the store."""
    kept = (document for document in old or () if document not in changes)
    return sorted([*kept, *(document for document, is_linked in changes.items() if is_linked)])


def open_stores(path: str | Path | None = None) -> tuple[SqliteStore, SqliteStore]:
    """The stores of document → links and page → referrers, two tables of one file."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "documents"), SqliteStore(file, "referrers")


def open_queue(store_path: str | Path | None = None, index: str | Path = INDEX) -> ExportQueue:
    """The queue of page → referrers, which are told to the database ``index``."""
    exporter: Exporter = (
        PostgresExporter(index, "pages", "page", ["referrers"])
        if isinstance(index, str) and index.startswith("postgresql")
        else SqliteIndex(index)
    )
    return ExportQueue("pages", open_stores(store_path)[1], exporter=exporter)


def make_topology(
    store_path: str | Path | None = None, spout: Any = None, index: str | Path = INDEX
) -> Any:
    """The topology, over ``spout`` (default: the lines of ``links.jsonl``), with its stores and its
    queue in the file ``store_path``."""
    # A real file takes bytes_per_batch of a megabyte, the default; 250 bytes make three batches.
    spout = spout or FileTransactionalSpout(
        LINKS, bytes_per_batch=250, fields=("document", "links"), format="json"
    )
    documents, pages = open_stores(store_path)
    builder = TransactionalTopologyBuilder("inverted-index", "documents", spout)
    builder.set_bolt("links", Links(documents), 2).fields_grouping("documents", Fields("document"))
    builder.set_bolt(
        "referrers", Referrers(pages, open_queue(store_path, index)), 2
    ).fields_grouping("links", Fields("page"))
    return builder.build_topology()


topology, queue = make_topology(), open_queue()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
