"""Exporters keep the contract over real targets, and refuse entries that they cannot tell."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from tests.servers.postgres import PostgresServer
from tests.servers.redis_server import RedisServer
from tests.servers.service import Service
from txtopo.errors import FailedException, SetupError, StateMismatchError, UsageError
from txtopo.exports import (
    EntryRefusedError,
    Exporter,
    HttpExporter,
    PostgresExporter,
    RedisExporter,
    SequencedExport,
    http,
)
from txtopo.testing import check_exporter

COLUMNS = "word text PRIMARY KEY, count bigint"
OWN = "txtopo_sequence bigint NOT NULL, txtopo_generation text NOT NULL, txtopo_deleted boolean NOT NULL"
URL = "postgresql+psycopg://ann@db.example/shop"
TOKEN = "sw0rdfish"
LONG = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(5000))
"""Longer than a key in an index may be."""


class Database:
    """A database with the table ``counts``."""

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.name = server, server.new_database()
        self.url = server.url(self.name)
        self.link = psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        cursor = self.link.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def exporter(
        self, columns: str = COLUMNS, key: Any = "word", names: Sequence[str] = ("count",)
    ) -> PostgresExporter:
        """An exporter, with its table."""
        self.run(f"CREATE TABLE counts ({columns}, {OWN})")
        return PostgresExporter(self.url, "counts", key, names)

    def read(self) -> dict[Any, Any]:
        """The values by key."""
        return dict(self.run("SELECT word, count FROM counts WHERE NOT txtopo_deleted"))


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    database = Database(postgres)
    with database.link:
        yield database


def export(exporter: Exporter, *pairs: tuple[Any, Any], first: int = 1, of: str = "g") -> None:
    """Export keys and values, with growing sequences from ``first`` on, of the generation ``of``."""
    exporter.export(
        SequencedExport("queue", 0, key, value, sequence, of)
        for sequence, (key, value) in enumerate(pairs, first)
    )


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


# -- the contract ----------------------------------------------------------------------------------


def test_the_exporter_for_postgresql_keeps_the_contract(database: Database) -> None:
    exporter = database.exporter()
    assert check_exporter(exporter, database.read) > 100


def test_the_exporter_for_redis_keeps_the_contract(redis_server: RedisServer) -> None:
    prefix = f"{redis_server.new_name()}:"
    with contextlib.closing(redis.Redis(port=redis_server.port, decode_responses=True)) as client:

        def read() -> dict[Any, Any]:
            names = list(client.scan_iter(f"{prefix}*", count=10_000))
            with client.pipeline(transaction=False) as pipeline:
                for name in names:
                    pipeline.hget(name, "value")
                values = pipeline.execute()
            pairs = zip(names, values, strict=True)
            return {name[len(prefix) :]: json.loads(text) for name, text in pairs if text}

        assert check_exporter(RedisExporter(redis_server.url(), prefix), read) > 100


def test_the_exporter_for_http_keeps_the_contract(service: Service) -> None:
    assert check_exporter(HttpExporter(f"{service.url}/{{key}}"), service.read) > 100


# -- PostgreSQL ------------------------------------------------------------------------------------


FEW = "word text, count int NOT NULL, txtopo_sequence int, txtopo_generation text"


@pytest.mark.parametrize("table", ["", "word text", FEW])
def test_a_table_that_does_not_fit_is_told_the_statement(database: Database, table: str) -> None:
    exporter = PostgresExporter(database.url, "counts", "word", ["count"])
    if table:
        database.run(f"CREATE TABLE counts ({table})")
    with pytest.raises(SetupError, match="Type, with types as you like") as caught:
        export(exporter, ("dog", 1))
    database.run(str(caught.value).partition("value: ")[2])
    export(exporter, ("dog", 1), ("cat", None))
    assert database.read() == {"dog": 1}
    assert database.run("SELECT txtopo_sequence FROM counts WHERE txtopo_deleted") == [(2,)]
    database.run("ALTER TABLE counts DROP CONSTRAINT counts_word_key, ADD UNIQUE (word) DEFERRABLE")
    with pytest.raises(SetupError, match="Make the key's constraint NOT DEFERRABLE"):
        export(exporter, ("dog", 1))


def test_rows_of_another_generation_are_refused_with_a_cure_that_helps(database: Database) -> None:
    exporter = database.exporter()
    export(exporter, ("dog", 1), ("cat", 1), first=7, of="it's old")
    with pytest.raises(StateMismatchError, match="has generation \"it's old\" at key 'cat'"):
        export(exporter, ("cat", 2), first=9)
    with pytest.raises(StateMismatchError, match="at key 'dog'"):  # of two equal sequences
        exporter.export(
            SequencedExport("queue", bucket, key, 2, 9, "g")
            for bucket, key in enumerate(["ant", "dog"])
        )
    with pytest.raises(StateMismatchError, match=r"TRUNCATE TABLE \"counts\"\n  Then") as caught:
        export(exporter, ("ant", 2), ("dog", 2))
    assert caught.value.exit_code == 6
    assert database.read() == {"dog": 1, "cat": 1}
    database.run(str(caught.value).rpartition("Type:\n")[2])
    export(exporter, ("ant", 2), ("dog", 2))
    assert database.read() == {"ant": 2, "dog": 2, "cat": 1}
    exporter.close()


def test_values_of_all_forms_reach_their_columns(database: Database) -> None:
    exporter = database.exporter(
        '"a%b" text, "N" int, j json, b jsonb, l int[], t timestamptz, c varchar(3), PRIMARY KEY ("N", "a%b")',
        ("a%b", "N"),
        ["j", "b", "l", "t", "c"],
    )
    whole = {"j": "x", "b": {"y": [None]}, "l": [1, 2], "t": "2026-01-02T03:04:05Z", "c": "abc"}
    export(exporter, (("ä", 1), whole), (("b", 2), [7, None, None, None, None]))
    rows = database.run('SELECT "a%b", "N", j, b, l, t::text, c FROM counts ORDER BY "N"')
    assert rows[0][:5] == ("ä", 1, "x", {"y": [None]}, [1, 2])
    assert rows[1] == ("b", 2, 7, None, None, None, None)
    for key, value in [
        (("ä", 1), {**whole, "c": "abcd"}),
        (("ä", 1), {"j": 1}),
        (("ä", 1), [1]),
        (("ä", "1"), whole),
        (("ä",), whole),
        ("ä", whole),
        (("ä\0", 1), whole),
        ((LONG, 1), whole),
    ]:
        with pytest.raises(EntryRefusedError) as caught:
            export(exporter, (("c", 3), whole), (key, value), first=9)
        assert caught.value.key == pickle.loads(pickle.dumps(caught.value)).key == key
    assert len(database.run("SELECT 1 FROM counts")) == 2
    exporter.close()


def test_a_value_that_its_column_would_round_or_cut_is_refused_with_its_key(
    database: Database,
) -> None:
    columns: dict[str, tuple[str, Any, list[Any]]] = {
        "n": ("numeric(9, 2)", 1.25, [1.005, "1.005"]),
        "t": ("timestamp", "2026-07-01T12:30:00", ["2026-07-01T12:30:00+02:00"]),
        "d": ("double precision", 0.1, [2**53 + 1]),
        "x": ("text", True, []),
        "j": ("jsonb", 1.005, []),
        "l": ("numeric(9, 2)[]", [1], []),
    }
    table = ", ".join(f"{name} {type}" for name, (type, *_) in columns.items())
    exporter = database.exporter(f"word text PRIMARY KEY, {table}", names=list(columns))
    whole = {name: value for name, (_, value, _) in columns.items()}
    export(exporter, ("ant", whole))
    for name, (_, _, cut) in columns.items():
        for value in cut:
            with pytest.raises(
                EntryRefusedError, match=f"round or cut its value of '{name}'"
            ) as at:
                export(exporter, ("cow", whole), ("bee", {**whole, name: value}), first=9)
            assert at.value.key == "bee"
    assert database.run("SELECT word FROM counts") == [("ant",)]
    exporter.close()


def test_a_lost_connection_and_a_deferred_constraint_fail_a_call(database: Database) -> None:
    exporter = database.exporter(
        "word text PRIMARY KEY, count int UNIQUE DEFERRABLE INITIALLY DEFERRED"
    )
    export(exporter, ("dog", 1))
    with pytest.raises(EntryRefusedError, match=r"'ant' is refused: duplicate key.*\(1\) already"):
        export(exporter, ("cow", 2), ("ant", 1), ("bee", 3), first=2)
    export(exporter, ("dog", 4), first=2)
    assert pickle.loads(pickle.dumps(exporter))._link is None
    database.link.close()
    database.server.disconnect(database.name)
    with pytest.raises(FailedException, match="the connection is lost"):
        export(exporter, ("dog", 5), first=3)
    export(exporter, ("dog", 5), first=3)
    exporter.close()


# -- Redis -----------------------------------------------------------------------------------------


def test_redis_keeps_a_hash_for_each_key_and_refuses_keys_that_do_not_fit(
    redis_server: RedisServer,
) -> None:
    prefix = f"{redis_server.new_name()}:"
    exporter = RedisExporter(redis_server.url(), prefix)
    export(exporter, ("dog", {"n": 1}), ((7, "x"), None))
    row = redis_server.ask("HGETALL", f"{prefix}dog")
    assert row == {"value": '{"n": 1}', "sequence": "1", "generation": "g", "deleted": "0"}
    assert redis_server.ask("HGETALL", f'{prefix}[7,"x"]')["deleted"] == "1"
    with pytest.raises(
        StateMismatchError, match=r"generation 'g' at key 'dog'(.|\n)*Remove the keys"
    ):
        export(exporter, ("ant", 1), ("dog", 2), of="h")
    exporter.export(
        SequencedExport("queue", bucket, key, bucket, sequence, "g")
        for bucket, key, sequence in [(0, 7, 9), (1, "7", 5)]
    )
    assert redis_server.ask("HGET", f"{prefix}7", "sequence") == "9"
    redis_server.ask("HSET", f"{prefix}cat", "tail", "long")
    redis_server.ask("SET", f"{prefix}bat", "text")
    for key in ("cat", "bat"):
        with pytest.raises(EntryRefusedError, match=f"'{key}' is refused: a value"):
            export(exporter, ("ant", 1), (key, 2), first=3)
    assert redis_server.ask("EXISTS", f"{prefix}ant") == 0
    redis_server.disconnect()
    export(exporter, ("ant", 1), first=3)
    exporter.close()


# -- HTTP ------------------------------------------------------------------------------------------


def test_http_requests_carry_key_value_and_sequence(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", f"{TOKEN}\n")
    exporter = HttpExporter(
        f"{service.url}/v1/{{key}}?full",
        headers={"X-Author": "a", "X-Routing-Key": "basic plan for b"},
        bearer_token_env="SERVICE_TOKEN",
    )
    export(exporter, (("ä/b", 7), {"n": "ü"}), ("dog", None))
    exporter.close()
    (put, delete) = service.requests
    assert put[:3] == ("PUT", "/v1/%C3%A4%2Fb/7?full", {"n": "ü"})
    sent = ("Idempotency-Key", "X-Sequence", "X-Generation", "X-Author", "Content-Type")
    assert [put[3][name] for name in sent] == ["queue/0/1/g", "1", "g", "a", "application/json"]
    assert put[3]["Authorization"] == f"Bearer {TOKEN}"
    assert delete[:3] == ("DELETE", "/v1/dog?full", None)
    assert len(service.connections) == 1
    with contextlib.closing(HttpExporter(f"{service.url}/all", "POST")) as exporter:
        export(exporter, ((7, "x"), 5), ("cat", None))
    assert [request[:3] for request in service.requests[2:]] == [
        ("POST", "/all", {"key": [7, "x"], "value": 5}),
        ("POST", "/all", {"key": "cat", "value": None}),
    ]


def test_no_two_changes_have_one_idempotency_key(service: Service) -> None:
    with contextlib.closing(HttpExporter(f"{service.url}/all", "POST")) as exporter:
        for of, sequence in itertools.product("gh", (1, 2**24 - 1)):
            for key in (7, ("ä/b", None)):
                exporter.export(iter([SequencedExport("queue", 0, key, 1, sequence, of)]))
                sequence += sequence == 1
    sent = [request[3]["Idempotency-Key"] for request in service.requests]
    assert len(set(sent)) == len(sent) == 8
    assert sent[3] == "queue/0/16777215/g/%5B%22%C3%A4%2Fb%22%2Cnull%5D"


STATUSES: list[tuple[int, Any, type[Exception] | None]] = [
    *((status, 1, None) for status in (200, 201, 204, 409, 412)),
    *((status, None, None) for status in (200, 404)),
    *((status, 1, FailedException) for status in (408, 425, 429, 500, 503)),
    *((status, 1, EntryRefusedError) for status in (302, 400, 401, 404, 422)),
]


@pytest.mark.parametrize(("status", "value", "error"), STATUSES)
def test_an_answer_means_told_or_again_or_refused(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    value: Any,
    error: type[Exception] | None,
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", TOKEN)
    text = "" if status == 204 else f"{TOKEN} is wrong" + 300 * "."
    service.answers.append((status, {"Retry-After": "120"}, text))
    exporter = HttpExporter(f"{service.url}/{{key}}", bearer_token_env="SERVICE_TOKEN")
    with contextlib.closing(exporter), contextlib.ExitStack() as stack:
        if error is not None:
            caught = stack.enter_context(pytest.raises(error, match=r"'dog' \(Retry-After: 120\)"))
        export(exporter, ("dog", value))
    if error is not None:
        assert f"answered {status} to PUT" in str(caught.value)
        assert "*** is wrong" + 188 * "." in str(caught.value)
        assert "is wrong" + 189 * "." not in str(caught.value)
        assert TOKEN not in str(caught.value)
    assert TOKEN.encode() not in pickle.dumps(exporter)


def test_a_connection_that_ends_is_opened_again_and_then_fails(service: Service) -> None:
    with contextlib.closing(HttpExporter(f"{service.url}/{{key}}")) as exporter:
        export(exporter, ("dog", 1))
        service.answers.append((0, {}, ""))
        export(exporter, ("dog", 2), first=2)
        service.answers += [(0, {}, "")] * 2
        with pytest.raises(FailedException, match="does not answer: RemoteDisconnected"):
            export(exporter, ("dog", 3), first=3)
    assert service.read() == {"dog": 2}


@pytest.mark.parametrize("status", [103, 200])
def test_an_answer_that_comes_late_is_not_the_next_requests(service: Service, status: int) -> None:
    with contextlib.closing(HttpExporter(f"{service.url}/{{key}}")) as exporter:
        service.answers += [(status, {}, ""), (500, {}, "")]
        with contextlib.suppress(EntryRefusedError):  # 103 is no answer
            export(exporter, ("dog", 1))
        assert (exporter._link is None) is (status == 103), "the answer may come at any time"
        with contextlib.suppress(OSError):  # the exporter may have closed the connection
            service.connections[0].sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        with pytest.raises(FailedException, match="answered 500"):
            export(exporter, ("cat", 1))


def test_an_answer_must_be_whole_when_its_time_is_over(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = itertools.count(step=10)
    monkeypatch.setattr(http, "time", types.SimpleNamespace(monotonic=lambda: next(reads)))
    with contextlib.closing(HttpExporter(f"{service.url}/{{key}}", timeout_s=25)) as exporter:
        export(exporter, ("dog", 1))
        service.answers += [(200, {}, "." * 60_000), (503, {}, "." * 60_000)]
        export(
            exporter, ("cat", 0)
        )  # the answer comes in parts, each in time, and its status tells
        with pytest.raises(FailedException, match=r"does not answer: TimeoutError\('.* 25 s'\)"):
            export(exporter, ("cat", 1))
        export(exporter, ("dog", 2), first=2)
        assert len(service.connections) == 3
        assert exporter._link.sock.gettimeout() == 25, "to send the next request"
    assert service.read() == {"dog": 2}


def test_a_call_that_takes_long_leaves_entries_for_the_next_call(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CALL_S", -1.0)
    with contextlib.closing(HttpExporter(f"{service.url}/{{key}}")) as exporter:
        export(exporter, ("dog", 1), ("cat", 2))
    assert service.read() == {"dog": 1}


def test_a_certificate_must_be_trusted(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.speak_tls(file := tmp_path / "service.pem")
    with contextlib.closing(HttpExporter(f"{service.url}/{{key}}")) as exporter:
        with pytest.raises(SetupError, match=r"is not trusted: .*self-signed.*\n  Name a file"):
            export(exporter, ("dog", 1))
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        export(exporter, ("dog", 1))
    assert service.read() == {"dog": 1}


def test_a_key_without_a_place_in_a_url_is_refused() -> None:
    for key in ("", "..", (), ("a", None), ("a", ("b",))):
        with pytest.raises(EntryRefusedError, match="cannot be in a URL"):
            export(HttpExporter("http://h/{key}"), (key, 1))


# -- bad input -------------------------------------------------------------------------------------


MISTAKES: list[tuple[Callable[..., Exporter], tuple[Any, ...], dict[str, Any], str]] = [
    (PostgresExporter, ("mysql+pymysql://db/shop", "t", "k", ["v"]), {}, "PostgreSQL only"),
    (PostgresExporter, (URL.replace("@", ":x@"), "t", "k", ["v"]), {}, "holds a password"),
    (PostgresExporter, (URL, "", "k", ["v"]), {}, "different columns"),
    (PostgresExporter, (URL, "t", "k", []), {}, "different columns"),
    (PostgresExporter, (URL, "t", "k", "v"), {}, "different columns"),
    (PostgresExporter, (URL, "t", ["k", "v"], ["v"]), {}, "different columns"),
    (PostgresExporter, (URL, "t", "txtopo_deleted", ["v"]), {}, "by itself"),
    (PostgresExporter, (URL, "t", "k", ["v"]), {"password_env": "A", "password_file": "b"}, "both"),
    (RedisExporter, ("redis://:x@h/0", "p:"), {}, "RedisExporter URL holds a password"),
    (RedisExporter, ("redis://h/0", ""), {}, "cannot have the prefix"),
    (RedisExporter, ("redis://h/0", "txtopo:{a}:"), {}, "Stores' names"),
    (HttpExporter, ("ftp://h/{key}",), {}, "does not name a server"),
    (HttpExporter, ("https://ann@h/{key}",), {}, "holds a user"),
    (HttpExporter, ("https://h/{key}?api_key=x",), {}, "bearer_token_env"),
    (HttpExporter, ("https://h/{id}",), {}, "Percent-encode"),
    (HttpExporter, ("https://{key}.h/",), {}, "Percent-encode"),
    (HttpExporter, ("https://h/{key}", "GET"), {}, "Give PUT, POST or PATCH"),
    (HttpExporter, ("https://h/{key}",), {"timeout_s": 0}, "HttpExporter's timeout_s"),
    (HttpExporter, ("https://h/{key}",), {"headers": {"X-Sequence": "1"}}, "by itself"),
    (HttpExporter, ("https://h/{key}",), {"headers": {"A b": "1"}}, "cannot be given"),
    (HttpExporter, ("https://h/{key}",), {"headers": {"X": "1\r\nY: 2"}}, "no ASCII text"),
    (HttpExporter, ("https://h/{key}",), {"headers": {"X": 1}}, "cannot be given"),
    (HttpExporter, ("https://h/{key}",), {"headers": {"Cookie": TOKEN}}, "may hold a secret"),
    (HttpExporter, ("https://h/{key}",), {"headers": {"X-Api-Key": TOKEN}}, "may hold a secret"),
]


@pytest.mark.parametrize(("kind", "arguments", "options", "named"), MISTAKES)
def test_a_mistake_in_the_arguments_is_named_with_the_cure(
    kind: Callable[..., Exporter], arguments: Any, options: Any, named: str
) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        kind(*arguments, **options)
    assert "\n  " in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_a_token_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("", f"{TOKEN} {TOKEN}"):
        monkeypatch.setenv("SERVICE_TOKEN", token)
        with pytest.raises(SetupError, match=r"variable SERVICE_TOKEN, .*\n  Set") as caught:
            export(HttpExporter("http://h/{key}", bearer_token_env="SERVICE_TOKEN"), ("dog", 1))
        assert TOKEN not in str(caught.value)
