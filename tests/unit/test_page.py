"""The page's server: what it answers, to whom it answers, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import errno
import hashlib
import hmac
import http.client
import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from starlette.applications import Starlette

from tests import patience
from tests.canned_run import SCRIPT, CannedRun, of_a_while
from txtopo import TransactionAttempt, UsageError
from txtopo.journal import reader, watch
from txtopo.page import access, feed, health, html, server

TOKEN = "a-token-of-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
COOKIE = "txtopo-page-{port}"


@contextlib.contextmanager
def served(path: Path, port: int = 0) -> Iterator[tuple[server.Page, int]]:
    listening = access.listen(str(port), is_open_allowed=False)
    with contextlib.closing(server.Page(path, listening, TOKEN)) as page:
        yield page, listening.place[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CannedRun]:
    run = of_a_while(tmp_path_factory.mktemp("data"), 8)
    yield run
    run.end()


@pytest.fixture(scope="module")
def port(run: CannedRun) -> Iterator[int]:
    with served(run.path) as (_, port):
        yield port


def ask(
    port: int, path: str = "/", method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience.PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()


class Reader:
    """A program that follows a run. A context manager."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", port, timeout=patience.PATIENCE_S
        )
        self._connection.request("GET", "/api/v1/events", headers=BEARER)
        self.answer = self._connection.getresponse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def event(self) -> tuple[str, Any] | None:
        """The next event: name and data. None at the end."""
        name = self.answer.readline().decode().removeprefix("event: ").strip()
        if not name:
            return None
        data = self.answer.readline().decode().removeprefix("data: ")
        assert self.answer.readline() == b"\n"
        return name, json.loads(data)

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


# -- documents for programs -------------------------------------------------------------------------


def document(port: int, path: str) -> dict[str, Any]:
    answer, text = ask(port, f"/api/v1/{path}", **BEARER)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json"), text
    shown: dict[str, Any] = json.loads(text)
    assert shown["schema_version"] == 1
    assert shown["topology_id"] == "words"
    return shown


def test_programs_get_the_views_parts_and_the_journals_transactions(port: int) -> None:
    view = document(port, "view")
    status = document(port, "status")
    assert (status["running"], status["current"], status["committed"]) == (True, 9, 8)
    assert (status["generation"], status["epoch"]) == ("bf9d9217", 1)
    assert (status["run"], status["latency_s"]) == (view["run"], view["latency_s"])
    plan = document(port, "plan")
    assert (plan["components"], plan["at_work"]) == (view["plan"]["components"], view["components"])
    assert document(port, "failures")["failures"] == view["failures"]
    assert document(port, "stores")["stores"] == view["stores"]
    newest, first = document(port, "transactions"), document(port, "transactions?from=2&limit=3")
    assert [each["txid"] for each in newest["transactions"]] == [*range(1, 9)]
    assert [each["txid"] for each in first["transactions"]] == [2, 3, 4]
    assert (newest["begins_at"], newest["holes"], len(newest["runs"])) == (1, [], 1)
    five = document(port, "transactions/5")
    assert (five["committed"], five["failed"], len(five["attempts"])) == (True, 1, 2)
    assert [each["txid"] for each in five["discarded_with_it"]] == [6]


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("?from=x", 400, "from is 'x'\n  Give a whole number from 1 to 1"),
        ("?limit=501", 400, "limit is '501'\n  Give a whole number from 1 to 500."),
        ("?last=5", 400, "'last' is no parameter\n  Give from and limit, each once."),
        ("?limit=1&limit=2", 400, "'limit' is no parameter"),
        ("/0", 400, "the transaction is '0'\n"),
        ("/" + "9" * 5000, 400, "the transaction is '99"),
        ("/77", 404, "the journal has no attempt of transaction 77"),
    ],
)
def test_a_bad_question_is_answered_with_the_cure(
    port: int, path: str, status: int, text: str
) -> None:
    answer, said = ask(port, f"/api/v1/transactions{path}", **BEARER)
    assert (answer.status, text in said) == (status, True), said


def test_an_answer_has_a_bound_and_says_how_much_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ATTEMPTS_MAX", 3)
    run = CannedRun(tmp_path)
    for n in range(5):
        run.attempt(2, n, "behind", because_of=TransactionAttempt(1, n))
        run.fail(1, n)
    run.attempt(1, 5)
    run.end()
    with served(run.path) as (_, port):
        one = document(port, "transactions/1")
        all = document(port, "transactions")["transactions"]
    assert (one["failed"], [each["attempt"] for each in one["attempts"]]) == (5, [3, 4, 5])
    assert [each["attempt"] for each in one["discarded_with_it"]] == [2, 3, 4]
    assert one["left_out"] == 5
    assert [len(each["attempts"]) for each in all] == [3, 3]
    assert [each["left_out"] for each in all] == [3, 2]


def test_probes_are_answered_while_questions_about_the_whole_journal_are_read(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read, asked, readers, most = threading.Event(), 0, [], 0

    def number(*arguments: Any) -> int:
        nonlocal asked
        asked += 1
        return 5

    def about(self: reader.Reader, txids: Any) -> Any:
        nonlocal most
        readers.append(threading.current_thread())
        most = max(most, len(readers))
        assert is_read.wait(patience.PATIENCE_S)
        readers.pop()
        return read(self, txids)

    read = reader.Reader.about
    monkeypatch.setattr(reader.Reader, "about", about)
    monkeypatch.setattr(server, "_number", number)
    with concurrent.futures.ThreadPoolExecutor() as people:
        answers = [people.submit(document, port, "transactions/5") for _ in range(3)]
        try:
            patience.wait_until(lambda: asked == 3 and readers)
            assert readers[0].daemon
            assert ask(port, "/readyz")[0].status == 200
        finally:
            is_read.set()
        assert [each.result()["txid"] for each in answers] == [5, 5, 5]
    assert most == 1


# -- who may look ----------------------------------------------------------------------------------


def test_the_page_listens_on_loopback_unless_a_token_file_was_given() -> None:
    listening = access.listen("0", is_open_allowed=False)
    with contextlib.closing(listening):
        assert (listening.host, listening.place[0]) == ("127.0.0.1", "127.0.0.1")
    with pytest.raises(UsageError, match=r"other machines reach.*\n  .*--page-token-file FILE"):
        access.listen("0.0.0.0:0", is_open_allowed=False)
    with contextlib.closing(access.listen("0.0.0.0:0", is_open_allowed=True)) as listening:
        assert listening.place[0] == "0.0.0.0"


def test_a_port_in_use_is_refused_with_the_cure() -> None:
    with contextlib.closing(access.listen("0", is_open_allowed=False)) as listening:
        port = listening.place[1]
        with pytest.raises(UsageError, match=rf"port {port} of .* in use\n  Give another --page"):
            access.listen(str(port), is_open_allowed=False)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives ``localhost`` other addresses."""

    def name(*addresses: str) -> None:
        places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **more: places)

    return name


def test_the_page_listens_at_all_addresses_of_a_name(
    run: CannedRun, named: Callable[..., None]
) -> None:
    """A browser takes any of them. The machine may lack one, such as ``::1``."""
    named("127.0.0.1", "192.0.2.1", "127.0.0.2", "127.0.0.1")
    listening = access.listen("localhost:0", is_open_allowed=True)
    with contextlib.closing(server.Page(run.path, listening, TOKEN)):
        port = listening.place[1]
        addresses = [each.getsockname() for each in listening.sockets]
        assert addresses == [("127.0.0.1", port), ("127.0.0.2", port)]
        for address in addresses:
            with socket.socket() as connection:
                connection.settimeout(patience.PATIENCE_S)
                connection.connect(address)
                connection.sendall(b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert connection.recv(13) == b"HTTP/1.1 401 "
    named("127.0.0.1", "169.254.0.9")
    access.listen("localhost:0", is_open_allowed=False).close()


@pytest.mark.parametrize(
    ("addresses", "reason"),
    [
        (["127.0.0.1", "127.0.0.2"], "Address already in use"),
        (["127.0.0.1", "192.0.2.1"], "other machines reach the page at localhost"),
        (["192.0.2.1"], "Cannot assign requested address"),
    ],
)
def test_each_address_of_a_name_must_be_free_and_allowed(
    named: Callable[..., None], addresses: list[str], reason: str
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        named(*addresses)
        with pytest.raises(UsageError, match=reason):
            access.listen(f"localhost:{port}", is_open_allowed=len(addresses) == 1)
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_free_port_that_is_in_use_at_another_address_is_drawn_again(
    named: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    named("127.0.0.1", "127.0.0.2")
    create, draws, refused = socket.create_server, 0, 1

    def create_server(place: tuple[str, int], **more: Any) -> socket.socket:
        nonlocal draws
        draws += place[0] == "127.0.0.2"
        if place[0] == "127.0.0.2" and draws <= refused:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return create((place[0], 0), **more)

    monkeypatch.setattr(socket, "create_server", create_server)
    with contextlib.closing(access.listen("localhost:0", is_open_allowed=False)) as listening:
        assert (len(listening.sockets), draws) == (2, 2)
    draws, refused = 0, 1000
    with pytest.raises(UsageError, match="Address already in use"):
        access.listen("localhost:0", is_open_allowed=False)
    assert draws == access._DRAWS


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\udcff"])
def test_a_host_that_no_name_can_be_is_refused_with_the_cure(host: str) -> None:
    with pytest.raises(UsageError, match=r"no host has this name\n  Give another --page"):
        access.listen(f"{host}:0", is_open_allowed=True)


@pytest.mark.parametrize("address", ["", "host", "host:", "70000", "a:b:1", ":8080"])
def test_a_text_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"is no address\n  Give \[HOST:\]PORT"):
        access.listen(address, is_open_allowed=False)


def test_a_token_in_the_address_becomes_a_cookie_and_leaves_the_address(port: int) -> None:
    answer, _ = ask(port, f"/?token={TOKEN}&more=1")
    assert (answer.status, answer.headers["location"]) == (303, "/?more=1")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    value = cookie.partition(";")[0]
    assert value.startswith(f"{COOKIE.format(port=port)}=")
    assert TOKEN not in value
    assert ask(port, Cookie=value)[0].status == 200


def test_the_cookie_of_a_run_opens_no_other_run_and_the_open_page_gets_the_next_cookie(
    run: CannedRun,
) -> None:
    """After a run anyone may listen at the port, and gets what browsers send there."""

    def cookie(port: int, token: str) -> str:
        return (ask(port, f"/?token={token}")[0].headers["set-cookie"] or "").partition(";")[0]

    def proof(port: int, key: str) -> str:
        challenge = ask(port, "/api/v1/view")[0].headers["txtopo-challenge"] or ""
        return hmac.digest(key.encode(), challenge.encode(), "sha256").hex()

    with served(run.path) as (_, port):
        old = cookie(port, TOKEN)
        (key,) = re.findall(r'<meta name="key" content="(\w+)">', ask(port, Cookie=old)[1])
    with served(run.path, port):
        assert ask(port, Cookie=old)[0].status == 401
        new = cookie(port, proof(port, key))
        assert ask(port, Cookie=new)[0].status == 200
        with served(run.path) as (_, other):  # whose challenge the first port may pass on
            assert ask(other, f"/?token={proof(other, key)}")[0].status == 401


def test_the_key_of_one_machine_opens_no_page_of_another(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may share a token, and through a tunnel both are at the same address."""
    place = ("127.0.0.1", port)
    here = access.Guard(Starlette(), TOKEN, (), place).key
    assert here in ask(port, **BEARER)[1]
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    assert access.Guard(Starlette(), TOKEN, (), place).key != here


def test_a_token_leads_to_no_other_host(port: int) -> None:
    assert ask(port, f"//evil.example/?token={TOKEN}")[0].headers["location"] == "/evil.example/"


def test_a_program_sends_the_token_as_a_header(port: int) -> None:
    answer, text = ask(port, "/api/v1/view", **BEARER)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert json.loads(text)["topology_id"] == "words"


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer other"}, {"Cookie": "txtopo-page-{port}=other"}]
)
@pytest.mark.parametrize(
    "path", ["/", "/api/v1/view", "/api/v1/stores", "/api/v1/events", "/metrics", "/?token=no"]
)
def test_without_the_token_there_is_no_answer(
    port: int, path: str, headers: dict[str, str]
) -> None:
    told = {name: value.format(port=port) for name, value in headers.items()}
    answer, text = ask(port, path, **told)
    assert answer.status == 401
    assert "Type the whole address that the run printed" in text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""]
)
def test_a_request_for_a_foreign_host_is_refused(port: int, host: str) -> None:
    answer, text = ask(port, **BEARER, Host=host)
    assert answer.status == 421
    assert "host name or IP address, or start the page with `--page NAME:PORT`" in text
    assert ask(port, "/healthz", Host=host)[0].status == 421


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:1", socket.gethostname()])
def test_this_machine_is_no_foreign_host(port: int, host: str) -> None:
    assert ask(port, **BEARER, Host=host)[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_the_page_only_shows(port: int, method: str) -> None:
    answer, _ = ask(port, "/api/v1/view", method, **BEARER)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("path", "headers"), [("/", BEARER), ("/", {}), ("/api/v1/view", BEARER), ("/nothing", BEARER)]
)
def test_every_answer_restricts_the_browser(port: int, path: str, headers: dict[str, str]) -> None:
    sent = ask(port, path, **headers)[0].headers
    assert sent["x-content-type-options"] == "nosniff"
    assert sent["referrer-policy"] == "no-referrer"
    assert sent["cache-control"] == "no-store"
    assert {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(
        sent["content-security-policy"].split("; ")
    )


def test_only_the_pages_own_script_and_style_run(port: int) -> None:
    answer, page = ask(port, **BEARER)
    policy = answer.headers["content-security-policy"]
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_the_script_makes_no_markup_of_texts() -> None:
    script = html.live("")
    for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "srcdoc"):
        assert way not in script
    assert not re.search(r"<[^>]+ (on\w+|style)=", script)


def test_secrets_in_settings_are_hidden_as_in_the_journal(tmp_path: Path) -> None:
    run = CannedRun(
        tmp_path, settings={"zookeeper_password": "hunter2"}, master="spark://me:hunter2@h:1"
    )
    run.end(ValueError("password=hunter2"))
    with served(run.path) as (_, port):
        view = ask(port, "/api/v1/view", **BEARER)[1]
    assert '"ended"' in view
    assert "hunter2" not in view


def test_a_path_in_the_host_header_replaces_no_token(port: int) -> None:
    """A library may join host and path, and split them elsewhere."""
    for host in ("127.0.0.1/healthz?", "127.0.0.1/healthz#", "me@localhost/readyz?"):
        assert ask(port, "/api/v1/view", Host=host)[0].status == 401
    assert ask(port, "healthz")[0].status == 401


# -- the token -------------------------------------------------------------------------------------


def test_a_token_file_must_be_this_users_alone_and_have_a_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(UsageError, match=r"no token in .*token: No such file.*\n  Make one"):
        access.token_in(file)
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o640)
    with pytest.raises(UsageError, match=r"other users can read .*\n  Type: chmod 600"):
        access.token_in(file)
    file.chmod(0o600)
    assert access.token_in(file) == TOKEN
    for text in ("", "short", "with a space in the middle", "mit-Umlaut-äöüÄÖÜß"):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"has no token of at least 16 characters"):
            access.token_in(file)


def test_a_run_that_is_started_again_has_the_same_token(tmp_path: Path) -> None:
    token = access.kept_token(tmp_path / "journal" / "words")
    file = tmp_path / "journal" / "words" / access.KEPT_TOKEN
    assert file.stat().st_mode & 0o777 == 0o600
    assert access.kept_token(file.parent) == token
    file.write_text("")  # as after a power cut
    other = access.kept_token(file.parent)
    assert len(other) > 30
    assert other != token
    assert access.token_in(file) == other


def test_a_token_is_not_written_into_a_file_that_was_left_in_its_way(tmp_path: Path) -> None:
    journal, other = tmp_path / "journal", tmp_path / "other"
    other.touch()
    journal.mkdir()
    for name in (".new", f".{os.getpid()}.new"):
        (journal / (access.KEPT_TOKEN + name)).symlink_to(other)
    token = access.kept_token(journal)
    assert access.token_in(journal / access.KEPT_TOKEN) == token
    assert other.read_text() == ""


def test_without_a_place_the_token_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert access.kept_token(tmp_path / "file" / "words") != access.kept_token(
        tmp_path / "file" / "words"
    )


# -- answers ---------------------------------------------------------------------------------------


def test_the_view_is_the_journals(port: int, run: CannedRun) -> None:
    told = json.loads(ask(port, "/api/v1/view", **BEARER)[1])
    watching = watch.Watch(run.path)
    watching.refresh()
    expected = watching.view()
    for name in ("run", "plan", "transactions", "failures", "stores"):
        assert told[name] == expected[name]


def test_a_text_without_a_form_in_utf_8_breaks_no_answer(tmp_path: Path) -> None:
    run = CannedRun(tmp_path)
    run.end(ValueError("file \udcff is damaged"))
    with served(run.path) as (page, port):
        view = json.loads(ask(port, "/api/v1/view", **BEARER)[1])
        with Reader(port) as reader:
            assert (reader.event() or ("",))[0] == "view"
    assert view["run"]["ended"]["error"] == "file \\udcff is damaged"
    assert page.error is None


def test_prometheus_is_told_the_metrics(port: int) -> None:
    answer, text = ask(port, "/metrics", **BEARER)
    assert answer.status == 200
    assert 'txtopo_info{epoch="' in text


def test_without_prometheus_library_the_answer_names_the_extra(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    answer, text = ask(port, "/metrics", **BEARER)
    assert answer.status == 501
    assert "Type: pip install 'txtopo[metrics]'" in text


def test_probes_need_no_token(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TURNED_S", patience.PATIENCE_S)
    assert ask(port, "/healthz")[1] == "ok\n"
    assert ask(port, "/readyz")[1] == "ok\n"


def test_probes_of_no_run_answer_503(tmp_path: Path) -> None:
    with served(tmp_path / "none") as (_, port):
        answers = [ask(port, path) for path in ("/healthz", "/readyz")]
        assert [answer.status for answer, _ in answers] == [503, 503]
        assert [text for _, text in answers] == ["no run has begun\n", "no run has the topology\n"]
        assert json.loads(ask(port, "/api/v1/view", **BEARER)[1])["run"] is None


# -- events ----------------------------------------------------------------------------------------


def test_a_reader_gets_the_whole_view_then_changes_and_at_last_the_end(tmp_path: Path) -> None:
    run = of_a_while(tmp_path, 6)
    with served(run.path) as (page, port), Reader(port) as reader:
        name, view = reader.event() or ("", {})
        assert (name, [each["txid"] for each in view["transactions"]]) == ("view", [*range(1, 7)])
        run.attempt(7)
        changes: dict[str, Any] = {}
        while "transactions" not in changes:
            name, changes = reader.event() or ("", {})
            assert name in ("change", "beat")
        assert [each["txid"] for each in changes["transactions"]] == [7]
        run.end(ValueError("over"))
        page.close()
        last: dict[str, Any] = {}
        while (event := reader.event()) is not None:
            last |= event[1]
        assert last["run"]["ended"]["error"] == "over"


def test_a_reader_hears_from_the_server_without_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "BEAT_S", 0.0)
    with served(tmp_path) as (_, port), Reader(port) as reader:
        names = [(reader.event() or ("", {}))[0] for _ in range(3)]
    assert names == ["view", "beat", "beat"]


def test_there_is_a_bound_for_readers_and_a_place_is_free_again(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "READERS_MAX", 2)

    def status() -> int:
        with Reader(port) as reader:
            return reader.answer.status

    with Reader(port) as first:
        with Reader(port) as second:
            assert [(each.event() or ("",))[0] for each in (first, second)] == ["view", "view"]
            with Reader(port) as third:
                assert third.answer.status == 503
                assert third.answer.read() == b"The page has 2 readers already.\n"
        patience.wait_until(lambda: status() == 200)


def test_a_slow_reader_is_dropped(run: CannedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "SLOW_S", 0.01)
    told = feed.Feed(run.path, lambda: False)

    async def never() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await never()

    asyncio.run(asyncio.wait_for(feed.Events(told)({}, never, send), patience.PATIENCE_S))
    assert told.readers == 0


def test_a_reader_that_missed_many_changes_gets_the_whole_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "PAUSE_S", 1e6)
    monkeypatch.setattr(feed, "FORGET_S", float("inf"))
    monkeypatch.setattr(feed, "CHANGES_MAX", 2)
    run = CannedRun(tmp_path)

    told = feed.Feed(run.path, lambda: False)
    names = []
    for missed in (1, 2, 3):
        version, _ = told.news(None)
        for _ in range(missed):
            run.attempt(run.moment.status.current)
            run.wait_until_written(run.moment.status.current - 1)
            told._read_at -= feed.PAUSE_S
            told.view()
        events = told.news(version)[1]
        names.append([each.decode().split()[1] for each in events])
    run.end()
    one, two, three = names
    assert one[0] == two[0] == "change"
    assert three == ["view"]


def test_all_readers_are_told_the_last_change_and_probes_read_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "PAUSE_S", float("inf"))
    run, is_closing = CannedRun(tmp_path), False
    told = feed.Feed(run.path, lambda: is_closing)
    version, _ = told.news(None)
    run.end(ValueError("over"))
    assert told.view()["run"] is None or told.view()["run"]["ended"] is None
    assert told.news(version) == (version, [])
    is_closing = True
    (event,) = told.news(version)[1]
    assert b'"over"' in event


def test_after_a_long_time_without_readers_the_journal_is_opened_anew(run: CannedRun) -> None:
    told = feed.Feed(run.path, lambda: False)
    version, _ = told.news(None)
    before = told._watch
    told._read_at -= feed.FORGET_S + 1
    told.view()
    assert told._watch is not before
    (event,) = told.news(version)[1]
    assert len(json.loads(event.partition(b"data: ")[2])["transactions"]) == 8


# -- errors ----------------------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[list[str]]:
    """The lines of each warning."""
    return [
        each.getMessage().splitlines() for each in caplog.records if each.levelno >= logging.WARNING
    ]


def test_an_error_is_answered_and_told_once_and_the_page_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refresh(*arguments: Any) -> dict[str, Any]:
        raise OSError(5, "the disk is broken")

    with caplog.at_level(logging.WARNING), served(tmp_path) as (page, port):
        with monkeypatch.context() as patch:
            patch.setattr(watch.Watch, "refresh", refresh)
            assert [ask(port, "/healthz")[0].status for _ in range(2)] == [500, 500]
        with monkeypatch.context() as patch:
            patch.setattr(reader.Reader, "extent", refresh)
            assert ask(port, "/api/v1/transactions", **BEARER)[0].status == 500
        assert ask(port, "/healthz")[0].status == 503
        assert page.is_served
    assert warnings(caplog) == [
        [
            "the page cannot answer a request, but the run goes on: OSError: [Errno 5] the disk is broken",
            "  Load the page again. Further errors of the page are not logged.",
        ]
    ]


def test_a_server_that_fails_ends_the_page_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **more: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("uvicorn.Server.run", fail)
    with caplog.at_level(logging.WARNING), served(tmp_path) as (page, _):
        patience.wait_until(lambda: not page.is_served)
    assert isinstance(page.error, OSError)
    assert warnings(caplog) == [
        [
            "the page is not served any more, but the run goes on: OSError: [Errno 24] Too many open files",
            "  `txtopo page` serves the page from the journal.",
        ]
    ]


# -- one file --------------------------------------------------------------------------------------


def test_the_page_in_one_file_has_the_view_and_asks_no_server(run: CannedRun) -> None:
    watching = watch.Watch(run.path)
    watching.refresh()
    page = html.whole(watching.view())
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert json.loads(data) == watching.view()
    assert SCRIPT in json.loads(data)["failures"][0]["cause"]["traceback"]
    assert SCRIPT not in page
    assert page.count("</script>") == 2
    assert f'content="{html.POLICY}"' in page
