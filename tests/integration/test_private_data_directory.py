"""A data directory, and its ZooKeeper, belong to their user: another user of the machine can
neither read nor change them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from tests.patience import PATIENCE_S, wait_until
from tests.processes import owners, readers
from tests.servers.ports import free_port, free_ports
from tests.servers.zookeepers import client_of
from txtopo import (
    ConfigError,
    SetupError,
    ZooKeeperAccessError,
    ZooKeeperUnavailableError,
    visible_txid,
)
from txtopo.command import cli
from txtopo.state import credentials, embedded, privacy
from txtopo.state.zookeeper import ZooKeeperStateStore

NOBODY = 65534

INTRUDING = """
import json, os, sys
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

hosts, data_dir, patience_s, paths = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]
# Whatever Python loads only when it is needed, it must load before: the other user may not read Python's files.
first = KazooClient(hosts)
first.start(timeout=patience_s)
first.stop()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
done = []
def attempt(what, act):
    try:
        act()
    except Exception as error:
        refusal = type(error).__name__
        if refusal not in ("NoAuthError", "NoNodeError", "PermissionError"):
            done.append(f"{what}: {error!r}")
    else:
        done.append(what)

attempt("listed the directory", lambda: os.listdir(data_dir))
for path in paths:
    attempt(f"read {path}", lambda: open(path).read())
    attempt(f"wrote {path}", lambda: open(path, "a"))
client = KazooClient(hosts)
client.start(timeout=patience_s)
known = ["/", "/txtopo", "/txtopo/words", "/txtopo/words/current", "/txtopo/words/epoch", "/zookeeper", "/zookeeper/quota"]
for path in known:
    attempt(f"got {path}", lambda: client.get(path))
    attempt(f"listed {path}", lambda: client.get_children(path))
    attempt(f"set {path}", lambda: client.set(path, b"1"))
    attempt(f"took {path}", lambda: client.set_acls(path, OPEN_ACL_UNSAFE))
    attempt(f"made {path}/x", lambda: client.create(path.rstrip("/") + "/x"))
    if path.startswith("/txtopo"):  # ZooKeeper lets nobody remove its own
        attempt(f"removed {path}", lambda: client.delete(path, recursive=False))
client.stop()
print(json.dumps({"uid": os.getuid(), "done": done}))
"""
"""Becomes another user, and lists the successful calls of that user."""

COMPLETE = """
import os, signal, sys
from kazoo.client import KazooClient
from txtopo.state import embedded
left, set_acls = int(sys.argv[2]), KazooClient.set_acls
def counted(client, path, acls):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return set_acls(client, path, acls)
KazooClient.set_acls = counted
with embedded.EmbeddedZooKeeper(sys.argv[1]):
    pass
print(left)
"""
"""Starts a server, and is killed when it would change the rights on one more znode than it is
allowed."""


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may enter, like directories of a shared machine; files are made
    as umask 000 makes them."""
    path = Path(tempfile.mkdtemp(prefix="txtopo-test-"))
    path.chmod(0o755)
    umask = os.umask(0)
    try:
        yield path
    finally:
        os.umask(umask)
        # A server whose owner was killed may write there until its watchdog has ended it.
        owners.wait_until_none_is_left(path)
        shutil.rmtree(path)


def old_directory(data_dir: Path) -> Path:
    """A data directory as earlier versions made them, with the state of a topology that has
    committed three transactions."""
    program = readers.RECORDING.replace(
        "EmbeddedZooKeeper(sys.argv[1])", "EmbeddedZooKeeper(sys.argv[1], is_private=False)"
    )
    with owners.Owner(data_dir, program) as owner:
        assert owner.report()["committed"] == 3
        owner.kill()
    for path in (data_dir, *data_dir.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return data_dir


def znodes_open_to_others(client: KazooClient, path: str = "/") -> list[str]:
    """The znodes that another user may use, ZooKeeper's own description of its configuration
    excepted."""
    if path == "/zookeeper/config":
        return []
    paths = [path] if any(right.id.scheme == "world" for right in client.get_acls(path)[0]) else []
    for name in client.get_children(path):
        paths += znodes_open_to_others(client, f"{path.rstrip('/')}/{name}")
    return paths


def files_open_to_others(data_dir: Path) -> list[str]:
    return [
        str(path)
        for path in (data_dir, *data_dir.rglob("*"))
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


def what_another_user_can_do(hosts: str, data_dir: Path) -> list[str]:
    """Every call that succeeds, or fails for another reason than rights."""
    if os.getuid() != 0:
        pytest.skip(
            "NOT TESTED: only root can become another user, and show that such a user is kept out"
        )
    paths = [str(path) for path in data_dir.rglob("*") if path.is_file()]
    command = [sys.executable, "-c", INTRUDING, hosts, str(data_dir), str(PATIENCE_S), *paths]
    intruder = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert intruder.returncode == 0, intruder.stderr
    report = json.loads(intruder.stdout)
    assert report["uid"] == NOBODY
    successes: list[str] = report["done"]
    return successes


def test_another_user_can_do_nothing_to_a_directory_and_its_zookeeper(open_place: Path) -> None:
    data_dir = open_place / "state"
    with owners.Owner(data_dir, readers.RECORDING) as owner:
        assert owner.report()["committed"] == 3
        owner.kill()
    with embedded.EmbeddedZooKeeper(data_dir) as zookeeper:
        with client_of(zookeeper.hosts) as client:
            assert znodes_open_to_others(client) == []
        assert files_open_to_others(data_dir) == []
        assert what_another_user_can_do(zookeeper.hosts, data_dir) == []
    assert visible_txid("words", data_dir=data_dir) == 3


def test_the_same_user_is_let_in_through_the_directory_and_not_through_the_address(
    open_place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data_dir = open_place / "state"
    with owners.Owner(data_dir, readers.RECORDING) as owner:
        hosts = owner.report()["hosts"]
        assert cli.main(["status", "--data-dir", str(data_dir), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["topologies"][0]["running"] is True
        with pytest.raises(
            ZooKeeperAccessError,
            match="To reach a data directory's ZooKeeper, name the directory",
        ):
            visible_txid("words", zookeeper=str(hosts))
        owner.kill()


@pytest.mark.thorough
def test_an_old_directory_is_brought_forward_at_its_first_use(open_place: Path) -> None:
    data_dir = old_directory(open_place / "state")
    assert visible_txid("words", data_dir=data_dir) == 3
    copied = shutil.copytree(data_dir, open_place / "copied")
    with embedded.EmbeddedZooKeeper(copied, is_private=False) as zookeeper:
        assert "set /txtopo/words/current" in what_another_user_can_do(zookeeper.hosts, copied), (
            "what this is about"
        )
    with owners.Owner(data_dir, readers.RECORDING) as owner:
        report = owner.report()
        assert report["committed"] == 6
        with client_of(str(report["hosts"]), data_dir) as client:
            assert znodes_open_to_others(client) == []
        assert files_open_to_others(data_dir) == []
        assert what_another_user_can_do(str(report["hosts"]), data_dir) == []
        owner.kill()


@pytest.mark.thorough
def test_a_directory_whose_migration_was_killed_anywhere_is_migrated_by_the_next_owner(
    open_place: Path,
) -> None:
    original = old_directory(open_place / "original")
    left, counts = -1, (0, 1, 6, 12, 1000)
    for count in counts:
        data_dir = shutil.copytree(original, open_place / f"killed-{count}")
        command = [sys.executable, "-c", COMPLETE, str(data_dir), str(count)]
        killed = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if killed.returncode == 0:
            left = int(killed.stdout)
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        with (
            embedded.EmbeddedZooKeeper(data_dir) as zookeeper,
            client_of(zookeeper.hosts) as client,
        ):
            assert znodes_open_to_others(client) == [], f"killed after {count}"
        assert visible_txid("words", data_dir=data_dir) == 3
    assert left >= 0, "it came to its end at last"


@pytest.mark.thorough
def test_a_directory_whose_zookeeper_comes_from_an_old_copy_is_brought_forward_again(
    open_place: Path,
) -> None:
    data_dir, copied = open_place / "state", old_directory(open_place / "old")
    with embedded.EmbeddedZooKeeper(data_dir):
        pass
    shutil.rmtree(data_dir / "zookeeper")
    shutil.copytree(copied / "zookeeper", data_dir / "zookeeper")
    with embedded.EmbeddedZooKeeper(data_dir) as zookeeper, client_of(zookeeper.hosts) as client:
        assert znodes_open_to_others(client) == []


THIEF = """
import contextlib, json, os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
    print("listening", flush=True)
    heard = []
    while True:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            if sys.argv[2] == "answers":
                # What the server of this directory says when it serves.
                connection.sendall(f"dataDir={sys.argv[3]}/zookeeper/version-2\\n".encode())
            heard.append(connection.recv(4096).decode(errors="replace"))
        if heard and heard[-1] == "the end":
            break
print(json.dumps(heard[:-1]))
"""
"""Becomes another user, takes a port, and prints the bytes it was sent."""


class Thief:
    """Another user's process on the port of a server that has ended; lives inside a ``with``."""

    def __init__(self, port: int, data_dir: Path, how: str = "silent") -> None:
        if os.getuid() != 0:
            pytest.skip(
                "NOT TESTED: only root can become another user, and show that such a user is kept out"
            )
        self.port = port
        self._process = subprocess.Popen(
            [sys.executable, "-c", THIEF, str(port), how, str(data_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        self._said = self._process.stdout

    def __enter__(self) -> Self:
        assert self._said.readline() == "listening\n", self._said.read()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def heard(self) -> list[str]:
        """All that it was sent."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as connection:
            connection.sendall(b"the end")
        heard: list[str] = json.loads(self._said.read())
        return heard


class PatientStore(ZooKeeperStateStore):
    """Its time to connect ends when the peer of the port is known to be another user's."""

    def wait_until_connected(self, timeout_s: float) -> bool:
        wait_until(lambda: self._link.refusal is not None, "the peer of the port is known")
        return False


def port_of(hosts: str) -> int:
    return int(hosts.rpartition(":")[2])


@pytest.mark.rule(37)
def test_a_client_sends_nothing_to_another_user_who_has_taken_the_port(tmp_path: Path) -> None:
    """Not a byte: the key of its session would do as well as the password."""
    with embedded.EmbeddedZooKeeper(tmp_path, choose_port=free_port) as zookeeper:
        owner, hosts = credentials.owner_of_directory(tmp_path), zookeeper.hosts
        client = ZooKeeperStateStore(hosts, owner=owner)
    with closing(client), Thief(port_of(hosts), tmp_path) as thief:
        wait_until(
            lambda: client._link.refusal is not None,
            "the client has asked for the user of the port",
        )
        with pytest.raises(
            ZooKeeperAccessError,
            match=r"another user's process \(uid 65534\) listens.*\n.*did not get the password",
        ):
            PatientStore(hosts, owner=owner)
        assert set(thief.heard()) == {""}


def test_a_start_on_a_port_that_another_user_has_taken_goes_to_the_next_port(
    tmp_path: Path,
) -> None:
    ports = free_ports(2)
    with Thief(ports[0], tmp_path, "answers") as thief:
        chosen = iter(ports)
        with embedded.EmbeddedZooKeeper(tmp_path, choose_port=lambda: next(chosen)) as zookeeper:
            assert port_of(zookeeper.hosts) == ports[1]
        assert set(thief.heard()) <= {""}


@pytest.mark.thorough
def test_a_restart_on_a_port_that_another_user_has_taken_fails_and_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "PORT_ATTEMPTS", 1)
    with embedded.EmbeddedZooKeeper(tmp_path, choose_port=free_port) as zookeeper:
        os.kill(zookeeper.pid, signal.SIGKILL)
        assert owners.has_ended(zookeeper.pid), "and all its threads: the port is free"
        with Thief(port_of(zookeeper.hosts), tmp_path, "answers") as thief:
            with pytest.raises(ZooKeeperUnavailableError, match="BindException"):
                zookeeper.restart()
            assert set(thief.heard()) <= {""}


def test_a_password_opens_nothing_for_the_next_owner_of_the_directory(tmp_path: Path) -> None:
    with (
        embedded.EmbeddedZooKeeper(tmp_path) as zookeeper,
        closing(ZooKeeperStateStore(zookeeper.hosts)) as store,
    ):
        store.ensure("/words")
        stolen = credentials.owner_of_directory(tmp_path)
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        with pytest.raises(ZooKeeperAccessError, match="NoAuthError"):
            ZooKeeperStateStore(zookeeper.hosts, owner=stolen)
        with closing(ZooKeeperStateStore(zookeeper.hosts)) as store:
            assert store.get("/words") is not None


@pytest.mark.thorough
def test_a_copy_without_the_file_of_its_user_is_that_of_the_user_who_opens_it(
    open_place: Path,
) -> None:
    with (
        embedded.EmbeddedZooKeeper(open_place / "state") as zookeeper,
        closing(ZooKeeperStateStore(zookeeper.hosts)) as store,
    ):
        store.ensure("/words")
    (open_place / "state" / credentials.OWNER_FILE).unlink()
    with (
        embedded.EmbeddedZooKeeper(open_place / "state") as zookeeper,
        closing(ZooKeeperStateStore(zookeeper.hosts)) as store,
    ):
        assert store.children("/") == ["words"]


def test_credentials_of_the_user_work_in_a_data_directory_and_so_does_the_directory(
    tmp_path: Path,
) -> None:
    ann = credentials.Credentials("digest", "ann", "sesame")
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        with closing(ZooKeeperStateStore(zookeeper.hosts, login=ann)) as store:
            store.ensure("/words")
            store.require_protected("/words")
        with closing(ZooKeeperStateStore(zookeeper.hosts)) as store:
            assert store.get("/words") is not None
            store.ensure("/letters")
        with closing(ZooKeeperStateStore(zookeeper.hosts, login=ann)) as store:
            assert store.children("/") == ["letters", "words"]
        alone = KazooClient(zookeeper.hosts, auth_data=[("digest", "ann:sesame")])
        alone.start(timeout=PATIENCE_S)
        assert alone.get("/txtopo/words")[0] == b""
        with pytest.raises(KazooException):
            alone.get("/txtopo/letters")
        alone.stop()
        alone.close()


@pytest.mark.thorough
def test_a_directory_with_other_things_in_it_keeps_its_mode_and_ours_in_it_are_private(
    open_place: Path,
) -> None:
    (open_place / "notes.txt").write_text("mine")
    with embedded.EmbeddedZooKeeper(open_place) as zookeeper:
        assert stat.S_IMODE(open_place.stat().st_mode) == 0o755
        assert files_open_to_others(open_place) == [str(open_place), str(open_place / "notes.txt")]
        paths = [
            path
            for path in what_another_user_can_do(zookeeper.hosts, open_place)
            if "notes.txt" not in path
        ]
        assert paths == ["listed the directory"]


def test_a_directory_writable_for_all_users_is_refused_unless_it_is_ours_alone(
    open_place: Path,
) -> None:
    data_dir = open_place / "state"
    data_dir.mkdir(mode=0o777)
    with embedded.EmbeddedZooKeeper(data_dir):
        assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    shared = open_place / "shared"
    shared.mkdir(mode=0o777)
    (shared / "notes.txt").touch()
    with pytest.raises(
        SetupError, match=f"every user may write to the data directory {shared}.*\n.*chmod o-w"
    ):
        privacy.close_to_others(shared)
    shared.chmod(0o1777)
    privacy.close_to_others(shared)


def test_a_file_of_the_user_that_is_damaged_is_told_without_the_password(tmp_path: Path) -> None:
    (tmp_path / credentials.OWNER_FILE).write_text('{"user": "txtopo", "password": "sesame"')
    with pytest.raises(ConfigError, match="does not name its ZooKeeper's user") as caught:
        credentials.owner_of_directory(tmp_path)
    assert "sesame" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_password_is_in_no_command_line_and_in_nothing_the_server_writes(
    tmp_path: Path,
) -> None:
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        with closing(ZooKeeperStateStore(zookeeper.hosts)) as store:
            store.ensure("/words")
        owner = credentials.owner_of_directory(tmp_path)
        assert owner is not None
        password = owner.reveal().encode()
        assert len(password) >= 32
        holding = [
            path.name
            for path in tmp_path.rglob("*")
            if path.is_file() and password in path.read_bytes()
        ]
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in owners.processes_of(tmp_path)]
    assert holding == [credentials.OWNER_FILE]
    assert not any(password in line for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        "srst",
        "crst",
        "stmk",
        "dump",
        "cons",
        "mntr",
        "envi",
        "wchp",
        "wchc",
        "wchs",
        "isro",
        "hash",
        "gtmk",
    ],
)
def test_the_server_answers_no_four_letter_words_but_three(
    server: embedded.EmbeddedZooKeeper, words: str
) -> None:
    with socket.create_connection(
        ("127.0.0.1", int(server.hosts.partition(":")[2])), PATIENCE_S
    ) as connection:
        connection.sendall(words.encode())
        answer = connection.makefile("rb").read()
    assert b"not executed because it is not in the whitelist" in answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with embedded.EmbeddedZooKeeper(tmp_path_factory.mktemp("server")) as server:
        yield server
