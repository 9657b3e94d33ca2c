"""Keep the state of each order, and tell each change to a service over HTTP.

::

    events ──fields(order)──► orders ×2 (committer)

``orders`` keeps each order's state in its store, and queues "the order is now in this state" in the
same store transaction. A cancelled order is gone. ``HttpExporter`` sends each state by PUT, and
DELETE for an order that is gone, when the transaction is recorded. A request may come again, and
late. So the service keeps the sequence of each order, also of one that is gone, and answers 409 to
a request that is not newer.

The service is a small one in this file, over SQLite. In one terminal type ``python
starter/orders_to_http.py serve``, in another one ``txtopo run starter/orders_to_http.py`` and
``txtopo export starter/orders_to_http.py:queue --until-empty``. Then read
http://127.0.0.1:8017/orders. ORDERS_URL names another address. The service's file is the one that
ORDERS_FILE names, otherwise .txtopo/orders-service.db; the store is the file that
TXTOPO_STARTER_STORE names, otherwise .txtopo/orders.db.
"""

from __future__ import annotations

import http.server
import json
import os
import sqlite3
import sys
import urllib.parse
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Config,
    Fields,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.connectors.files import FileTransactionalSpout
from txtopo.exports import ExportQueue, HttpExporter
from txtopo.stores import SqliteStore

EVENTS = Path(__file__).with_name("orders.jsonl")
URL = os.environ.get("ORDERS_URL") or "http://127.0.0.1:8017"
STORE_PATH = ".txtopo/orders.db"
SERVICE_PATH = ".txtopo/orders-service.db"
TABLE = "CREATE TABLE IF NOT EXISTS orders(id TEXT PRIMARY KEY, state TEXT, sequence INTEGER, generation TEXT)"
TAKE = (
    "INSERT INTO orders VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state,"
    " sequence = excluded.sequence WHERE generation = excluded.generation AND sequence < excluded.sequence"
)


class Orders(BaseTransactionalBolt, ICommitter):
    """Keeps each order's last event and its cents, and queues both."""

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
        self.events: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        self.events.append(tup)

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            states: dict[int, Any] = {}
            for tup in self.events:
                order, event = tup["order"], tup["event"]
                if event == "cancelled":
                    update = transaction.delete(order)
                else:
                    update = transaction.update(order, partial(changed, event, tup["cents"]))
                states[order] = update.curr
            for order, state in states.items():
                self.queue.add(transaction, order, state)


def changed(event: str, cents: int, old: dict[str, Any] | None) -> dict[str, Any]:
    """The new state of an order in the store."""
    return {"state": event, "cents": (old or {"cents": 0})["cents"] + cents}


class Service(http.server.BaseHTTPRequestHandler):
    """A request to the service."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Take a state, unless the order has a newer one. One statement compares and writes."""
        state = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode() or None
        id, sequence = self.path.rpartition("/")[2], int(self.headers["X-Sequence"])
        row = [urllib.parse.unquote(id), state, sequence, self.headers["X-Generation"]]
        with closing(connect()) as database, database:
            is_newer = database.execute(TAKE, row).rowcount
            others = "SELECT 1 FROM orders WHERE generation <> ? LIMIT 1"
            is_other = database.execute(others, row[3:]).fetchone()
            if is_other:
                database.rollback()
        # 422 stops the exporter: sequences of two generations cannot be compared.
        self.answer(422 if is_other else 204 if is_newer else 409)

    do_DELETE = do_PUT

    def do_GET(self) -> None:
        """All orders, as JSON."""
        self.answer(200, json.dumps(read()))

    def answer(self, status: int, text: str = "") -> None:
        """Answer with JSON, or without a body."""
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def connect() -> sqlite3.Connection:
    """A connection to the service's database."""
    file = Path(os.environ.get("ORDERS_FILE") or SERVICE_PATH)
    file.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(file, timeout=60)
    database.execute(TABLE)
    return database


def read() -> dict[str, Any]:
    """The states that the service has, by order."""
    with closing(connect()) as database:
        rows = database.execute("SELECT id, state FROM orders WHERE state IS NOT NULL")
        return {id: json.loads(state) for id, state in rows}


def serve() -> None:
    """Serve until Ctrl-C, at the port of ``URL``. Port 0 is a free one."""
    address = ("127.0.0.1", urllib.parse.urlsplit(URL).port or 0)
    with http.server.ThreadingHTTPServer(address, Service) as server:
        print(f"orders are served at http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


def open_store(path: str | Path | None = None) -> SqliteStore:
    """The store of order → state."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "orders")


def open_queue(store_path: str | Path | None = None, url: str = URL) -> ExportQueue:
    """The queue of order → state, with the exporter to the service at ``url``."""
    exporter = HttpExporter(f"{url}/orders/{{key}}")
    return ExportQueue("orders", open_store(store_path), exporter=exporter)


def make_topology(store_path: str | Path | None = None, spout: Any = None, url: str = URL) -> Any:
    """The topology, over ``spout`` (default: the lines of ``orders.jsonl``), with its store and its
    queue in the file ``store_path``."""
    # A real file takes bytes_per_batch of a megabyte, the default; 200 bytes make four batches.
    spout = spout or FileTransactionalSpout(
        EVENTS, bytes_per_batch=200, fields=("order", "event", "cents"), format="json"
    )
    builder = TransactionalTopologyBuilder("orders-to-http", "events", spout)
    builder.set_bolt(
        "orders", Orders(open_store(store_path), open_queue(store_path, url)), 2
    ).fields_grouping("events", Fields("order"))
    return builder.build_topology()


topology, queue = make_topology(), open_queue()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else txtopo.main(topology, conf)
