"""Starters with an export queue: the target equals the store after a process was killed."""

from __future__ import annotations

import contextlib
import http.server
import json
import signal
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from starter import inverted_index, orders_to_http
from tests.patience import PATIENCE_S
from tests.processes import held_exporter
from tests.servers.clusters import fast
from tests.servers.databases import Database
from tests.servers.postgres import PostgresServer
from tests.starter.commands import STARTERS, Command, done
from txtopo import LocalCluster, StateMismatchError
from txtopo.exports import (
    EntryRefusedError,
    Exporter,
    ExportQueue,
    HttpExporter,
    SequencedExport,
    upkeep,
)
from txtopo.runtime.visibility import Visibility
from txtopo.testing import check_exporter

TABLE = (
    "CREATE TABLE pages (page text PRIMARY KEY, referrers jsonb, txtopo_sequence bigint NOT NULL,"
    " txtopo_generation text NOT NULL, txtopo_deleted boolean NOT NULL)"
)


def referrers() -> dict[str, list[str]]:
    """The index of ``links.jsonl``, made anew from the newest versions."""
    rows = map(json.loads, inverted_index.LINKS.read_text(encoding="utf-8").splitlines())
    newest = {row["document"]: row["links"] for row in rows}
    index = defaultdict(list)
    for document in sorted(newest):
        for page in newest[document]:
            index[page].append(document)
    return dict(index)


def states() -> dict[str, Any]:
    """The orders of ``orders.jsonl``, added up by hand."""
    orders: dict[str, Any] = {}
    for row in map(json.loads, orders_to_http.EVENTS.read_text(encoding="utf-8").splitlines()):
        before = orders.pop(str(row["order"]), {"cents": 0})
        if row["event"] != "cancelled":
            cents = before["cents"] + row["cents"]
            orders[str(row["order"])] = {"state": row["event"], "cents": cents}
    return orders


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the starter's service."""
    monkeypatch.setenv("ORDERS_FILE", str(tmp_path / "service.db"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), orders_to_http.Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def values(queue: ExportQueue, **version: Any) -> dict[str, Any]:
    """The values of the queue's store."""
    return {str(key): value for key, value in queue.store.items(**version)}


# -- without failures ------------------------------------------------------------------------------


@pytest.mark.rule(28, 40)
def test_the_targets_have_what_the_stores_have(
    cluster: LocalCluster, tmp_path: Path, service: str
) -> None:
    index = inverted_index.SqliteIndex(tmp_path / "pages.db")
    cases: list[tuple[Any, Any, Callable[[], dict[str, Any]], dict[str, Any]]] = [
        (inverted_index, index.path, index.read, referrers()),
        (orders_to_http, service, orders_to_http.read, states()),
    ]
    for starter, address, read, expected in cases:
        topology = starter.make_topology(tmp_path / "store.db", None, address)
        queue = starter.open_queue(tmp_path / "store.db", address)
        run = cluster.submit_topology(topology.id, fast(max_spout_pending=3), topology)
        export = run.export(queue)
        run.wait_until_idle(PATIENCE_S)
        export.wait_until_empty(PATIENCE_S)
        run.stop(PATIENCE_S)
        assert read() == values(queue) == expected
    with contextlib.closing(index.connect()) as database:
        ((gone,),) = database.execute("SELECT page FROM pages WHERE referrers IS NULL")
    assert gone == "architecture", "the row stays, with its sequence"


ENTRIES: list[tuple[str, Any, int]] = [
    ("dog", ["new"], 2),
    ("dog", ["old"], 1),
    ("cat", None, 4),
    ("cat", ["old"], 3),
]


def test_the_targets_refuse_older_entries_and_another_generation(
    tmp_path: Path, service: str
) -> None:
    index = inverted_index.SqliteIndex(tmp_path / "pages.db")
    targets: list[tuple[Exporter, Callable[[], dict[str, Any]], type[Exception]]] = [
        (index, index.read, StateMismatchError),
        (HttpExporter(f"{service}/orders/{{key}}"), orders_to_http.read, EntryRefusedError),
    ]
    for exporter, read, refusal in targets:
        for key, value, sequence in ENTRIES:
            exporter.export(iter([SequencedExport("queue", 0, key, value, sequence, "first")]))
        for key in ("dog", "cow"):
            with pytest.raises(refusal):
                exporter.export(iter([SequencedExport("queue", 0, key, ["new"], 5, "second")]))
        assert read() == {"dog": ["new"]}
        exporter.close()


@pytest.mark.thorough
@pytest.mark.rule(40)
def test_the_index_and_the_service_keep_the_contract_of_exporters(
    tmp_path: Path, service: str
) -> None:
    index = inverted_index.SqliteIndex(tmp_path / "pages.db")
    assert check_exporter(index, index.read) > 100
    orders = HttpExporter(f"{service}/orders/{{key}}")
    assert check_exporter(orders, orders_to_http.read) > 100


# -- with kills ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A starter with its target. ``environment`` names the target to the starter's processes."""

    name: str
    environment: dict[str, str]
    read: Callable[[], dict[str, Any]]
    expected: dict[str, Any]
    holding: Callable[[], contextlib.AbstractContextManager[Callable[[], object]]] | None = None
    """Holds up the next call of ``export`` in the target. Gives a wait until the call is there."""


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    name, expected = "inverted_index", referrers()
    if request.param == "sqlite":
        pages = inverted_index.SqliteIndex(tmp_path / "pages.db")
        yield Target(name, {"INDEX_DATABASE": str(pages.path)}, pages.read, expected)
    elif request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        yield _in_postgres(server, name, expected)
    else:
        yield from _over_http(tmp_path)


def _in_postgres(server: PostgresServer, name: str, expected: dict[str, Any]) -> Target:
    database = Database(server, server.new_database())
    database.execute(TABLE)
    url = server.url(database.name)

    def read() -> dict[str, Any]:
        query = "SELECT page, referrers FROM pages WHERE NOT txtopo_deleted"
        return dict(database.execute(query))

    @contextlib.contextmanager
    def holding() -> Iterator[Callable[[], object]]:
        with psycopg.connect(url.replace("+psycopg", "")) as link:
            link.execute("LOCK TABLE pages IN SHARE MODE")
            yield database.wait_for_waiting

    return Target(name, {"INDEX_DATABASE": url}, read, expected, holding)


def _over_http(tmp_path: Path) -> Iterator[Target]:
    program = STARTERS / "orders_to_http.py"
    free = {"ORDERS_URL": "http://127.0.0.1:0"}
    with Command(["python", program, "serve"], tmp_path, **free) as service:
        service.wait_until(lambda: service.said.endswith("\n"), "the address")
        url = service.said.split()[-1]

        def read() -> dict[str, Any]:
            with urllib.request.urlopen(f"{url}/orders", timeout=PATIENCE_S) as answer:
                orders: dict[str, Any] = json.load(answer)
                return orders

        yield Target("orders_to_http", {"ORDERS_URL": url}, read, states())


POINTS = {
    "before": "apply.inside",
    "inside": "record.before",
    "after": "record.inside",
    "removing": "apply.after",
    "removed": "record.before",
}
"""Where the driver is killed, by the step at which the exporter is."""


@pytest.mark.thorough
@pytest.mark.rule(25, 28, 40)
@pytest.mark.parametrize("step", POINTS)
@pytest.mark.parametrize("target", ["sqlite", "postgres", "http"], indirect=True)
def test_the_target_has_what_the_store_has_after_driver_and_exporter_were_killed(
    target: Target, step: str, tmp_path: Path
) -> None:
    program = STARTERS / f"{target.name}.py"
    topology_id, queue_place = target.name.replace("_", "-"), f"{program}:queue"
    starter: Any = {"inverted_index": inverted_index, "orders_to_http": orders_to_http}[target.name]
    queue = starter.open_queue(tmp_path / starter.STORE_PATH)
    run: list[str | Path] = ["txtopo", "run", program, "--master", "local[2]"]
    export: list[str | Path] = ["txtopo", "export", queue_place]
    held = f"{held_exporter.__file__}:HeldExporter({queue_place!r}, {step!r})"
    with contextlib.ExitStack() as stack:
        fault = {"TXTOPO_FAULT": f"{POINTS[step]}@{topology_id}:2=hold"}
        driver = stack.enter_context(Command(run, tmp_path, **target.environment, **fault))
        driver.wait_until_it_says(f"fault: {POINTS[step]} at {topology_id} txid 2: hold")
        if step == "inside" and target.holding is not None:
            wait = stack.enter_context(target.holding())
            stack.enter_context(exporter := Command(export, tmp_path, **target.environment))
            wait()
        else:
            exporter = Command([*export, held], tmp_path, **target.environment)
            stack.enter_context(exporter)
            exporter.wait_until_it_says(f"held {step} export")
        with Visibility(topology_id, data_dir=tmp_path / ".txtopo") as visibility:
            recorded = values(queue, as_of=visibility.txid())
        told = target.read()
        assert told.items() <= recorded.items(), "entries that are not recorded were told"
        assert told != target.expected
        for command in (exporter, driver):
            command.signal(signal.SIGKILL)
            assert command.wait() == -signal.SIGKILL
    assert upkeep.status(queue).entries > 0, "killed in the middle"

    with Command(export, tmp_path, **target.environment) as exporter:
        said = done(run, tmp_path, 0, **target.environment)
        assert f"txtopo: {topology_id} resumes at txid " in said
        exporter.wait_until(lambda: upkeep.status(queue).entries == 0, "an empty queue")
        exporter.signal(signal.SIGTERM)
        assert exporter.wait() == 0, exporter.said
    assert target.read() == values(queue) == target.expected
    assert list(upkeep.entries_of(queue)) == []
